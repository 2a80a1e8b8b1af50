"""Long computations in short steps.

A computation that may take long is a generator that yields after each step, about once per millisecond. So its caller
can pause it, let others run, or abandon it. A step of encoding may take some 40 milliseconds: larger products of
matrices are faster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Steps: TypeAlias = Generator[None, None, T]
"""A computation in short steps, which returns its result."""


def finish(steps: Steps[T]) -> T:
    """Run all steps, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def run_until(steps: Steps[T], end: float) -> tuple[T] | None:
    """Run steps until ``time.perf_counter()`` reaches ``end``, but at least one.

    Returns the result in a tuple, or None if there is more to do.
    """
    while True:
        try:
            next(steps)
        except StopIteration as last:
            return (last.value,)
        if time.perf_counter() >= end:
            return None


class Stepwise(Generic[T]):
    """A computation under way. Several threads may need the same result: each then runs some of the steps."""

    def __init__(self, steps: Steps[T]) -> None:
        self._steps = steps
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self.done = False
        self.result: T
        """The result, once ``done`` is True."""

    def run(self, end: float) -> bool:
        """Run steps until ``time.perf_counter()`` reaches ``end``, but at least one. Returns whether all are done."""
        with self._lock:
            while not self.done:
                if self._error is not None:
                    raise self._error
                try:
                    next(self._steps)
                except StopIteration as last:
                    self.result, self.done = last.value, True
                except Exception as error:
                    self._error = error
                    raise
                if time.perf_counter() >= end:
                    break
            return self.done
