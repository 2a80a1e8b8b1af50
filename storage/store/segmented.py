"""The segmented store. A journal keeps the bytes; everything else happens here.

Locks, in the order in which they may be taken:

================  =====================================================================================================
``_closing``      one thread closes the store
``_maintaining``  one seal or merge of segments at a time
``_writing``      one commit at a time; held while waiting for the disk
``_changing``     one thread at a time replaces ``_contents``. In a store that writes, no thread waits for the disk or
                  builds anything large while holding it, with one exception: a seal splits a run that is too large for
                  one segment. A read-only store takes no other lock to read. It holds this one while it reads what
                  another process has written and builds runs from it
================  =====================================================================================================

In a store that writes, searches read ``_contents``, which are immutable, without a lock. A search takes ``_changing``
only to apply small writes that are pending. The thread that writes a large batch builds its run before it queues for
the commit. Large runs are merged in the background, small ones by the thread that adds one too many. Segments are built
in the background, or by the thread that asks for it. Items that die meanwhile are marked dead in the result.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from whamming.storage.items.live_part import LivePart, merged_rows
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import Durability
from whamming.storage.storage_errors import CLOSED, DROPPED, ClosedError, ReadOnlyError, StorageError, preferring
from whamming.storage.store import maintenance
from whamming.storage.store.background import BackgroundTask, at_low_priority, background_threads, checking
from whamming.storage.store.contents import Change, Contents
from whamming.storage.store.delta_total import DeltaShare
from whamming.storage.store.faults import point
from whamming.storage.store.group_commit import GroupCommit, QueuedWrite, apply_writes
from whamming.storage.store.journal import Journal, JournalState, SealedSegment
from whamming.storage.store.protocol import Progress, StoreStats, VerifyReport, share_of
from whamming.storage.store.requests import AppliedRequests
from whamming.storage.store.snapshot import Snapshot

log = logging.getLogger("whamming.storage")

ASYNC_SECONDS = 0.05
"""Delay before ``async`` writes are saved to disk."""
_BACKPRESSURE_SECONDS = 10.0
"""Maximum time that a writer waits for each background task to catch up."""
PACE_SECONDS = 0.015
"""While the index is searched, each write waits at most this long for a running merge of runs, and then at most this
long for a running seal or merge of segments. Otherwise writing and merging would take all cores, and searches would
wait for them."""
SEARCHED_SECONDS = 0.1
"""An index counts as searched if a snapshot was taken within this time."""


class SegmentedStore:
    """One open index over a journal; see :class:`whamming.storage.Store`."""

    def __init__(self, journal: Journal, *, read_only: bool = False) -> None:
        """Load the contents of the journal. Closes it if that fails."""
        self.read_only = read_only
        self._journal = journal
        self._closing = threading.Lock()
        self._maintaining = threading.Lock()
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._closed = self._abandoned = False
        self._last_snapshot = -math.inf
        self._unsaved: list[WriteBatch] = []
        self._applied = AppliedRequests()
        self._group_commit = GroupCommit(self._writing, self._commit)
        self._saver = BackgroundTask("whamming-save", self.flush, delay=ASYNC_SECONDS, retry=True)
        self._merger = BackgroundTask("whamming-merge", self._merge_runs)
        self._maintainer = BackgroundTask("whamming-maintain", self.maintain)
        self._tasks = (self._saver, self._merger, self._maintainer)
        self._delta_share = DeltaShare(self._maintainer, counted=journal.persistent and not read_only)
        self._writes = self._commits = self._seals = self._compactions = 0
        try:
            state = journal.load()
            self.settings = journal.settings
            self._contents = self._contents_from(state, version=0)
        except BaseException:
            journal.close()
            raise
        self._delta_share.size = self._contents.delta_memory
        self._delta_share.limit_total(wait=False)

    def _contents_from(self, state: JournalState, version: int) -> Contents:
        if not self.read_only:
            self._applied.recover(state.requests, state.batches)
        sealed = tuple(LivePart(found.segment, found.number, found.dead) for found in state.segments)
        return Contents(self.settings, sealed, version=version).with_pending(state.batches).apply_pending()

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`snapshot` returns at once. It does not if writes are pending or must be read from a file."""
        return not self.read_only and not self._contents.pending

    def snapshot(self) -> Snapshot:
        """Return an immutable view of all acknowledged writes; if read-only, of all that the writer has committed."""
        if self.read_only:
            self._refresh()
        else:
            self.check_files(writing=False)
        self._last_snapshot = time.monotonic()
        contents = self._contents
        if contents.pending:
            with self._changing:
                contents = self._contents = self._contents.apply_pending()
        self._check_open()  # after reading the contents, because closing empties them
        return contents.snapshot()

    def check_files(self, *, writing: bool) -> None:
        """Raise a StorageError if the files can no longer be read safely or, if ``writing``, no longer be written."""
        with preferring(self._check_open):
            self._journal.check_files(writing=writing)

    def _refresh(self) -> None:
        """Apply what another process has written."""
        with self._changing:
            self._check_open()
            found = self._journal.refresh()
            if isinstance(found, JournalState):
                self._contents = self._contents_from(found, self._contents.version + 1)
            elif found:
                self._contents = self._contents.with_pending(found)
            contents = self._contents = self._contents.reopened(self._journal.reopen()).apply_pending()
        if maintenance.choose_runs(contents.runs):
            self._merger.request()

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> int:
        """Apply a batch, all of it or nothing. Concurrent writes share a commit.

        Returns how many items a batch that only deletes has removed, and 0 for any other batch.
        """
        self._check_writable()
        if len(batch) == 0:
            return 0
        batch.check_sizes(self.settings)  # an index with rows of other sizes in its log could not be read any more
        self._journal.check(batch)
        change = Change.of(self.settings, batch)
        if (durability or self.settings.durability) == "async":
            removed = self._write_async(change)
        else:
            removed = self._group_commit.write(change)
        self._request_maintenance()
        return removed

    def _write_async(self, change: Change) -> int:
        with self._writing:
            self._check_writable()
            self.check_files(writing=True)
            known = self._applied.removed_by(change.batch)
            if known is not None:
                return known
            with self._changing:
                self._contents, removed = self._contents.after(change)
            self._unsaved.append(change.batch)
            self._applied.add({change.batch.request: removed})
            self._writes += 1
        self._saver.request()
        return removed

    def _commit(self) -> None:
        """Save everything that is queued or unsaved, or raise the error. The caller holds ``_writing``."""
        unsaved = self._unsaved
        writes: Sequence[QueuedWrite] = ()
        recovered: Sequence[WriteBatch] | None = None
        try:
            writes = self._group_commit.take()
            if not unsaved and not writes:
                return
            self._check_writable()
            batches = [*unsaved, *self._applied.without_repeats(write.change.batch for write in writes)]
            with preferring(self._check_open):
                recovered = self._journal.append(batches) if batches else ()
            self._publish(recovered, unsaved, writes)
        except BaseException as error:
            if recovered is None:
                for write in writes:
                    write.fail(error)
            else:  # interrupted after the append: publish anyway, or the next seal would delete these writes
                self._publish(recovered, unsaved, writes)
            raise
        self._commits += 1
        self._reopen()

    def _publish(
        self, recovered: Sequence[WriteBatch], unsaved: Sequence[WriteBatch], writes: Sequence[QueuedWrite]
    ) -> None:
        """Make saved writes visible to the next snapshot. Calling it twice gives the same items."""
        with self._changing:
            contents = self._contents
            if recovered:  # an earlier append had saved them: they are older than `unsaved`, so these are applied again
                contents = contents.with_pending([*recovered, *unsaved])
            after, removed, applied = apply_writes(contents, writes, recovered, self._applied)
            self._contents, self._unsaved = after, []
            self._applied.add(applied)
            for write, count in zip(writes, removed, strict=True):
                if not write.done:
                    self._writes += 1
                    write.removed, write.done = count, True

    def _reopen(self) -> None:
        """Replace segments if the journal returns new ones. The caller holds ``_writing``."""
        try:
            segments = self._journal.reopen()
            if segments:
                with self._changing:
                    self._contents = self._contents.reopened(segments)
        except Exception:
            log.warning("segments could not be reopened; the current ones stay in use", exc_info=True)

    def flush(self) -> None:
        with self._writing:
            self._commit()

    # -- maintenance ------------------------------------------------------------------------------------------------

    def seal(self, progress: Progress | None = None) -> None:
        self._check_writable()
        with self._maintaining, preferring(self._check_open):
            self._seal(progress)

    def compact(self, progress: Progress | None = None) -> None:
        """Merge all segments and the delta into as few segments as possible, usually one, without dead items."""
        self._check_writable()
        with self._maintaining, preferring(self._check_open):
            self._seal(None)
            groups = maintenance.group(self._contents.sealed, self._max_rows)
            for done, numbers in enumerate([{part.number for part in group} for group in groups]):
                group = [part for part in self._contents.sealed if part.number in numbers]  # in their current state
                if len(group) > 1 or group[0].dead_count:
                    self._merge(group, share_of(progress, done, len(groups)))

    def maintain(self) -> None:
        """Seal the delta if it is large, then merge segments until no tier is full and few items are dead."""
        with self._maintaining, preferring(self._check_open):
            contents = self._contents
            if self._delta_share.must_seal or maintenance.should_seal(contents.delta_rows, contents.delta_bytes):
                self._seal(None, threads=background_threads())
            while True:
                with self._changing:
                    self._check_open()
                    self._contents = self._contents.apply_pending()  # so that recent deletes count
                chosen = maintenance.choose_merge(self._contents.sealed, self._max_rows)
                if not chosen:
                    return
                self._merge(chosen, None, threads=background_threads())

    def _seal(self, progress: Progress | None, threads: int | None = None) -> None:
        with self._writing:
            self._commit()
            with self._changing:
                self._check_open()
                contents = self._contents = self._contents.freeze(self._max_rows)
            position = self._journal.position
        if contents.frozen:
            groups = maintenance.group(contents.frozen, self._max_rows)
            for number, group in enumerate(groups, 1):  # the last one removes the delta from the journal
                share = share_of(progress, number - 1, len(groups))
                self._replace(group, share, threads, position if number == len(groups) else None)
            self._seals += 1
        elif contents.frozen_rows:  # the writes left no items
            self._install((), None, position)
        with self._changing:
            self._contents = self._contents.without_frozen_count()
        self._delta_share.size, self._delta_share.must_seal = self._contents.delta_memory, False
        self._delta_share.limit_total(wait=False)  # the next one may have to be sealed, too

    def _merge(self, parts: Sequence[LivePart], progress: Progress | None, threads: int | None = None) -> None:
        for part in parts:
            self._check_open()
            self._journal.check_segments([part.number] if part.number is not None else [])
        self._replace(parts, progress, threads, None)
        self._compactions += 1

    def _replace(
        self, parts: Sequence[LivePart], progress: Progress | None, threads: int | None, sealed_up_to: int | None
    ) -> None:
        """Build a segment from parts, and replace the parts with it.

        ``threads``: how many threads a build in the background uses. None: a caller waits, so it uses all cores.
        ``sealed_up_to``: as in :meth:`Journal.install`.
        """

        watch = checking(self._check_open, progress)  # closing the index cancels the build

        def build() -> Segment | None:
            rows = Rows.concatenate([part.rows() for part in parts])
            return Segment.build(self.settings, rows, threads=threads, progress=watch) if len(rows) else None

        new = build() if threads is None else at_low_priority(build)
        self._check_open()  # do not write the segment to a file that was dropped
        point("built")
        made = LivePart(new, self._journal.store(new)) if new is not None else None
        point("stored")
        self._install(parts, made, sealed_up_to)
        point("installed")

    def _install(self, old: Sequence[LivePart], new: LivePart | None, sealed_up_to: int | None) -> None:
        with self._writing:
            self._commit()  # bitmaps of dead items must not be saved before the writes that they result from
            with self._changing:
                self._check_open()
                contents = self._contents = self._contents.apply_pending()
            # As `_writing` is held, nothing is written until the install. Runs may be merged, but no frozen parts.
            after = contents.with_segment(old, new)
            segments = [
                SealedSegment(part.number, part.segment, part.dead) for part in after.sealed if part.number is not None
            ]
            try:
                self._journal.install(segments, sealed_up_to)
                with self._changing:
                    self._contents = self._contents.replace(sealed=after.sealed, frozen=after.frozen)
            except BaseException:
                if self._journal.persistent:  # the install may have succeeded, so look at what is stored
                    loaded = self._contents_from(self._journal.load(), self._contents.version + 1)
                    with self._changing:
                        self._contents = loaded
                raise
            self._reopen()

    def _merge_runs(self) -> None:
        """Merge the runs of one tier, or rewrite runs without their dead items."""
        self._check_open()
        old = maintenance.choose_runs(self._contents.runs)
        if not old:
            return
        merged = at_low_priority(lambda: LivePart(Segment.build_run(self.settings, merged_rows(old))))
        with self._changing:
            self._check_open()
            after = self._contents.with_merged_runs(old, merged)
            if after is not None:  # None: the runs are being sealed
                self._contents = after
        if maintenance.choose_runs(self._contents.runs):
            self._merger.request()

    def _request_maintenance(self) -> None:
        """Wake up the background tasks that have work, and wait if they have fallen far behind."""
        contents = self._contents
        if maintenance.choose_runs(contents.runs):
            self._merger.request()
            if len(contents.runs) > maintenance.MAX_RUNS:
                self._merger.wait(_BACKPRESSURE_SECONDS)
        rows, size = contents.delta_rows, contents.delta_bytes
        if maintenance.should_seal(rows, size):
            self._maintainer.request()
            if maintenance.should_seal(rows, size, maintenance.MAX_DELTA_FACTOR):  # the delta must not outgrow memory
                self._maintainer.wait(_BACKPRESSURE_SECONDS)
        elif maintenance.should_rewrite(contents.sealed):
            self._maintainer.request()
        self._delta_share.size = contents.delta_memory
        self._delta_share.limit_total(wait=True)
        if time.monotonic() - self._last_snapshot < SEARCHED_SECONDS:
            self._merger.wait_until_idle(PACE_SECONDS)
            self._maintainer.wait_until_idle(PACE_SECONDS)

    @property
    def _max_rows(self) -> int:
        """The largest number of items that a segment may have."""
        return min(self._journal.max_rows, maintenance.MAX_SEGMENT_PAYLOAD // max(1, self.settings.vector_bytes))

    # -- the rest ---------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        snapshot, contents = self.snapshot(), self._contents
        sizes = self._journal.sizes()
        if sizes is None:
            sizes = 0, sum(part.segment.nbytes for part in (*contents.sealed, *contents.frozen, *contents.runs))
        return StoreStats(
            items=len(snapshot),
            **contents.counts(),
            disk_bytes=sizes[0],
            used_bytes=sizes[1],
            version=snapshot.version,
            writes=self._writes,
            commits=self._commits,
            seals=self._seals,
            compactions=self._compactions,
        )

    def file_sizes(self) -> tuple[int, int]:
        try:
            return self._journal.sizes() or (0, 0)
        except StorageError:  # the index was dropped meanwhile, or its files are lost
            return 0, 0

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        self._check_open()
        return self._journal.verify(progress)

    def backup(self, path: Path) -> None:
        self._check_open()
        if not self.read_only:
            self.flush()
        self._journal.backup(path, self.snapshot())

    @property
    def is_busy(self) -> bool:
        """Whether a seal or a merge is running."""
        return self._maintaining.locked() or self._merger.is_busy or self._maintainer.is_busy

    def abandon(self) -> None:
        """Make all later calls fail, and save nothing more, because the index was dropped. Does not wait."""
        self._abandoned = True
        for task in self._tasks:
            task.stop()

    def close(self) -> None:
        """Save all writes, abandon seals and merges, and release all resources. Closing twice is allowed."""
        with self._closing:
            if self._closed:
                return
            try:
                with self._writing:  # no write may happen between the last commit and closing
                    try:
                        if not self.read_only and not self._abandoned:
                            self._commit()
                    finally:
                        self._closed = True
                        for task in self._tasks:
                            task.stop()
            finally:
                for task in self._tasks:
                    task.join()
                with self._maintaining, self._writing, self._changing:
                    self._contents = Contents(self.settings)
                    self._journal.close()

    def _check_open(self) -> None:
        if self._closed or self._abandoned:
            raise ClosedError(DROPPED if self._abandoned else CLOSED)

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("the database was opened read-only; open it with mode='w' to write")
