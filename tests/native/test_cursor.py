"""Cursors: taking hits, invalid arguments, closing, cancelling, and many cursors at once."""

from __future__ import annotations

import gc
import math
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.native.examples import LAYOUTS, WEIGHT_KINDS, make_codes, make_table, plans
from tests.native.oracle import Codes, Truth, truth
from whamming.native import Buckets, Costs, Cursor, Hit, Index, InvalidArgumentError, Plan, Tables

BITS = 64
N = 3000


@pytest.fixture(scope="module")
def codes() -> Codes:
    return make_codes("clustered", N, BITS, np.random.default_rng(0))


@pytest.fixture(scope="module")
def index(codes: Codes) -> Index:
    return Index.build(codes, BITS)


@pytest.fixture(scope="module")
def costs(codes: Codes) -> Costs:
    return Costs.table(make_table("random", codes[0], BITS, np.random.default_rng(1)))


@pytest.fixture(scope="module")
def whole(codes: Codes) -> Truth:
    return truth(codes, make_table("random", codes[0], BITS, np.random.default_rng(1)))


@pytest.fixture
def long_search() -> tuple[Index, Costs]:
    """A long probe: no code is near the query."""
    codes = np.zeros((200_000, 8), dtype=np.uint8)
    codes[:, :3] = np.arange(200_000, dtype=np.uint32).view(np.uint8).reshape(-1, 4)[:, :3]
    return Index.build(codes, 64, substring_bits=16), Costs.weights(np.full(8, 255, dtype=np.uint8), np.ones(64))


# -- taking hits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["auto", "probe", "sweep"])
def test_iteration_yields_hits(index: Index, costs: Costs, whole: Truth, plan: Plan) -> None:
    with index.cursor(costs, k=5, plan=plan) as cursor:
        hits = list(cursor)
    assert hits == [Hit(i, d) for i, d in zip(whole.ids[:5].tolist(), whole.distances[:5].tolist(), strict=True)]
    assert all(type(hit.id) is int and type(hit.distance) is float for hit in hits)


@pytest.mark.parametrize("plan", ["auto", "probe", "sweep"])
def test_iteration_and_next_share_one_order_of_hits(index: Index, costs: Costs, whole: Truth, plan: Plan) -> None:
    with index.cursor(costs, k=200, plan=plan) as cursor:
        ids = [next(cursor).id for _ in range(4)]
        assert cursor.lower_bound <= whole.distances[4]
        ids += cursor.next(10)[0].tolist()
        ids += [hit.id for hit in cursor]
    assert ids == whole.ids[:200].tolist()


@pytest.mark.parametrize("plan", ["auto", "probe", "sweep"])
def test_stop_says_why_there_are_fewer_hits_than_requested(index: Index, costs: Costs, plan: Plan) -> None:
    with index.cursor(costs, k=3, plan=plan) as cursor:
        assert len(cursor.next(5)[0]) == 3
        assert cursor.stop == "exhausted"
        assert cursor.exhausted
    with index.cursor(costs, plan=plan) as cursor:
        assert len(cursor.next(N + 1)[0]) == N
        assert cursor.exhausted
        assert cursor.lower_bound == math.inf


def test_requesting_no_hits_changes_nothing(index: Index, costs: Costs, whole: Truth) -> None:
    with index.cursor(costs) as cursor:
        for _ in range(3):
            ids, distances = cursor.next(0)
            assert len(ids) == len(distances) == 0
            assert cursor.stop == "more"
        assert cursor.next(2)[0].tolist() == whole.ids[:2].tolist()


@pytest.mark.parametrize("plan", ["auto", "probe", "sweep"])
def test_a_cursor_with_k_0_is_exhausted(index: Index, costs: Costs, plan: Plan) -> None:
    with index.cursor(costs, k=0, plan=plan) as cursor:
        assert cursor.next(10)[0].tolist() == []
        assert cursor.exhausted
        assert list(cursor) == []
    answer = index.search(costs, k=0, plan=plan)
    assert answer.ids.shape == answer.distances.shape == (0,)
    assert answer.exact.tolist() == [True]


