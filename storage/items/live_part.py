"""A segment without the items that were deleted or replaced since it was built. Immutable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whamming.native import Part
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment


class LivePart:
    """A segment and a bitmap of its dead places. Removing more items gives another one."""

    def __init__(
        self,
        segment: Segment,
        number: int | None = None,
        dead: NDArray[np.uint8] | None = None,
        dead_count: int | None = None,
    ) -> None:
        """``number``: of a sealed segment; ``dead``: bitmap by place; ``dead_count``: its bits, if they are known."""
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
        """Return it without some more ids (sorted, each once). Those that it does not have (any more) are ignored."""
        return self.removing(ids)[0]

    def removing(self, ids: NDArray[np.uint64]) -> tuple[LivePart, NDArray[np.uint64]]:
        """Return it without some more ids (sorted, each once), and those of them that it does not have (any more)."""
        places = self.segment.find(ids)
        there = self.is_alive(places)
        if not there.any():  # so most writes copy the bitmaps of few parts
            return self, ids
        dead = np.zeros((self.segment.n + 7) // 8, dtype=np.uint8) if self.dead is None else self.dead.copy()
        removed = places[there]
        np.bitwise_or.at(dead, removed >> 3, np.left_shift(1, removed & 7).astype(np.uint8))
        return LivePart(self.segment, self.number, dead, self.dead_count + len(removed)), ids[~there]

    def ids_removed_since(self, earlier: LivePart) -> NDArray[np.uint64]:
        """Return the ids, sorted, that died after ``earlier``, the same part at an earlier time."""
        if self.dead is None or self.dead_count == earlier.dead_count:
            return np.empty(0, dtype=np.uint64)
        changed = self.dead if earlier.dead is None else self.dead & ~earlier.dead
        found = np.flatnonzero(changed)
        bits = np.unpackbits(changed[found, None], axis=1, bitorder="little")
        row, bit = np.nonzero(bits)
        return np.sort(self.segment.ids(found[row] * 8 + bit))

    def is_alive(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell which places (-1: none) hold an item that is still there."""
        there = places >= 0
        if self.dead is not None:
            safe = np.where(there, places, 0)
            there &= (self.dead[safe >> 3] >> (safe & 7).astype(np.uint8) & 1) == 0
        return there

    def places(self) -> NDArray[np.int64]:
        """Return the places of all items that are still there."""
        if self.dead is None:
            return np.arange(self.segment.n, dtype=np.int64)
        gone = np.unpackbits(self.dead, count=self.segment.n, bitorder="little")
        return np.flatnonzero(gone == 0)

    def rows(self) -> Rows:
        """Return all items that are still there."""
        return self.segment.rows(self.places())

    def is_same_as(self, other: LivePart) -> bool:
        """Tell whether both are one part, at whatever time and wherever its segment is read from."""
        return self.segment is other.segment if self.number is None else self.number == other.number


def merged_rows(parts: Sequence[LivePart]) -> Rows:
    """Return the live items of several parts, sorted by id."""
    rows = Rows.concatenate([part.rows() for part in parts])
    return rows.take(np.argsort(rows.ids, kind="stable"))  # which merges what is in order already
