"""Sharing worker threads: no flow starves, nothing runs twice at once, nothing is forgotten."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal

import pytest

from tests.serving import wait_until
from whamming.server.search.scheduler import (
    GROUP_SLICES,
    INLINE_SECONDS,
    LONE_SLICES,
    MAX_ESTIMATES,
    MAX_OPEN,
    MAX_TOGETHER,
    Flow,
    Scheduler,
    ThroughputEstimate,
)

SLICE = 0.002
Outcome = Literal["again", "blocked", "done"]


class Task:
    """A job that does what a function says, and notices if two workers run it at once."""

    def __init__(
        self, flow: Flow, step: Callable[[float], Outcome] = lambda _: "done", group: Hashable = None, name: str = ""
    ) -> None:
        self.flow = flow
        self.group = group
        self.name = name
        self.steps = 0
        self.ended = threading.Event()
        self._step = step
        self._running = threading.Lock()

    def run(self, seconds: float) -> Outcome:
        assert self._running.acquire(blocking=False), "two workers run one job"
        try:
            self.steps += 1
            return self._step(seconds)
        finally:
            self._running.release()


class Desk:
    """A scheduler of tasks. Without workers, the test runs what they would."""

    def __init__(self, threads: int = 0) -> None:
        self.ran: list[list[Task]] = []
        """The tasks of each run."""
        self.scheduler: Scheduler[Task] = Scheduler(threads, SLICE, self._run)

    def _run(self, tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        self.ran.append(list(tasks))
        again = []
        for task in tasks:
            outcome = task.run(seconds)
            if outcome == "again":
                again.append(task)
            elif task.group is None:
                self.scheduler.count_open(task.flow, -1)
            if outcome == "done":
                task.ended.set()
        return again

    def submit(self, *tasks: Task) -> None:
        """Hand in tasks that have not begun, and let workers know."""
        for task in tasks:
            self.scheduler.submit(task.flow, [task])
        self.scheduler.dispatch()

    def resume(self, task: Task) -> None:
        self.scheduler.count_open(task.flow, 1)
        self.scheduler.resume(task)

    def step(self, seconds: float = 1.0) -> list[str]:
        """Run what a worker would run next. Returns the names of the tasks."""
        scheduler = self.scheduler
        with scheduler._lock:
            turn = scheduler._take(seconds)
            scheduler._busy += turn is not None
        if turn is None:
            return []
        scheduler._execute(turn)
        return [task.name for task in turn.jobs]

    def learn(self, group: Hashable, seconds: float = 1e-6) -> None:
        """Let the scheduler know how long a task of a group takes."""
        task = Task(Flow(), group=group)
        self.scheduler.submit(task.flow, [task])
        while not task.ended.is_set():
            self.step()
        self.scheduler._estimates[group].add(seconds * MAX_TOGETHER, MAX_TOGETHER)
        self.ran.clear()


def counted(flow: Flow, count: int, name: str = "") -> Task:
    """A task of so many short slices."""
    task = Task(flow, lambda _: "done" if task.steps >= count else "again", name=name)
    return task


def busy(seconds: float) -> None:
    """Use time as a search does: without a pause."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture(params=[1, 3])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """With workers."""
    desk = Desk(request.param)
    yield desk
    desk.scheduler.close()


@pytest.fixture
def single() -> Iterator[Desk]:
    """One worker."""
    desk = Desk(1)
    yield desk
    desk.scheduler.close()


@pytest.fixture
def manual() -> Desk:
    """No worker, so that the order of things is certain."""
    return Desk()


# -- one job at a time -------------------------------------------------------------------------------------------------


def test_jobs_are_done(desk: Desk) -> None:
    shared = Flow()
    tasks = [counted(Flow() if place < 25 else shared, 5) for place in range(50)]
    desk.submit(*tasks)
    for task in tasks:
        assert task.ended.wait(20)
        assert task.steps == 5


def test_a_slice_is_as_long_as_told(single: Desk) -> None:
    told: list[float] = []

    def step(seconds: float) -> Outcome:
        told.append(seconds)
        return "done"

    task = Task(Flow(), step)
    single.submit(task)
    assert task.ended.wait(20)
    assert told == [SLICE]
    assert single.scheduler.threads == 1


def test_jobs_of_a_flow_take_turns(manual: Desk) -> None:
    flow = Flow()
    manual.submit(*(counted(flow, 4, name) for name in "abc"))
    order = [manual.step()[0] for _ in range(12)]
    assert manual.step() == []
    assert order[:5] == ["a", "a", "b", "a", "c"], "those that have not begun and those that have, by turns"
    assert sorted(order) == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    last = order[5:9]
    assert set(last) == {"a", "b", "c"}


def test_begun_jobs_do_not_wait_for_all_fresh_ones(manual: Desk) -> None:
    flow = Flow()
    manual.submit(*(counted(flow, 2, f"{place}") for place in range(40)))
    order = [manual.step()[0] for _ in range(80)]
    second = {name: [place for place, one in enumerate(order) if one == name][1] for name in set(order)}
    assert second["0"] == 1
    assert all(second[f"{place}"] < order.index("39") for place in range(35))


def test_a_flow_has_a_limited_number_of_open_jobs(manual: Desk) -> None:
    flow = Flow()
    finish = False
    tasks = [Task(flow, lambda _: "done" if finish else "again", name=f"{place}") for place in range(MAX_OPEN + 10)]
    manual.submit(*tasks)
    for _ in range(3 * MAX_OPEN):
        manual.step()
    assert flow.open == MAX_OPEN
    assert [task.steps > 0 for task in tasks] == [True] * MAX_OPEN + [False] * 10
    finish = True
    while manual.step():
        pass
    assert all(task.ended.is_set() for task in tasks)
    assert flow.open == 0


def test_jobs_that_wait_for_their_client_do_not_count(manual: Desk) -> None:
    flow = Flow()
    tasks = [Task(flow, lambda _: "blocked", name=f"{place}") for place in range(3 * MAX_OPEN)]
    last = Task(flow, name="last")
    manual.submit(*tasks, last)
    while manual.step():
        pass
    assert last.ended.is_set()
    assert flow.open == 0
    manual.resume(tasks[7])
    assert flow.open == 1
    assert manual.step() == ["7"]
    assert tasks[7].steps == 2
    assert flow.open == 0


def test_jobs_that_wait_for_room_do_count(manual: Desk) -> None:
    """They hold memory. A full flow begins no more jobs until one of them ends."""
    flow = Flow()
    finish = False
    tasks = [Task(flow, lambda _: "done" if finish else "again") for _ in range(MAX_OPEN)]
    manual.submit(*tasks)
    for _ in range(2 * MAX_OPEN):
        manual.step()
    assert flow.open == MAX_OPEN
    flow.begun.clear()  # all of them wait
    manual.submit(Task(flow, name="fresh"))
    assert manual.step() == []
    finish = True
    manual.scheduler.resume(tasks[0])
    assert manual.step() == [""]
    assert manual.step() == ["fresh"]


def test_a_job_that_waits_is_not_run_until_it_is_resumed(single: Desk) -> None:
    waits = threading.Event()

    def step(_: float) -> Outcome:
        if task.steps > 1:
            return "done"
        waits.set()
        return "blocked"

    task = Task(Flow(), step)
    single.submit(task)
    assert waits.wait(20)
    other = counted(Flow(), 3)
    single.submit(other)
    assert other.ended.wait(20)
    assert task.steps == 1
    single.resume(task)
    assert task.ended.wait(20)


# -- fairness ----------------------------------------------------------------------------------------------------------


def test_the_flow_that_has_used_least_runs_next(manual: Desk) -> None:
    flows = {name: Flow() for name in "abcd"}
    manual.submit(*(counted(flow, 1000, name) for name, flow in flows.items()))
    for _ in range(200):
        used = {name: flow.used for name, flow in flows.items()}
        (name,) = manual.step()
        assert used[name] == min(used.values())


def test_flows_get_equal_time_whatever_their_slices_and_jobs(single: Desk) -> None:
    """One flow has three jobs of long slices, the other one job of short slices: each gets half."""
    used = {"many": 0.0, "one": 0.0}
    stopped = threading.Event()

    def using(flow: Flow, name: str, seconds: float) -> Task:
        def step(_: float) -> Outcome:
            start = time.thread_time()
            busy(seconds)
            used[name] += time.thread_time() - start
            return "done" if stopped.is_set() else "again"

        return Task(flow, step)

    many = Flow()
    tasks = [using(many, "many", 0.004) for _ in range(3)] + [using(Flow(), "one", 0.0005)]
    single.submit(*tasks)
    wait_until(lambda: sum(used.values()) > 0.2)
    stopped.set()
    for task in tasks:
        assert task.ended.wait(20)
    assert used["many"] == pytest.approx(used["one"], rel=0.25, abs=0.02)
    assert tasks[-1].steps > tasks[0].steps


def test_an_endless_job_does_not_hold_up_short_ones(manual: Desk) -> None:
    """A short job that is submitted while an endless one runs comes next, however long that goes on."""

    def endless(_: float) -> Outcome:
        manual.scheduler.submit(flow := Flow(), [Task(flow, name="short")])
        busy(0.0002)
        return "again"

    flow = Flow()
    manual.submit(Task(flow, endless, name="endless"))
    order = [manual.step()[0] for _ in range(200)]
    assert order == ["endless", "short"] * 100


def test_many_long_flows_delay_a_newcomer_by_a_slice_of_each_at_most(manual: Desk) -> None:
    def endless(_: float) -> Outcome:
        busy(0.0001)
        return "again"

    flows = [Flow() for _ in range(10)]
    manual.submit(*(Task(flow, endless, name=f"{number}") for number, flow in enumerate(flows)))
    seen: set[str] = set()
    for _ in range(15):
        for _ in range(50):
            seen.update(manual.step())
        manual.scheduler.submit(flow := Flow(), [Task(flow, name="new")])
        waited: list[str] = []
        while (name := manual.step()[0]) != "new":
            waited.append(name)
        assert len(set(waited)) == len(waited)
    assert seen == {f"{number}" for number in range(10)}


def test_idling_saves_nothing_up(manual: Desk) -> None:
    """A flow that comes back after a pause starts level with the one at work, not ahead of it."""
    idle, working = Flow(), Flow()
    manual.submit(Task(idle))
    manual.step()

    def work(_: float) -> Outcome:
        busy(0.0005)
        return "again"

    manual.submit(Task(working, work))
    for _ in range(20):
        manual.step()
    start = manual.scheduler._now
    assert start > 0.005
    manual.scheduler.submit(idle, [Task(idle)])
    assert idle.used == start <= working.used


def test_a_newcomer_starts_at_the_present(manual: Desk) -> None:
    def work(_: float) -> Outcome:
        busy(0.0002)
        return "again"

    old = [Flow() for _ in range(3)]
    manual.submit(*(Task(flow, work) for flow in old))
    for _ in range(30):
        manual.step()
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow)])
    assert min(one.used for one in old) - 0.01 <= flow.used == manual.scheduler._now
    assert flow.used <= max(one.used for one in old)


# -- groups ------------------------------------------------------------------------------------------------------------


def test_the_first_job_of_a_group_runs_alone(manual: Desk) -> None:
    flow = Flow()
    manual.submit(*(Task(flow, group="g", name=f"{place}") for place in range(MAX_TOGETHER)))
    assert manual.step() == ["0"], "nobody knows how long it takes"
    count = len(manual.step())
    assert 1 < count <= 8


def test_a_group_is_as_large_as_fits_the_time(manual: Desk) -> None:
    manual.learn("g", seconds=0.01)
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(30)))
    assert len(manual.step(0.055)) == 5
    manual.scheduler._estimates["g"].add(0.01 * MAX_TOGETHER, MAX_TOGETHER)
    assert len(manual.step(0.001)) == 1
    manual.scheduler._estimates["g"].add(1e-6 * MAX_TOGETHER, MAX_TOGETHER)
    assert len(manual.step(1.0)) == 24
    assert manual.step() == []


def test_a_group_has_a_largest_size(manual: Desk) -> None:
    manual.learn("g")
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(2 * MAX_TOGETHER)))
    assert len(manual.step()) == MAX_TOGETHER


def test_a_group_gathers_jobs_of_several_flows_in_fair_order(manual: Desk) -> None:
    manual.learn("g")
    flows = {name: Flow() for name in "abc"}
    for name, used in zip("abc", (3.0, 1.0, 2.0), strict=True):
        flows[name].used = used
        tasks = [Task(flows[name], group="g", name=f"{name}{place}") for place in range(30)]
        manual.scheduler.submit(flows[name], tasks)
    ran = manual.step()
    share = -(-MAX_TOGETHER // 3)
    assert ran[:share] == [f"b{place}" for place in range(share)]
    assert ran[share : 2 * share] == [f"c{place}" for place in range(share)]
    assert ran[2 * share :] == [f"a{place}" for place in range(MAX_TOGETHER - 2 * share)]
    others = manual.step()
    assert sorted(ran + others) == sorted(f"{name}{place}" for name in "abc" for place in range(30))


def test_a_group_takes_only_jobs_that_are_next_in_their_flow(manual: Desk) -> None:
    manual.learn("g")
    first, second, third = Flow(), Flow(), Flow()
    kinds = [("g", "g1"), ("other", "o"), ("g", "g2")]
    manual.scheduler.submit(first, [Task(first, group=group, name=name) for group, name in kinds])
    manual.scheduler.submit(second, [Task(second, name="alone"), Task(second, group="g", name="g3")])
    manual.scheduler.submit(third, [Task(third, group="g", name="g4")])
    assert manual.step() == ["g1", "g4"]
    rest = [manual.step() for _ in range(4)]
    assert sorted(name for names in rest for name in names) == ["alone", "g2", "g3", "o"]
    assert rest.index(["o"]) < next(place for place, names in enumerate(rest) if "g2" in names), "in the flow's order"
    assert manual.step() == []


def test_flows_of_a_group_share_the_time_it_took(manual: Desk) -> None:
    def work(_: float) -> Outcome:
        busy(0.001)
        return "done"

    manual.learn("g")
    flows = [Flow(), Flow()]
    for flow, count in zip(flows, (1, 3), strict=True):
        manual.scheduler.submit(flow, [Task(flow, work, group="g") for _ in range(count)])
    start = manual.scheduler._now
    assert len(manual.step()) == 4
    used = [flow.used - start for flow in flows]
    assert used[1] == pytest.approx(3 * used[0])
    assert used[0] >= 0.001


@pytest.mark.parametrize(("others", "slices"), [(0, LONE_SLICES), (1, GROUP_SLICES)])
def test_a_worker_takes_fewer_jobs_at_once_where_other_flows_wait(single: Desk, others: int, slices: int) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(_: float) -> Outcome:
        held.set()
        assert release.wait(20)
        return "done"

    single.scheduler._estimates["g"] = ThroughputEstimate()
    single.scheduler._estimates["g"].add(SLICE * MAX_TOGETHER, MAX_TOGETHER)
    single.submit(Task(Flow(), hold))
    assert held.wait(20)
    flow, other = Flow(), Flow()
    tasks = [Task(flow, group="g") for _ in range(20)]
    single.submit(*tasks)
    other.used = 1.0
    single.submit(*(Task(other) for _ in range(others)))
    release.set()
    for task in tasks:
        assert task.ended.wait(20)
    assert len(single.ran[1]) == slices // (1 + others), "each flow has a share"


def test_jobs_of_a_group_do_not_count_as_open(manual: Desk) -> None:
    flow = Flow()
    manual.submit(*(Task(flow, group="g") for _ in range(3 * MAX_OPEN)))
    while manual.step():
        assert flow.open == 0


def test_estimates_are_forgotten_where_there_are_too_many(manual: Desk) -> None:
    for number in range(MAX_ESTIMATES + 10):
        task = Task(Flow(), group=number)
        manual.submit(task)
        while not task.ended.is_set():
            manual.step()
    assert len(manual.scheduler._estimates) <= MAX_ESTIMATES


# -- estimates ---------------------------------------------------------------------------------------------------------


def test_the_number_of_jobs_grows_step_by_step() -> None:
    estimate = ThroughputEstimate()
    assert estimate.seconds == math.inf
    assert estimate.count_in(1.0) == 1
    estimate.add(1e-6, 1)
    assert estimate.count_in(1.0) == 8
    estimate.add(8e-6, 8)
    assert estimate.count_in(1.0) == MAX_TOGETHER
    estimate.add(64.0, 64)
    assert estimate.count_in(3.5) == 3
    assert estimate.count_in(0.001) == 1


def test_jobs_that_took_no_time_at_all() -> None:
    """A clock may be too coarse to see them."""
    estimate = ThroughputEstimate()
    estimate.add(0.0, 5)
    assert estimate.count_in(1.0) == 40


# -- dispatch ----------------------------------------------------------------------------------------------------------


def test_short_jobs_run_in_the_thread_that_dispatches(manual: Desk) -> None:
    manual.learn("g")
    threads: list[int] = []

    def step(_: float) -> Outcome:
        threads.append(threading.get_ident())
        return "done"

    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow, step, group="g") for _ in range(3)])
    assert threads == []
    manual.scheduler.dispatch()
    assert threads == [threading.get_ident()] * 3
    assert manual.scheduler._busy == 0


def test_only_as_much_is_dispatched_inline_as_is_short(manual: Desk) -> None:
    manual.learn("g", INLINE_SECONDS / 4)
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow, group="g") for _ in range(10)])
    manual.scheduler.dispatch()
    assert len(manual.ran[0]) == 4
    assert len(manual.ran) == 1


@pytest.mark.parametrize("group", [None, "unknown", "slow"])
def test_jobs_that_are_not_known_to_be_short_are_left_to_workers(manual: Desk, group: Hashable) -> None:
    manual.learn("slow", 2 * INLINE_SECONDS)
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow, group=group)])
    manual.scheduler.dispatch()
    assert manual.ran == []
    assert len(manual.step()) == 1


def test_begun_jobs_are_left_to_workers(manual: Desk) -> None:
    manual.learn("g")
    flow = Flow()
    lone = counted(flow, 5)
    manual.submit(lone)
    manual.step()
    manual.scheduler.submit(flow, [Task(flow, group="g")])
    manual.scheduler.dispatch()
    assert len(manual.ran) == 1, "the begun job is next"


def test_a_flow_whose_time_has_run_out_does_not_bring_another_flow_into_the_event_loop(manual: Desk) -> None:
    """The flow at the front was queued before its last job was paid for. What is really next may take long."""
    manual.learn("g")
    front, other = Flow(), Flow()
    manual.scheduler.submit(front, [Task(front, group="g", name="short")])
    manual.scheduler.submit(other, [Task(other, name="long")])
    front.used += 1.0
    manual.scheduler.dispatch()
    assert manual.ran == []
    assert manual.step() == ["long"]
    assert manual.step() == ["short"]


def test_nothing_runs_inline_while_a_worker_is_busy(single: Desk) -> None:
    held, release = threading.Event(), threading.Event()

    def hold(_: float) -> Outcome:
        held.set()
        assert release.wait(20)
        return "done"

    single.scheduler._estimates["g"] = ThroughputEstimate()
    single.scheduler._estimates["g"].add(1e-6, 1)
    single.submit(Task(Flow(), hold))
    assert held.wait(20)
    threads: list[int] = []

    def step(_: float) -> Outcome:
        threads.append(threading.get_ident())
        return "done"

    task = Task(Flow(), step, group="g")
    single.submit(task)
    assert threads == []
    release.set()
    assert task.ended.wait(20)
    assert threads != [threading.get_ident()]


def test_with_a_single_worker_whole_groups_run_in_the_thread_that_dispatches(single: Desk) -> None:
    """And the worker sleeps on: what is left is dispatched again."""
    single.scheduler._estimates["g"] = ThroughputEstimate()
    single.scheduler._estimates["g"].add(INLINE_SECONDS / 2 * MAX_TOGETHER, MAX_TOGETHER)
    threads: list[int] = []

    def step(_: float) -> Outcome:
        threads.append(threading.get_ident())
        return "done"

    flow, size = Flow(), round(GROUP_SLICES * SLICE / (INLINE_SECONDS / 2))
    assert INLINE_SECONDS < GROUP_SLICES * SLICE
    single.scheduler.submit(flow, [Task(flow, step, group="g") for _ in range(size + 1)])
    assert single.scheduler.dispatch()
    assert threads == [threading.get_ident()] * size
    assert not single.scheduler.dispatch()
    assert threads == [threading.get_ident()] * (size + 1)


def test_what_a_single_worker_is_needed_for_wakes_it(single: Desk) -> None:
    single.scheduler._estimates["g"] = ThroughputEstimate()
    single.scheduler._estimates["g"].add(1e-6, 1)
    short, long = Task(Flow(), group="g"), Task(Flow())
    single.scheduler.submit(short.flow, [short])
    single.scheduler.submit(long.flow, [long])
    while single.scheduler.dispatch():
        pass
    assert long.ended.wait(20)
    assert short.ended.wait(20)


def test_a_single_worker_leaves_short_jobs_to_the_thread_that_dispatches() -> None:
    """Also those that arrived while it was busy: it would keep them from that thread for as long as more arrive."""
    threads: dict[str, int] = {}
    asked, begun, go_on = threading.Event(), threading.Event(), threading.Event()

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        threads.update((task.name, threading.get_ident()) for task in tasks)
        if tasks[0].group is None:
            begun.set()
            assert go_on.wait(20)
        return ()

    scheduler: Scheduler[Task] = Scheduler(1, SLICE, run, request_dispatch=asked.set)
    try:
        scheduler._estimates["g"] = ThroughputEstimate()
        scheduler._estimates["g"].add(1e-6, 1)
        long, short = Task(Flow(), name="long"), Task(Flow(), name="short", group="g")
        scheduler.submit(long.flow, [long])
        assert not scheduler.dispatch()
        assert begun.wait(20)
        scheduler.submit(short.flow, [short])
        assert not scheduler.dispatch()
        assert not asked.is_set()
        go_on.set()
        assert asked.wait(20)
        assert not scheduler.dispatch()
        assert threads["short"] == threading.get_ident() != threads["long"]
    finally:
        go_on.set()
        scheduler.close()


def test_jobs_of_a_group_that_were_not_run_come_first_the_next_time() -> None:
    ran: list[str] = []

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        ran.extend(task.name for task in tasks[:2])
        return tasks[2:]

    scheduler: Scheduler[Task] = Scheduler(0, SLICE, run)
    scheduler._estimates["g"] = ThroughputEstimate()
    scheduler._estimates["g"].add(1e-6, 10)
    flow = Flow()
    scheduler.submit(flow, [Task(flow, group="g", name=name) for name in "abcde"])
    for _ in range(3):
        scheduler.dispatch()
    assert "".join(ran) == "abcde"
    assert not scheduler._heap


def test_jobs_left_over_in_the_event_loop_wake_a_worker() -> None:
    first, ended = threading.get_ident(), threading.Event()

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        if threading.get_ident() == first:
            return tasks[1:]
        ended.set()
        return ()

    scheduler: Scheduler[Task] = Scheduler(2, SLICE, run)
    scheduler._estimates["g"] = ThroughputEstimate()
    scheduler._estimates["g"].add(1e-6, 10)
    flow = Flow()
    scheduler.submit(flow, [Task(flow, group="g") for _ in range(5)])
    scheduler.dispatch()
    assert ended.wait(20)
    scheduler.close()


def test_jobs_that_may_have_to_wait_are_left_to_workers() -> None:
    ran: list[Task] = []

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        ran.extend(tasks)
        return ()

    scheduler: Scheduler[Task] = Scheduler(0, SLICE, run, lambda task: task.name != "waits")
    scheduler._estimates["g"] = ThroughputEstimate()
    scheduler._estimates["g"].add(1e-6, 1)
    waits, ready = Task(Flow(), group="g", name="waits"), Task(Flow(), group="g", name="ready")
    scheduler.submit(waits.flow, [waits])
    scheduler.dispatch()
    assert ran == []
    scheduler._heap.clear()
    scheduler.submit(ready.flow, [ready])
    scheduler.dispatch()
    assert ran == [ready]


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_a_job_that_raises_is_dropped_and_the_others_go_on(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: float) -> Outcome:
        raise ArithmeticError("a job that breaks its promise")

    flow = Flow()
    with caplog.at_level(logging.ERROR, "whamming.server"):
        desk.submit(*(Task(flow, fail) for _ in range(1 + desk.scheduler.threads)))
        after = counted(flow, 2)
        desk.submit(after)
        assert after.ended.wait(20)
    assert "a job that breaks its promise" in caplog.text


def test_nothing_is_lost_under_stress() -> None:
    """Jobs that wait at random and are resumed by other threads, between groups: all are done, none twice at once."""
    desk = Desk(4)
    chance = random.Random(0)
    waiting: list[Task] = []
    over = threading.Event()

    def pausing(flow: Flow) -> Task:
        left = chance.randrange(1, 40)

        def step(_: float) -> Outcome:
            if task.steps >= left:
                return "done"
            return chance.choice(["again", "blocked"])

        task = Task(flow, step)
        return task

    def run(tasks: Sequence[Task], seconds: float) -> Sequence[Task]:
        again = []
        for task in tasks:
            outcome = task.run(seconds)
            if outcome == "again":
                again.append(task)
            elif task.group is None:
                desk.scheduler.count_open(task.flow, -1)
            if outcome == "done":
                task.ended.set()
            elif outcome == "blocked":
                waiting.append(task)
        return again

    desk.scheduler._run = run

    def resume() -> None:
        while not over.is_set():
            try:
                task = waiting.pop()
            except IndexError:
                over.wait(0.0001)
                continue
            desk.resume(task)

    helpers = [threading.Thread(target=resume) for _ in range(3)]
    for helper in helpers:
        helper.start()
    flows = [Flow() for _ in range(20)]
    tasks = [pausing(flow) for flow in flows for _ in range(20)]
    tasks += [Task(flow, group=group) for flow in flows for group in ("x", "y", "x") for _ in range(5)]
    desk.submit(*tasks)
    try:
        for task in tasks:
            assert task.ended.wait(20)
    finally:
        over.set()
        for helper in helpers:
            helper.join()
        desk.scheduler.close()
    assert not any(flow.fresh or flow.begun for flow in flows)
    assert [flow.open for flow in flows] == [0] * 20
    assert desk.scheduler._busy == 0


def test_closing_stops_the_workers_between_slices() -> None:
    before = threading.active_count()
    desk = Desk(3)

    def endless(seconds: float) -> Outcome:
        busy(seconds)
        return "again"

    desk.submit(*(Task(Flow(), endless) for _ in range(5)))
    desk.scheduler.close()
    assert threading.active_count() == before
    runs = len(desk.ran)
    desk.scheduler._estimates["g"] = ThroughputEstimate()
    desk.scheduler._estimates["g"].add(1e-6, 1)
    desk.submit(Task(Flow(), group="g"))
    assert len(desk.ran) == runs, "nothing runs any more, not even inline"
    desk.scheduler.close()


def test_a_worker_keeps_nothing_of_what_it_has_done(single: Desk) -> None:
    """A job holds a snapshot, which must go when the job has."""
    gone = threading.Event()

    class Mortal(Task):
        def __del__(self) -> None:
            gone.set()

    ran = single.ran

    class Forgetful(list[list[Task]]):
        def append(self, tasks: list[Task]) -> None:
            pass

    single.ran = Forgetful()
    single.submit(Mortal(Flow()))
    assert gone.wait(20)
    assert ran == []
