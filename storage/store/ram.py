"""The store ``ram``: everything in memory, gone when it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from whamming.native import InvalidArgumentError
from whamming.storage.items.segment import Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.store.journal import JournalState, SealedSegment
from whamming.storage.store.protocol import Progress, VerifyReport
from whamming.storage.store.segmented import SegmentedStore
from whamming.storage.store.snapshot import Snapshot


class RamJournal:
    """Keeps nothing: the store's own contents are all there is. See :class:`whamming.storage.Journal`."""

    persistent = False
    most_rows = 2**31
    position = 0

    def __init__(self, settings: IndexSettings) -> None:
        """Start empty."""
        self.settings = settings
        self._stored = 0

    def load(self) -> JournalState:
        """Return nothing."""
        return JournalState()

    def check(self, batch: WriteBatch) -> None:
        """Accept every batch."""

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        """Do nothing."""
        return ()

    def store(self, segment: Segment) -> int:
        """Return a number for the segment."""
        self._stored += 1
        return self._stored

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Trust memory."""

    def install(self, segments: Sequence[SealedSegment], sealed: int | None) -> None:
        """Do nothing."""

    def reopen(self) -> Mapping[int, Segment]:
        """Leave segments where they are."""
        return {}

    def refresh(self) -> Sequence[WriteBatch]:
        """Return nothing: no other process writes here."""
        return ()

    def sizes(self) -> None:
        """There are no files."""

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Find nothing wrong: memory has no checksums."""
        return VerifyReport((), 0, 0)

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Write the snapshot as a file that the store ``lmdb`` opens."""
        from whamming.storage.files.lmdb_backend import write_index

        write_index(path, self.settings, snapshot)

    def close(self) -> None:
        """Do nothing."""


class RamBackend:
    """See :class:`whamming.storage.Backend`."""

    persistent = False

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Do nothing: an index in memory begins when it is opened."""

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> SegmentedStore:
        """Start an empty index."""
        if settings is None or read_only:
            raise InvalidArgumentError("an index in memory cannot be opened again, only created")
        return SegmentedStore(RamJournal(settings))


backend = RamBackend()
