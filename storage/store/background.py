"""Work in the background: tasks with a thread of their own, and builds that let searches and writes go first."""

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
"""After an error, the task rests for so long."""


class BackgroundTask:
    """A task and its thread, which starts with the first request."""

    def __init__(self, name: str, task: Callable[[], None], *, delay: float = 0.0, retry: bool = False) -> None:
        """``delay``: seconds from a request to the run that serves it, and all that come meanwhile.

        ``retry``: run again after an error, without a request.
        """
        self._name = name
        self._task = task
        self._delay = delay
        self._retry = retry
        self._condition = threading.Condition()
        self._wanted = self._running = self._stopped = False
        self._runs = 0
        self._thread: threading.Thread | None = None
        self.waiting = 0
        """Threads in :meth:`wait` or :meth:`wait_until_idle`."""

    def request(self) -> None:
        """Have the task run soon, once for all requests until then."""
        with self._condition:
            self._request()

    def wait(self, timeout: float) -> None:
        """Request a run and wait until one has ended, well or not."""
        with self._condition:
            before = self._runs
            self._request()
            self.waiting += 1
            self._condition.wait_for(lambda: self._stopped or self._runs != before, timeout)
            self.waiting -= 1

    def wait_until_idle(self, timeout: float) -> None:
        """Wait until no run is wanted or under way, for ``timeout`` seconds at most."""
        with self._condition:
            self.waiting += 1
            self._condition.wait_for(lambda: self._stopped or not (self._wanted or self._running), timeout)
            self.waiting -= 1

    def _request(self) -> None:
        if self._wanted or self._stopped:
            return
        self._wanted = True
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._condition.notify_all()

    def stop(self) -> None:
        """Have the thread end after the run that is under way."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    def join(self) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while self._wait_for_request():
            try:
                self._task()
            except ClosedError:
                return
            except Exception:
                log.exception("%s: failed; the next write tries it again", self._name)
                with self._condition:
                    self._wanted |= self._retry
                    self._condition.wait_for(lambda: self._stopped, RETRY_SECONDS)
            with self._condition:
                self._runs += 1
                self._running = False
                self._condition.notify_all()

    def _wait_for_request(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._stopped or self._wanted)
            if self._delay:
                self._condition.wait_for(lambda: self._stopped, self._delay)
            self._wanted = False
            self._running = not self._stopped
            return self._running


def at_low_priority(build: Callable[[], T]) -> T:
    """Return what a function returns that takes much time and no locks: it runs in a thread that lets others go first.

    A thread that holds a lock must not do so: those who wait for the lock would wait for whoever goes first.
    """
    with ThreadPoolExecutor(1, "whamming-build", initializer=_lower_priority) as thread:
        return thread.submit(build).result()


def _lower_priority() -> None:
    if sys.platform == "linux":  # where each thread has a priority of its own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, min(19, os.getpriority(os.PRIO_PROCESS, thread) + _NICE))
