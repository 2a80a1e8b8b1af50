"""Runs the asyncio client in a background thread, for the blocking client."""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Generic, TypeVar

import uvloop

from whamming.storage import ClosedError

T = TypeVar("T")


class Portal:
    """An event loop in a background thread. Any number of threads may run coroutines in it."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self._ended = False
        """Whether the loop has stopped because the interpreter is exiting."""
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="whamming-client", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """Stop the loop before the interpreter shuts down gRPC, which runs in it."""
        if self.process == os.getpid():
            self.run(_cancel_others())
            self._ended = True
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. An exception in this thread, such as Ctrl-C, cancels the coroutine."""
        if not self._is_usable():
            call.close()
            raise self._unusable()
        tasks: list[asyncio.Task[T]] = []
        done = threading.Lock()  # much cheaper than a concurrent future
        done.acquire()

        def start() -> None:
            tasks.append(self.loop.create_task(call))
            tasks[0].add_done_callback(lambda _: done.release())

        try:
            self.loop.call_soon_threadsafe(start)
            done.acquire()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: _stop(tasks, call))
            raise
        return tasks[0].result()

    def run_reporting(
        self,
        call: Callable[[Callable[[float], None] | None], Coroutine[Any, Any, T]],
        progress: Callable[[float], None] | None,
    ) -> T:
        """Run a coroutine that reports progress. ``progress`` is called in this thread, so it may use the client.

        ``call`` is called with the function to which the coroutine reports its progress.
        """
        if progress is None:
            return self.run(call(None))
        if not self._is_usable():
            raise self._unusable()
        tasks: list[asyncio.Task[T]] = []
        shares: queue.SimpleQueue[float | None] = queue.SimpleQueue()

        reporting = call(shares.put)

        def start() -> None:
            tasks.append(self.loop.create_task(reporting))
            tasks[0].add_done_callback(lambda _: shares.put(None))

        try:
            self.loop.call_soon_threadsafe(start)
            while (share := shares.get()) is not None:
                progress(share)
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: _stop(tasks, reporting))
            raise
        return tasks[0].result()

    def each(self, pieces: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an asynchronous generator. Leaving the iteration early closes the generator."""
        iteration = _Iteration(pieces)
        try:
            while (piece := self.run(iteration.next())) is not None:
                yield piece
        finally:
            if self._is_usable():
                self.run(iteration.close())

    def close(self, call: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that closes something. In a fork or at exit, do nothing: it is closed anyway."""
        if self._is_usable():
            self.run(call)
        else:
            call.close()

    def soon(self, call: Callable[[], None]) -> None:
        """Call a function in the loop without waiting for it. At exit or in a fork, do nothing."""
        if self._is_usable():
            self.loop.call_soon_threadsafe(call)

    def _is_usable(self) -> bool:
        return not self._ended and self.process == os.getpid()

    def _unusable(self) -> ClosedError:
        if self._ended:
            return ClosedError("all connections were closed because the interpreter is exiting; use them earlier")
        return forked_error()


class _Iteration(Generic[T]):
    """An iteration over an asynchronous generator. Only its event loop may use it."""

    def __init__(self, pieces: AsyncGenerator[T, None]) -> None:
        self._pieces = pieces
        self._step: asyncio.Task[Any] | None = None
        """The task that waits for the next piece."""

    async def next(self) -> T | None:
        self._step = asyncio.current_task()
        try:
            return await next_or_none(self._pieces)
        finally:
            self._step = None

    async def close(self) -> None:
        """Close the generator. A running step is stopped first: a generator cannot be closed while it runs."""
        step = self._step
        if step is not None:
            if not step.cancelling():
                step.cancel()
            await asyncio.wait([step])
        await self._pieces.aclose()


def _stop(tasks: Sequence[asyncio.Task[T]], call: Coroutine[Any, Any, T]) -> None:
    """Cancel the task of a call. If none was made, because its thread was interrupted before, close the call."""
    for task in tasks:
        task.cancel()
    if not tasks:
        call.close()


async def next_or_none(pieces: AsyncIterator[T]) -> T | None:
    """Return the next piece, or None at the end."""
    return await anext(pieces, None)


async def _cancel_others() -> None:
    """Cancel all other tasks of the loop, and close generators that were not read to the end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


_portal: Portal | None = None
_portal_lock = threading.Lock()


def shared_portal() -> Portal:
    """Return the portal of this process. Raises :class:`ClosedError` in a fork of a process that has one."""
    global _portal
    if _portal is not None and _portal.process != os.getpid():  # before the lock, which may be held forever in a fork
        raise forked_error()
    with _portal_lock:
        if _portal is None:
            _portal = Portal()
        return _portal


def forked_error() -> ClosedError:
    """Return the error for using a connection, or gRPC at all, after a fork."""
    return ClosedError(
        "this process was forked from one that was connected to a server, and gRPC does not work after a fork; start "
        "processes with the 'spawn' method, or connect only in the new processes"
    )
