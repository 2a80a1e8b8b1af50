"""Views: several parts without their dead items, compared with the oracle over the live items."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import (
    LAYOUTS,
    WEIGHT_KINDS,
    Data,
    WeightKind,
    datasets,
    generated,
    make_codes,
    make_table,
)
from tests.native.oracle import Codes, Ids, truth
from whamming.native import Budget, CorruptIndexError, Costs, Index, InvalidArgumentError, Part, Plan, Position, View
from whamming.native.view import CancelFlag


def make_view(data: Data, seed: int) -> tuple[View, Ids, Codes]:
    """Distribute the codes over parts and mark some as dead. Returns the view and its live ids and codes."""
    rng = np.random.default_rng([data.seed, seed])
    ids = np.arange(data.n, dtype=np.uint64) if data.ids is None else data.ids
    count = int(rng.integers(1, 5))
    where = rng.integers(0, count, data.n)
    share = float(rng.choice([0.0, 0.1, 0.9, 1.0]))
    parts, alive = [], np.zeros(data.n, dtype=bool)
    for number in range(count):
        mine = np.flatnonzero(where == number)
        tables, buckets = LAYOUTS[int(rng.integers(len(LAYOUTS)))]
        index = Index.build(data.codes[mine], data.bits, ids[mine], tables, buckets, reorder=data.reorder)
        dead = rng.random(index.n) < share
        parts.append(Part(index, np.packbits(dead, bitorder="little"), int(dead.sum())))
        gone = set(index.ids[dead].tolist())
        alive[mine] = [int(i) not in gone for i in ids[mine]]
    return View(parts, data.bits), ids[alive], data.codes[alive]


def plans_of(view: View) -> tuple[Plan, ...]:
    return ("auto", "sweep", "probe") if view.can_probe else ("auto", "sweep")


@generated(600)
@given(
    data=datasets(most=1500),
    kind=st.sampled_from(WEIGHT_KINDS),
    seed=st.integers(0, 99),
    k=st.integers(0, 1600),
    inside=st.none() | st.floats(0, 1),
)
def test_a_search_covers_the_live_items_of_all_parts(
    data: Data, kind: WeightKind, seed: int, k: int, inside: float | None
) -> None:
    view, ids, codes = make_view(data, seed)
    table = data.query(kind, seed)
    everything = truth(codes, table, ids)
    radius = None if inside is None or not len(ids) else float(everything.distances[int(inside * (len(ids) - 1))])
    expected = everything.within(radius)
    assert len(view) == len(ids)
    for plan in plans_of(view):
        if plan == "probe" and any(data.slow_to_probe(p.index) for p in view.parts):
            continue
        answer = view.search(Costs.table(table), k, radius, plan)
        assert (answer.ids.tobytes(), answer.distances.tobytes()) == expected[:k].bytes()
        batch = view.search(Costs.table(np.stack([table] * 3)), k, radius, plan, threads=2)
        for row in range(3):
            found = int(batch.counts[row])
            assert (batch.ids[row, :found].tobytes(), batch.distances[row, :found].tobytes()) == expected[:k].bytes()


@generated(400)
@given(
    data=datasets(most=1200),
    kind=st.sampled_from(WEIGHT_KINDS),
    seed=st.integers(0, 99),
    limited=st.booleans(),
    candidates=st.none() | st.integers(1, 3000),
)
def test_a_cursor_over_parts_continues_after_every_pause(
    data: Data, kind: WeightKind, seed: int, limited: bool, candidates: int | None
) -> None:
    view, ids, codes = make_view(data, seed)
    table = data.query(kind, seed)
    rng = np.random.default_rng(seed)
    k = int(rng.integers(0, len(ids) + 3)) if limited else None
    expected = truth(codes, table, ids)[: len(ids) if k is None else k]
    budget = None if candidates is None else Budget(candidates=candidates)
    found: list[int] = []
    distances: list[float] = []
    positions: list[Position] = []
    with view.cursor(Costs.table(table), k) as cursor:
        for _ in range(100_000):
            bound = cursor.lower_bound
            more, far = cursor.next(int(rng.integers(1, 40)), budget=budget, eager=bool(rng.integers(2)))
            assert all(distance >= bound for distance in far)
            found += more.tolist()
            distances += far.tolist()
            sums = [b""] * len(more) if cursor.sums is None else [row.tobytes() for row in cursor.sums[: len(more)]]
            positions += zip(far.tolist(), more.tolist(), sums, strict=True)
            if cursor.exhausted:
                break
            rest = expected.distances[len(found) :]
            assert not len(rest) or rest[0] >= cursor.lower_bound
            guessed, guessed_far = cursor.guess(5)
            assert (np.diff(guessed_far) >= 0).all()
            assert not set(guessed.tolist()) & set(found)
        assert cursor.exhausted
    assert found == expected.ids.tolist()
    assert distances == expected.distances.tolist()
    if len(found) > 2:
        cut = int(rng.integers(1, len(found)))
        with view.cursor(Costs.table(table), None, after=positions[cut - 1]) as cursor:
            more, _ = cursor.next(len(found))
            assert more[: len(found) - cut].tolist() == found[cut:]


@generated(150)
@given(data=datasets(most=2000), seed=st.integers(0, 99))
def test_find_returns_the_places_of_ids(data: Data, seed: int) -> None:
    index = data.build("none", "compact")
    ids = np.arange(data.n, dtype=np.uint64) if data.ids is None else data.ids
    by_id = np.argsort(index.ids).astype(np.uint32)
    order = np.random.default_rng(seed).permutation(data.n)
    places = index.find(by_id, ids[order])
    assert index.ids[places.astype(np.int64)].tolist() == ids[order].tolist()
    some = np.sort(np.concatenate([ids[order[: data.n // 3]], ids + 1, ids - 1]))  # in order, as writes look them up
    where = {int(item): place for place, item in enumerate(index.ids)}
    assert index.find(by_id, some).tolist() == [where.get(int(item), 2**64 - 1) for item in some]
    unpadded = np.unpackbits(data.codes, axis=1, count=data.bits, bitorder="little")
    stored = np.unpackbits(index.codes_at(places.astype(np.int64)), axis=1, count=data.bits, bitorder="little")
    assert (stored == unpadded[order]).all()
    assert len(index.codes_at()) == data.n
    absent = np.setdiff1d(np.array([0, 5, 2**63 + 1, 2**64 - 1], dtype=np.uint64), ids)
    assert (index.find(by_id, absent) == 2**64 - 1).all()


def test_inconsistent_parts_are_rejected() -> None:
    small = Index.build(np.zeros((20, 1), dtype=np.uint8), 8)
    with pytest.raises(InvalidArgumentError, match="no parts"):
        View([], 8)
    with pytest.raises(InvalidArgumentError, match=r"8 bits.* 9\b"):
        View([Part(small)], 9)
    with pytest.raises(InvalidArgumentError, match="2 bytes; 20 items need 3"):
        View([Part(small, np.zeros(2, dtype=np.uint8), 1)], 8)
    with pytest.raises(CorruptIndexError, match="12 bytes; 20 items need 80"):
        small.find(np.zeros(3, dtype=np.uint32), np.zeros(1, dtype=np.uint64))
    with pytest.raises(CorruptIndexError):
        small.find(np.full(20, 77, dtype=np.uint32), np.zeros(1, dtype=np.uint64))


@pytest.mark.parametrize("kind", ["random", "integers", "equal"])
@pytest.mark.parametrize("plan", ["auto", "sweep"])
def test_long_answers_over_parts_are_returned_in_sorted_pieces(kind: WeightKind, plan: Plan) -> None:
    """Rounds of thousands of hits are sorted in pieces. No hit is lost, and none is returned too early."""
    rng = np.random.default_rng(7)
    codes, ids = make_codes("uniform", 40_000, 21, rng), rng.permutation(40_000).astype(np.uint64)
    dead = rng.random(30_000) < 0.2
    large, small = Index.build(codes[:30_000], 21, ids[:30_000]), Index.build(codes[30_000:], 21, ids[30_000:], "none")
    view = View([Part(large, np.packbits(dead, bitorder="little"), int(dead.sum())), Part(small)], 21)
    alive = np.concatenate([~np.isin(ids[:30_000], large.ids[dead]), np.ones(10_000, dtype=bool)])
    table = make_table(kind, codes[0], 21, rng)
    whole = truth(codes[alive], table, ids[alive])
    for k, after, radius in ((None, None, None), (30_000, 100, None), (None, 11_111, float(whole.distances[29_000]))):
        place = None if after is None else (float(whole.distances[after]), int(whole.ids[after]))
        expected = (whole if place is None else whole.after(*place)).within(radius)[:k]
        with view.cursor(Costs.table(table), k, radius, plan, after=place) as cursor:
            found: list[int] = []
            most = 0
            while not cursor.exhausted:
                some, distances = cursor.next(50_000, budget=Budget(seconds=1e-9))  # a slice of work
                assert distances.tobytes() == expected.distances[len(found) : len(found) + len(some)].tobytes()
                found += some.tolist()
                most = max(most, len(some))
                if len(found) < len(expected):
                    assert cursor.lower_bound <= expected.distances[len(found)]
        assert found == expected.ids.tolist()
        assert 1000 < most <= 2 * 4096 + 128, "at most one piece per part"


def test_a_batch_that_is_cancelled_in_a_later_round_stops_and_counts_only_whole_answers() -> None:
    """Only the first round is shared; the queries then continue one after the other."""
    n, queries = 200_000, 16
    rng = np.random.default_rng(11)
    codes = make_codes("uniform", n, 64, rng)
    view = View([Part(Index.build(codes, 64, np.arange(1, n + 1, dtype=np.uint64), "none"))], 64)
    costs, flag = Costs.weights(codes[:queries], rng.random((queries, 64))), CancelFlag()
    batch = view.batch(costs, n, cancel=flag)
    batch.ids[:] = 0

    def cancel_after_the_first_hit() -> None:
        while not batch.ids[0, 0]:
            pass
        flag.set()

    thread = threading.Thread(target=cancel_after_the_first_hit)
    thread.start()
    done = batch.run()
    thread.join()
    assert done < queries
    for row in range(done):
        expected, distances = view.cursor(costs[row]).next(n)
        assert batch.ids[row].tobytes() == expected.tobytes()
        assert batch.distances[row].tobytes() == distances.tobytes()


def test_a_batch_stops_at_its_time_limit_in_later_rounds() -> None:
    """With the right limit, some queries of a group are completed, but not all."""
    n, queries = 200_000, 8
    rng = np.random.default_rng(12)
    codes = make_codes("uniform", n, 64, rng)
    view = View([Part(Index.build(codes, 64, tables="none"))], 64)
    costs = Costs.weights(codes[:queries], rng.random((queries, 64)))
    batch = view.batch(costs, n)
    assert batch.run() == queries
    expected, seconds = batch.ids.copy(), sum(stats.seconds for stats in batch.stats)
    assert all(stats.rounds > 1 for stats in batch.stats)
    done, low, high = 0, 0.0, seconds
    for _ in range(40):
        limit = (low + high) / 2
        done = batch.run(seconds=limit)
        if 0 < done < queries:
            break
        low, high = (low, limit) if done else (limit, high)
        if high - low < seconds / 50:  # the machine is busy: start over
            low, high = 0.0, 2 * seconds
    assert 0 < done < queries
    assert batch.ids[:done].tobytes() == expected[:done].tobytes()
