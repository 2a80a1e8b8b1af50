"""Lets the health checks of all processes of a server agree.

Each process checks the files of the indexes that it has open, and others may not have them open. So the readers report
to the writer, and the writer tells all processes whether any of them has found a problem. They use the standard input
and output of the readers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

HEALTHY: Final = b"healthy\n"
FAILING: Final = b"failing\n"


def line_of(failing: bool) -> bytes:
    """Return the line that one process sends to another."""
    return FAILING if failing else HEALTHY


class SharedHealth:
    """The health of all processes, kept by the writer. Only its event loop may use it."""

    def __init__(self) -> None:
        self._failing: set[int] = set()
        self._followers: list[Callable[[bool], None]] = []

    @property
    def fails(self) -> bool:
        """Whether any process has found a problem."""
        return bool(self._failing)

    def follow(self, follower: Callable[[bool], None]) -> None:
        """Call ``follower`` with :attr:`fails` whenever that changes."""
        self._followers.append(follower)

    def report(self, process: int, failing: bool) -> None:
        """Note whether a process has found a problem."""
        before = self.fails
        if failing:
            self._failing.add(process)
        else:
            self._failing.discard(process)
        if self.fails != before:
            for follower in self._followers:
                follower(self.fails)
