"""Where a segmented store keeps its bytes: the one thing in which its kinds differ.

A journal keeps *segments*, each a handful of flat arrays (:data:`SEGMENT_ARRAYS`), and the *writes* that are not in
segments yet. :class:`~whamming.storage.SegmentedStore` does the rest: group commit, snapshots, merging. So a third
party's store is a journal and a :class:`~whamming.storage.Backend` that hands it to ``SegmentedStore``.

Threads: the store calls :meth:`Journal.append`, :meth:`Journal.install`, :meth:`Journal.load`, :meth:`Journal.refresh`
and :meth:`Journal.reopen` from one thread at a time; at the same time another thread may be in :meth:`Journal.store` or
:meth:`Journal.check_segments`, and any number in the rest. :meth:`Journal.close` comes last, but :meth:`Journal.verify`
and :meth:`Journal.backup` may still be under way then, and should end well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from whamming.storage.items.segment import Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.store.protocol import Progress, VerifyReport
from whamming.storage.store.snapshot import Snapshot


@dataclass(frozen=True)
class SealedSegment:
    """A segment of a journal."""

    number: int
    segment: Segment
    dead: NDArray[np.uint8] | None
    """A bitmap by place of the items that are gone; None: none is."""


@dataclass(frozen=True)
class JournalState:
    """All that a journal holds."""

    segments: Sequence[SealedSegment] = ()
    batches: Sequence[WriteBatch] = ()
    """The writes that are in no segment yet, oldest first."""


class Journal(Protocol):
    """Keeps the segments and recent writes of one index. Every method raises a StorageError if it cannot do its job."""

    persistent: bool
    """What it keeps can be loaded again, by this process or another."""

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""

    @property
    def most_rows(self) -> int:
        """How many items one segment may have."""

    @property
    def position(self) -> int:
        """How many writes have been appended, ever."""

    def load(self) -> JournalState:
        """Read everything. Called when the store is opened, and after :meth:`install` has raised an error."""

    def check(self, batch: WriteBatch) -> None:
        """Raise InvalidArgumentError for a batch that could never be appended: others that share its commit would
        fail with it."""

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        """Make batches durable, all or none.

        An earlier call that raised an error may have succeeded all the same, say because it was interrupted at its
        very end. Its batches come before these, and are returned: the store does not know of them.
        """

    def store(self, segment: Segment) -> int:
        """Write the arrays of a new segment, to which nothing refers yet; returns its number."""

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Raise CorruptStoreError if stored segments are not what was written. Called before they are merged: under
        the checksums of a new segment, damage would pass for sound."""

    def install(self, segments: Sequence[SealedSegment], sealed: int | None) -> None:
        """In one atomic step, make these all segments of the index, with these dead items, and forget the others.

        ``sealed``: a former :attr:`position`; writes up to there are in segments now and are forgotten, too.
        """

    def reopen(self) -> Mapping[int, Segment]:
        """Return segments to use from now on instead of those in use, by number; empty: those in use are fine.

        Called after every append, install and refresh. A journal whose segments are in a file hands a new segment's
        mapped arrays over here, so that the ones in memory can go.
        """

    def refresh(self) -> JournalState | Sequence[WriteBatch]:
        """Return what another process has changed since: new writes only, or everything where segments have changed.

        Called before every snapshot of a store that is open for reading.
        """

    def sizes(self) -> tuple[int, int] | None:
        """Return the bytes of the files, and those of them in use; None: it has no files."""

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Check every byte against its checksum."""

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Write a copy to a new directory, for the same backend to open; a journal without files writes the snapshot.

        Writing goes on meanwhile.
        """

    def close(self) -> None:
        """Release everything. Segments that are in use must stay readable."""
