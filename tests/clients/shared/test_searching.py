"""``search`` gives the same hits in every kind of database."""

from __future__ import annotations

import concurrent.futures
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients.shared.places import AnyDatabase, AnySearch, Place, Twin, check_hits, fresh_names
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
from tests.native.oracle import Codes, Floats, Truth
from whamming import Hit
from whamming.native import Plan
from whamming.storage import IndexSettings


def arguments(form: str, table: Floats, settings: IndexSettings, code: Codes) -> tuple[dict[str, Any], Floats]:
    """Return a query for a code, lowest bit first, in one of three forms, and its cost table."""
    if form == "table":
        return {"table": table}, table
    bits = np.unpackbits(code, count=settings.bits, bitorder="little").astype(bool)
    weights = np.ones(settings.bits) if form == "code" else table.sum(axis=1)
    given: dict[str, Any] = {"code": settings.from_engine(code)}
    if form == "weights":
        given["weights"] = weights
    return given, np.stack([np.where(bits, weights, 0.0), np.where(bits, 0.0, weights)], axis=1)


def walk(search: AnySearch, expected: Truth, everything: Truth) -> list[Hit]:
    """Iterate to the end, and check that the lower bound is valid and never decreases."""
    hits: list[Hit] = []
    last = -math.inf
    for hit in search:
        hits.append(hit)
        bound = search.lower_bound
        assert bound >= last
        last = bound
        if len(hits) < len(everything):
            assert bound <= everything.distances[len(hits)]
    assert [hit.id for hit in hits] == expected.ids.tolist()
    assert np.array([hit.distance for hit in hits]).tobytes() == expected.distances.tobytes()
    assert list(search) == []
    return hits


