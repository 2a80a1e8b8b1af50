"""The contract of a store, on each of them: what is written is found, by every search, for as long as promised."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import whamming
from tests.conftest import Cases
from tests.native.examples import CODE_KINDS, LAYOUTS, WEIGHT_KINDS, CodeKind, WeightKind, generated, make_codes
from tests.native.examples import make_table as costs_around
from tests.native.oracle import Codes, Floats
from tests.storage.conftest import Place
from tests.storage.model import Model, check_answers, check_items
from whamming import Budget, Database, InvalidArgumentError, StoredIndex
from whamming.native import Buckets, Tables
from whamming.storage import (
    BitOrder,
    ClosedError,
    Durability,
    IndexSettings,
    Snapshot,
    WriteBatch,
    maintenance,
)
from whamming.storage.segmented import SegmentedStore

EDGE_IDS = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def random_codes(n: int, bits: int, seed: int = 0) -> Codes:
    return make_codes("uniform", n, bits, np.random.default_rng(seed))


def random_table(bits: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(bits, 2))


@dataclass
class Twin:
    """An index, and its model that is told the same."""

    index: StoredIndex
    model: Model

    @classmethod
    def create(cls, database: Database, bits: int = 13, name: str = "docs", **options: Any) -> Twin:
        index = database.create_index(name, bits, **options)
        return cls(index, Model(index.settings))

    def upsert(self, ids: Any, codes: Codes, payloads: list[bytes | None] | None = None, **options: Any) -> None:
        self.index.upsert(ids, codes, payloads, **options)
        self.model.upsert(ids, codes, payloads)

    def delete(self, ids: Any, **options: Any) -> None:
        self.index.delete(ids, **options)
        self.model.delete(ids)

    def layer(self, seed: int = 0) -> None:
        """Write so that there are segments, dead items in them, recent writes, and items that were replaced."""
        bits = self.index.settings.bits
        codes = random_codes(90, bits, seed)
        payloads: list[bytes | None] = [b"p%d" % i if i % 3 else None for i in range(90)]
        self.upsert(range(40), codes[:40], payloads[:40])
        self.index.seal()
        self.upsert(range(30, 60), codes[40:70], payloads[40:70])
        self.delete([2, 5, 31, 32])
        self.index.seal()
        self.upsert([*range(55, 68), *EDGE_IDS], codes[70:], payloads[70:])
        self.delete([6, 50, 56])

    def check(self) -> None:
        check_items(self.index.snapshot(), self.model)
        for seed in range(2):
            check_answers(self.index.snapshot(), self.model, random_table(self.index.settings.bits, seed), 20)


@pytest.fixture
def twin(place: Place) -> Iterator[Twin]:
    """An index of 13 bits with something of everything in it."""
    with place.open() as database:
        made = Twin.create(database)
        made.layer()
        yield made


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what happens in the background."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen within 20 seconds"
        time.sleep(0.002)


# -- writing ---------------------------------------------------------------------------------------------------------


def test_what_is_written_is_found(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.check()
        twin.upsert([5, 9, 7], random_codes(3, 13))
        twin.check()
        twin.upsert([9, 11], random_codes(2, 13, seed=1))
        twin.check()
        twin.delete([7])
        twin.check()
        twin.delete([7, 12345])
        twin.delete([7])
        twin.check()
        twin.delete([5, 9, 11])
        twin.check()
        assert len(twin.index) == 0
        twin.upsert([7], random_codes(1, 13, seed=2))
        twin.check()


def test_every_layer_is_found(twin: Twin) -> None:
    twin.check()
    twin.index.seal()
    twin.check()
    twin.index.compact()
    twin.check()


def test_the_least_and_the_greatest_id(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.upsert([0, 2**64 - 1], random_codes(2, 13), [b"least", b"greatest"])
        twin.check()
        assert twin.index.get([2**64 - 1, 0]).payloads == [b"greatest", b"least"]
        twin.index.seal()
        twin.upsert(np.array([2**64 - 1, 0], dtype=np.uint64), random_codes(2, 13, seed=1))
        twin.check()
        twin.delete([2**64 - 1, 0])
        twin.check()


@pytest.mark.parametrize("ids", [[0, 2**64 - 1], (2**63, 1), [np.uint64(2**64 - 1), 0], range(3, 5)])
def test_ids_may_be_given_in_any_form(place: Place, ids: Any) -> None:
    with place.open() as database:
        index = database.create_index("docs", 8)
        index.upsert(ids, np.array([[1], [2]], dtype=np.uint8))
        assert index.get(ids).codes.tolist() == [[1], [2]]
        assert {int(i) for rows in index.snapshot().scan() for i in rows.ids} == {int(i) for i in ids}
        index.delete(ids)
        assert len(index) == 0


def test_an_empty_batch_does_nothing(twin: Twin) -> None:
    before = twin.index.stats()
    twin.index.upsert([], [])
    twin.index.upsert(np.empty(0, dtype=np.uint64), np.empty((0, 2), dtype=np.uint8), [])
    twin.index.delete([])
    twin.index.write(WriteBatch.of(twin.index.settings))
    assert twin.index.stats() == before
    assert len(twin.index.get([])) == 0
    twin.check()


def test_of_an_id_that_repeats_the_last_item_counts(twin: Twin) -> None:
    codes = random_codes(6, 13, seed=9)
    twin.upsert([70, 71, 70, 1, 70, 1], codes, [b"a", b"b", b"c", b"d", None, b"f"])
    twin.check()
    assert twin.index.get([70, 1]).payloads == [b"", b"f"]


def test_a_batch_deletes_first_and_then_upserts(twin: Twin) -> None:
    codes = random_codes(3, 13, seed=9)
    twin.index.write(WriteBatch.of(twin.index.settings, [1, 80, 80], codes, deletes=[1, 80, 4, 4]))
    twin.model.delete([1, 80, 4])
    twin.model.upsert([1, 80, 80], codes)
    twin.check()


def test_no_payload_is_an_empty_payload(twin: Twin) -> None:
    codes = random_codes(4, 13, seed=9)
    twin.upsert([1, 2, 3, 4], codes, [b"x", b"", None, b"y" * 65_536])
    twin.check()
    twin.index.seal()
    twin.upsert([1, 4], codes[:2])
    twin.check()
    assert twin.index.get([1, 2, 3, 4, 7777]).payloads == [b""] * 5
    assert twin.index.snapshot().payloads(np.array([4, 7777], dtype=np.uint64)) == [b"", b""]


BAD_BATCHES: dict[str, tuple[Any, Any, Any, str]] = {
    "negative id": ([1, -7, 2], 3, None, r"id -7 of row 1; ids are 0 to 2\*\*64 - 1"),
    "id beyond": ([1, 2, 2**64], 3, None, r"id 18446744073709551616 of row 2; ids are 0 to 2\*\*64 - 1"),
    "negative beside huge": ([2**64 - 1, 2, -1], 3, None, "id -1 of row 2"),
    "fraction": ([0.5, 1, 2], 3, None, "dtype float64; they must be integers"),
    "floats": (np.array([1.0, 2.0, 3.0]), 3, None, "dtype float64; they must be integers"),
    "text": (["a", "b", "c"], 3, None, "they must be integers"),
    "booleans": ([True, False, True], 3, None, "dtype bool; they must be integers"),
    "matrix of ids": ([[1, 2, 3]], 3, None, r"shape \(1, 3\)"),
    "one id": (1, 1, None, r"shape \(\); they must be a list"),
    "more ids": ([1, 2, 3, 4], 3, None, "4 ids but 3 codes"),
    "more codes": ([1, 2], 3, None, "2 ids but 3 codes"),
    "no codes": ([1, 2], None, None, "2 ids but 0 codes"),
    "narrow": ([1, 2], np.zeros((2, 1), dtype=np.uint8), None, r"shape \(2, 1\); 13 bits need \[n, 2\]"),
    "wide": ([1, 2], np.zeros((2, 3), dtype=np.uint8), None, r"shape \(2, 3\); 13 bits need \[n, 2\]"),
    "flat": ([1, 2], np.zeros(4, dtype=np.uint8), None, r"shape \(4,\); 13 bits need \[n, 2\]"),
    "signed": ([1, 2], np.zeros((2, 2), dtype=np.int8), None, "dtype int8, not uint8"),
    "unpacked": ([1, 2], np.zeros((2, 13), dtype=bool), None, "dtype bool, not uint8"),
    "long payload": ([1, 2, 3], 3, [b"", None, b"x" * 65_537], "row 2 has 65537 bytes; at most 65536"),
    "text payload": ([1, 2, 3], 3, [b"", "x", b""], "row 1 is a str; it must be bytes"),
    "few payloads": ([1, 2, 3], 3, [b"x"], "1 payloads for 3 items"),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_batch_with_a_bad_row_is_refused_as_a_whole(what: str, twin: Twin) -> None:
    ids, codes, payloads, message = BAD_BATCHES[what]
    before = twin.index.stats()
    if isinstance(codes, int):
        codes = random_codes(codes, 13, seed=5)
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.upsert(ids, codes, payloads)
    assert twin.index.stats() == before
    twin.check()


def test_bad_deletes_and_lookups_are_refused(twin: Twin) -> None:
    for refuse in (twin.index.delete, twin.index.get):
        with pytest.raises(InvalidArgumentError, match="id -1 of row 2"):
            refuse([1, 2, -1])
        with pytest.raises(InvalidArgumentError, match="dtype float64"):
            refuse([1.0])
    with pytest.raises(InvalidArgumentError, match=r"durability = 'later'.*'fsync', 'async'"):
        twin.index.delete([1], durability="later")  # type: ignore[arg-type]
    twin.check()


def test_what_the_caller_does_to_its_arrays_later_changes_nothing(twin: Twin) -> None:
    ids, codes = np.arange(60, 70, dtype=np.uint64), random_codes(10, 13, seed=3)
    twin.upsert(ids, codes)
    ids[:], codes[:] = 0, 0
    twin.check()
    items = twin.index.get([60, 61])
    items.codes[:] = 77
    twin.check()


# -- codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("bits", [1, 7, 8, 13, 64, 100])
def test_weights_go_by_bit_number_whatever_the_bit_order(place: Place, bits: int, order: BitOrder) -> None:
    rng = np.random.default_rng(bits)
    plain = rng.integers(0, 2, (40, bits), dtype=np.uint8)
    codes = np.packbits(plain, axis=1, bitorder=order)
    spare = -bits % 8
    noise = rng.integers(0, 1 << spare, 40, dtype=np.uint8)
    noisy = codes.copy()
    noisy[:, -1] |= noise if order == "big" else noise << (8 - spare) if spare else 0
    weights = rng.integers(1, 50, bits).astype(np.float64)
    with place.open() as database:
        index = database.create_index("docs", bits, bit_order=order)
        index.upsert(range(20), noisy[:20])
        index.seal()
        index.upsert(range(20, 40), noisy[20:])
        assert (index.get(range(40)).codes == codes).all()
        expected = (plain[5] != plain) @ weights
        ids, distances = index.search(noisy[5], weights=weights).all()
        assert distances.tolist() == sorted(expected)
        assert distances.tolist() == expected[ids.astype(np.int64)].tolist()
        hamming = (plain[5] != plain).sum(axis=1)
        assert {hit.id: hit.distance for hit in index.search(noisy[5])} == dict(enumerate(hamming.tolist()))
        table = np.stack([np.arange(bits), -np.arange(bits) * 0.5], axis=1)
        tabled = table[np.arange(bits), plain].sum(axis=1)
        assert {hit.id: hit.distance for hit in index.search(table=table)} == dict(enumerate(tabled.tolist()))


@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
@pytest.mark.parametrize("bits", [1, 7, 64, 100, 257, 4096])
def test_codes_of_every_length_in_every_layout(place: Place, bits: int, tables: Tables, buckets: Buckets) -> None:
    with place.open() as database:
        twin = Twin.create(database, bits, tables=tables, buckets=buckets)
        twin.layer(seed=bits)
        rng = np.random.default_rng(bits)
        for step in (twin.index.snapshot, twin.index.compact):
            step()
            snapshot = twin.index.snapshot()
            check_items(snapshot, twin.model)
            near = make_codes("uniform", 1, bits, rng)[0]
            check_answers(snapshot, twin.model, costs_around("random", near, bits, rng), 25, 0.7)
            check_answers(snapshot, twin.model, costs_around("equal", near, bits, rng), 200)
        assert {part.index.tables for part in twin.index.snapshot().view.parts} == {tables}


# -- searching -------------------------------------------------------------------------------------------------------


def weighted(twin: Twin, weights: Floats, seed: int = 0) -> tuple[Codes, Floats]:
    """A query code, and its costs as a table."""
    bits = twin.index.settings.bits
    code = random_codes(1, bits, seed)[0]
    ones = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
    return code, np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=1)


def test_the_three_forms_of_a_query(twin: Twin) -> None:
    weights = np.random.default_rng(1).normal(size=13)
    for given in (np.ones(13), weights):
        code, table = weighted(twin, given)
        expected = twin.model.answer(table)
        searches: list[dict[str, Any]] = [{"table": table}, {"code": code, "weights": given}]
        if given is not weights:
            searches.append({"code": code})
        for search in searches:
            ids, distances = twin.index.search(**search).all()
            assert (ids.tobytes(), distances.tobytes()) == expected.bytes()


def test_hits_come_one_by_one_for_as_long_as_asked(twin: Twin) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    with twin.index.search(code, payloads=True) as search:
        hits = []
        for hit in search:
            hits.append(hit)
            assert search.lower_bound >= hit.distance
        assert search.lower_bound == np.inf
        assert search.stats.seconds >= 0
    assert [hit.id for hit in hits] == expected.ids.tolist()
    assert [hit.distance for hit in hits] == expected.distances.tolist()
    assert [hit.payload for hit in hits] == [twin.model.items[hit.id][1] for hit in hits]
    assert all(hit.payload == b"" for hit in twin.index.search(code))
    search = twin.index.search(code)
    first = next(search)
    ids, _ = search.next(4, budget=Budget(seconds=60))
    rest, _ = search.all()
    assert [first.id, *ids.tolist(), *rest.tolist()] == expected.ids.tolist()


@pytest.mark.parametrize("k", [0, 1, 5, 1000, 2**31])
def test_k_and_radius(twin: Twin, k: int) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    assert [hit.id for hit in twin.index.search(code, k=k)] == expected.ids[:k].tolist()
    for radius in (-1.0, 0.0, 3.0, 3.5, 1e300, np.inf):
        near = expected.within(radius)
        ids, distances = twin.index.search(code, k=k, radius=radius).all()
        assert (ids.tobytes(), distances.tobytes()) == near[:k].bytes()


def test_a_search_goes_on_after_any_hit(twin: Twin) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    for cut in range(0, len(expected), 5):
        last = float(expected.distances[cut]), int(expected.ids[cut])
        ids, distances = twin.index.search(code, after=last).all()
        assert (ids.tobytes(), distances.tobytes()) == expected[cut + 1 :].bytes()
        ids, _ = twin.index.search(code, after=last, k=3, radius=5.0).all()
        assert ids.tolist() == expected.after(*last).within(5.0)[:3].ids.tolist()
    last = float(expected.distances[-1]), int(expected.ids[-1])
    assert twin.index.search(code, after=last).all()[0].tolist() == []


def test_a_batch_of_queries(twin: Twin) -> None:
    codes = random_codes(6, 13, seed=4)
    weights = np.random.default_rng(2).normal(size=(6, 13))
    ones = np.unpackbits(codes, axis=1, count=13, bitorder="little").astype(bool)
    tables = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
    for k in (0, 1, 10, len(twin.index)):
        for answer in (
            twin.index.search_batch(codes, weights, k=k),
            twin.index.search_batch(table=tables, k=k, threads=2),
            twin.index.search_batch(codes, weights, k=k, budget=Budget(seconds=60)),
        ):
            ids, distances = answer
            assert ids.shape == distances.shape == (6, k)
            assert answer.exact.all()
            for query in range(6):
                expected = twin.model.answer(tables[query])[:k]
                assert (ids[query].tobytes(), distances[query].tobytes()) == expected.bytes()
    shared = twin.index.search_batch(codes, weights[0], k=3)
    assert (shared.ids[0] == twin.index.search_batch(codes[:1], weights[:1], k=3).ids[0]).all()
    near = twin.index.search_batch(codes, k=7, radius=2.0)
    for query, count in enumerate(near.counts.tolist()):
        assert (near.distances[query, :count] <= 2.0).all()
        assert (near.ids[query, count:] == 2**64 - 1).all()
        assert (near.distances[query, count:] == np.inf).all()
    assert twin.index.search_batch(codes[:0], k=3).ids.shape == (0, 3)


def test_a_budget_that_runs_out_says_what_is_proven(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database, 64)
        twin.upsert(range(3000), random_codes(3000, 64))
        twin.index.seal()
        code, table = weighted(twin, np.ones(64))
        expected = twin.model.answer(table)
        answer = twin.index.search_batch(code[None], k=500, budget=Budget(candidates=1))
        proven = int(answer.proven[0])
        assert answer.ids[0, :proven].tolist() == expected.ids[:proven].tolist()
        assert bool(answer.exact[0]) == (proven == 500)


def test_an_empty_index_answers(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", 13)
        assert list(index.search(random_codes(1, 13)[0])) == []
        answer = index.search_batch(random_codes(2, 13), k=5)
        assert answer.counts.tolist() == [0, 0]
        assert answer.exact.all()
        assert index.get([1]).found.tolist() == [False]
        assert list(index.snapshot().scan()) == []
        index.seal()
        index.compact()
        assert index.stats().segments == 0
        assert index.verify().ok


BAD_SEARCHES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "give a query code, or a cost table"),
    "narrow code": ({"code": np.zeros(1, dtype=np.uint8)}, r"shape \(1, 1\); 13 bits need"),
    "long code": ({"code": np.zeros(3, dtype=np.uint8)}, r"shape \(1, 3\); 13 bits need"),
    "dtype": ({"code": np.zeros(2)}, "dtype float64, not uint8"),
    "several": ({"code": np.zeros((2, 2), dtype=np.uint8)}, "one query, these are 2; use search_batch"),
    "few weights": ({"weights": np.ones(12)}, r"shape \(12,\); the index has codes of 13 bits"),
    "byte weights": ({"weights": np.ones(16)}, r"shape \(16,\); the index has codes of 13 bits"),
    "one weight": ({"weights": 2.0}, r"shape \(\); the index has codes of 13 bits"),
    "NaN": ({"weights": [*[1.0] * 4, np.nan, *[1.0] * 8]}, "bit 4 = . of query 0 is nan"),
    "infinity": ({"weights": [*[1.0] * 12, np.inf]}, "bit 12 = . of query 0 is inf"),
    "short table": ({"code": None, "table": np.ones((12, 2))}, "costs are for 12 bits, the index holds codes of 13"),
    "flat table": ({"code": None, "table": np.ones(26)}, r"shape \(26,\); it must be \[bits, 2\]"),
    "table of NaN": ({"code": None, "table": np.full((13, 2), np.nan)}, "bit 0 = 0 of query 0 is nan"),
    "both": ({"table": np.ones((13, 2))}, "not both"),
    "negative k": ({"k": -1}, "k = -1; it must be 0 or more"),
    "NaN radius": ({"radius": np.nan}, "radius = nan"),
    "plan": ({"plan": "guess"}, "plan = 'guess'; choose one of .*'probe'"),
    "after NaN": ({"after": (np.nan, 1)}, r"after = \(nan, 1\)"),
    "after no id": ({"after": (1.0, 2**64)}, r"after = \(1.0, 18446744073709551616\)"),
}


@pytest.mark.parametrize("what", BAD_SEARCHES)
def test_a_bad_query_is_refused(what: str, twin: Twin) -> None:
    arguments, message = BAD_SEARCHES[what]
    if arguments:
        arguments = {"code": np.zeros(2, dtype=np.uint8), **arguments}
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.search(**arguments)
    if what in ("several", "after NaN", "after no id"):
        return
    if (code := arguments.pop("code", None)) is not None:
        arguments["codes"] = code
    message = "0 to 2147483647" if what == "negative k" else message
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.search_batch(**arguments)


def test_limits_of_a_batch(twin: Twin) -> None:
    codes = random_codes(2, 13)
    with pytest.raises(InvalidArgumentError, match="k = 2147483648; it must be 0 to 2147483647: iterate"):
        twin.index.search_batch(codes, k=2**31)
    with pytest.raises(InvalidArgumentError, match="2 query codes but 3 rows of weights"):
        twin.index.search_batch(codes, np.ones((3, 13)))
    with pytest.raises(InvalidArgumentError, match="threads = 0; it must be 1 to 256"):
        twin.index.search_batch(codes, threads=0)
    with pytest.raises(InvalidArgumentError, match="must be positive"):
        twin.index.search_batch(codes, budget=Budget(candidates=0))


# -- snapshots -------------------------------------------------------------------------------------------------------


def change_everything(twin: Twin) -> None:
    """Write, seal and compact until nothing of what was there is as it was."""
    twin.delete(range(0, 70, 2))
    twin.upsert(range(1, 70, 2), random_codes(35, 13, seed=77), [b"new"] * 35)
    twin.index.seal()
    twin.delete(range(1, 30))
    twin.index.compact()
    twin.upsert(range(100, 120), random_codes(20, 13, seed=78))
    twin.index.seal()


def frozen(twin: Twin) -> Twin:
    """What the index is now, for ever."""
    return Twin(_Frozen(twin.index.snapshot()), twin.model.copy())  # type: ignore[arg-type]


class _Frozen:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.settings = snapshot.settings

    def snapshot(self) -> Snapshot:
        return self._snapshot


def test_a_snapshot_stays_as_it_was(twin: Twin) -> None:
    kept = [frozen(twin)]
    for seed in range(3):
        twin.upsert(range(200, 205), random_codes(5, 13, seed))
        kept.append(frozen(twin))
        twin.index.seal()
        kept.append(frozen(twin))
    change_everything(twin)
    kept.append(frozen(twin))
    twin.check()
    for old in kept:
        old.check()


def test_a_snapshot_outlives_its_index(place: Place) -> None:
    database = place.open()
    twin = Twin.create(database)
    twin.layer()
    kept = frozen(twin)
    search = twin.index.search(random_codes(1, 13)[0])
    first = next(search)
    change_everything(twin)
    later = frozen(twin)
    database.close()
    kept.check()
    later.check()
    assert [first.id, *(hit.id for hit in search)] == [
        hit.id for hit in kept.index.snapshot().view.cursor(whamming.native.Costs.hamming(random_codes(1, 13)[0], 13))
    ]


def test_a_snapshot_outlives_a_dropped_index(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        kept = frozen(twin)
        database.drop_index("docs")
        kept.check()
        again = Twin.create(database)
        again.check()
        again.upsert([1], random_codes(1, 13))
        again.index.seal()
        again.check()
        kept.check()


def test_a_database_opens_again_while_an_old_snapshot_is_in_use(lasting: Place) -> None:
    with lasting.open() as database:
        twin = Twin.create(database)
        twin.layer()
        kept = frozen(twin)
    for _ in range(3):
        with lasting.open() as database:
            twin.index = database.index("docs")
            twin.check()
            twin.upsert([1, 2], random_codes(2, 13, seed=7))
            twin.index.compact()
            twin.check()
            kept.check()


def test_a_write_shows_in_the_next_snapshot_and_in_no_earlier_one(twin: Twin) -> None:
    versions = []
    for i in range(20):
        before = twin.index.snapshot()
        twin.index.upsert([1000 + i], random_codes(1, 13))
        after = twin.index.snapshot()
        wanted = np.array([1000 + i], dtype=np.uint64)
        assert (before.get(wanted).found[0], after.get(wanted).found[0]) == (False, True)
        versions += [before.version, after.version]
    assert versions == sorted(versions)
    assert len(set(versions)) == 21


# -- maintenance -----------------------------------------------------------------------------------------------------


def test_sealing_and_compacting_show_in_the_statistics(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.upsert(range(20), random_codes(20, 13))
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.delta_rows, stats.seals) == (20, 0, 20, 0)
        twin.index.seal()
        twin.delete(range(5))
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.dead_rows) == (15, 1, 20, 5)
        twin.upsert(range(20, 30), random_codes(10, 13))
        twin.index.seal()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.delta_rows) == (25, 2, 30, 0)
        assert stats.seals == 2
        assert stats.writes == 3
        twin.index.compact()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.dead_rows) == (25, 1, 25, 0)
        assert stats.compactions == 1
        assert stats.used_bytes > 0
        assert stats.disk_bytes >= stats.used_bytes or not place.persistent
        twin.delete(range(40))
        twin.index.compact()
        stats = twin.index.stats()
        assert (stats.items, stats.segments, stats.sealed_rows, stats.delta_rows) == (0, 0, 0, 0)
        twin.check()


def test_progress_goes_from_zero_to_one(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database, 64)
        for work in (twin.index.seal, twin.index.compact, twin.index.verify):
            twin.upsert(range(2000), random_codes(2000, 64))
            shares: list[float] = []
            work(shares.append)
            assert shares == sorted(shares)
            assert all(0.0 <= share <= 1.0 for share in shares)
        twin.check()


def test_a_store_in_order_is_verified(twin: Twin) -> None:
    report = twin.index.verify()
    assert report.ok
    assert report.problems == ()
    change_everything(twin)
    assert twin.index.verify().ok


def test_compacting_divides_what_is_too_much_for_one_segment(segmented: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MOST_PAYLOAD", 1000)
    with segmented.open() as database:
        twin = Twin.create(database)
        for first in range(0, 60, 6):
            twin.upsert(range(first, first + 6), random_codes(6, 13, first), [b"x" * 70] * 6)
            twin.index.seal()
        twin.delete(range(0, 60, 5))
        shares: list[float] = []
        twin.index.compact(shares.append)
        twin.check()
        assert shares == sorted(shares)
        stats = twin.index.stats()
        assert stats.dead_rows == 0
        assert 4 <= stats.segments < 10
        assert twin.index.verify().ok
    if segmented.persistent:
        with segmented.open() as database:
            twin.index = database.index("docs")
            twin.check()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(8))
def test_space_is_bounded_when_maintenance_is_at_rest(segmented: Place, seed: int) -> None:
    rng = np.random.default_rng(seed)
    share, most = rng.uniform(0, 0.9), int(rng.integers(2, 40))
    with segmented.open() as database:
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        for step in range(60):
            ids = rng.integers(0, 150, int(rng.integers(1, most)))
            if rng.random() < share:
                twin.delete(ids)
            else:
                twin.upsert(ids, random_codes(len(ids), 13, step))
            if step % 20 == 19:
                store.maintain()
                stats = twin.index.stats()
                assert stats.dead_rows <= maintenance.MOST_DEAD * stats.sealed_rows
                assert stats.delta_rows < maintenance.SEAL_ROWS
                tiers = [maintenance.tier_of(part.live) for part in store._contents.sealed]
                assert all(tiers.count(tier) < maintenance.TIER for tier in tiers)
        twin.check()


@pytest.mark.usefixtures("small")
def test_writing_the_same_items_again_and_again_takes_no_more_room(segmented: Place) -> None:
    with segmented.open() as database:
        twin = Twin.create(database, durability="async")
        sizes = []
        for step in range(400):
            if step % 3:
                twin.upsert([1, 2], random_codes(2, 13, step))
            else:
                twin.delete([1, 2, 5])
            stats = twin.index.stats()
            assert stats.delta_rows <= maintenance.MOST_DELTA * maintenance.SEAL_ROWS + 3
            sizes.append(stats.used_bytes)
        wait_until(lambda: twin.index.stats().delta_rows < maintenance.SEAL_ROWS)
        assert twin.index.stats().seals > 10
        assert max(sizes[200:]) < 2 * max(sizes[:200]) + 1000  # in RAM they are a run or two of 20 bytes per item
        twin.check()


@pytest.mark.usefixtures("small")
def test_deleting_makes_room(segmented: Place) -> None:
    with segmented.open() as database:
        twin = Twin.create(database, durability="async")
        twin.upsert(range(300), random_codes(300, 13))
        twin.index.seal()
        for i in range(280):
            twin.delete([i])
            assert len(twin.index) == 299 - i
        most = maintenance.MOST_DELTA * maintenance.SEAL_ROWS
        wait_until(lambda: twin.index.stats().sealed_rows <= 4 / 3 * 20 + most)
        twin.check()


# -- threads ---------------------------------------------------------------------------------------------------------


def in_threads(*work: Callable[[], None]) -> None:
    """Run all at once; raise what the first of them has raised."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(job: Callable[[], None]) -> None:
        try:
            start.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


