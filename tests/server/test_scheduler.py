"""Sharing worker threads: nobody starves, nothing runs twice at once, nothing is forgotten."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.serving import wait_until
from whamming.server.search.scheduler import Flow, Job, Outcome, Scheduler

SLICE = 0.002


class Script:
    """A job that does what a function says, and notices whether two workers run it at once."""

    def __init__(self, step: Callable[[float], Outcome], pause: Callable[[], bool] = lambda: True) -> None:
        self._step = step
        self._pause = pause
        self._running = threading.Lock()
        self.steps = 0
        self.ended = threading.Event()

    def step(self, seconds: float) -> Outcome:
        assert self._running.acquire(blocking=False), "two workers run one job"
        try:
            self.steps += 1
            outcome = self._step(seconds)
        finally:
            self._running.release()
        if outcome is Outcome.DONE:
            self.ended.set()
        return outcome

    def pause(self) -> bool:
        return self._pause()


def counted(count: int) -> Script:
    """A job of so many short slices."""
    job = Script(lambda seconds: Outcome.DONE if job.steps >= count else Outcome.AGAIN)
    return job


def busy(seconds: float) -> None:
    """Use time as a search does: without a pause."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.fixture(params=[1, 3])
def scheduler(request: pytest.FixtureRequest) -> Iterator[Scheduler]:
    scheduler = Scheduler(request.param, SLICE)
    yield scheduler
    scheduler.close()


@pytest.fixture
def single() -> Iterator[Scheduler]:
    """One worker, so that the order of things is certain."""
    scheduler = Scheduler(1, SLICE)
    yield scheduler
    scheduler.close()


