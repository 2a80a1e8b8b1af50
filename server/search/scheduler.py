"""Fair sharing of the worker threads: work is done in slices, and whoever has had least goes next.

A *flow* is what one client call wants done; a *job* is a piece of it, a query as a rule. A worker takes the flow that
has used least time, runs a slice of its next job, and adds the time to the flow. So a flow with a query that never ends
gets the same share as one with a short query, and the short one waits for at most a slice of each of the others.

    flows by time used        jobs of a flow, in turns
    ┌──────┬──────┬──────┐
    │ .3 s │ 1 s  │ 7 s  │   7 s: [query] [query] [batch]
    └──┬───┴──────┴──────┘
       ▼ a free worker

A flow that comes back after a pause goes on from the time that the flow served last has used: idling saves nothing up.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from typing import Protocol

log = logging.getLogger("whamming.server")


class Outcome(enum.Enum):
    """What a slice of a job came to."""

    AGAIN = enum.auto()
    """There is more to do."""
    PAUSE = enum.auto()
    """Nothing can be done until somebody hands the job in again."""
    DONE = enum.auto()


class Job(Protocol):
    """Work that is done in slices. One worker at a time runs it."""

    def step(self, seconds: float) -> Outcome:
        """Work for about so long. Must not raise."""

    def pause(self) -> bool:
        """Register wherever the job will be handed in again from; False: it can go on at once."""


class Flow:
    """The jobs of one client call; guarded by the scheduler's lock."""

    def __init__(self) -> None:
        """Start without jobs."""
        self.used = 0.0
        self.ready: deque[Job] = deque()
        self.queued = False


class Scheduler:
    """Worker threads, and the flows that wait for them. Any thread may call its methods."""

    def __init__(self, threads: int, slice_seconds: float) -> None:
        """Start the workers."""
        self.slice_seconds = slice_seconds
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, Flow]] = []
        self._ticket = itertools.count()
        self._now = 0.0  # the time used of the flow that was served last: where newcomers start
        self._closed = False
        self._workers = [
            threading.Thread(target=self._run, name=f"whamming-search-{i}", daemon=True) for i in range(threads)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def threads(self) -> int:
        """How many workers there are."""
        return len(self._workers)

    def submit(self, flow: Flow, *jobs: Job) -> None:
        """Hand jobs in, new ones or ones that paused."""
        with self._lock:
            flow.ready.extend(jobs)
            self._queue(flow)
            self._work.notify(len(jobs))

    def is_wanted(self, flow: Flow) -> bool:
        """Tell whether another flow than this one waits for a worker, at a glance: without the lock."""
        return len(self._heap) > flow.queued

    def close(self) -> None:
        """Stop the workers after the slices that they are at."""
        with self._lock:
            self._closed = True
            self._work.notify_all()
        for worker in self._workers:
            worker.join()

    def _queue(self, flow: Flow) -> None:
        if flow.ready and not flow.queued:
            flow.used = max(flow.used, self._now)
            flow.queued = True
            heapq.heappush(self._heap, (flow.used, next(self._ticket), flow))

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._heap and not self._closed:
                    self._work.wait()
                if self._closed:
                    return
                due, _, flow = heapq.heappop(self._heap)
                flow.queued = False
                if due < flow.used:  # it was queued while another of its jobs was running
                    self._queue(flow)
                    continue
                job = flow.ready.popleft()
                self._now = max(self._now, flow.used)
                self._queue(flow)  # its other jobs may run meanwhile, on other workers
            start = time.perf_counter()
            try:
                outcome = job.step(self.slice_seconds)
            except BaseException:
                log.exception("a job failed")
                outcome = Outcome.DONE
            used = time.perf_counter() - start
            again = outcome is Outcome.AGAIN or (outcome is Outcome.PAUSE and not job.pause())
            with self._lock:
                flow.used += used
                if again:  # and nobody has to be woken: this worker takes a job next
                    flow.ready.append(job)
                    self._queue(flow)
            del job, flow  # or a worker without work would keep the last one, and its snapshot, alive
