"""Budgets: limits on the work of one call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from whamming.native._engine import ffi
from whamming.native.arguments import as_whole, is_number
from whamming.native.errors import InvalidArgumentError


@dataclass(frozen=True)
class Budget:
    """Approximate limits of one call. None means no limit."""

    candidates: int | None = None
    """Number of codes to compare."""
    seconds: float | None = None
    """Time to spend."""

    def __post_init__(self) -> None:
        """Check the limits. Raises :class:`InvalidArgumentError`."""
        candidates = None if self.candidates is None else as_whole("candidates", self.candidates)
        if (candidates is not None and candidates <= 0) or (
            self.seconds is not None and not (is_number(self.seconds) and self.seconds > 0)
        ):
            raise InvalidArgumentError(f"{self}: candidates and seconds must be positive, or None for no limit")


def checked_budget(budget: Budget) -> tuple[int, float]:
    """Return the candidates and seconds of a budget. 0 means no limit. Raises an error if it is not a Budget."""
    if not isinstance(budget, Budget):
        raise InvalidArgumentError(f"budget = {budget!r}; pass a Budget(candidates=..., seconds=...), or None")
    candidates = 0 if budget.candidates is None else as_whole("candidates", budget.candidates)
    return min(candidates, 2**63), 0.0 if budget.seconds is None else min(budget.seconds, 1e9)


def raw_budget(budget: Budget | None) -> Any:
    """Convert a budget to the engine's struct; NULL for None."""
    if budget is None:
        return ffi.NULL
    candidates, seconds = checked_budget(budget)
    nanoseconds = max(1, round(seconds * 1e9)) if seconds else 0
    return ffi.new("struct wh_budget *", {"candidates": candidates, "nanoseconds": nanoseconds})
