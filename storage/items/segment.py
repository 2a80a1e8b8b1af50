"""A segment: items as flat arrays, in RAM or in a memory map. Immutable.

Most items are in sealed segments. Their rows are in an order that is fast to search, and they have the hash tables
that the settings of the index ask for. Recent writes are in *runs*: segments in RAM without tables, which are quick to
build. The items of a run are in order of id, but those with equal codes are stored together. Searches sweep the runs. A
seal follows when the runs have about a million rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native import ARRAY_NAMES, Index
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError

SEGMENT_ARRAYS: Final = (*ARRAY_NAMES, "by_id", "payload_ends", "payload_data", "vectors")
"""The engine's arrays; all places in order of id; where each place's payload ends; the payloads; the kept vectors."""


class Segment:
    """Items at places 0 to n - 1, in an order that the engine chooses."""

    def __init__(self, settings: IndexSettings, arrays: Mapping[str, Any], owner: object = None) -> None:
        """Open a segment over its arrays, in place. ``owner`` is kept alive as long as the arrays are in use.

        Raises CorruptStoreError if the length of the codes or the sizes of the arrays do not match.
        """
        self.index = Index.from_arrays({name: arrays[name] for name in ARRAY_NAMES}, owner=owner)
        if self.index.bits != settings.bits:
            raise CorruptStoreError(f"a segment has codes of {self.index.bits} bits; the index has {settings.bits}")
        self.n = self.index.n
        self._arrays = {name: arrays[name] for name in SEGMENT_ARRAYS}
        self._owner = owner
        self._vector_bytes = settings.vector_bytes
        expected = {"by_id": 4 * self.n, "payload_ends": 8 * self.n, "vectors": settings.vector_bytes * self.n}
        for name, size in expected.items():
            found = memoryview(self._arrays[name]).nbytes
            if found != size and not (name == "payload_ends" and found == 0):
                raise CorruptStoreError(f"array {name} has {found} bytes; {self.n} items need {size}")
        self._check_order()

    @classmethod
    def build(
        cls,
        settings: IndexSettings,
        rows: Rows,
        *,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Segment:
        """Build a segment in RAM, with the tables that the settings require."""
        index = Index.build(
            rows.codes,
            settings.bits,
            rows.ids,
            tables=settings.tables,
            buckets=settings.buckets,
            threads=threads,
            progress=progress,
        )
        return cls(settings, _arrays_of(index, rows))

    @classmethod
    def build_run(cls, settings: IndexSettings, rows: Rows) -> Segment:
        """Build a run of recent writes in RAM: in order of id, without tables."""
        index = Index.build(rows.codes, settings.bits, rows.ids, "none", reorder=False, threads=1)
        return cls(settings, _arrays_of(index, rows))

    @property
    def arrays(self) -> dict[str, memoryview]:
        """All arrays by their names in SEGMENT_ARRAYS, as flat buffers."""
        return {name: memoryview(buffer).cast("B") for name, buffer in self._arrays.items()}

    @property
    def nbytes(self) -> int:
        """Size of all arrays in bytes."""
        return sum(buffer.nbytes for buffer in self.arrays.values())

    @property
    def payload_bytes(self) -> int:
        """Size of all payloads in bytes."""
        return memoryview(self._arrays["payload_data"]).nbytes

    @property
    def has_payloads(self) -> bool:
        """Whether at least one item has a payload."""
        return memoryview(self._arrays["payload_ends"]).nbytes > 0

    def find(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of some ids (sorted, for speed); -1 for ids that the segment does not have."""
        # The engine returns 2**64 - 1 for a missing id, which is -1 as a signed integer.
        return self.index.find(self._arrays["by_id"], ids).view(np.int64)

    def payload(self, place: int) -> bytes:
        payloads = self._payloads()
        if payloads is None:
            return b""
        start, end = int(payloads.ends[place - 1]) if place else 0, int(payloads.ends[place])
        if not start <= end <= len(payloads.data):
            raise CorruptStoreError(
                f"the payload of place {place} spans bytes {start} to {end} of {len(payloads.data)}; verify the index"
            )
        return payloads.data[start:end].tobytes()

    @property
    def places_by_id(self) -> NDArray[np.uint32]:
        """All places, in order of id."""
        return np.frombuffer(self._arrays["by_id"], dtype="<u4", count=self.n)

    def payload_lengths(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the sizes of the payloads at some places in bytes."""
        payloads = self._payloads()
        if payloads is None:
            return np.zeros(len(places), dtype=np.uint64)
        return payloads.ends[places] - payloads.starts(places)

    def ids(self, places: NDArray[np.int64]) -> NDArray[np.uint64]:
        return self.index.ids_at(places)

    def codes(self, places: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the codes at some places, in the engine's bit order."""
        return self.index.codes_at(places)

    def vectors(self, places: NDArray[np.int64]) -> NDArray[np.uint8] | None:
        """Return the kept vectors at some places, as bytes ``[n, vector_bytes]``; None if the index keeps none."""
        if not self._vector_bytes:
            return None
        column = np.frombuffer(self._arrays["vectors"], dtype=np.uint8) if self.n else np.empty(0, dtype=np.uint8)
        return column.reshape(self.n, self._vector_bytes).take(places, axis=0)

    def rows(self, places: NDArray[np.int64]) -> Rows:
        """Return the items at some places, which must be in increasing order."""
        payloads = self._payloads()
        if payloads is not None:
            ends = payloads.ends
            bounds = np.stack([payloads.starts(places), ends[places]], axis=1).ravel()
            if len(bounds) and (bounds[-1] > len(payloads.data) or (bounds[1:] < bounds[:-1]).any()):
                raise CorruptStoreError("payloads overlap or lie outside their array; verify the index")
            payloads = payloads.take(places)
        return Rows(self.ids(places), self.codes(places), payloads, self.vectors(places))

    def _payloads(self) -> Payloads | None:
        if not self.has_payloads:
            return None
        ends = np.frombuffer(self._arrays["payload_ends"], dtype="<u8")
        return Payloads(ends, np.frombuffer(self._arrays["payload_data"], dtype=np.uint8))

    def _check_order(self) -> None:
        """Check the first and the last entry of ``by_id``. The engine checks the other entries when it reads them."""
        if not self.n:
            return
        ends = self.places_by_id[[0, -1]]
        if ends.max() >= self.n:
            raise CorruptStoreError(f"array by_id refers to place {ends.max()} of {self.n}; restore a backup")


def _arrays_of(index: Index, rows: Rows) -> dict[str, Any]:
    """Return the engine's arrays and storage's own, which follow the engine's order of places."""
    ids = index.ids
    by_id = np.argsort(ids, kind="stable").astype("<u4")  # fast if they are sorted, as in most runs
    arrays: dict[str, Any] = dict(index.arrays)
    arrays |= {"by_id": by_id, "payload_ends": b"", "payload_data": b"", "vectors": b""}
    payloads = rows.payloads if rows.payloads is not None and len(rows.payloads.data) else None
    vectors = rows.vectors
    if (payloads is not None or vectors is not None) and not np.array_equal(ids, rows.ids):
        row_of_place = np.empty(len(rows), dtype=np.int64)
        row_of_place[by_id] = np.argsort(rows.ids)
        payloads = payloads.take(row_of_place) if payloads is not None else None
        vectors = vectors.take(row_of_place, axis=0) if vectors is not None else None
    if payloads is not None:
        arrays |= {"payload_ends": payloads.ends.astype("<u8"), "payload_data": payloads.data}
    if vectors is not None:
        arrays["vectors"] = np.ascontiguousarray(vectors).reshape(-1)
    return arrays
