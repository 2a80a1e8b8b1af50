"""Converts numbers of any type to doubles without rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from numbers import Real
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native.errors import InvalidArgumentError

LARGEST_WHOLE: Final = 2.0**53
"""Doubles represent all integers up to this magnitude, and only some of the larger ones."""
_SHOWN: Final = 40
"""Characters of a number that an error shows."""


def as_doubles(array: NDArray[Any], what: str) -> NDArray[np.float64]:
    """Convert an array to float64. Raises InvalidArgumentError for a value that is not a number, or would change.

    ``what`` names the argument. NaN and infinity are converted; the engine refuses them.
    """
    if array.dtype.kind == "O":
        return _objects(array, what)
    if array.dtype.kind not in "biuf":
        value = array.item(0) if array.size else array.dtype
        raise InvalidArgumentError(f"the {what} are not an array of real numbers: they have {_text(value)}")
    with np.errstate(over="ignore"):
        doubles = array.astype(np.float64)
    for place in _suspects(array, doubles):
        if _plain(array[place]) != doubles.item(place):
            raise _changed(array[place], place, what)
    return doubles


def _suspects(array: NDArray[Any], doubles: NDArray[np.float64]) -> Iterator[tuple[int, ...]]:
    """Yield the places where the conversion may have changed a value."""
    if array.dtype.kind in "iu":
        suspect = np.abs(doubles) >= LARGEST_WHOLE
    elif array.dtype.itemsize > doubles.dtype.itemsize:  # long double
        suspect = (array != doubles) & ~np.isnan(array)
    else:
        return
    for place in np.argwhere(suspect):
        yield tuple(place.tolist())


def _plain(value: Any) -> Any:
    """Return a numpy integer as an ``int``, which Python compares with a double exactly."""
    return int(value) if isinstance(value, np.integer) else value


def _objects(array: NDArray[Any], what: str) -> NDArray[np.float64]:
    doubles = np.empty(array.shape)
    for place in np.ndindex(array.shape):
        value = array[place]
        if not isinstance(value, Real | Decimal | np.bool_):
            raise InvalidArgumentError(f"the {what} are not an array of real numbers: they have {_text(value)}")
        try:
            doubles[place] = float(value)
        except OverflowError:
            doubles[place] = math.inf
        if _plain(value) != doubles.item(place) and value == value:
            raise _changed(value, place, what)
    return doubles


def _changed(value: Any, place: tuple[int, ...], what: str) -> InvalidArgumentError:
    nearest = "" if isinstance(value, int) and value.bit_length() > 1024 else f" (the nearest is {float(value)!r})"
    where = f" at {list(place)}" if place else ""
    return InvalidArgumentError(
        f"the {what} have {_text(value)}{where}, which no double represents exactly{nearest}; scale the numbers, or "
        "round them to float64 yourself"
    )


def _text(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1024:
        return f"an integer of {value.bit_length()} bits"
    text = str(value) if isinstance(value, Real | Decimal) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