class Gate:
    """Holds the only worker, so that what is submitted meanwhile is there when it is let go."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._open = threading.Event()
        held = threading.Event()

        def step(seconds: float) -> Outcome:
            held.set()
            assert self._open.wait(20)
            return Outcome.DONE

        scheduler.submit(Flow(), Script(step))
        assert held.wait(20)

    def open(self) -> None:
        self._open.set()


def test_jobs_are_done(scheduler: Scheduler) -> None:
    jobs = [counted(5) for _ in range(50)]
    for job in jobs[:25]:
        scheduler.submit(Flow(), job)
    scheduler.submit(Flow(), *jobs[25:])
    for job in jobs:
        assert job.ended.wait(20)
        assert job.steps == 5


def test_a_slice_is_as_long_as_told(single: Scheduler) -> None:
    told: list[float] = []

    def step(seconds: float) -> Outcome:
        told.append(seconds)
        return Outcome.DONE

    job = Script(step)
    single.submit(Flow(), job)
    assert job.ended.wait(20)
    assert told == [SLICE]
    assert single.threads == 1


def test_jobs_of_a_flow_take_turns(single: Scheduler) -> None:
    order: list[str] = []

    def named(name: str) -> Script:
        def step(seconds: float) -> Outcome:
            order.append(name)
            return Outcome.DONE if order.count(name) == 4 else Outcome.AGAIN

        return Script(step)

    gate = Gate(single)
    jobs = [named("a"), named("b"), named("c")]
    single.submit(Flow(), *jobs)
    gate.open()
    for job in jobs:
        assert job.ended.wait(20)
    assert order == ["a", "b", "c"] * 4


def test_a_flow_is_told_whether_another_one_waits(single: Scheduler) -> None:
    gate = Gate(single)
    mine, other = Flow(), Flow()
    assert not single.is_wanted(mine)
    jobs = [counted(1), counted(1)]
    single.submit(mine, jobs[0])
    assert not single.is_wanted(mine), "its own jobs do not count"
    assert single.is_wanted(other)
    single.submit(other, jobs[1])
    assert single.is_wanted(mine)
    gate.open()
    for job in jobs:
        assert job.ended.wait(20)
    assert not single.is_wanted(mine)


def test_flows_get_equal_time_whatever_their_slices_and_jobs(single: Scheduler) -> None:
    """One flow has three jobs of long slices, the other one job of short slices: each gets half."""
    used = {"many": 0.0, "one": 0.0}
    stopped = threading.Event()

    def using(name: str, seconds: float) -> Script:
        def step(_: float) -> Outcome:
            start = time.perf_counter()
            busy(seconds)
            used[name] += time.perf_counter() - start
            return Outcome.DONE if stopped.is_set() else Outcome.AGAIN

        return Script(step)

    gate = Gate(single)
    jobs = [using("many", 0.004) for _ in range(3)]
    single.submit(Flow(), *jobs)
    jobs.append(using("one", 0.0005))
    single.submit(Flow(), jobs[-1])
    gate.open()
    wait_until(lambda: sum(used.values()) > 0.2)
    stopped.set()
    for job in jobs:
        assert job.ended.wait(20)
    # A worker that is put aside by the system in mid-slice may have used any time: one slice of each is forgiven.
    assert used["many"] == pytest.approx(used["one"], rel=0.25, abs=0.1)
    assert jobs[-1].steps > jobs[0].steps


def test_a_job_that_never_ends_does_not_hold_up_short_ones(single: Scheduler) -> None:
    """A short job that is handed in while an endless one is at work is done next, however long that goes on."""
    order: list[str] = []
    over = threading.Event()

    def short(seconds: float) -> Outcome:
        order.append("short")
        return Outcome.DONE

    def endless(seconds: float) -> Outcome:
        order.append("endless")
        single.submit(Flow(), Script(short))
        busy(0.0002)
        if len(order) < 200:
            return Outcome.AGAIN
        over.set()
        return Outcome.DONE

    single.submit(Flow(), Script(endless))
    assert over.wait(20)
    assert order[:200] == ["endless", "short"] * 100


def test_many_long_flows_delay_a_newcomer_by_a_slice_of_each_at_most(single: Scheduler) -> None:
    turns: list[int] = []
    newcomers = 0

    def newcome(seconds: float) -> Outcome:
        turns.append(-1)
        return Outcome.DONE

    def endless(number: int) -> Script:
        def step(seconds: float) -> Outcome:
            nonlocal newcomers
            turns.append(number)
            if len(turns) % 50 == 0:
                newcomers += 1
                turns.append(-2)
                single.submit(Flow(), Script(newcome))
            busy(0.0001)
            return Outcome.DONE if len(turns) > 1000 else Outcome.AGAIN

        return Script(step)

    gate = Gate(single)
    jobs = [endless(number) for number in range(10)]
    for job in jobs:
        single.submit(Flow(), job)
    gate.open()
    for job in jobs:
        assert job.ended.wait(20)
    assert newcomers > 10
    for arrived in [place for place, turn in enumerate(turns[:1000]) if turn == -2]:
        waited = turns[arrived + 1 : turns.index(-1, arrived)]
        assert max(map(waited.count, range(10))) <= 1
    assert min(map(turns.count, range(10))) > 0


def test_idling_saves_nothing_up(single: Scheduler) -> None:
    """A flow that comes back after a pause is level with the one at work, not ahead of it."""
    idle, working = Flow(), Flow()
    first = counted(1)
    single.submit(idle, first)
    assert first.ended.wait(20)
    levels: list[tuple[float, float]] = []

    def work(seconds: float) -> Outcome:
        busy(0.0005)
        if job.steps == 20:
            single.submit(idle, counted(1))
            levels.append((idle.used, working.used))
        return Outcome.DONE if job.steps == 20 else Outcome.AGAIN

    job = Script(work)
    single.submit(working, job)
    assert job.ended.wait(20)
    ((idled, worked),) = levels
    assert idled == worked > 0


def test_a_job_that_pauses_waits_to_be_handed_in(single: Scheduler) -> None:
    flow = Flow()
    paused = threading.Event()
    job = Script(
        lambda seconds: Outcome.PAUSE if job.steps == 1 else Outcome.DONE,
        pause=lambda: paused.set() or True,  # type: ignore[func-returns-value]
    )
    single.submit(flow, job)
    assert paused.wait(20)
    other = counted(3)
    single.submit(Flow(), other)
    assert other.ended.wait(20)
    assert job.steps == 1
    single.submit(flow, job)
    assert job.ended.wait(20)


def test_a_job_that_need_not_pause_goes_on(scheduler: Scheduler) -> None:
    job = Script(lambda seconds: Outcome.PAUSE if job.steps < 5 else Outcome.DONE, pause=lambda: False)
    scheduler.submit(Flow(), job)
    assert job.ended.wait(20)


def test_a_job_that_raises_is_dropped_and_the_others_go_on(
    scheduler: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(seconds: float) -> Outcome:
        raise ArithmeticError("a job that breaks its promise")

    flow = Flow()
    with caplog.at_level(logging.ERROR, "whamming.server"):
        scheduler.submit(flow, Script(fail), *[Script(fail) for _ in range(scheduler.threads)])
        after = counted(2)
        scheduler.submit(flow, after)
        assert after.ended.wait(20)
    assert "a job that breaks its promise" in caplog.text


def test_nothing_is_lost_under_stress() -> None:
    """Jobs that pause at random and are handed in from other threads are all done, each in its number of steps."""
    scheduler = Scheduler(4, SLICE)
    chance = random.Random(0)

    class Pausing:
        """Pauses now and then; whoever is told hands it in again, at once and from another thread."""

        def __init__(self, flow: Flow) -> None:
            self.flow = flow
            self.left = chance.randrange(1, 40)
            self.running = threading.Lock()
            self.ended = threading.Event()

        def step(self, seconds: float) -> Outcome:
            assert self.running.acquire(blocking=False)
            self.left -= 1
            self.running.release()
            if self.left <= 0:
                self.ended.set()
                return Outcome.DONE
            return chance.choice([Outcome.AGAIN, Outcome.PAUSE])

        def pause(self) -> bool:
            handing_in.append(self)
            return True

    handing_in: list[Pausing] = []
    over = threading.Event()

    def hand_in() -> None:
        while not over.is_set():
            while handing_in:
                try:
                    job = handing_in.pop()
                except IndexError:
                    break
                scheduler.submit(job.flow, job)
            over.wait(0.0001)

    helpers = [threading.Thread(target=hand_in) for _ in range(3)]
    for helper in helpers:
        helper.start()
    flows = [Flow() for _ in range(20)]
    jobs = [Pausing(flow) for flow in flows for _ in range(20)]
    for job in jobs:
        scheduler.submit(job.flow, job)
    try:
        for job in jobs:
            assert job.ended.wait(20)
    finally:
        over.set()
        for helper in helpers:
            helper.join()
        scheduler.close()
    assert not any(flow.ready for flow in flows)


def test_closing_stops_the_workers_between_slices() -> None:
    before = threading.active_count()
    scheduler = Scheduler(3, SLICE)
    endless: list[Job] = [Script(lambda seconds: busy(seconds) or Outcome.AGAIN) for _ in range(5)]  # type: ignore[func-returns-value]
    scheduler.submit(Flow(), *endless)
    scheduler.close()
    assert threading.active_count() == before
    scheduler.submit(Flow(), counted(1))
    scheduler.close()


def test_a_worker_keeps_nothing_of_what_it_has_done(single: Scheduler) -> None:
    """A job holds a snapshot, which must go when the job has."""
    gone = threading.Event()

    class Mortal(Script):
        def __del__(self) -> None:
            gone.set()

    single.submit(Flow(), Mortal(lambda seconds: Outcome.DONE))
    assert gone.wait(20)