@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
def test_an_empty_index_has_no_hits(tables: Tables, buckets: Buckets) -> None:
    index = Index.build(np.empty((0, 2), dtype=np.uint8), 12, None, tables, buckets)
    assert len(index) == 0
    for plan in plans(index):
        for radius in (None, 1.0, -1.0):
            with index.cursor(Costs.hamming(np.zeros(2, dtype=np.uint8), 12), radius=radius, plan=plan) as cursor:
                assert cursor.lower_bound == math.inf
                assert list(cursor) == []
                assert cursor.exhausted
                assert cursor.lower_bound == math.inf
                assert len(cursor.guess(3)[0]) == 0


def test_eager_calls_return_the_hits_proven_so_far(index: Index, costs: Costs, whole: Truth) -> None:
    sent = 0
    with index.cursor(costs, k=500, plan="probe") as cursor:
        calls = 0
        while not cursor.exhausted:
            ids, _ = cursor.next(500, eager=True)
            assert len(ids) > 0 or cursor.exhausted
            assert ids.tolist() == whole.ids[sent : sent + len(ids)].tolist()
            sent += len(ids)
            calls += 1
    assert sent == 500
    assert calls > 1


def test_guess_continues_after_the_returned_hits(index: Index, costs: Costs, whole: Truth) -> None:
    with index.cursor(costs, k=50, plan="probe") as cursor:
        first = cursor.next(3)[0].tolist()
        ids, distances = cursor.guess(50)
        assert 0 < len(ids) <= 47
        assert not set(ids.tolist()) & set(first)
        again = cursor.guess(50)[0]
        assert again.tolist() == ids.tolist()  # changes nothing
        assert len(cursor.guess(0)[0]) == 0
        assert cursor.next(50)[0].tolist() == whole.ids[3:50].tolist()
    assert distances.tolist() == sorted(distances.tolist())