THREADS = 8


def write_and_watch(index: StoredIndex, count: int) -> None:
    """Threads write ids of their own one by one; readers see of each a prefix, and all that was acknowledged."""
    acknowledged = [0] * THREADS
    codes = random_codes(count, index.settings.bits)

    def writer(number: int) -> Callable[[], None]:
        def run() -> None:
            for i in range(count):
                index.upsert([number * count + i], codes[i : i + 1])
                acknowledged[number] = i + 1

        return run

    def reader() -> None:
        everything = np.arange(THREADS * count, dtype=np.uint64)
        done = 0
        while done < THREADS * count:
            least = list(acknowledged)
            snapshot = index.snapshot()
            found = snapshot.get(everything).found.reshape(THREADS, count)
            seen = found.sum(axis=1)
            assert all(found[i, : seen[i]].all() for i in range(THREADS))
            assert all(seen[i] >= least[i] for i in range(THREADS))
            ids, _ = snapshot.view.search(whamming.native.Costs.hamming(codes[0], index.settings.bits), THREADS * count)
            done = int(seen.sum())
            assert sorted(ids.tolist()) == np.flatnonzero(found).tolist()

    in_threads(*(writer(number) for number in range(THREADS)), reader)


def test_readers_see_prefixes_of_what_threads_write(place: Place, small: None) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        count = 40
        write_and_watch(twin.index, count)
        for _ in range(THREADS):
            twin.model.upsert(range(len(twin.model), len(twin.model) + count), random_codes(count, 13))
        twin.check()
        assert twin.index.stats().writes == THREADS * count