@given(data=st.data())
@generated(12)
def test_searches(place: Place, cases: Cases, data: st.DataObject) -> None:
    items = data.draw(datasets(most=200))
    tables, buckets = data.draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(items.seed)
    with place.open() as database:
        name = next(fresh_names)
        order: Any = data.draw(st.sampled_from(["little", "big"]))
        twin = Twin(database, name, items.bits, bit_order=order, tables=tables, buckets=buckets)
        ids = np.arange(items.n, dtype=np.uint64) if items.ids is None else items.ids
        payloads: list[bytes | None] = [b"%d" % id_ * int(rng.integers(0, 3)) for id_ in ids]
        half = items.n // 2
        for part in (slice(0, half), slice(half // 2, None)):
            twin.upsert(ids[part], items.codes[part], payloads[part])
            data.draw(st.sampled_from([lambda: None, twin.index.seal, twin.index.compact]))()
        twin.delete(ids[: items.n // 10])
        plans: tuple[Plan, ...] = ("auto", "sweep") if tables == "none" else ("auto", "probe", "sweep")
        for form, kind in data.draw(queries()):
            code = items.codes[rng.integers(items.n)] if items.n else make_codes("uniform", 1, items.bits, rng)[0]
            query, table = arguments(form, make_table(kind, code, items.bits, rng), twin.index.settings, code)
            whole = twin.model.answer(table)
            plan = data.draw(st.sampled_from(plans))
            k = data.draw(st.sampled_from([1, 3, 50, len(whole) + 1]))
            inside = data.draw(st.sampled_from([0.0, 0.2, 1.0]))
            radius = float(whole.distances[int(inside * (len(whole) - 1))]) if len(whole) else 0.0
            search = twin.index.search
            check_hits(search(**query, k=k, plan=plan).all(), whole[:k])
            check_hits(search(**query, radius=radius, plan=plan).all(), whole.within(radius))
            check_hits(search(**query, k=k, radius=radius, plan=plan).all(), whole.within(radius)[:k])
            hits = walk(search(**query, plan=plan, payloads=True), whole, whole)
            assert [hit.payload for hit in hits] == [twin.model.items[hit.id][1] for hit in hits]
            walk(search(**query, k=k), whole[:k], whole)
            if len(whole):
                place_ = int(rng.integers(len(whole)))
                after = float(whole.distances[place_]), int(whole.ids[place_])
                check_hits(search(**query, after=after, plan=plan).all(), whole.after_item(*after))
            with search(**query, plan=plan) as pieces:
                first, second = pieces.next(2), pieces.next(k)
                third = pieces.all()
                assert pieces.stats.candidates >= min(1, len(whole))
            check_hits([np.concatenate(parts) for parts in zip(first, second, third, strict=True)], whole)
            check_hits(
                twin.index.search_batch(query.get("code"), query.get("weights"), table=query.get("table"), k=k),
                whole[:k],
            )
            cases.add(8)
        database.drop_index(name)


def queries() -> st.SearchStrategy[list[tuple[str, WeightKind]]]:
    weighty = st.sampled_from([kind for kind in WEIGHT_KINDS if kind not in TABLE_KINDS])
    one = st.one_of(
        st.tuples(st.just("table"), st.sampled_from(WEIGHT_KINDS)),
        st.tuples(st.just("weights"), weighty),
        st.just(("code", WEIGHT_KINDS[0])),
    )
    return st.lists(one, min_size=1, max_size=2)


@pytest.mark.parametrize("weight", [0.1, 1e18])
def test_paging_ends_although_many_rounded_distances_are_equal(database: AnyDatabase, name: str, weight: float) -> None:
    """Each distance belongs to more items than a page has."""
    twin = Twin(database, name, 24)
    rng = np.random.default_rng(0)
    twin.upsert(rng.permutation(60), np.repeat(rng.integers(0, 256, (3, 3), dtype=np.uint8), 20, axis=0))
    code, weights = rng.integers(0, 256, 3, dtype=np.uint8), np.full(24, weight)
    weights[1:] = 0.1
    query, table = arguments("weights", np.stack([weights, 0 * weights], axis=1), twin.index.settings, code)
    query["weights"] = weights
    whole = twin.model.answer(table)
    assert whole.rounded
    after, pages = None, []
    for _ in range(9):
        pages.append(twin.index.search(**query, k=7, after=after).all())
        after = float(pages[-1][1][-1]), int(pages[-1][0][-1])
    assert [ids.tolist() for ids, _ in pages] == [whole.ids[first : first + 7].tolist() for first in range(0, 63, 7)]
    last_id = pages[3][0][-1]
    twin.delete([last_id])  # its exact distance is no longer known, so its equals come again
    ids, _ = twin.index.search(**query, after=(float(pages[3][1][-1]), int(last_id))).all()
    assert ids.tolist() == twin.model.answer(table).after(float(pages[3][1][-1]), int(last_id)).ids.tolist()


def test_no_hits_at_all(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 9)
    code = np.zeros(2, dtype=np.uint8)
    for options in ({}, {"k": 5}, {"radius": 1.0}, {"k": 0}):
        search = index.search(code, **options)
        assert list(search) == []
        assert len(search.all()[0]) == 0
    assert index.search(code).lower_bound <= math.inf
    search = index.search(code)
    assert list(search) == []
    assert search.lower_bound == math.inf
    assert index.search_batch(code[None], k=0).ids.shape == (1, 0)
    assert index.search_batch(code, k=3).ids.shape == (0,)


def test_accepts_numpy_numbers(twin: Twin) -> None:
    table = np.random.default_rng(0).random((13, 2))
    whole = twin.model.answer(table)
    found = twin.index.search(table=table, k=np.int64(5), radius=np.float32(100), after=(np.float64(-1), np.uint64(3)))  # type: ignore[arg-type]
    check_hits(found.all(), whole[:5])
    check_hits(twin.index.search_batch(table=table, k=np.uint8(5)), whole[:5])  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"k": 2**31}, {"k": 2**62}, {"radius": math.inf}, {"radius": 1e308}])
def test_limits_larger_than_the_index(twin: Twin, options: dict[str, Any]) -> None:
    table = np.random.default_rng(0).random((13, 2))
    check_hits(twin.index.search(table=table, **options).all(), twin.model.answer(table))


def test_leaving_a_search_early(twin: Twin) -> None:
    code = np.zeros(2, dtype=np.uint8)
    for _ in range(5):
        for hit in twin.index.search(code):
            assert hit.distance >= 0
            break
    search = twin.index.search(code)
    next(search)
    search.close()
    search.close()
    twin.check()


def test_a_search_sees_a_snapshot(twin: Twin) -> None:
    """Writes during a search do not affect it."""
    table = np.random.default_rng(0).random((13, 2))
    whole = twin.model.answer(table)
    search = twin.index.search(table=table)
    first = next(search)
    twin.delete(whole.ids[5:20])
    twin.fill(30, seed=9)
    ids, _ = search.all()
    assert [first.id, *ids.tolist()] == whole.ids.tolist()
    twin.check()


def test_threads_share_an_index(twin: Twin) -> None:
    tables = np.random.default_rng(0).random((40, 13, 2))

    def ask(row: int) -> None:
        expected = twin.model.answer(tables[row])
        check_hits(twin.index.search(table=tables[row]).all(), expected)
        check_hits(twin.index.search_batch(table=tables[row], k=7), expected[:7])
        assert twin.index.get([row]).found.all()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(40)))
