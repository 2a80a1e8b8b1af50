"""Checking vectors that users give, reading them in blocks, and adding up numbers in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.arguments import as_whole

DTYPES: Final = ("float32", "float16", "float64", "int8", "uint8")
"""Data types of vectors. All are read as float32."""

MAX_DIM: Final = 65_536
"""The largest number of components of a vector."""

BLOCK_CELLS: Final = 1 << 18
"""Approximate number of numbers in a block. A block of this size and its results fit into the CPU caches."""


def check_dim(dim: int) -> int:
    """Return ``dim`` if it is a valid number of components. Raises InvalidArgumentError."""
    whole = int(as_whole("dim", dim))
    if not 1 <= whole <= MAX_DIM:
        raise InvalidArgumentError(f"dim = {dim}; it must be 1 to {MAX_DIM}")
    return whole


def as_vectors(vectors: ArrayLike, dim: int | None = None, what: str = "vectors") -> tuple[NDArray[Any], bool]:
    """Return vectors as an array ``[n, dim]``, and whether a single vector ``[dim]`` was given.

    Raises InvalidArgumentError for a wrong shape or data type. :func:`blocks` checks the values when it reads them.
    """
    array = _as_array(vectors, what)
    if array.dtype.name not in DTYPES:
        raise InvalidArgumentError(
            f"{what} have dtype {array.dtype}; use one of {', '.join(DTYPES)}, for example x.astype(np.float32)"
        )
    single = array.ndim == 1
    rows = array[None] if single else array
    if rows.ndim != 2:
        raise InvalidArgumentError(f"{what} have shape {array.shape}; give one vector, [dim], or several, [n, dim]")
    if dim is None:
        check_dim(rows.shape[1])
    elif rows.shape[1] != dim:
        raise InvalidArgumentError(
            f"{what} have {rows.shape[1]} components, but the encoder takes {dim}; give vectors of shape [n, {dim}]"
        )
    return rows, single


def _as_array(vectors: ArrayLike, what: str) -> NDArray[Any]:
    """Return the user's vectors as an array. Raises InvalidArgumentError if they are not an array of numbers."""
    try:
        array = np.asarray(vectors)
    except (TypeError, ValueError):  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype != object:
        return array
    rows = list(vectors) if isinstance(vectors, Iterable) else []
    if not rows:
        raise InvalidArgumentError(f"{what} are a {type(vectors).__name__}; give an array [n, dim] of numbers")
    shapes = [_shape(row) for row in rows]
    if () in shapes:  # a single vector with components that are not numbers
        number = next(number for number, shape in enumerate(shapes) if shape != ())
        raise InvalidArgumentError(f"{what}: component {number} is {_shortened(rows[number])}, not a number")
    for number, shape in enumerate(shapes):
        if shape is None or len(shape) != 1:
            raise InvalidArgumentError(
                f"{what}: row {number} is {_shortened(rows[number])}, not a list of numbers; leave it out or replace it"
            )
        if shape != shapes[0]:
            first = 0 if shapes[0] is None else shapes[0][0]
            raise InvalidArgumentError(
                f"{what}: row {number} has {shape[0]} components, but row 0 has {first}; all rows need the same number"
            )
    raise InvalidArgumentError(
        f"{what} are a column of {len(rows)} {type(rows[0]).__name__} objects; convert it to one array of numbers: "
        "np.stack(column).astype(np.float32)"
    )


def _shape(row: object) -> tuple[int, ...] | None:
    """Return the shape of a row of numbers, or None if it is something else."""
    try:
        array = np.asarray(row)
    except (TypeError, ValueError):
        return None
    return array.shape if array.dtype.kind in "fiub" else None


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def blocks(
    rows: NDArray[Any], width: int = 0, what: str = "vectors", cells: int | None = None, *, single: bool = False
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield blocks of rows as float32, each with the number of its first row. A block is valid until the next one.

    ``width``: how many numbers the caller computes per row, if this is more than the components of a row. ``cells``:
    approximate number of numbers in a block, by default :data:`BLOCK_CELLS`. ``single``: a single vector was given, so
    errors do not name its row. Raises :class:`InvalidArgumentError` if a value is not finite as float32.
    """
    size = max(256, (cells or BLOCK_CELLS) // max(rows.shape[1], width, 1))
    in_place = rows.dtype == np.float32 and rows.flags.c_contiguous
    scratch = np.empty((0 if in_place else min(size, len(rows)), rows.shape[1]), dtype=np.float32)
    for first in range(0, len(rows), size):
        block = rows[first : first + size]
        if not in_place:
            with np.errstate(over="ignore"):  # a float64 may overflow to infinity, which is found below
                np.copyto(scratch[: len(block)], block)
            block = scratch[: len(block)]
        if rows.dtype.kind == "f":
            _check_finite(block, rows, first, None if single else what)
        yield first, block


def _check_finite(block: NDArray[np.float32], rows: NDArray[Any], first: int, what: str | None) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        flat = block.ravel()
        if np.isfinite(flat @ flat):  # much faster than checking each value, and almost always sufficient
            return
    wrong = np.argwhere(~np.isfinite(block))
    if len(wrong):
        row, column = first + int(wrong[0, 0]), int(wrong[0, 1])
        place = f"component {column} of the vector" if what is None else f"{what}: row {row}, column {column}"
        raise InvalidArgumentError(
            f"{place} is {rows[row, column]}; components must be finite and at most {np.finfo(np.float32).max:.1e}: "
            f"{'' if what is None else 'leave out such rows, or '}replace the value"
        )


def sum_in_order(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums over the first axis, added in order.

    numpy adds the rows of a matrix in order. But it adds in pairs if the values of a column are contiguous in memory.
    """
    if terms.shape[1] == 1:
        return np.asarray(np.add.accumulate(terms, axis=0)[-1])
    return np.asarray(np.add.reduce(np.ascontiguousarray(terms), axis=0))
