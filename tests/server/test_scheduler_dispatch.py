"""Dispatching: which jobs run inline, in the thread that dispatches them, and which run on workers."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence

import pytest

from tests.server import scheduler_bench
from tests.server.scheduler_bench import SLICE, Outcome, SchedulerBench, Task, counted
from whamming.server.search.scheduler import (
    GROUP_SLICES,
    INLINE_SECONDS,
    MAX_TOGETHER,
    Flow,
    Scheduler,
    ThroughputEstimate,
)

single = scheduler_bench.single
manual = scheduler_bench.manual


def test_short_jobs_run_in_the_thread_that_dispatches(manual: SchedulerBench) -> None:
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


def test_the_time_of_inline_jobs_is_limited(manual: SchedulerBench) -> None:
    manual.learn("g", INLINE_SECONDS / 4)
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow, group="g") for _ in range(10)])
    manual.scheduler.dispatch()
    assert len(manual.ran[0]) == 4
    assert len(manual.ran) == 1


@pytest.mark.parametrize("group", [None, "unknown", "slow"])
def test_jobs_not_known_to_be_short_run_on_workers(manual: SchedulerBench, group: Hashable) -> None:
    manual.learn("slow", 2 * INLINE_SECONDS)
    flow = Flow()
    manual.scheduler.submit(flow, [Task(flow, group=group)])
    manual.scheduler.dispatch()
    assert manual.ran == []
    assert len(manual.step()) == 1


def test_begun_jobs_run_on_workers(manual: SchedulerBench) -> None:
    manual.learn("g")
    flow = Flow()
    lone = counted(flow, 5)
    manual.submit(lone)
    manual.step()
    manual.scheduler.submit(flow, [Task(flow, group="g")])
    manual.scheduler.dispatch()
    assert len(manual.ran) == 1, "the begun job is next, and it runs on a worker"


def test_a_long_job_behind_an_outdated_flow_does_not_run_inline(manual: SchedulerBench) -> None:
    """The flow at the front of the heap has used more time since it was queued. The job that is really next is long."""
    manual.learn("g")
    front, other = Flow(), Flow()
    manual.scheduler.submit(front, [Task(front, group="g", name="short")])
    manual.scheduler.submit(other, [Task(other, name="long")])
    front.client.used += 1.0
    manual.scheduler.dispatch()
    assert manual.ran == []
    assert manual.step() == ["long"]
    assert manual.step() == ["short"]


def test_nothing_runs_inline_while_a_worker_is_busy(single: SchedulerBench) -> None:
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


def test_with_a_single_worker_whole_groups_run_inline(single: SchedulerBench) -> None:
    """The worker stays asleep. The rest of the jobs are dispatched again."""
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


def test_long_jobs_wake_a_single_worker(single: SchedulerBench) -> None:
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
    """This includes short jobs that arrive while the worker is busy."""
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


def test_jobs_left_over_from_a_group_run_first_next_time() -> None:
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


def test_jobs_left_over_from_an_inline_group_wake_a_worker() -> None:
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


def test_jobs_that_may_block_run_on_workers() -> None:
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
