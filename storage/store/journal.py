"""The journal protocol: where a segmented store keeps its bytes.

A journal keeps *segments*, each a handful of flat arrays (:data:`SEGMENT_ARRAYS`), and the *writes* that are not in
segments yet. :class:`~whamming.storage.SegmentedStore` does the rest: group commit, snapshots, merging. To add a kind
of store, write a journal and a :class:`~whamming.storage.Backend` that passes it to ``SegmentedStore``.

Thread safety: the store calls :meth:`Journal.append`, :meth:`Journal.install`, :meth:`Journal.load`,
:meth:`Journal.refresh` and :meth:`Journal.reopen` from one thread at a time. Meanwhile one other thread may be in
:meth:`Journal.store` or :meth:`Journal.check_segments`, and any number of threads in the other methods.
:meth:`Journal.close` is called last, but :meth:`Journal.verify` and :meth:`Journal.backup` may still be running then,
and must complete.

Interrupts: a KeyboardInterrupt may end any method at any line. The next call must find no lock taken and no transaction
open. If :meth:`Journal.append` is interrupted, the next call may return batches that it has returned before.

A journal has to keep these parts of a :class:`WriteBatch`: ``deletes``, ``upserts.ids``, ``upserts.codes``,
``upserts.vectors`` unless it is None, and ``ends`` and ``data`` of ``upserts.payloads`` unless it is None. The types
are ``uint64`` for ids, deletes and ends, and ``uint8`` for the rest. Codes are ``[n, settings.code_bytes]``, vectors
``[n, settings.vector_bytes]``. It also has to keep ``request``, which has 0 or 15 bytes: see ``requests.py``. Arrays
that a journal returns may be read-only. ``IndexSettings.to_json`` and ``from_json`` convert the settings.

The database does the rest: it keeps other processes from writing, puts the file ``encoder`` next to the journal's
files, and renames the directory of an index after creating it and before dropping it.
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
    """A segment that a journal keeps."""

    number: int
    segment: Segment
    dead: NDArray[np.uint8] | None
    """A bitmap with one bit per place, set if the item there is dead. None: no item is dead. It has
    ``(segment.n + 7) // 8`` bytes; place i is byte ``i >> 3``, mask ``1 << (i & 7)``."""


@dataclass(frozen=True)
class JournalState:
    """Everything that a journal holds."""

    segments: Sequence[SealedSegment] = ()
    batches: Sequence[WriteBatch] = ()
    """The writes that are not in a segment yet, oldest first."""
    requests: Sequence[bytes] = ()
    """The request ids of the last writes that are in segments, oldest first: ``KEPT`` of them, if there are as many."""


class Journal(Protocol):
    """Keeps the segments and recent writes of one index.

    Every method may raise a StorageError, and should convert errors of the system or of a library to a StorageError. It
    should be StorageFullError if there is no space (but only if nothing stored earlier was lost), and CorruptStoreError
    if a checksum is wrong. :func:`whamming.storage.from_system` converts an OSError.
    """

    persistent: bool
    """Whether the data can be loaded again after :meth:`close`, by this process or another."""

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index. The store does not read them before :meth:`load`."""

    @property
    def max_rows(self) -> int:
        """The largest number of items that a segment may have: 2**31, or less if arrays have a size limit."""

    @property
    def position(self) -> int:
        """The number of writes appended so far, since the index was created.

        If :meth:`append` raises an error, do not count its writes yet, even if they are durable. Otherwise the next
        call cannot recover them, and the next seal removes them.
        """

    def load(self) -> JournalState:
        """Read everything. Called when the store is opened, and after :meth:`install` has raised an error."""

    def check_files(self, *, writing: bool) -> None:
        """Raise a StorageError if somebody else has deleted, replaced or cut short the files.

        Called before each snapshot, before each ``async`` write, and once per second by servers, from any thread, so it
        must be fast. :meth:`append` must check this, too: it must not succeed if the next :meth:`load` would not find
        the writes. ``writing``: False if reading must be safe, for example because files are memory-mapped; True if
        writes must not get lost.
        """

    def check(self, batch: WriteBatch) -> None:
        """Raise InvalidArgumentError for a batch that can never be appended.

        Without this check, all other batches in the same commit would fail, too.
        """

    def append(self, batches: Sequence[WriteBatch]) -> Sequence[WriteBatch]:
        """Make batches durable, all or none.

        An earlier call may have raised an error and yet succeeded, for example if it was interrupted at its very end.
        The store does not know that the batches of that call are durable. Return these batches: they precede the new
        ones. Otherwise return an empty sequence.
        """

    def store(self, segment: Segment) -> int:
        """Write the arrays of a new segment. Nothing refers to it yet. Returns its number.

        The number differs from those of all installed segments. Errors and crashes leave segments that were never
        installed; :meth:`load` should remove them, unless the journal is read-only.
        To read a segment back, call ``Segment(settings, arrays)``. The arrays may be any buffers, of any alignment.
        """

    def check_segments(self, numbers: Sequence[int]) -> None:
        """Raise CorruptStoreError if stored segments are damaged.

        Called before segments are merged, because the new segment's checksums would hide the damage.
        """

    def install(self, segments: Sequence[SealedSegment], sealed_up_to: int | None) -> None:
        """Atomically replace all segments of the index, and their dead items, with the given ones.

        ``sealed_up_to``: an earlier :attr:`position`. Writes up to it are in segments now, so they are removed in the
        same step. The request ids of the last ``KEPT`` of these writes stay, for :attr:`JournalState.requests`.
        """

    def reopen(self) -> Mapping[int, Segment]:
        """Return, by number, segments to use instead of the current ones. Empty: keep the current ones.

        Called after every append, install and refresh. A journal in a file returns the mapped arrays of a new segment
        here, so that the arrays in memory can be freed.
        """

    def refresh(self) -> JournalState | Sequence[WriteBatch]:
        """Return what another process has changed: only the new writes, or everything if the segments have changed.

        Called before every snapshot of a store that is open read-only.
        """

    def sizes(self) -> tuple[int, int] | None:
        """Return the size of the files, and how much of it is in use, in bytes; None if there are no files."""

    def verify(self, progress: Progress | None) -> VerifyReport:
        """Verify every byte against its checksum. Damage is reported, not raised."""

    def backup(self, path: Path, snapshot: Snapshot) -> None:
        """Write a copy to a new directory, which the same backend can open. Writes continue meanwhile.

        The journal creates the directory. The index then adds the file ``encoder`` if it has an encoder.
        A journal without files writes the snapshot.
        """

    def close(self) -> None:
        """Release all resources. Segments that are in use must stay readable."""
