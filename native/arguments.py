"""Checks of arguments. Each raises :class:`InvalidArgumentError` if the value is wrong."""

from __future__ import annotations

import math
import operator
import os
from typing import Final, Literal, get_args

import numpy as np

from whamming.native.errors import InvalidArgumentError, NoTablesError

Plan = Literal["auto", "probe", "sweep"]
Position = tuple[float, int] | tuple[float, int, bytes]
"""A position in the order of hits: the (distance, id) of a hit, or its (distance, id, sum). The sum is the hit's exact
distance, as in :attr:`Cursor.sums`. If distances are rounded and the sum is missing, all other hits with this distance
are returned again."""

PLAN_NAMES: Final[tuple[Plan, ...]] = get_args(Plan)
UNLIMITED: Final = 2**64 - 1
"""The k of a search without a limit."""
SUM_BYTES: Final = 16
"""Size of an exact distance: a 128-bit integer, in units of the query."""
_MAX_K: Final = 2**31 - 1
_MAX_THREADS: Final = 256


def as_whole(name: str, value: int) -> int:
    """Convert a Python or numpy integer to ``int``. Booleans are refused: they are usually a mistake."""
    try:
        if not isinstance(value, bool | np.bool_):
            return operator.index(value)
    except TypeError:
        pass
    raise InvalidArgumentError(f"{name} = {value!r}; it must be a whole number")


def check_flag(name: str, value: bool) -> bool:
    """Convert a Python or numpy boolean to ``bool``."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidArgumentError(f"{name} = {value!r}; it must be True or False")
    return bool(value)


def is_number(value: float) -> bool:
    """Return whether a value is a number that fits a double, and not NaN. Booleans are not numbers."""
    try:
        return not isinstance(value, bool | np.bool_) and not math.isnan(value)
    except (TypeError, OverflowError):
        return False


def check_plan(plan: str, can_probe: bool) -> None:
    """Reject an unknown plan, and ``"probe"`` if there are no tables."""
    if plan not in PLAN_NAMES:
        raise InvalidArgumentError(f"plan = {plan!r}; choose one of {', '.join(map(repr, PLAN_NAMES))}")
    if plan == "probe" and not can_probe:
        raise NoTablesError("plan = 'probe' needs tables; this index was built with tables='none'")


def check_radius(radius: float | None) -> None:
    """Reject a radius that is neither a number nor None."""
    if radius is not None and not is_number(radius):
        raise InvalidArgumentError(f"radius = {radius!r}; it must be a number, or None for no limit")


def check_seconds(name: str, seconds: float) -> float:
    """Check a number of seconds: finite, and 0 or more."""
    if not is_number(seconds) or not 0 <= seconds < math.inf:
        raise InvalidArgumentError(f"{name} = {seconds!r}; it must be a number of seconds, 0 or more")
    return float(seconds)


def check_k(k: int) -> int:
    """Check the k of a batch: the maximum number of hits per query."""
    whole = as_whole("k", k)
    if not 0 <= whole <= _MAX_K:
        raise InvalidArgumentError(
            f"k = {k}; it must be 0 to {_MAX_K} (for more hits, iterate over a cursor or a search)"
        )
    return whole


def check_wanted(k: int | None) -> int:
    """Check the k of a cursor: the maximum number of hits. None becomes ``UNLIMITED``."""
    wanted = UNLIMITED if k is None else as_whole("k", k)
    if k is not None and not 0 <= wanted < 2**63:
        limit = "0 or more" if wanted < 0 else f"at most {2**63 - 1}"
        raise InvalidArgumentError(f"k = {k}; it must be {limit}, or None for no limit")
    return wanted


def check_count(n: int) -> int:
    """Check the number of hits that one call requests."""
    whole = as_whole("n", n)
    if whole < 0:
        raise InvalidArgumentError(f"n = {n}; it must be 0 or more")
    return whole


def check_threads(threads: int | None) -> int:
    """Return the number of threads to use, by default one per core."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    whole = as_whole("threads", threads)
    if not 1 <= whole <= _MAX_THREADS:
        raise InvalidArgumentError(f"threads = {threads}; it must be 1 to {_MAX_THREADS}")
    return whole


def checked_position(after: Position) -> tuple[float, int, bytes]:
    """Check a position in the order of hits. Returns (distance, id, sum); the sum is empty if it was not given."""
    try:
        distance, last_id, sum_of_costs = (*after, b"") if len(after) == 2 else after
        last_id = operator.index(last_id)
        if (
            is_number(distance)
            and 0 <= last_id < 2**64
            and isinstance(sum_of_costs, bytes)
            and len(sum_of_costs) in (0, SUM_BYTES)
        ):
            return distance, last_id, sum_of_costs
    except (TypeError, ValueError):
        pass
    raise InvalidArgumentError(f"after = {after!r}; it must be the (distance, id) of a hit")
