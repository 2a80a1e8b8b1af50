"""The ``ram`` store: everything is in memory, and lost when the index is closed."""

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
    """Keeps nothing, because the store has everything in memory. See :class:`whamming.storage.Journal`."""

    persistent = False
    max_rows = 2**31
    position = 0

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self._stored = 0

    def load(self) -> JournalState:
        return JournalState()

    def check_files(self, *, writing: bool) -> None:
        """Nothing to do: there are no files."""

    def check(self, batch: WriteBatch) -> None:
        """Accept every batch."""

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        return ()

    def store(self, segment: Segment) -> int:
        self._stored += 1
        return self._stored

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Nothing to do: segments in memory have no checksums."""

    def install(self, segments: Sequence[SealedSegment], sealed_up_to: int | None) -> None:
        """Nothing to do: the store holds the segments."""

    def reopen(self) -> Mapping[int, Segment]:
        return {}

    def refresh(self) -> Sequence[WriteBatch]:
        """Return no writes: no other process can write to this memory."""
        return ()

    def sizes(self) -> None:
        """Return None: there are no files."""

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Report no problems: memory has no checksums to verify."""
        return VerifyReport((), 0, 0)

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Write the snapshot to a new directory that the ``lmdb`` store can open."""
        from whamming.storage.files.lmdb_backend import write_index

        write_index(path, self.settings, snapshot)

    def close(self) -> None:
        """Nothing to release."""


class RamBackend:
    """See :class:`whamming.storage.Backend`."""

    persistent = False
    files: Sequence[str] = ()

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Nothing to do: an index in memory is created when it is opened."""

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> SegmentedStore:
        """Create an empty index."""
        if settings is None or read_only:
            raise InvalidArgumentError("an index in memory cannot be reopened; create a new one")
        return SegmentedStore(RamJournal(settings))


backend = RamBackend()
