"""A segment minus the items that were deleted or replaced since it was built."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whamming.native import Part
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment


class LivePart:
    """A segment and a bitmap of its dead places. Immutable: removing items returns another LivePart."""

    def __init__(
        self,
        segment: Segment,
        number: int | None = None,
        dead: NDArray[np.uint8] | None = None,
        dead_count: int | None = None,
    ) -> None:
        """``number``: the segment's number in the journal; None for a run.

        ``dead``: a bitmap by place; None if no item is dead. ``dead_count``: how many are dead. None: count them.
        """
        self.segment = segment
        self.number = number
        self.dead = dead
        if dead_count is None:
            dead_count = 0 if dead is None else int.from_bytes(dead.tobytes(), "little").bit_count()
        self.dead_count = dead_count
        self.live = segment.n - dead_count
        self.part = Part(segment.index, dead, dead_count)
        """What the engine searches."""

    def without_ids(self, ids: NDArray[np.uint64]) -> LivePart:
        """Return this part without the given ids (sorted, each once). Ids that it does not have are ignored."""
        return self.removing(ids)[0]

    def removing(self, ids: NDArray[np.uint64]) -> tuple[LivePart, NDArray[np.uint64]]:
        """Return this part without the given ids (sorted, each once), and those of the ids that it does not have."""
        places = self.segment.find(ids)
        there = self.is_alive(places)
        if not there.any():  # most writes touch few parts, so this is common, and no bitmap has to be copied
            return self, ids
        dead = np.zeros((self.segment.n + 7) // 8, dtype=np.uint8) if self.dead is None else self.dead.copy()
        removed = places[there]
        np.bitwise_or.at(dead, removed >> 3, np.left_shift(1, removed & 7).astype(np.uint8))
        return LivePart(self.segment, self.number, dead, self.dead_count + len(removed)), ids[~there]

    def ids_removed_since(self, earlier: LivePart) -> NDArray[np.uint64]:
        """Return the ids, sorted, that died since ``earlier``, an earlier state of the same part."""
        if self.dead is None or self.dead_count == earlier.dead_count:
            return np.empty(0, dtype=np.uint64)
        changed = self.dead if earlier.dead is None else self.dead & ~earlier.dead
        found = np.flatnonzero(changed)
        bits = np.unpackbits(changed[found, None], axis=1, bitorder="little")
        row, bit = np.nonzero(bits)
        return np.sort(self.segment.ids(found[row] * 8 + bit))

    def is_alive(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which places hold a live item; False for place -1."""
        there = places >= 0
        if self.dead is not None:
            safe = np.where(there, places, 0)
            there &= (self.dead[safe >> 3] >> (safe & 7).astype(np.uint8) & 1) == 0
        return there

    def places(self) -> NDArray[np.int64]:
        """Return the places of all live items."""
        if self.dead is None:
            return np.arange(self.segment.n, dtype=np.int64)
        gone = np.unpackbits(self.dead, count=self.segment.n, bitorder="little")
        return np.flatnonzero(gone == 0)

    def rows(self) -> Rows:
        """Return all live items."""
        return self.segment.rows(self.places())

    def is_same_as(self, other: LivePart) -> bool:
        """Return whether both are states of the same part, even if its segment was reopened in between."""
        return self.segment is other.segment if self.number is None else self.number == other.number


def merged_rows(parts: Sequence[LivePart]) -> Rows:
    """Return the live items of several parts, sorted by id."""
    rows = Rows.concatenate([part.rows() for part in parts])
    return rows.take(np.argsort(rows.ids, kind="stable"))  # a stable sort merges sorted runs quickly