def test_concurrent_writes_share_commits(disk: Place) -> None:
    count = 500
    with disk.open() as database:
        twin = Twin.create(database)
        codes = random_codes(count, 13)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(count):
                    twin.index.upsert([number * count + i], codes[i : i + 1])

            return run

        in_threads(*(writer(number) for number in range(THREADS)))
        stats = twin.index.stats()
        assert stats.writes == THREADS * count
        assert stats.writes >= 4 * stats.commits
        for number in range(THREADS):
            twin.model.upsert(range(number * count, (number + 1) * count), codes)
        twin.check()
    with disk.open() as database:
        twin.index = database.index("docs")
        twin.check()


def test_threads_replace_and_delete_the_same_items(place: Place, small: None) -> None:
    """Whatever the order was, each id has what one of the threads wrote last, whole."""
    with place.open() as database:
        index = database.create_index("docs", 64)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                rng = np.random.default_rng(number)
                for step in range(40):
                    ids = np.unique(rng.integers(0, 30, 8))
                    mark = number * 100 + step
                    index.upsert(ids, np.full((len(ids), 8), mark % 256, dtype=np.uint8), [b"%d" % mark] * len(ids))
                    if step % 4 == 0:
                        index.delete(ids[:2])

            return run

        def sealer() -> None:
            for step in range(10):
                (index.compact if step % 3 == 0 else index.seal)()

        in_threads(*(writer(number) for number in range(4)), sealer)
        snapshot = index.snapshot()
        items = snapshot.get(np.arange(30, dtype=np.uint64))
        assert items.found.sum() == len(snapshot)
        for found, code, payload in zip(items.found, items.codes, items.payloads, strict=True):
            assert code.tolist() == [int(payload or b"0") % 256] * 8
            assert found == bool(payload)
        assert index.verify().ok


