"""A thread pool that clients take turns to use.

Each client has a queue of its own, first in first out. A free thread takes the next call of the client that has waited
longest for a turn, unless this client already uses as many threads as it may. So a client waits for at most one call of
each other client per turn, however many calls they have queued.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _Queued(NamedTuple):
    """A call that waits for its turn."""

    done: Future[Any]
    call: Callable[..., Any]
    args: tuple[Any, ...]


class ClientThreads:
    """Threads that clients take turns to use, at most ``share`` at the same time each. Any thread may submit calls."""

    def __init__(self, threads: int, share: int, name: str) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._share = share
        self._lock = threading.Lock()
        self._queues: dict[str, deque[_Queued]] = {}
        """The clients with queued calls; those that had a turn last are at the end."""
        self._running: Counter[str] = Counter()

    def submit(self, client: str, call: Callable[..., T], *args: Any) -> Future[T]:
        """Call a function in a thread. If the future is cancelled before the call's turn, the call is dropped."""
        done: Future[T] = Future()
        with self._lock:
            self._queues.setdefault(client, deque()).append(_Queued(done, call, args))
        done.add_done_callback(lambda done: self._forget(client, done) if done.cancelled() else None)
        self._threads.submit(self._run)
        return done

    def close(self) -> None:
        """Wait for running and queued calls."""
        self._threads.shutdown()

    def _forget(self, client: str, done: Future[Any]) -> None:
        """Drop a call that was cancelled, with its arguments: they may be large."""
        with self._lock:
            left = deque(queued for queued in self._queues.get(client, ()) if queued.done is not done)
            if left:
                self._queues[client] = left
            else:
                self._queues.pop(client, None)

    def _run(self) -> None:
        """Run calls until there are none, or only of clients that have their share. Their threads run those later."""
        while (found := self._next()) is not None:
            client, queued = found
            try:
                if queued.done.set_running_or_notify_cancel():
                    _call(queued)
            finally:
                with self._lock:
                    self._running[client] -= 1
                    if not self._running[client]:
                        del self._running[client]
            del found, queued  # do not keep them while waiting

    def _next(self) -> tuple[str, _Queued] | None:
        with self._lock:
            for client, queue in self._queues.items():  # at most threads / share clients have their share
                if self._running[client] < self._share:
                    queued = queue.popleft()
                    del self._queues[client]
                    if queue:
                        self._queues[client] = queue  # at the end
                    self._running[client] += 1
                    return client, queued
        return None


def _call(queued: _Queued) -> None:
    try:
        result = queued.call(*queued.args)
    except BaseException as error:
        queued.done.set_exception(error)
        del queued  # or the error's traceback would keep the arguments
    else:
        queued.done.set_result(result)
