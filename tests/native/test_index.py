"""Compares whole answers with the oracle: every plan, layout, instruction set, budget, chunk size and thread count."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import Cases
from tests.native.examples import (
    LAYOUTS,
    WEIGHT_KINDS,
    Data,
    WeightKind,
    datasets,
    generated,
    make_codes,
    make_table,
    plans,
    weight_kinds,
)
from tests.native.oracle import Floats, Ids, Truth, truth
from whamming.native import Answer, Buckets, Budget, Costs, Cursor, Index, Plan, Tables, available_simd

every_layout = pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)

SHORT_BUDGET = Budget(seconds=0.005)  # for probes of millions of keys; the hits proven within this time are checked


def as_bytes(ids: np.ndarray, distances: np.ndarray) -> tuple[bytes, bytes]:
    assert ids.dtype == np.uint64
    assert distances.dtype == np.float64
    return ids.tobytes(), distances.tobytes()


def answer_bytes(answer: Answer) -> tuple[bytes, bytes]:
    return as_bytes(answer.ids, answer.distances)


def radii(whole: Truth) -> st.SearchStrategy[float | None]:
    """None, and values around the distances of hits: below all, equal to one, between two, above all."""
    if len(whole) == 0:
        return st.sampled_from([None, -1.0, 0.0, math.inf])
    least, most = float(whole.distances[0]), float(whole.distances[-1])
    beyond = [None, math.inf, -math.inf, -1.0, 0.0, most, math.nextafter(least, -math.inf), 1.7e308, -1.7e308, 5e-324]
    hit = st.sampled_from(range(len(whole))).map(lambda i: float(whole.distances[i]))
    around = st.tuples(hit, st.sampled_from([-math.inf, math.inf])).map(lambda x: math.nextafter(*x))
    return st.one_of(st.sampled_from(beyond), hit, hit, around)


def counts(n: int) -> st.SearchStrategy[int]:
    """Values of k: 0, a few, about n, more than n."""
    return st.one_of(st.integers(0, 12), st.integers(0, n + 5), st.integers(max(0, n - 2), n + 5))


def configurations(index: Index) -> Iterator[Plan]:
    """Yield every plan, after switching the index to each instruction set that the plan uses."""
    for simd in available_simd():
        index.use_simd(simd)
        yield from ("auto", "sweep")
    if index.tables != "none":
        yield "probe"


def check_probe_needs_tables(index: Index, costs: Costs) -> None:
    if index.tables == "none":
        with pytest.raises(ValueError, match=r"probe.*tables"):
            index.search(costs, plan="probe")


# -- one search --------------------------------------------------------------------------------------------------------


@every_layout
@generated(60)
@given(data=datasets(), kinds=weight_kinds(), draw=st.data())
def test_every_plan_and_instruction_set_equals_the_oracle(
    tables: Tables, buckets: Buckets, data: Data, kinds: list[WeightKind], draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    for number, kind in enumerate(kinds):
        table = data.query(kind, number)
        whole = truth(data.codes, table, data.ids)
        costs = Costs.table(table)
        for k, radius in draw.draw(st.lists(st.tuples(counts(data.n), radii(whole)), min_size=2, max_size=3)):
            expected = whole.within(radius)[:k]
            for plan in configurations(index):
                budget = SHORT_BUDGET if plan == "probe" and data.slow_to_probe(index) else None
                answer = index.search(costs, k=k, radius=radius, plan=plan, budget=budget)
                proven = int(answer.proven[0])
                assert as_bytes(answer.ids[:proven], answer.distances[:proven]) == expected[:proven].bytes()
                if budget is None or answer.exact[0]:
                    assert answer.counts.tolist() == [proven] == [len(answer.ids)] == [len(expected)]
                    assert answer.exact.tolist() == [True]
                cases.add()
        check_probe_needs_tables(index, costs)


@generated(60)
@given(data=datasets(), kind=st.sampled_from(WEIGHT_KINDS), k=st.integers(1, 50))
def test_every_instruction_set_leaves_the_same_survivors(data: Data, kind: WeightKind, k: int, cases: Cases) -> None:
    """Not only the answers are equal: the filter passes the same codes after reading the same planes."""
    index = data.build("none", "compact")
    table = data.query(kind, 0)
    work = set()
    for simd in available_simd():
        index.use_simd(simd)
        answer = index.search(Costs.table(table), k=k, plan="sweep")
        assert answer_bytes(answer) == truth(data.codes, table, data.ids)[:k].bytes()
        stats = answer.stats[0]
        work.add((stats.candidates, stats.verified, stats.blocks, stats.planes))
        cases.add()
    assert len(work) == 1


@pytest.mark.parametrize("bits", [288, 4096])
@pytest.mark.parametrize("kind", ["random", "integers", "huge"])
def test_long_codes_equal_the_oracle(bits: int, kind: WeightKind, cases: Cases) -> None:
    rng = np.random.default_rng(bits)
    codes = make_codes("clustered", 5000, bits, rng)
    table = make_table(kind, codes[17], bits, rng)
    whole = truth(codes, table)
    index = Index.build(codes, bits, substring_bits=8)
    for plan in configurations(index):
        for k in (1, 100, 5005):
            assert answer_bytes(index.search(Costs.table(table), k=k, plan=plan)) == whole[:k].bytes()
            cases.add()
        for threads in (1, 2):  # the queries of a group share several tiles of blocks
            batch = index.search(Costs.table(np.stack([table] * 5)), k=100, plan=plan, threads=threads)
            assert all(as_bytes(batch.ids[i], batch.distances[i]) == whole[:100].bytes() for i in range(5))
            cases.add()


def test_k_may_exceed_the_hits_of_one_round(cases: Cases) -> None:
    """A round keeps up to 65,536 hits; more hits take more rounds."""
    rng = np.random.default_rng(1)
    codes = make_codes("uniform", 70_000, 19, rng)
    table = make_table("integers", codes[0], 19, rng)
    whole = truth(codes, table)
    for tables, buckets in LAYOUTS:
        index = Index.build(codes, 19, None, tables, buckets)
        for plan in plans(index):
            for k in (65_536, 65_537, 70_000):
                answer = index.search(Costs.table(table), k=k, plan=plan)
                assert answer_bytes(answer) == whole[:k].bytes()
                assert answer.stats[0].rounds == (1 if k == 65_536 else 2)
                cases.add()


@pytest.mark.parametrize("substring_bits", [13, 16, 19, 23, 27, 31, 32])
@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS[:4])
def test_hashed_keys_do_not_change_answers(tables: Tables, buckets: Buckets, substring_bits: int, cases: Cases) -> None:
    """Keys longer than directory_bits are hashed. Rows with another key in the same bucket must be skipped."""
    rng = np.random.default_rng(substring_bits)
    bits = 2 * substring_bits + 1
    codes = make_codes("clustered", 700, bits, rng)
    index = Index.build(codes, bits, None, tables, buckets, substring_bits=substring_bits)
    for kind in WEIGHT_KINDS:
        table = make_table(kind, codes[rng.integers(700)], bits, rng)
        if kind in ("zero", "huge", "denormal", "dominated") and substring_bits > 16:
            continue  # bits that cost nothing: millions of keys have the same cost
        answer = index.search(Costs.table(table), k=3, plan="probe")
        assert answer_bytes(answer) == truth(codes, table)[:3].bytes()
        cases.add()


def test_probe_with_full_queues_switches_to_the_sweep(cases: Cases) -> None:
    """Substrings of 32 bits have more keys than a probe may queue. Hits proven before the switch must not repeat."""
    rng = np.random.default_rng(2)
    codes = make_codes("clustered", 2000, 32, rng)
    for tables, buckets in LAYOUTS[:4]:
        index = Index.build(codes, 32, None, tables, buckets, substring_bits=32)
        for kind in WEIGHT_KINDS[:1] + WEIGHT_KINDS[6:7]:
            table = make_table(kind, codes[3], 32, rng)
            whole = truth(codes, table)
            with index.cursor(Costs.table(table), k=1500, plan="probe") as cursor:
                early = cursor.next(1, eager=True)
                assert len(early[0]) == 1
                assert not cursor.stats.switched
                late = cursor.next(1500)
                assert cursor.stats.switched
                assert cursor.stats.plan == "sweep"
            got = as_bytes(np.concatenate([early[0], late[0]]), np.concatenate([early[1], late[1]]))
            assert got == whole[:1500].bytes()
            cases.add()


# -- cursors -----------------------------------------------------------------------------------------------------------


class CheckedCursor:
    """Checks every step of a cursor: hits equal the oracle's, and the lower bound is valid and never decreases."""

    def __init__(self, cursor: Cursor, expected: Truth, beyond: Truth) -> None:
        """``expected``: the hits that the cursor must return; ``beyond``: the same with k unlimited."""
        self.cursor = cursor
        self.expected = expected
        self.beyond = beyond
        self.sent = 0
        self.bound = -math.inf
        self.check_bound()

    def check_bound(self) -> None:
        bound = self.cursor.lower_bound
        assert not math.isnan(bound)
        assert bound >= self.bound
        if self.sent < len(self.beyond):
            assert bound <= self.beyond.distances[self.sent]
        self.bound = bound

    def next(self, size: int, budget: Budget | None = None, eager: bool = False) -> int:
        ids, distances = self.cursor.next(size, budget=budget, eager=eager)
        assert len(ids) <= size
        assert as_bytes(ids, distances) == self.expected[self.sent : self.sent + len(ids)].bytes()
        self.sent += len(ids)
        self.check_bound()
        match self.cursor.stop:
            case "more":
                assert len(ids) == size or (eager and len(ids) > 0)
            case "exhausted":
                assert self.sent == len(self.expected)
            case "budget":
                assert budget is not None
            case _:
                raise AssertionError(self.cursor.stop)
        return len(ids)

    def drain(self, sizes: list[int], budget: Budget | None = None, eager: bool = False) -> None:
        """Take all hits, in chunks of these sizes in turn."""
        step = 0
        while self.cursor.stop != "exhausted":
            self.next(sizes[step % len(sizes)], budget, eager)
            step += 1
        assert self.sent == len(self.expected)
        assert self.next(5) == 0
        assert len(self.cursor.guess(5)[0]) == 0


