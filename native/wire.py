"""Batches of queries and answers as they lie in messages: found and written without a Python step for each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whamming.native._wire import ffi, lib
from whamming.native.errors import InvalidArgumentError
from whamming.native.stats import BatchStats

_MEMBERS: Final = [name for name, _ in ffi.typeof("struct wire_query").fields]
ID, START, SIZE = 0, 1, 2
"""Columns of :func:`find_queries`: the query's id, and where it lies."""
STARTS: Final = {name: _MEMBERS.index(f"{name}_start") for name in ("code", "weights", "table", "vector")}
"""Columns that say where a field's contents start ..."""
SIZES: Final = {name: _MEMBERS.index(f"{name}_size") for name in STARTS}
"""... and how many bytes they have; 0: it is not there."""
OWN: Final = _MEMBERS.index("own")
"""1: the query has options of its own, or a resume token."""
FORM: Final = _MEMBERS.index("form")
SHAPE: Final = slice(OWN, len(_MEMBERS))
"""Columns that are equal for queries of one shape."""


def find_queries(batch: bytes, count: int) -> NDArray[np.uint64]:
    """Return where the parts of the queries of a QueryBatch lie, ``[count, columns]``.

    The bytes must be as protobuf's library writes them, without unknown groups; raises :class:`InvalidArgumentError`
    for others.
    """
    found = np.zeros((count, len(_MEMBERS)), dtype=np.uint64)
    there = lib.wire_find_queries(batch, len(batch), ffi.from_buffer("struct wire_query[]", found), count)
    if there != count:
        raise InvalidArgumentError(f"{len(batch)} bytes that should be a batch of {count} queries are none")
    return found


def count_queries(request: bytes) -> int:
    """Return how many queries a SearchRequest has, without reading it; of other bytes, those before they break."""
    return int(lib.wire_count(request, len(request), 1, 2))


def count_payloads(request: bytes) -> int:
    """Return how many payloads an UpsertRequest has, in the same way."""
    return int(lib.wire_count(request, len(request), 3, 3))


def gather(batch: bytes, starts: NDArray[np.uint64], size: int) -> NDArray[np.uint8]:
    """Return pieces of equal size, ``[count, size]``."""
    rows = np.empty((len(starts), size), dtype=np.uint8)
    starts = np.ascontiguousarray(starts)
    copied = lib.wire_gather(
        batch,
        len(batch),
        ffi.from_buffer("uint64_t[]", starts),
        len(starts),
        size,
        ffi.from_buffer("uint8_t[]", rows),
    )
    if copied != len(starts):
        raise InvalidArgumentError(f"{size} bytes from {starts[copied]} on are not inside of {len(batch)}")
    return rows


def write_answers(
    query_ids: Sequence[int],
    wanted: int,
    radius: float,
    items: int,
    ids: NDArray[np.uint64],
    distances: NDArray[np.float64],
    counts: NDArray[np.uint64],
    stats: BatchStats,
    elapsed: float,
) -> bytes:
    """Return a SearchResponse that brings all hits of each query, ``ids[q, k]``, and ends it, exact.

    A query with as many hits as ``wanted`` is complete, one with fewer has exhausted what is within the ``radius`` of
    all ``items``. ``elapsed``: seconds since they arrived.
    """
    q, k = ids.shape
    numbers = np.array(query_ids, dtype=np.uint64)
    for rows in (numbers, distances, counts, stats):
        if len(rows) != q:
            raise InvalidArgumentError(f"{len(rows)} rows for {q} queries; there must be one each")
    message = np.empty(q * (lib.WIRE_ANSWER_BYTES + 16 * k), dtype=np.uint8)
    size = lib.wire_write_answers(
        q,
        k,
        ffi.from_buffer("uint64_t[]", numbers),
        wanted,
        radius,
        items,
        ffi.from_buffer("uint64_t[]", ids),
        ffi.from_buffer("double[]", distances),
        ffi.from_buffer("uint64_t[]", counts),
        ffi.from_buffer(stats.raw),
        elapsed,
        ffi.from_buffer("uint8_t[]", message),
    )
    return message[:size].tobytes()
