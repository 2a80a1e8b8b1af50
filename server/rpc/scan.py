"""One Scan call: reads all items in order of id. When the lease of its snapshot expires, it takes a new snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from whamming.server.search.snapshot_lease import SnapshotLease
from whamming.storage import Rows, StoredIndex
from whamming.v1 import item_pb2
from whamming.wire.items import items_message

MESSAGE_BYTES: Final = 1 << 18
"""Maximum size of the ids and codes in a message. While a client does not read, the server holds a message twice: as
bytes, and in gRPC. The scan itself holds about half as much."""
PAYLOAD_BYTES: Final = MESSAGE_BYTES // 2
"""Maximum size of the payloads in a message, besides."""


class Scan:
    """The position of a Scan call, and its snapshot."""

    def __init__(self, index: StoredIndex, size: int, after: int | None, snapshot_seconds: float) -> None:
        """Scan the items with ids above ``after``, or all if it is None, at most ``size`` at a time."""
        self.total = 0
        """Number of items in the snapshot."""
        self.renewals = -1
        """How often the snapshot was replaced."""
        self._index = index
        self._size = max(1, min(size, MESSAGE_BYTES // (8 + index.settings.code_bytes)))
        self._after = after
        self._seconds = snapshot_seconds
        self._current: tuple[SnapshotLease, Iterator[Rows]] | None = None

    def next(self) -> list[item_pb2.ScanResponse]:
        """Return the next message, or an empty list at the end. Called in one thread at a time."""
        current = self._current
        if current is None:
            snapshot = self._index.snapshot()
            lease = SnapshotLease(self._index, snapshot, self._seconds)
            current = self._current = lease, snapshot.scan(self._size, after=self._after, piece_bytes=PAYLOAD_BYTES)
            self.total = len(snapshot)
            self.renewals += 1
        rows = next(current[1], None)
        if rows is None:
            return []
        self._after = int(rows.ids[-1])
        return [item_pb2.ScanResponse(items=items_message(rows), total=self.total, renewals=self.renewals)]

    def expire(self) -> None:
        """Let go of a stale snapshot, even while the client does not read. :meth:`next` then takes a new one."""
        current = self._current
        if current is not None:
            current[0].check_growth()
            if current[0].is_stale:
                self._current = None
