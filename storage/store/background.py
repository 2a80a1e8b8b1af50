"""Background work: tasks that have their own thread, and builds at low priority."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from whamming.storage.storage_errors import ClosedError

log = logging.getLogger("whamming.storage")

T = TypeVar("T")

_NICE: Final = 10
RETRY_SECONDS = 1.0
"""After an error, a task pauses for this time before it runs again."""


IDLE_SECONDS = 10.0
"""The thread of a task ends if the task was not requested for this time."""


class BackgroundTask:
    """A task with a thread of its own. A request starts the thread. Without requests, the thread ends after a while."""

    def __init__(self, name: str, task: Callable[[], None], *, delay: float = 0.0, retry: bool = False) -> None:
        """``delay``: seconds between a request and the run. Requests that arrive in between share the run.

        ``retry``: run again after an error, without a new request.
        """
        self._name = name
        self._task = task
        self._delay = delay
        self._retry = retry
        self._condition = threading.Condition()
        self._wanted = self._running = False
        self.stopped = False
        """Whether :meth:`stop` was called."""
        self._runs = 0
        self._thread: threading.Thread | None = None
        self.waiting = 0
        """Number of threads in :meth:`wait` or :meth:`wait_until_idle`."""

    def request(self) -> None:
        """Make the task run soon. Requests that arrive before the run starts share it."""
        with self._condition:
            self._request()

    def wait(self, timeout: float) -> None:
        """Request a run. Wait until a run has ended, successfully or not, for ``timeout`` seconds at most."""
        with self._condition:
            before = self._runs
            self._request()
            self.waiting += 1
            self._condition.wait_for(lambda: self.stopped or self._runs != before, timeout)
            self.waiting -= 1

    def wait_until_idle(self, timeout: float) -> None:
        """Wait until no run is wanted or under way, for ``timeout`` seconds at most."""
        with self._condition:
            self.waiting += 1
            self._condition.wait_for(lambda: self.stopped or not (self._wanted or self._running), timeout)
            self.waiting -= 1

    @property
    def is_busy(self) -> bool:
        """Whether a run is wanted or under way."""
        return self._wanted or self._running

    def _request(self) -> None:
        if self._wanted or self.stopped:
            return
        self._wanted = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def stop(self) -> None:
        """Make the thread end after the current run."""
        with self._condition:
            self.stopped = True
            self._condition.notify_all()

    def join(self) -> None:
        """Wait for the thread to end."""
        thread = self._thread
        if thread is not None:
            thread.join()

    def _work(self) -> None:
        while self._wait_for_request():
            try:
                self._task()
            except ClosedError:
                return
            except Exception:
                if self.stopped:  # the index was dropped meanwhile
                    return
                when = f"in {RETRY_SECONDS:g} s" if self._retry else "after the next write"
                log.exception("%s failed; it is retried %s", self._name, when)
                with self._condition:
                    self._wanted |= self._retry
                    self._condition.wait_for(lambda: self.stopped, RETRY_SECONDS)
            with self._condition:
                self._runs += 1
                self._running = False
                self._condition.notify_all()

    def _wait_for_request(self) -> bool:
        """Wait for a request. Returns False if the thread has to end: if it was stopped, or idle for IDLE_SECONDS."""
        with self._condition:
            if not self._condition.wait_for(lambda: self.stopped or self._wanted, IDLE_SECONDS):
                self._thread = None  # the next request starts another
                return False
            if self._delay:
                self._condition.wait_for(lambda: self.stopped, self._delay)
            self._wanted = False
            self._running = not self.stopped
            return self._running


def at_low_priority(build: Callable[[], T]) -> T:
    """Return the result of a long computation, which runs in a thread of low priority.

    The caller must not hold a lock. Otherwise, threads that wait for the lock would wait for the low-priority thread.
    """
    with ThreadPoolExecutor(1, "whamming-build", initializer=_lower_priority) as thread:
        return thread.submit(build).result()


def background_threads() -> int:
    """Return how many threads a background build uses; half of the cores are left to searches."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


def _lower_priority() -> None:
    if sys.platform == "linux":  # each thread has its own priority there
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICE))


def checking(check: Callable[[], None], progress: Callable[[float], None] | None) -> Callable[[float], None]:
    """Return a callback that checks something before it reports progress. If the check fails, the work is cancelled."""

    def report(share: float) -> None:
        check()
        if progress is not None:
            progress(share)

    return report
