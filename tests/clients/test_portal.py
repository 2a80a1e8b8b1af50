"""Tests of the event loop of the blocking client: what happens to a call whose thread is interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import AsyncGenerator, Callable
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


class Pieces:
    """A generator that never yields, and takes several turns of the loop to stop."""

    def __init__(self, begun: Callable[[], None]) -> None:
        self._begun = begun
        self.is_running = False

    async def generate(self) -> AsyncGenerator[int, None]:
        self.is_running = True
        try:
            self._begun()
            await forever()
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
    pieces = Pieces(begun=lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGINT))  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        list(portal.each(pieces.generate()))
    assert not pieces.is_running


@pytest.mark.parametrize("takes", [False, True])
def test_an_iteration_interrupted_before_it_waits_stops_the_generator(portal: Portal, takes: bool) -> None:
    pieces = Pieces(begun=lambda: None)
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
    assert call.cr_frame is None, "it has ended"
