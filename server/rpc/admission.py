"""Limit the number of concurrent calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from whamming.wire.service_errors import OverloadedError, UnavailableError


class Admission:
    """Counts running calls. Refuses calls above a limit, and all calls during shutdown."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0
        self.peak = 0
        """The highest count since it was last reset."""
        self.closed = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Count one call for the duration of a ``with`` block, or refuse it."""
        if self.closed:
            raise UnavailableError("the server is shutting down; try again later")
        if self.count >= self._limit:
            raise OverloadedError(f"{self.count} calls are running, the maximum is {self._limit}; try again later")
        self.count += 1
        self.peak = max(self.peak, self.count)
        try:
            yield
        finally:
            self.count -= 1
