"""The event loop in which the blocking client's calls run, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

import uvloop

from whamming.storage import ClosedError

T = TypeVar("T")


class Portal:
    """An event loop in a thread, and the way in. Any number of threads may use it at once."""

    def __init__(self) -> None:
        """Start the thread."""
        self.process = os.getpid()
        self._ended = False
        """The interpreter is exiting, and the loop has stopped."""
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="whamming-client", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """Stop the loop before the interpreter takes down gRPC, which runs in it."""
        if self.process == os.getpid():
            self.run(_cancel_others())
            self._ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. Interrupting the wait cancels it."""
        if not self._is_usable():
            call.close()
            raise self._unusable()
        tasks: list[asyncio.Task[T]] = []
        done = threading.Lock()  # much cheaper than a concurrent future
        done.acquire()

        def start() -> None:
            tasks.append(self.loop.create_task(call))
            tasks[0].add_done_callback(lambda _: done.release())

        self.loop.call_soon_threadsafe(start)
        try:
            done.acquire()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise
        return tasks[0].result()

    def run_reporting(
        self,
        call: Callable[[Callable[[float], None] | None], Coroutine[Any, Any, T]],
        progress: Callable[[float], None] | None,
    ) -> T:
        """Wait for a coroutine that reports progress. The reports are made in this thread, so they may use the client.

        ``call`` takes the function that the coroutine is to report to.
        """
        if progress is None:
            return self.run(call(None))
        if not self._is_usable():
            raise self._unusable()
        tasks: list[asyncio.Task[T]] = []
        shares: queue.SimpleQueue[float | None] = queue.SimpleQueue()

        def start() -> None:
            tasks.append(self.loop.create_task(call(shares.put)))
            tasks[0].add_done_callback(lambda _: shares.put(None))

        self.loop.call_soon_threadsafe(start)
        try:
            while (share := shares.get()) is not None:
                progress(share)
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise
        return tasks[0].result()

    def each(self, pieces: AsyncGenerator[T, None]) -> Iterator[T]:
        """Wait for one piece after the other. Leaving the iteration early closes the generator."""
        try:
            while (piece := self.run(next_or_none(pieces))) is not None:
                yield piece
        finally:
            if self._is_usable():
                self.run(pieces.aclose())

    def close(self, call: Coroutine[Any, Any, None]) -> None:
        """Wait for a coroutine that closes something. While the interpreter exits, everything is closed already."""
        if self._is_usable():
            self.run(call)
        else:
            call.close()

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the loop, without waiting for it."""
        if self._is_usable():
            self.loop.call_soon_threadsafe(call)

    def _is_usable(self) -> bool:
        return not self._ended and self.process == os.getpid()

    def _unusable(self) -> ClosedError:
        if self._ended:
            return ClosedError("the interpreter is exiting and has closed all connections; use them before it exits")
        return forked_error()


async def next_or_none(pieces: AsyncIterator[T]) -> T | None:
    """Return the next piece; None at the end."""
    return await anext(pieces, None)


async def _cancel_others() -> None:
    """Cancel all tasks of the loop but this one, and close the generators that were left half-read."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_portal: Portal | None = None
_portal_lock = threading.Lock()


def shared_portal() -> Portal:
    """Return the one portal of this process. Raises :class:`ClosedError` in a fork of a process that has one."""
    global _portal
    if _portal is not None and _portal.process != os.getpid():  # its lock may have been held when the process forked
        raise forked_error()
    with _portal_lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def forked_error() -> ClosedError:
    """Return the error of using a connection, or gRPC at all, after a fork."""
    return ClosedError(
        "this process was forked from one that had connected to a server, and gRPC does not work after that; start "
        "processes by the 'spawn' method, or connect in the new processes only"
    )
