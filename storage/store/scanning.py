"""Read all items of several parts in order of id, piece by piece.

Each segment has its places in order of id (the array ``by_id``). A scan reads a block of each part, and merges the
blocks up to the smallest of their last ids, because a later block of the same part has larger ids only:

::

    part 1   3  8  9 │ 14 ...      everything up to 9 is complete: 1, 3, 4, 8, 9
    part 2   1  4 20 │ 31 ...      20 waits for the next block of part 1

Because of the order, a scan can continue after the last id that it has returned, even on a later snapshot.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError
from whamming.native.arguments import as_whole
from whamming.storage.items.live_part import LivePart
from whamming.storage.items.rows import Rows
from whamming.storage.storage_errors import CorruptStoreError

PIECE_BYTES: Final = 1 << 23
"""How many payload bytes a piece may have by default, unless a single item has more."""
ROW_BYTES: Final = 12
"""Memory of an item in a block: its place and its part."""
MIN_BLOCK: Final = 256
"""Blocks have at least this many items, however many parts there are: smaller ones would make scans slow."""
_REMEDY = "restore a backup"


def check_scan(size: int, after: int | None) -> tuple[int, int | None]:
    """Return the arguments of a scan as plain integers. Raises InvalidArgumentError."""
    rows = as_whole("size", size)
    if rows < 1:
        raise InvalidArgumentError(f"size = {size}; it must be 1 or more")
    last = None if after is None else as_whole("after", after)
    if last is not None and not 0 <= last < 2**64:
        raise InvalidArgumentError(f"after = {after}; it must be an id, 0 to {2**64 - 1}")
    return rows, last


def scan(parts: Sequence[LivePart], size: int, after: int | None, piece_bytes: int = PIECE_BYTES) -> Iterator[Rows]:
    """Yield the live items with ids above ``after``, in order of id, at most ``size`` at a time.

    ``after``: None for all items. Codes are in the engine's bit order. ``piece_bytes`` limits the payloads of a piece,
    and the memory of all blocks together.
    """
    rows = min(size, max(piece_bytes // ROW_BYTES, 1))
    readers = [_Reader(part, max(rows // len(parts), MIN_BLOCK), after) for part in parts]
    while readers := [reader for reader in readers if reader.fill()]:
        ends = [int(reader.ids[-1]) for reader in readers if not reader.is_last]
        taken = [reader.take(min(ends, default=2**64 - 1)) for reader in readers]
        ids = np.concatenate([ids for ids, _ in taken])
        for reader, (its_ids, _) in zip(readers, taken, strict=True):
            reader.block = max(rows * len(its_ids) // len(ids), MIN_BLOCK)
        sources = np.repeat(np.arange(len(readers), dtype=np.int32), [len(ids) for ids, _ in taken])
        places = np.concatenate([places for _, places in taken])
        order = np.argsort(ids, kind="stable")
        sources, places = sources[order], places[order]
        del taken, ids, order  # a caller that stalls keeps the rest
        lengths = _payload_lengths(readers, sources, places)
        first = 0
        while first < len(places):
            last = min(first + size, len(places))
            if lengths is not None:
                fits = np.searchsorted(np.cumsum(lengths[first:last]), np.uint64(piece_bytes), side="right")
                last = max(first + 1, first + int(fits))
            yield _rows(readers, sources[first:last], places[first:last])
            first = last


class _Reader:
    """Reads the live places of one part in order of id, a block at a time."""

    def __init__(self, part: LivePart, block: int, after: int | None) -> None:
        self.part = part
        self._order = part.segment.places_by_id
        self.block = block
        """How many places to read ahead: the part's share of a piece, as in the piece before."""
        self._next = 0 if after is None else bisect.bisect_right(range(part.segment.n), after, key=self._id_at)
        self._last = -1 if after is None else after
        """The last id that was read."""
        self.ids: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._places: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def _id_at(self, rank: int) -> int:
        """Return the id for which this segment has ``rank`` smaller ids."""
        return int(self.part.segment.ids(self._order[rank : rank + 1].astype(np.int64))[0])

    @property
    def is_last(self) -> bool:
        """Whether the current block is the last one."""
        return self._next >= len(self._order)

    def fill(self) -> bool:
        """Read ahead if half of the block is used up. Returns whether there are items left."""
        while len(self.ids) <= self.block // 2 and not self.is_last:
            places = self._order[self._next : self._next + self.block - len(self.ids)].astype(np.int64)
            if places.max() >= len(self._order):
                raise CorruptStoreError(f"array by_id refers to place {places.max()} of {len(self._order)}; {_REMEDY}")
            self._next += len(places)
            ids = self.part.segment.ids(places)
            if (ids[1:] <= ids[:-1]).any() or int(ids[0]) <= self._last:
                raise CorruptStoreError(f"array by_id is not in order of id; {_REMEDY}")
            self._last = int(ids[-1])
            alive = self.part.is_alive(places)
            self.ids = np.concatenate([self.ids, ids[alive]])
            self._places = np.concatenate([self._places, places[alive]])
        return len(self.ids) > 0

    def take(self, last: int) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
        """Remove the ids up to ``last`` from the block, and return them with their places."""
        count = int(np.searchsorted(self.ids, np.uint64(last), side="right"))
        taken = self.ids[:count], self._places[:count]
        self.ids, self._places = self.ids[count:], self._places[count:]
        return taken


def _payload_lengths(
    readers: Sequence[_Reader], sources: NDArray[np.int32], places: NDArray[np.int64]
) -> NDArray[np.uint64] | None:
    """Return the size of each item's payload, or None if no part has payloads."""
    if not any(reader.part.segment.has_payloads for reader in readers):
        return None
    lengths = np.zeros(len(places), dtype=np.uint64)
    for number, reader in enumerate(readers):
        mine = sources == number
        lengths[mine] = reader.part.segment.payload_lengths(places[mine])
    return lengths


def _rows(readers: Sequence[_Reader], sources: NDArray[np.int32], places: NDArray[np.int64]) -> Rows:
    """Return the items at some places of several parts, in that order."""
    parts, positions = [], []
    for number, reader in enumerate(readers):
        mine = np.flatnonzero(sources == number)
        if len(mine):
            mine = mine[np.argsort(places[mine])]  # a segment is read in order of place
            parts.append(reader.part.segment.rows(places[mine]))
            positions.append(mine)
    order = np.concatenate(positions)
    back = np.empty(len(order), dtype=np.int64)
    back[order] = np.arange(len(order))
    return Rows.concatenate(parts).take(back)
