"""How many calls are served at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from whamming.wire.service_errors import OverloadedError, UnavailableError


class Admission:
    """Counts the calls under way. Refuses more than a limit, and any while the server shuts down."""

    def __init__(self, limit: int) -> None:
        """Start with none."""
        self._limit = limit
        self.count = 0
        self.peak = 0
        """Calls at once, since it was last reset."""
        self.closed = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Serve one call."""
        if self.closed:
            raise UnavailableError("the server is shutting down; try again, it may come back")
        if self.count >= self._limit:
            raise OverloadedError(f"{self.count} calls are under way, at most {self._limit}; try again later")
        self.count += 1
        self.peak = max(self.peak, self.count)
        try:
            yield
        finally:
            self.count -= 1