# -- durability ------------------------------------------------------------------------------------------------------


def on_disk(place: Place) -> list[int]:
    """The ids that another process would find after a crash now: in a copy of the files as they are."""
    copy = place.directory / "copy"
    shutil.copytree(place.directory / "db", copy)
    try:
        with place.open("copy") as database:
            snapshot = database.index("docs").snapshot()
            return sorted(int(i) for rows in snapshot.scan() for i in rows.ids)
    finally:
        shutil.rmtree(copy)


@pytest.mark.parametrize("default", ["fsync", "async"])
@pytest.mark.parametrize("asked", ["fsync", "async", None])
def test_durability_is_the_indexs_unless_a_write_says(
    disk: Place, default: Durability, asked: Durability | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.segmented.ASYNC_SECONDS", 3600)
    with disk.open() as database:
        index = database.create_index("docs", 8, durability=default)
        expected = []
        for i in range(3):
            index.upsert([i], np.array([[i]], dtype=np.uint8), durability=asked)
            expected += [i] if (asked or default) == "fsync" else []
            assert len(index) == i + 1
            assert on_disk(disk) == expected
        index.delete([0, 1, 2], durability=asked)
        assert len(index) == 0
        assert on_disk(disk) == []


def test_async_writes_are_on_disk_soon(disk: Place) -> None:
    with disk.open() as database:
        index = database.create_index("docs", 8, durability="async")
        for i in range(5):
            index.upsert([i], np.array([[i]], dtype=np.uint8))
        assert len(index) == 5
        wait_until(lambda: on_disk(disk) == [0, 1, 2, 3, 4])


@pytest.mark.parametrize("how", ["flush", "fsync", "seal", "backup", "close"])
def test_async_writes_are_on_disk_after(how: str, disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whamming.storage.segmented.ASYNC_SECONDS", 3600)
    with disk.open() as database:
        index = database.create_index("docs", 8)
        index.upsert([1], np.array([[1]], dtype=np.uint8), durability="async")
        assert on_disk(disk) == []
        expected = [1]
        match how:
            case "flush":
                assert isinstance(index.store, SegmentedStore)
                index.store.flush()
            case "fsync":
                index.upsert([2], np.array([[2]], dtype=np.uint8), durability="fsync")
                expected = [1, 2]
            case "seal":
                index.seal()
            case "backup":
                database.backup(disk.directory / "backup")
            case _:
                database.close()
        assert on_disk(disk) == expected


def test_a_database_is_the_same_when_it_is_opened_again(lasting: Place) -> None:
    with lasting.open() as database:
        twin = Twin.create(database, 100, bit_order="big", tables="multi", buckets="fast", durability="async")
        twin.layer()
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: twin.index.seal(),
        lambda: change_more(twin),
        lambda: None,
    ]
    for change in changes:
        with lasting.open() as database:
            twin.index = database.index("docs")
            assert twin.index.settings == IndexSettings(100, "big", "multi", "fast", "async")
            twin.check()
            change()
            twin.check()
            assert twin.index.verify().ok


def change_more(twin: Twin) -> None:
    twin.delete(range(20))
    twin.upsert(range(10, 15), random_codes(5, 100, 8))
    twin.index.compact()
    twin.delete([12])


# -- the end ---------------------------------------------------------------------------------------------------------


def test_closing_twice_is_fine_and_nothing_works_afterwards(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", 13)
        index.upsert([1], random_codes(1, 13))
        index.close()
        index.close()
        uses: list[Callable[[], object]] = [
            lambda: len(index),
            lambda: index.get([1]),
            lambda: index.upsert([1], random_codes(1, 13)),
            lambda: index.delete([1]),
            lambda: index.delete([1], durability="async"),
            lambda: index.search(random_codes(1, 13)[0]),
            lambda: index.search_batch(random_codes(1, 13)),
            index.snapshot,
            index.seal,
            index.compact,
            index.stats,
            index.verify,
            lambda: index.store.backup(place.directory / "backup"),
        ]
        for use in uses:
            with pytest.raises(ClosedError, match="closed; open the database again"):
                use()
        assert index.settings.bits == 13
        assert repr(index) == "StoredIndex('docs', 13 bits)"


def test_many_threads_may_close_at_once(place: Place) -> None:
    for _ in range(5):
        database = place.open()
        twin = Twin.create(database, name=f"docs{time.monotonic_ns()}")
        twin.layer()
        kept = frozen(twin)
        in_threads(database.close, twin.index.close, twin.index.close, database.close)
        kept.check()


def test_closing_waits_for_nobody_but_finishes_what_was_promised(lasting: Place, small: None) -> None:
    """Threads write until the database is closed under them; what was acknowledged is there when it is opened again."""
    acknowledged: list[int] = []
    with lasting.open() as database:
        index = database.create_index("docs", 13)

        def writer(number: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(number, 10**6, 4):
                    try:
                        index.upsert([i], random_codes(1, 13), durability="async" if number % 2 else "fsync")
                    except ClosedError:
                        return
                    acknowledged.append(i)

            return run

        def closer() -> None:
            wait_until(lambda: len(acknowledged) > 100)
            database.close()

        in_threads(*(writer(number) for number in range(4)), closer)
    with lasting.open() as database:
        assert database.index("docs").get(acknowledged).found.all()


def test_an_index_may_be_closed_while_it_is_sealed(place: Place) -> None:
    for number in range(3):
        with place.open(f"db{number}") as database:
            index = database.create_index("docs", 64)
            index.upsert(range(500), random_codes(500, 64))

            def seal(index: StoredIndex = index) -> None:
                with contextlib.suppress(ClosedError):
                    index.seal()

            in_threads(seal, index.close)
            with pytest.raises(ClosedError):
                index.snapshot()
        if place.persistent:
            with place.open(f"db{number}") as database:
                assert len(database.index("docs")) == 500


def test_an_index_may_be_closed_while_it_is_verified(disk: Place) -> None:
    with disk.open() as database:
        index = database.create_index("docs", 64)
        index.upsert(range(500), random_codes(500, 64))
        index.seal()
        report = index.verify(lambda _: index.close())
        assert report.ok
        assert report.arrays_checked > 0
        with pytest.raises(ClosedError):
            index.verify()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, MemoryError])
def test_a_commit_that_breaks_off_acknowledges_nothing(
    disk: Place, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = random_codes(1, 13)
    entered, go_on = threading.Event(), threading.Event()
    with disk.open() as database:
        index = database.create_index("docs", 13)
        index.upsert([0], codes)
        outcomes: dict[int, BaseException | None] = {}

        def hook(name: str) -> None:
            if name == "before commit" and not entered.is_set():
                entered.set()
                go_on.wait()
            elif name == "in commit" and len(outcomes) == 1:
                raise interrupt

        def write(i: int) -> None:
            try:
                index.upsert([i], codes)
                outcomes[i] = None
            except BaseException as error:
                outcomes[i] = error

        monkeypatch.setattr("whamming.storage.faults.hook", hook)
        threads = [threading.Thread(target=write, args=(i,)) for i in range(1, 5)]
        threads[0].start()
        entered.wait()
        for thread in threads[1:]:
            thread.start()
        store = index.store
        assert isinstance(store, SegmentedStore)
        wait_until(lambda: len(store._queue) == 3)
        go_on.set()
        for thread in threads:
            thread.join()
        monkeypatch.setattr("whamming.storage.faults.hook", None)
        assert outcomes[1] is None
        assert any(isinstance(outcomes[i], interrupt) for i in (2, 3, 4))
        acknowledged = [i for i in range(1, 5) if outcomes[i] is None]
        assert index.get(acknowledged).found.all()
        index.upsert([9], codes)
        assert set(on_disk(disk)) >= {0, 9, *acknowledged}
        assert on_disk(disk) == sorted(int(i) for rows in index.snapshot().scan() for i in rows.ids)


# -- any sequence of operations --------------------------------------------------------------------------------------

ids_of_items = st.one_of(st.integers(0, 40), st.integers(0, 40), st.sampled_from(EDGE_IDS))


class Life(RuleBasedStateMachine):
    """An index's life: writes of all kinds, maintenance, snapshots that are kept, opening it again."""

    def __init__(self, place: Place, cases: Cases) -> None:
        super().__init__()
        self.place = place
        self.cases = cases
        self.kept: list[tuple[Snapshot, Model]] = []
        self.name = f"life{time.monotonic_ns()}"
        self.database = place.open(self.name)
        self.steps = 0

    @initialize(
        bits=st.sampled_from([1, 7, 8, 13, 64, 100, 257]),
        order=st.sampled_from(["little", "big"]),
        layout=st.sampled_from(LAYOUTS),
        durability=st.sampled_from(["fsync", "async"]),
        kind=st.sampled_from(CODE_KINDS),
    )
    def create(
        self, bits: int, order: BitOrder, layout: tuple[Tables, Buckets], durability: Durability, kind: CodeKind
    ) -> None:
        self.kind = kind
        self.index = self.database.create_index(
            "docs", bits, bit_order=order, tables=layout[0], buckets=layout[1], durability=durability
        )
        self.model = Model(self.index.settings)

    def codes(self, n: int, seed: int) -> Codes:
        return make_codes(self.kind, n, self.model.settings.bits, np.random.default_rng([seed, n]))

    @rule(
        upserts=st.lists(ids_of_items, max_size=12),
        deletes=st.lists(ids_of_items, max_size=6),
        payloads=st.none() | st.lists(st.none() | st.binary(max_size=9), min_size=12, max_size=12),
        seed=st.integers(0, 99),
        durability=st.sampled_from(["fsync", "async", None]),
    )
    def write(
        self,
        upserts: list[int],
        deletes: list[int],
        payloads: list[bytes | None] | None,
        seed: int,
        durability: Durability | None,
    ) -> None:
        codes = self.codes(len(upserts), seed)
        payloads = payloads[: len(upserts)] if payloads is not None else None
        self.index.write(WriteBatch.of(self.index.settings, upserts, codes, payloads, deletes), durability)
        self.model.delete(deletes)
        self.model.upsert(upserts, codes, payloads)

    @rule(first=st.integers(0, 40), count=st.integers(10, 40), seed=st.integers(0, 99))
    def write_many(self, first: int, count: int, seed: int) -> None:
        codes = self.codes(count, seed)
        self.index.upsert(range(first, first + count), codes)
        self.model.upsert(range(first, first + count), codes)

    @rule(good=st.lists(ids_of_items, min_size=1, max_size=5), seed=st.integers(0, 99))
    def write_badly(self, good: list[int], seed: int) -> None:
        with pytest.raises(InvalidArgumentError, match=f"the payload of row {len(good) - 1} "):
            self.index.upsert(good, self.codes(len(good), seed), [b"x"] * (len(good) - 1) + [b"x" * 65_537])

    @rule()
    def seal(self) -> None:
        self.index.seal()

    @rule()
    def compact(self) -> None:
        self.index.compact()
        stats = self.index.stats()
        assert (stats.items, stats.sealed_rows, stats.dead_rows) == (len(self.model), len(self.model), 0)
        assert stats.segments <= 1

    @rule()
    def keep(self) -> None:
        self.kept.append((self.index.snapshot(), self.model.copy()))

    @precondition(lambda self: self.place.persistent)
    @rule(close=st.booleans())
    def reopen(self, close: bool) -> None:
        if close:
            self.index.close()
        self.database.close()
        self.database = self.place.open(self.name)
        self.index = self.database.index("docs")

    @rule(kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 99), k=st.integers(0, 100), inside=st.floats(0, 1.5))
    def search(self, kind: WeightKind, seed: int, k: int, inside: float) -> None:
        self.compare(self.index.snapshot(), self.model, kind, seed, k, inside if inside <= 1 else None)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 9), kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 99))
    def search_a_kept_one(self, which: int, kind: WeightKind, seed: int) -> None:
        self.compare(*self.kept[which % len(self.kept)], kind, seed, 50, None)

    @rule()
    def look_up(self) -> None:
        check_items(self.index.snapshot(), self.model)

    def compare(
        self, snapshot: Snapshot, model: Model, kind: WeightKind, seed: int, k: int, inside: float | None
    ) -> None:
        table = costs_around(kind, self.codes(1, seed)[0], model.settings.bits, np.random.default_rng(seed))
        self.cases.add(check_answers(snapshot, model, table, k, inside))

    def teardown(self) -> None:
        if hasattr(self, "index"):
            assert self.index.verify().ok
            self.kept.append((self.index.snapshot(), self.model))
        self.database.close()
        for snapshot, model in self.kept:
            check_items(snapshot, model)
            self.compare(snapshot, model, "integers", 1, 20, None)
        self.kept.clear()
        shutil.rmtree(self.place.directory / self.name, ignore_errors=True)


def test_any_life_of_an_index(place: Place, small: None, cases: Cases) -> None:
    run_state_machine_as_test(
        lambda: Life(place, cases),  # type: ignore[arg-type]
        settings=settings(generated(100), stateful_step_count=16),
    )
