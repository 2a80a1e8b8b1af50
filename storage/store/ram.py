"""The store ``ram``: everything in memory, gone when it is closed."""

from __future__ import annotations

from pathlib import Path

from whamming.native import InvalidArgumentError
from whamming.storage.items.segment import Segment
from whamming.storage.settings import IndexSettings
from whamming.storage.store.contents import Contents
from whamming.storage.store.segmented import SegmentedStore


class RamStore(SegmentedStore):
    """An index in memory."""

    def __init__(self, settings: IndexSettings) -> None:
        """Start empty."""
        super().__init__(settings, Contents(settings), read_only=False)
        self._next_number = 0

    def _store(self, segment: Segment) -> int:
        self._next_number += 1
        return self._next_number

    def backup(self, path: Path) -> None:
        """Write the index as a file that the store ``lmdb`` opens."""
        from whamming.storage.files.lmdb_store import write_index

        write_index(path, self.settings, self.snapshot())


class RamBackend:
    """See :class:`whamming.storage.store.protocol.Backend`."""

    persistent = False

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Nothing to make: an index in memory begins when it is opened."""

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> RamStore:
        """Start an empty index."""
        if settings is None or read_only:
            raise InvalidArgumentError("an index in memory cannot be opened again, only created")
        return RamStore(settings)


backend = RamBackend()
