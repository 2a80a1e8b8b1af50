"""Tests of the event loop of the blocking client: what happens to a call whose thread is interrupted."""

from __future__ import annotations

import asyncio
import inspect
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import pytest

from whamming.remote.portal import Portal, shared_portal


class InterruptedLoop:
    """A loop that raises KeyboardInterrupt in the calling thread, before or after it takes the first function."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, takes: bool) -> None:
        self._loop = loop
        self._takes = takes
        self._interrupts = True

    def call_soon_threadsafe(self, function: Callable[[], Any]) -> None:
        interrupts, self._interrupts = self._interrupts, False
        if self._takes or not interrupts:
            self._loop.call_soon_threadsafe(function)
        if interrupts:
            raise KeyboardInterrupt

    def create_task(self, call: Any) -> asyncio.Task[Any]:
        return self._loop.create_task(call)


async def forever() -> None:
    await asyncio.Event().wait()


async def interrupt_main_thread() -> None:
    """Send SIGINT to the main thread, and then wake it until it handles that.

    A lock does not notice a signal that comes just before the thread waits for it, but it does notice the next one.
    """
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
    for _ in range(2000):
        signal.pthread_kill(main, signal.SIGUSR1)
        await asyncio.sleep(0.01)


class Pieces:
    """A generator that never yields, and takes several turns of the loop to stop."""

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._wait = wait
        self.is_running = False

    async def generate(self) -> AsyncGenerator[int, None]:
        self.is_running = True
        try:
            await self._wait()
            yield 1
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.is_running = False


@pytest.fixture
def portal(monkeypatch: pytest.MonkeyPatch) -> Portal:
    """The shared portal, whose loop tests may replace."""
    portal = shared_portal()
    monkeypatch.setattr(portal, "loop", portal.loop)
    return portal


def test_an_interrupted_iteration_stops_the_generator(portal: Portal) -> None:
    pieces = Pieces(interrupt_main_thread)
    before = signal.signal(signal.SIGUSR1, lambda *_: None), signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            list(portal.each(pieces.generate()))
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGINT, before[1])
    assert not pieces.is_running


@pytest.mark.parametrize("takes", [False, True])
def test_an_iteration_interrupted_before_it_waits_stops_the_generator(portal: Portal, takes: bool) -> None:
    pieces = Pieces(forever)
    portal.loop = InterruptedLoop(portal.loop, takes=takes)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        list(portal.each(pieces.generate()))
    assert not pieces.is_running


@pytest.mark.parametrize("takes", [False, True])
@pytest.mark.parametrize("reports", [False, True])
def test_a_call_interrupted_before_it_waits_is_stopped(portal: Portal, takes: bool, reports: bool) -> None:
    call: Any = forever()
    portal.loop = InterruptedLoop(portal.loop, takes=takes)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        portal.run_reporting(lambda _: call, print if reports else None)
    for _ in range(2):
        portal.run(asyncio.sleep(0))
    assert inspect.getcoroutinestate(call) == inspect.CORO_CLOSED
