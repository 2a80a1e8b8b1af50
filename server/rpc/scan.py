"""One Scan call: reads all items in order of id. When the lease of its snapshot expires, it takes a new snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from whamming.server.search.snapshot_lease import SnapshotLease
from whamming.storage import Rows, StoredIndex


class Scan:
    """The position of a Scan call, and its snapshot."""

    def __init__(self, index: StoredIndex, size: int, after: int | None, snapshot_seconds: float) -> None:
        """Scan the items with ids above ``after``, or all if it is None, ``size`` at a time."""
        self.total = 0
        """Number of items in the snapshot."""
        self.renewals = -1
        """How often the snapshot was replaced."""
        self._index = index
        self._size = size
        self._after = after
        self._seconds = snapshot_seconds
        self._current: tuple[SnapshotLease, Iterator[Rows]] | None = None

    def next(self) -> Rows | None:
        """Return the next items, or None at the end. Called in one thread at a time."""
        current = self._current
        if current is None:
            snapshot = self._index.snapshot()
            lease = SnapshotLease(self._index, snapshot, self._seconds)
            current = self._current = lease, snapshot.scan(self._size, after=self._after)
            self.total = len(snapshot)
            self.renewals += 1
        rows = next(current[1], None)
        if rows is not None:
            self._after = int(rows.ids[-1])
        return rows

    def expire(self) -> None:
        """Let go of a stale snapshot, even while the client does not read. :meth:`next` then takes a new one."""
        current = self._current
        if current is not None:
            current[0].check_growth()
            if current[0].is_stale:
                self._current = None
