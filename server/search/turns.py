"""Long work in the event loop is cut into pieces, so that other calls do not wait for all of it."""

from __future__ import annotations

import asyncio


class Turns:
    """Lets one waiting piece of work run per turn of the event loop, however many calls have such work."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> None:
        """Wait for another turn of the event loop. Callers get their turns in the order in which they called."""
        async with self._lock:
            await asyncio.sleep(0)
