"""Generated conversations on a Search call, compared with the oracle."""

from __future__ import annotations

import asyncio
import math
from typing import Any, Literal

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Cases
from tests.native.examples import (
    LAYOUTS,
    TABLE_KINDS,
    WEIGHT_KINDS,
    WeightKind,
    datasets,
    generated,
    make_codes,
    make_table,
)
from tests.native.oracle import Floats
from tests.server import threaded_calls
from tests.server.calls import Bench, answer_of, batch
from tests.server.threaded_calls import names
from whamming import Database
from whamming.native import Position
from whamming.server.search import results
from whamming.v1.search_pb2 import QueryBatch, QueryOptions

database = threaded_calls.database
Form = Literal["codes", "weights", "tables"]
FORMS: tuple[Form, ...] = ("codes", "weights", "tables")


@st.composite
def query_options(draw: st.DrawFn, n: int, plans: tuple[int, ...]) -> QueryOptions:
    options = QueryOptions(plan=draw(st.sampled_from(plans)), payloads=draw(st.booleans()))  # type: ignore[arg-type]
    options.chunk_size = draw(st.sampled_from([0, 0, 1, 3, 64, 2**32 - 1]))
    if draw(st.booleans()):
        options.k = draw(st.sampled_from([1, 2, 10, 100, max(n, 1), n + 1, 2**31 - 1]))
    if draw(st.integers(0, 2)) == 0:
        options.credit = draw(st.sampled_from([0, 1, 7, 100]))
    return options


def columns(form: Form, kind: WeightKind, near: Any, bits: int, big: bool, rng: Any) -> tuple[dict[str, Any], Floats]:
    """Return the costs of queries near codes ``[n, bytes]`` in the given form, and as tables ``[n, bits, 2]``."""
    if form == "weights" and kind in TABLE_KINDS:
        kind = "negative"
    tables = np.stack([make_table("equal" if form == "codes" else kind, code, bits, rng) for code in near])
    if form == "tables":
        return {"tables": tables}, tables
    sent = np.packbits(np.unpackbits(near, axis=1, bitorder="little"), axis=1) if big else near
    if form == "codes":
        return {"codes": sent.tobytes()}, np.sign(tables)
    return {"codes": sent.tobytes(), "weights": tables.sum(axis=2)}, tables  # one of the two costs is zero


@given(data=st.data())
@generated(25)
def test_generated_conversations_match_the_oracle(cases: Cases, database: Database, data: st.DataObject) -> None:
    """Send batches of all kinds of queries on one call, and grant credit meanwhile."""
    items = data.draw(datasets(most=300))
    tables, buckets = data.draw(st.sampled_from(LAYOUTS))
    order = data.draw(st.sampled_from(["little", "big"]))
    rng = np.random.default_rng(items.seed)
    plans = (0, 1, 3) if tables == "none" else (0, 1, 2, 3)
    name = f"made-{next(names)}"
    index = database.create_index(name, items.bits, bit_order=order, tables=tables, buckets=buckets)  # type: ignore[arg-type]
    ids = np.arange(items.n, dtype=np.uint64) if items.ids is None else items.ids
    payloads = {int(id_): b"%d" % id_ * int(rng.integers(0, 4)) for id_ in ids}
    for part in (slice(0, items.n // 2), slice(items.n // 2, None)):
        index.upsert(ids[part], items.codes[part], [payloads[int(id_)] for id_ in ids[part]])
        if data.draw(st.booleans()):
            index.seal()
    index.delete(ids[: items.n // 10])
    asked: dict[int, tuple[Floats, QueryOptions]] = {}
    numbers = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=12, unique=True))
    batches: list[QueryBatch] = []
    while numbers:
        chosen = [numbers.pop() for _ in range(min(len(numbers), data.draw(st.integers(1, 5))))]
        near = make_codes("uniform", len(chosen), items.bits, rng)
        form, kind = data.draw(st.sampled_from(FORMS)), data.draw(st.sampled_from(WEIGHT_KINDS))
        given, costs = columns(form, kind, near, items.bits, order == "big", rng)
        options = data.draw(query_options(len(index), plans))
        inside = data.draw(st.sampled_from([None, None, 0.0, 0.1, 0.7, 1.0]))
        first = answer_of(index, costs[0])
        if inside is not None and len(first):
            options.radius = first.distances[int(inside * (len(first) - 1))]
        batches.append(batch(name, chosen, options, **given))
        asked.update({query_id: (table, options) for query_id, table in zip(chosen, costs, strict=True)})

    async def converse() -> dict[int, Any]:
        bench = Bench(database, 2)
        call = bench.call()
        for message in batches:
            call.ask(message)
        while not all(account.has_ended for account in call.accounts.values()):
            for query_id, account in call.accounts.items():
                if not account.has_ended and account.granted <= len(account.ids):
                    call.grant(query_id, int(rng.integers(1, 40)))
            await call.read_message()
        await call.finish()
        bench.close()
        return call.accounts

    for query_id, account in asyncio.run(converse()).items():
        table, options = asked[query_id]
        answer = answer_of(index, table)
        hits = answer.within(options.radius if options.HasField("radius") else None)
        is_complete = options.HasField("k") and len(hits) >= options.k
        hits = hits[: options.k] if is_complete else hits
        assert account.hits.bytes() == hits.bytes()
        assert account.reason == (results.COMPLETE if is_complete else results.EXHAUSTED)
        account.check_prefix(answer)
        if options.payloads:
            assert account.payloads == [payloads[id_] for id_ in account.ids]
        if not is_complete and not options.HasField("radius"):
            assert account.bounds[-1] == math.inf
        cases.add()
    database.drop_index(name)


@given(cuts=st.lists(st.integers(1, 60), max_size=8), kind=st.sampled_from(WEIGHT_KINDS))
@generated(15)
def test_resumed_searches_add_up_to_the_whole_answer(
    database: Database, cases: Cases, cuts: list[int], kind: WeightKind
) -> None:
    """A search is stopped and resumed several times, by k or by cancelling, with a compaction in between."""
    rng = np.random.default_rng(len(cuts))
    name = f"pieces-{next(names)}"
    index = database.create_index(name, 12)
    codes = make_codes("uniform", 150, 12, rng)
    index.upsert(range(150), codes)
    table = make_table(kind, codes[0], 12, rng)

    async def search() -> tuple[list[int], list[float]]:
        bench = Bench(database, 1)
        ids: list[int] = []
        distances: list[float] = []
        place: Position | None = None
        for turn, cut in enumerate([*cuts, 200]):
            call = bench.call()
            after = [place] if place else []
            options = QueryOptions(k=cut) if turn % 2 else QueryOptions(credit=cut)
            call.ask(batch(name, [1], options, tables=table[None], after=after))
            account = call[1]
            while not account.has_ended and len(account.ids) < cut:
                assert await call.read_message()
            call.cancel(1)
            await call.finish()
            ids += account.ids
            distances += account.distances
            place = account.last if account.ids else place
            if turn == 1:
                index.compact()
        bench.close()
        return ids, distances

    ids, distances = asyncio.run(search())
    answer = answer_of(index, table)
    assert ids == answer.ids.tolist()
    assert distances == answer.distances.tolist()
    cases.add()
    database.drop_index(name)
