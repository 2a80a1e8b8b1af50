"""A scheduler whose tasks, and on request whose workers, are under the control of a test."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Literal

import pytest

from whamming.server.search.scheduler import MAX_TOGETHER, Flow, Scheduler

SLICE = 0.002
Outcome = Literal["again", "blocked", "done"]


class Task:
    """A job that calls a function in each slice. Fails if two workers run it at the same time."""

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


class SchedulerBench:
    """A scheduler of tasks. Without worker threads, the test calls :meth:`step` instead."""

    def __init__(self, threads: int = 0) -> None:
        self.ran: list[list[Task]] = []
        """The tasks of each run, in order."""
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
        """Submit new tasks and dispatch them."""
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
        """Teach the scheduler how long a task of a group takes."""
        task = Task(Flow(), group=group)
        self.scheduler.submit(task.flow, [task])
        while not task.ended.is_set():
            self.step()
        self.scheduler._estimates[group].add(seconds * MAX_TOGETHER, MAX_TOGETHER)
        self.ran.clear()


def counted(flow: Flow, count: int, name: str = "") -> Task:
    """A task that takes ``count`` short slices."""
    task = Task(flow, lambda _: "done" if task.steps >= count else "again", name=name)
    return task


def busy(seconds: float) -> None:
    """Use CPU time, as a search does."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.fixture(params=[1, 3])
def threaded(request: pytest.FixtureRequest) -> Iterator[SchedulerBench]:
    """A scheduler with one or three workers."""
    bench = SchedulerBench(request.param)
    yield bench
    bench.scheduler.close()


@pytest.fixture
def single() -> Iterator[SchedulerBench]:
    """A scheduler with one worker."""
    bench = SchedulerBench(1)
    yield bench
    bench.scheduler.close()


@pytest.fixture
def manual() -> SchedulerBench:
    """A scheduler without workers, so that the order of events is deterministic."""
    return SchedulerBench()