def test_statistics_are_consistent(index: Index, costs: Costs) -> None:
    with index.cursor(costs, k=10, plan="sweep") as cursor:
        before = cursor.stats
        cursor.next(10)
        swept = cursor.stats
    assert before.blocks == before.planes == before.verified == 0
    assert swept.plan == "sweep"
    assert not swept.switched
    assert swept.rounds == 1
    assert swept.buckets == 0
    assert swept.blocks == -(-index.rows // 64)
    assert 4 * swept.blocks <= swept.planes <= 16 * swept.blocks
    assert 1 <= swept.verified <= swept.candidates
    assert swept.seconds > before.seconds >= 0
    with index.cursor(costs, k=10, plan="probe") as cursor:
        cursor.next(10)
        probed = cursor.stats
    assert probed.plan == "probe"
    assert probed.blocks == probed.planes == 0
    assert probed.buckets >= probed.buckets_nonempty > 0
    assert probed.candidates >= probed.verified >= 10


# -- invalid arguments -------------------------------------------------------------------------------------------------


def test_a_negative_number_of_hits_is_rejected(index: Index, costs: Costs) -> None:
    with index.cursor(costs) as cursor:
        with pytest.raises(InvalidArgumentError, match=r"n = -1; .* 0 or more"):
            cursor.next(-1)
        with pytest.raises(InvalidArgumentError, match=r"n = -1; .* 0 or more"):
            cursor.guess(-1)


@pytest.mark.parametrize(("k", "limit"), [(-1, "0 or more"), (2**63, str(2**63 - 1)), (2**64, str(2**63 - 1))])
def test_k_must_be_in_range(index: Index, costs: Costs, k: int, limit: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"k = {k}; .*{limit}"):
        index.cursor(costs, k=k)


def test_k_may_far_exceed_the_number_of_items(index: Index, costs: Costs, whole: Truth) -> None:
    for k in (2**31, 2**63 - 1):
        with index.cursor(costs, k=k) as cursor:
            assert cursor.next(2**40)[0].tolist() == whole.ids.tolist()


@pytest.mark.parametrize("after", [(math.nan, 0), (1.0, -1), (1.0, 2**64)])
def test_after_must_be_a_valid_distance_and_id(index: Index, costs: Costs, after: tuple[float, int]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"after = .*\(distance, id\)"):
        index.cursor(costs, after=after)


def test_radius_must_not_be_nan(index: Index, costs: Costs) -> None:
    with pytest.raises(InvalidArgumentError, match="radius = nan"):
        index.cursor(costs, radius=math.nan)
    with pytest.raises(InvalidArgumentError, match="radius = nan"):
        index.search(costs, radius=math.nan)


def test_a_cursor_rejects_a_batch(index: Index) -> None:
    with pytest.raises(InvalidArgumentError, match=r"2 queries.*costs\[i\]"):
        index.cursor(Costs.table(np.ones((2, BITS, 2))))


# -- closing -----------------------------------------------------------------------------------------------------------


def test_every_use_of_a_closed_cursor_raises(index: Index, costs: Costs) -> None:
    cursor = index.cursor(costs)
    cursor.close()
    cursor.close()
    for use in (
        lambda: cursor.next(1),
        lambda: cursor.next(0),
        lambda: cursor.guess(1),
        lambda: cursor.lower_bound,
        lambda: cursor.stats,
        lambda: next(cursor),
        lambda: cursor.cancel(),
    ):
        with pytest.raises(InvalidArgumentError, match="closed"):
            use()


def test_leaving_the_with_block_closes_the_cursor(index: Index, costs: Costs) -> None:
    with pytest.raises(KeyError), index.cursor(costs) as cursor:
        raise KeyError
    with pytest.raises(InvalidArgumentError, match="closed"):
        cursor.next(1)


def test_a_cursor_keeps_its_index_alive_and_copies_its_costs(codes: Codes, whole: Truth) -> None:
    index = Index.build(codes, BITS)
    costs = Costs.table(make_table("random", codes[0], BITS, np.random.default_rng(1)))
    cursor = index.cursor(costs)
    costs.deltas[:] = 0  # copied when the cursor was opened
    del index, costs
    gc.collect()
    assert cursor.next(N)[0].tolist() == whole.ids.tolist()


# -- cancelling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["auto", "probe", "sweep"])
def test_a_cancelled_search_returns_no_more_hits(index: Index, costs: Costs, plan: Plan) -> None:
    with index.cursor(costs, plan=plan) as cursor:
        cursor.cancel()
        assert len(cursor.next(10)[0]) == 0
        assert cursor.stop == "cancelled"
        assert not cursor.exhausted
        assert len(cursor.next(10)[0]) == 0
        assert cursor.stop == "cancelled"


def test_another_thread_can_cancel_a_running_search(long_search: tuple[Index, Costs]) -> None:
    """The search must release the interpreter lock, or the other thread could not cancel it."""
    index, costs = long_search
    with index.cursor(costs, plan="probe", k=200_000) as cursor:
        started = threading.Event()

        def search() -> int:
            started.set()
            return len(cursor.next(200_000)[0])

        with ThreadPoolExecutor(1) as pool:
            hits = pool.submit(search)
            started.wait()
            cursor.cancel()
            assert hits.result(timeout=60) < 200_000
        assert cursor.stop == "cancelled"


# -- many at once ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
def test_many_threads_can_search_one_index(codes: Codes, tables: Tables, buckets: Buckets) -> None:
    index = Index.build(codes, BITS, None, tables, buckets)
    rng = np.random.default_rng(3)
    queries = [make_table(kind, codes[rng.integers(N)], BITS, rng) for kind in WEIGHT_KINDS]
    wholes = [truth(codes, table) for table in queries]
    jobs = [(i, plan) for i in range(len(queries)) for plan in plans(index)] * 2
    together = threading.Barrier(8)

    def search(worker: int) -> None:
        together.wait()
        for i, plan in jobs[worker::8]:
            with index.cursor(Costs.table(queries[i]), k=700, plan=plan) as cursor:
                ids = [cursor.next(33)[0] for _ in range(22)]
            assert np.concatenate(ids).tolist() == wholes[i].ids[:700].tolist()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(search, range(8)))


def test_interleaved_cursors_are_independent(index: Index, costs: Costs, whole: Truth) -> None:
    cursors: list[Cursor] = [index.cursor(costs, plan=plan) for plan in plans(index) for _ in range(4)]
    parts: list[list[int]] = [[] for _ in cursors]
    for size in (1, 5, 100, 400, N):
        for cursor, part in zip(cursors, parts, strict=True):
            part += cursor.next(size)[0].tolist()
    for cursor, part in zip(cursors, parts, strict=True):
        assert part == whole.ids.tolist()
        cursor.close()