@every_layout
@generated(40)
@given(data=datasets(), kinds=weight_kinds(2), draw=st.data())
def test_chunks_of_any_size_make_up_the_same_answer(
    tables: Tables, buckets: Buckets, data: Data, kinds: list[WeightKind], draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    for number, kind in enumerate(kinds):
        table = data.query(kind, number)
        whole = truth(data.codes, table, data.ids)
        costs = Costs.table(table)
        radius = draw.draw(radii(whole))
        k = draw.draw(st.one_of(st.none(), counts(data.n)))
        sizes = draw.draw(st.lists(st.sampled_from([1, 2, 3, 7, 13, 64, 257, 1001]), min_size=1, max_size=4))
        eager = draw.draw(st.booleans())
        for plan in configurations(index):
            with index.cursor(costs, k=k, radius=radius, plan=plan) as cursor:
                checked = CheckedCursor(cursor, whole.within(radius)[:k], whole)
                if plan == "probe" and data.slow_to_probe(index):
                    for size in sizes:
                        checked.next(size, SHORT_BUDGET, eager)
                else:
                    checked.drain(sizes, eager=eager)
                    if checked.sent == data.n:
                        assert cursor.lower_bound == math.inf
            cases.add()


@every_layout
@generated(30)
@given(data=datasets(), kind=st.sampled_from(WEIGHT_KINDS), draw=st.data())
def test_a_search_resumes_after_any_hit(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    table = data.query(kind, 0)
    whole = truth(data.codes, table, data.ids)
    costs = Costs.table(table)
    for position in draw.draw(st.lists(resume_points(whole), min_size=1, max_size=3)):
        rest = whole.after(*position)
        radius = draw.draw(radii(whole))
        k = draw.draw(counts(len(rest)))
        for plan in configurations(index):
            with index.cursor(costs, k=k, radius=radius, plan=plan, after=position) as cursor:
                checked = CheckedCursor(cursor, rest.within(radius)[:k], rest)
                if plan == "probe" and data.slow_to_probe(index):
                    checked.next(k, SHORT_BUDGET)
                else:
                    checked.drain([data.n + 1])
            cases.add()


@every_layout
@generated(30)
@given(data=datasets(least=1), kind=st.sampled_from(WEIGHT_KINDS), draw=st.data())
def test_a_search_resumes_after_any_hit_if_distances_are_rounded_too(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    table = data.query(kind, 0)
    whole = truth(data.codes, table, data.ids)
    costs = Costs.table(table)
    assert bool(costs.scales["rounded"][0]) == whole.rounded
    with index.cursor(costs) as cursor:
        ids, distances = cursor.next(data.n)
        sums = cursor.sums
    assert (sums is not None) == whole.rounded
    for place in draw.draw(st.lists(st.integers(0, data.n - 1), min_size=1, max_size=5)):
        position = float(distances[place]), int(ids[place]), b"" if sums is None else sums[place].tobytes()
        with index.cursor(costs, after=position) as cursor:
            CheckedCursor(cursor, whole[place + 1 :], whole[place + 1 :]).drain([data.n + 1])
        cases.add()


def resume_points(whole: Truth) -> st.SearchStrategy[tuple[float, int]]:
    """Positions to resume after: a hit, just before or after one, before all hits, after all hits."""
    anywhere = st.sampled_from([(-math.inf, 0), (math.inf, 2**64 - 1), (0.0, 0), (-1.0, 5), (1e300, 0), (-5e-324, 9)])
    if len(whole) == 0:
        return anywhere
    hit = st.sampled_from(range(len(whole))).map(lambda i: (float(whole.distances[i]), int(whole.ids[i])))
    beside = st.tuples(hit, st.sampled_from([-math.inf, math.inf])).map(
        lambda x: (math.nextafter(x[0][0], x[1]), x[0][1])
    )
    other_id = st.tuples(hit, st.sampled_from([0, 2**64 - 1])).map(lambda x: (x[0][0], x[1]))
    return st.one_of(hit, hit, beside, other_id, anywhere)


@every_layout
@generated(20)
@given(data=datasets(least=200), kind=st.sampled_from(WEIGHT_KINDS))
def test_unlimited_iteration_returns_every_item_once(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, cases: Cases
) -> None:
    """Takes several rounds, of 256, 1024 and 4096 hits."""
    index = data.build(tables, buckets)
    table = data.query(kind, 0)
    whole = truth(data.codes, table, data.ids)
    for plan in configurations(index):
        if plan == "probe" and data.slow_to_probe(index):
            continue
        with index.cursor(Costs.table(table), plan=plan) as cursor:
            hits = list(cursor)
            assert cursor.exhausted
            assert cursor.lower_bound == math.inf
            assert cursor.stats.rounds == 1 + sum(data.n > rounds for rounds in (256, 1280, 5376))
        assert [hit.id for hit in hits] == whole.ids.tolist()
        assert [hit.distance for hit in hits] == whole.distances.tolist()
        cases.add()


# -- budgets -----------------------------------------------------------------------------------------------------------


def check_sorted(ids: Ids, distances: Floats, whole: Truth) -> None:
    """Check the order of some hits."""
    if whole.rounded:
        rank = {name: place for place, name in enumerate(whole.ids.tolist())}
        places = [rank[name] for name in ids.tolist()]
        assert places == sorted(places)
    else:
        pairs = list(zip(distances.tolist(), ids.tolist(), strict=True))
        assert pairs == sorted(pairs)


def check_budgeted(answer: Answer, expected: Truth, whole: Truth, known: dict[int, list[float]]) -> None:
    """Proven hits are a prefix of the truth. The others are sorted, have true distances, and occur once."""
    proven, total = int(answer.proven[0]), int(answer.counts[0])
    assert proven <= total == len(answer.ids) <= len(expected)
    assert as_bytes(answer.ids[:proven], answer.distances[:proven]) == expected[:proven].bytes()
    if answer.exact[0]:
        assert proven == total == len(expected)
    check_sorted(answer.ids, answer.distances, whole)
    left = {name: list(distances) for name, distances in known.items()}
    for distance, name in zip(answer.distances.tolist(), answer.ids.tolist(), strict=True):
        left[name].remove(distance)


def check_guess(cursor: Cursor, bound: float, whole: Truth, known: dict[int, list[float]]) -> None:
    ids, distances = cursor.guess(20)
    check_sorted(ids, distances, whole)
    pairs = zip(distances.tolist(), ids.tolist(), strict=True)
    assert all(bound <= distance and distance in known[name] for distance, name in pairs)


@every_layout
@generated(30)
@given(data=datasets(), kind=st.sampled_from(WEIGHT_KINDS), draw=st.data())
def test_a_budgeted_answer_starts_with_a_proven_prefix(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    table = data.query(kind, 0)
    whole = truth(data.codes, table, data.ids)
    known: dict[int, list[float]] = {}
    for name, distance in zip(whole.ids.tolist(), whole.distances.tolist(), strict=True):
        known.setdefault(name, []).append(distance)
    costs = Costs.table(table)
    radius = draw.draw(radii(whole))
    k = draw.draw(counts(data.n))
    candidates = draw.draw(st.one_of(st.just(1), st.integers(1, 10_000)))
    expected = whole.within(radius)[:k]
    sizes = draw.draw(st.lists(st.sampled_from([1, 5, data.n + 1]), min_size=1, max_size=3))
    for plan in configurations(index):
        slow = plan == "probe" and data.slow_to_probe(index)
        for budget in (SHORT_BUDGET,) if slow else (Budget(candidates=candidates), Budget(seconds=1e-6)):
            answer = index.search(costs, k=k, radius=radius, plan=plan, budget=budget)
            check_budgeted(answer, expected, whole, known)
            with index.cursor(costs, k=k, radius=radius, plan=plan) as cursor:
                checked = CheckedCursor(cursor, expected, whole)
                while cursor.stop != "exhausted":
                    for size in sizes:
                        checked.next(size, budget)
                        check_guess(cursor, checked.bound, whole, known)
                    if slow:
                        break
            cases.add(2)


@pytest.mark.parametrize("budget", [Budget(candidates=1), Budget(seconds=1e-9)])
def test_repeated_calls_with_the_smallest_budget_finish(budget: Budget) -> None:
    rng = np.random.default_rng(5)
    codes = make_codes("uniform", 3000, 64, rng)
    index = Index.build(codes, 64)
    table = make_table("random", codes[0], 64, rng)
    for plan in plans(index):
        with index.cursor(Costs.table(table), k=100, plan=plan) as cursor:
            ids: list[int] = []
            for _ in range(10_000):
                ids += cursor.next(100, budget=budget)[0].tolist()
                if cursor.stop != "budget":
                    break
        assert ids == truth(codes, table).ids[:100].tolist()


def test_an_answer_whose_budget_ran_out_is_not_exact() -> None:
    """With long uniform codes, neither plan can finish after one candidate."""
    rng = np.random.default_rng(6)
    codes = make_codes("uniform", 5000, 4096, rng)
    index = Index.build(codes, 4096)
    costs = Costs.table(make_table("random", make_codes("uniform", 1, 4096, rng)[0], 4096, rng))
    for plan in plans(index):
        answer = index.search(costs, k=10, plan=plan, budget=Budget(candidates=1))
        assert answer.exact.tolist() == [False]
        assert answer.proven[0] < 10


# -- batches -----------------------------------------------------------------------------------------------------------


@every_layout
@generated(25)
@given(data=datasets(), kinds=weight_kinds(4), draw=st.data())
def test_a_batch_equals_its_single_queries_on_any_number_of_threads(
    tables: Tables, buckets: Buckets, data: Data, kinds: list[WeightKind], draw: st.DataObject, cases: Cases
) -> None:
    index = data.build(tables, buckets)
    distinct = [data.query(kind, number) for number, kind in enumerate(kinds)]
    wholes = [truth(data.codes, table, data.ids) for table in distinct]
    picks = draw.draw(
        st.one_of(st.just(len(kinds)), st.integers(0, 80)).map(lambda q: [i % len(kinds) for i in range(q)])
    )
    stacked: Floats = np.stack(distinct)[picks] if picks else np.empty((0, data.bits, 2))
    radius = draw.draw(radii(wholes[0]))
    k = draw.draw(counts(data.n))
    costs = Costs.table(stacked)
    for plan in configurations(index):
        if plan == "probe" and data.slow_to_probe(index):
            continue
        for threads in (1, 2, 4):
            answer = index.search(costs, k=k, radius=radius, plan=plan, threads=threads)
            assert answer.ids.shape == answer.distances.shape == (len(picks), k)
            assert len(answer.stats) == len(answer.exact) == len(picks)
            assert answer.exact.all()
            for i, pick in enumerate(picks):
                expected = wholes[pick].within(radius)[:k]
                count = int(answer.counts[i])
                assert as_bytes(answer.ids[i, :count], answer.distances[i, :count]) == expected.bytes()
                assert (answer.ids[i, count:] == np.uint64(2**64 - 1)).all()
                assert (answer.distances[i, count:] == np.inf).all()
            cases.add(len(set(picks)))  # a repeated query is one case
