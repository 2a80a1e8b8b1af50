"""A snapshot that a call holds for its client, and how long the call may hold it.

While a snapshot is held, LMDB cannot reuse the pages that it refers to, so the file of an index that is being written
grows. Therefore a call may hold a snapshot only for a limited time, and only while few bytes become obsolete. A search
then ends with a resume token. A scan continues with a newer snapshot.
"""

from __future__ import annotations

import time
from typing import Final

from whamming.storage import Snapshot, StoredIndex

MAX_OBSOLETE_BYTES: Final = 256 << 20
"""A snapshot expires early if more bytes than this have become obsolete in the file since the snapshot was taken, and
also more bytes than the index uses."""


class SnapshotLease:
    """A snapshot, and the limits within which a call may hold it."""

    __slots__ = ("_index", "_obsolete", "_until", "snapshot")

    def __init__(self, index: StoredIndex, snapshot: Snapshot, seconds: float) -> None:
        """Hold a snapshot of ``index`` for ``seconds``, starting now."""
        self.snapshot = snapshot
        self._index = index
        self._until = time.perf_counter() + seconds
        self._obsolete: int | None = None
        """Obsolete bytes in the file at the first check."""

    @property
    def is_stale(self) -> bool:
        """Whether the call must let go of the snapshot."""
        return time.perf_counter() > self._until

    def check_growth(self) -> None:
        """Make the lease stale if too much of the file has become obsolete. Called about once per second."""
        store = self._index.open_store
        if store is None:  # nobody writes to a closed index
            return
        total, used = store.file_sizes()
        if self._obsolete is None:
            self._obsolete = total - used
        elif total - used - self._obsolete > max(MAX_OBSOLETE_BYTES, used):
            self._until = 0.0
