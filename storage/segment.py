"""A segment: items as flat arrays, which may lie in RAM or in a memory map. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native import ARRAY_NAMES, Index, Part
from whamming.storage.errors import CorruptStoreError
from whamming.storage.rows import Payloads, Rows
from whamming.storage.settings import IndexSettings

SEGMENT_ARRAYS: Final = (*ARRAY_NAMES, "by_id", "payload_ends", "payload_data")
"""The engine's arrays; all places by increasing id; where each place's payload ends; the payloads."""

_NOWHERE: Final = np.uint64(2**64 - 1)


class Segment:
    """Items at places 0 .. n - 1, in an order of the engine's choice."""

    def __init__(self, arrays: Mapping[str, Any], owner: object = None) -> None:
        """Open a segment over its arrays, in place. ``owner`` is kept alive for as long as they are in use."""
        self.index = Index.from_arrays({name: arrays[name] for name in ARRAY_NAMES}, owner=owner)
        self.n = self.index.n
        self._arrays = {name: arrays[name] for name in SEGMENT_ARRAYS}
        self._owner = owner
        for name, size in (("by_id", 4 * self.n), ("payload_ends", 8 * self.n)):
            found = memoryview(self._arrays[name]).nbytes
            if found != size and not (name == "payload_ends" and found == 0):
                raise CorruptStoreError(f"the array {name} has {found} bytes; {self.n} items need {size}")
        ids = self._sorted_ends()
        self.least_id, self.greatest_id = ids

    @classmethod
    def build(
        cls,
        settings: IndexSettings,
        rows: Rows,
        *,
        sealed: bool,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Segment:
        """Build one in RAM. ``sealed``: with tables, for good; else to be swept, as fast to build as can be."""
        index = Index.build(
            rows.codes,
            settings.bits,
            rows.ids,
            tables=settings.tables if sealed else "none",
            buckets=settings.buckets if sealed else "compact",
            reorder=sealed,
            threads=threads if sealed else 1,
            progress=progress,
        )
        ids = index.ids
        by_id = np.argsort(ids).astype("<u4")
        arrays: dict[str, Any] = dict(index.arrays)
        arrays |= {"by_id": by_id, "payload_ends": b"", "payload_data": b""}
        if rows.payloads is not None and len(rows.payloads.data):
            rank = np.empty(len(ids), dtype=np.int64)
            rank[by_id] = np.argsort(rows.ids)
            payloads = rows.payloads.take(rank)
            arrays |= {"payload_ends": payloads.ends.astype("<u8"), "payload_data": payloads.data}
        return cls(arrays)

    @property
    def arrays(self) -> dict[str, memoryview]:
        """All arrays as flat buffers."""
        return {name: memoryview(buffer).cast("B") for name, buffer in self._arrays.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(buffer.nbytes for buffer in self.arrays.values())

    @property
    def payload_bytes(self) -> int:
        """Bytes of all payloads."""
        return memoryview(self._arrays["payload_data"]).nbytes

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of some ids (sorted, for speed), -1 for those that the segment does not have."""
        first = int(np.searchsorted(ids, self.least_id))
        last = int(np.searchsorted(ids, self.greatest_id, side="right"))
        places = np.full(len(ids), -1, dtype=np.int64)
        if self.n and first < last:
            found = self.index.find(self._arrays["by_id"], ids[first:last])
            places[first:last] = np.where(found == _NOWHERE, np.uint64(0), found + np.uint64(1)).astype(np.int64) - 1
        return places

    def payload(self, place: int) -> bytes:
        """Return the payload of one place."""
        payloads = self._payloads()
        if payloads is None:
            return b""
        start, end = int(payloads.ends[place - 1]) if place else 0, int(payloads.ends[place])
        if not start <= end <= len(payloads.data):
            raise CorruptStoreError(f"the payload of place {place} would lie at {start} to {end}; verify the index")
        return payloads.data[start:end].tobytes()

    def rows(self, places: NDArray[np.integer[Any]]) -> Rows:
        """Return the items at some places."""
        payloads = self._payloads()
        codes = self.index.codes_at(places)
        return Rows(self.index.ids[places], codes, payloads.take(places) if payloads is not None else None)

    def _payloads(self) -> Payloads | None:
        ends = np.frombuffer(self._arrays["payload_ends"], dtype="<u8") if self._has_payloads() else None
        if ends is None:
            return None
        return Payloads(ends, np.frombuffer(self._arrays["payload_data"], dtype=np.uint8))

    def _has_payloads(self) -> bool:
        return memoryview(self._arrays["payload_ends"]).nbytes > 0

    def _sorted_ends(self) -> tuple[int, int]:
        if not self.n:
            return 0, 0
        order = np.frombuffer(self._arrays["by_id"], dtype="<u4", count=self.n)
        return self.index.id_at(int(order[0])), self.index.id_at(int(order[-1]))


class Live:
    """A segment without the items that are gone. Immutable: killing more gives another."""

    def __init__(self, segment: Segment, dead: NDArray[np.uint8] | None = None, number: int | None = None) -> None:
        """``dead``: a bitmap by place; ``number``: of a sealed segment."""
        self.segment = segment
        self.dead = dead
        self.number = number
        self.dead_count = 0 if dead is None else int.from_bytes(dead.tobytes(), "little").bit_count()
        self.live = segment.n - self.dead_count

    def killing(self, ids: NDArray[np.uint64]) -> Live:
        """Return it without some more ids (sorted); those that it does not have, or not any more, are ignored."""
        places = self.segment.find(ids)
        places = places[places >= 0]
        if len(places) == 0:
            return self
        dead = np.zeros((self.segment.n + 7) // 8, dtype=np.uint8) if self.dead is None else self.dead.copy()
        np.bitwise_or.at(dead, places >> 3, (1 << (places & 7)).astype(np.uint8))
        return Live(self.segment, dead, self.number)

    def is_dead(self, place: int) -> bool:
        """Tell whether the item at a place is gone."""
        return self.dead is not None and bool(self.dead[place >> 3] >> (place & 7) & 1)

    def alive(self, places: NDArray[np.int64]) -> NDArray[np.bool_]:
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

    @property
    def part(self) -> Part:
        """What the engine searches."""
        return Part(self.segment.index, self.dead, self.dead_count)
