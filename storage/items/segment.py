"""A segment: items as flat arrays, which may lie in RAM or in a memory map. Immutable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native import ARRAY_NAMES, Index, Part
from whamming.storage.items.rows import Payloads, Rows
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError

SEGMENT_ARRAYS: Final = (*ARRAY_NAMES, "by_id", "payload_ends", "payload_data")
"""The engine's arrays; all places by increasing id; where each place's payload ends; the payloads."""

TABLES_FROM: Final = 32_768
"""Items: runs of recent writes of at least so many have tables as well; smaller ones are as fast to sweep."""

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
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Segment:
        """Build one in RAM, with tables."""
        index = Index.build(
            rows.codes,
            settings.bits,
            rows.ids,
            tables=settings.tables,
            buckets=settings.buckets,
            threads=threads,
            progress=progress,
        )
        by_id = np.argsort(index.ids).astype("<u4")
        arrays: dict[str, Any] = dict(index.arrays)
        arrays |= {"by_id": by_id, "payload_ends": b"", "payload_data": b""}
        if rows.payloads is not None and len(rows.payloads.data):
            row_of_place = np.empty(len(rows), dtype=np.int64)
            row_of_place[by_id] = np.argsort(rows.ids)
            payloads = rows.payloads.take(row_of_place)
            arrays |= {"payload_ends": payloads.ends.astype("<u8"), "payload_data": payloads.data}
        return cls(arrays)

    def forget(self) -> None:
        """Let go of the arrays, which nobody may be using."""
        del self.index, self._arrays

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
        # Of the ids' type: numpy would turn all of them into doubles to compare them with a Python integer.
        first = int(np.searchsorted(ids, np.uint64(self.least_id)))
        last = int(np.searchsorted(ids, np.uint64(self.greatest_id), side="right"))
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

    def heads(self, places: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
        """Return the first ``width`` bytes of the payloads of some places, ``[n, width]``."""
        return _heads(self._payloads(), places, width)

    def payload_ends(self, places: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return where the payloads of some places end, among those of all places; None: there are none."""
        payloads = self._payloads()
        return None if payloads is None else payloads.ends[places]

    def ids(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the ids of some places."""
        return self.index.ids_at(places)

    def codes(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the codes at some places, in the engine's bit order."""
        return self.index.codes_at(places)

    def rows(self, places: NDArray[np.int64]) -> Rows:
        """Return the items at some places, given in increasing order."""
        payloads = self._payloads()
        if payloads is not None:
            ends = payloads.ends
            bounds = np.stack([np.where(places > 0, ends[places - 1], 0), ends[places]], axis=1).ravel()
            if len(bounds) and (bounds[-1] > len(payloads.data) or (bounds[1:] < bounds[:-1]).any()):
                raise CorruptStoreError("payloads that overlap or lie outside of their array; verify the index")
            payloads = payloads.take(places)
        return Rows(self.ids(places), self.codes(places), payloads)

    def part(self, dead: NDArray[np.uint8] | None, dead_count: int) -> Part:
        """Return what the engine searches, without the places in a bitmap."""
        return Part(self.index, dead, dead_count)

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
        ends = order[[0, -1]]
        if ends.max() >= self.n:
            raise CorruptStoreError(f"the array by_id leads to place {ends.max()} of {self.n}; restore a backup")
        least, greatest = self.index.ids_at(ends)
        return int(least), int(greatest)


class Run:
    """A segment of recent writes, in RAM: items in order of id, place 0 first.

    The engine's index of them is made when a search first asks for it.
    """

    def __init__(self, settings: IndexSettings, rows: Rows) -> None:
        """Take items in order of id."""
        self._settings = settings
        self._rows = rows
        self._index: Index | None = None
        self._places: NDArray[np.int64] | None = None  # of the index, by place of the run
        self.n = len(rows)
        self.nbytes = rows.nbytes
        self.payload_bytes = 0 if rows.payloads is None else len(rows.payloads.data)

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of some ids, -1 for those that the run does not have."""
        if self.n == 0:
            return np.full(len(ids), -1, dtype=np.int64)
        places = np.minimum(np.searchsorted(self._rows.ids, ids), self.n - 1)
        return np.where(self._rows.ids[places] == ids, places, -1)

    def payload(self, place: int) -> bytes:
        """Return the payload of one place."""
        return self._rows.payloads[place] if self._rows.payloads is not None else b""

    def heads(self, places: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
        """Return the first ``width`` bytes of the payloads of some places, ``[n, width]``."""
        return _heads(self._rows.payloads, places, width)

    def payload_ends(self, places: NDArray[np.int64]) -> NDArray[np.uint64] | None:
        """Return where the payloads of some places end, among those of all places; None: there are none."""
        return None if self._rows.payloads is None else self._rows.payloads.ends[places]

    def ids(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the ids of some places."""
        return self._rows.ids[places]

    def codes(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the codes at some places, in the engine's bit order."""
        return self._rows.codes[places]

    def rows(self, places: NDArray[np.int64]) -> Rows:
        """Return the items at some places."""
        return self._rows if len(places) == self.n else self._rows.take(places)

    def part(self, dead: NDArray[np.uint8] | None, dead_count: int) -> Part:
        """Return what the engine searches, without the places in a bitmap."""
        if self._index is None or self._places is None:
            rows = self._rows
            tables = self._settings.tables if self.n >= TABLES_FROM else "none"
            index = Index.build(rows.codes, self._settings.bits, rows.ids, tables, reorder=False, threads=1)
            self._places, self._index = np.argsort(index.ids), index
        if dead is None:
            return Part(self._index)
        gone = np.zeros(self.n, dtype=np.uint8)
        gone[self._places] = np.unpackbits(dead, count=self.n, bitorder="little")
        return Part(self._index, np.packbits(gone, bitorder="little"), dead_count)


class Live:
    """A segment without the items that are gone. Immutable: killing more gives another."""

    def __init__(
        self, segment: Segment | Run, dead: NDArray[np.uint8] | None = None, number: int | None = None
    ) -> None:
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
        return self.segment.part(self.dead, self.dead_count)


def _heads(payloads: Payloads | None, places: NDArray[np.int64], width: int) -> NDArray[np.uint8]:
    if payloads is None:
        raise CorruptStoreError("items have no vectors where vectors are kept; verify the index")
    starts = np.where(places > 0, payloads.ends[places - 1], 0).astype(np.int64)
    if (starts + width > payloads.ends[places].astype(np.int64)).any() or (starts + width > len(payloads.data)).any():
        raise CorruptStoreError(f"a payload has no room for a vector of {width} bytes; verify the index")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(payloads.data, width)[starts])
