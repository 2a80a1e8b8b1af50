"""Packing the vectors that an index keeps for re-ranking, in a fixed number of bytes per item.

===========  =========================================================================================================
``float16``  2 bytes per component
``int8``     a float32 scale, 4 bytes, then 1 byte per component; the component is the byte times the scale. The scale
             is 1 for vectors given as int8, so that they are kept unchanged. For other vectors, it is the largest
             magnitude / 127
===========  =========================================================================================================

An item's code is computed from the kept vector, not from the original one. So bounds that follow from the code hold for
the kept vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError
from whamming.storage.settings import KeptVectors, Metric
from whamming.storage.vectors.arrays import blocks
from whamming.storage.vectors.encoders import Encoder
from whamming.storage.vectors.steps import Steps


def pack_vectors(rows: NDArray[Any], kind: KeptVectors) -> NDArray[np.uint8]:
    """Return vectors ``[n, dim]`` as bytes ``[n, width]``. Raises InvalidArgumentError if a value is too large."""
    n, dim = rows.shape
    if kind == "float16":
        halves = np.empty((n, dim), dtype="<f2")
        for first, block in blocks(rows):
            halves[first : first + len(block)] = _as_halves(block, rows, first)
        return halves.view(np.uint8)
    packed = np.empty((n, 4 + dim), dtype=np.uint8)
    for first, block in blocks(rows):
        scale = np.ones(len(block), dtype="<f4")
        if rows.dtype != np.int8:
            scale = (np.abs(block).max(axis=1) / 127).astype("<f4")
            scale[scale == 0] = 1
        out = packed[first : first + len(block)]
        out[:, :4] = scale[:, None].view(np.uint8)
        out[:, 4:] = np.rint(block / scale[:, None]).clip(-128, 127).astype(np.int8).view(np.uint8)
    return packed


def checking_vectors(rows: NDArray[Any], kind: KeptVectors | None) -> Steps[None]:
    """Raise InvalidArgumentError, in short steps, if :func:`encoding_kept` would refuse a value of vectors."""
    for first, block in blocks(rows):
        if kind == "float16":
            _as_halves(block, rows, first)
        yield


def _as_halves(block: NDArray[np.float32], rows: NDArray[Any], first: int) -> NDArray[np.float16]:
    """Return a block of rows as float16. Raises InvalidArgumentError if a value is too large."""
    with np.errstate(over="ignore"):
        halves = block.astype("<f2")
    if rows.dtype.kind == "f" and not np.isfinite(halves).all():
        row, column = (int(x) for x in np.argwhere(~np.isfinite(halves))[0])
        row += first
        raise InvalidArgumentError(
            f"vectors: row {row}, column {column} is {rows[row, column]}; keep_vectors = 'float16' allows at most "
            f"{np.finfo(np.float16).max:.0f}: scale the vectors, or keep them as 'int8'"
        )
    return halves


def unpack_vectors(packed: NDArray[np.uint8], kind: KeptVectors) -> NDArray[np.float32]:
    """Return the vectors that :func:`pack_vectors` packed, with the precision in which they are kept."""
    if kind == "float16":
        return np.ascontiguousarray(packed).view("<f2").astype(np.float32)
    scale = np.ascontiguousarray(packed[:, :4]).view("<f4")
    return np.asarray(packed[:, 4:].view(np.int8) * scale, dtype=np.float32)


def encoding_kept(
    encoder: Encoder, rows: NDArray[Any], kind: KeptVectors | None
) -> Steps[tuple[NDArray[np.uint8], NDArray[np.uint8] | None]]:
    """Encode vectors ``[n, dim]`` in short steps. Returns their codes, and the packed vectors if they are kept."""
    kept = None
    if kind is not None:
        kept = pack_vectors(rows, kind)
        rows = unpack_vectors(kept, kind)
    codes = yield from encoder.encoding(rows)
    return codes, kept


def measure(metric: Metric, query: NDArray[np.float32], vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the distances of vectors ``[n, dim]`` to a query ``[dim]``, in double precision.

    ``l2``: the Euclidean distance. ``cosine``: 1 minus the cosine; 1 if either vector is zero. ``inner``: the negated
    inner product.
    """
    one, many = query.astype(np.float64), vectors.astype(np.float64)
    if metric == "l2":
        return np.asarray(np.sqrt(np.square(many - one).sum(axis=1)))
    products = (many * one).sum(axis=1)
    if metric == "inner":
        return np.asarray(-products)
    lengths = np.sqrt(np.square(many).sum(axis=1) * np.square(one).sum())
    return np.asarray(1 - np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0))
