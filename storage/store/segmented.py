"""The segmented store: a journal keeps the bytes, everything else happens here.

::

    journal.py       where bytes go: RAM, an LMDB file, or a third party's
    contents.py      what the index contains at a moment; immutable
    group_commit.py  threads that write at once share a commit
    background.py    saving async writes, merging runs, sealing and merging segments

Locks, in the order in which they may be taken:

================  =====================================================================================================
``_closing``      one thread closes the store
``_maintaining``  one seal or merge of segments at a time
``_writing``      one commit at a time; held while the disk is waited for
``_changing``     one thread at a time replaces ``_contents``. In a store that writes, nobody waits for the disk or
                  builds anything large under it, with one exception: a seal splits a run that is too large for one
                  segment. A read-only store has no other lock, so under this one it reads what another process has
                  written, and builds the runs of that
================  =====================================================================================================

Searches take none of them: they read ``_contents``, which are immutable. (Only where small writes are pending, a search
takes ``_changing`` to apply them.) A large batch's run is built by the thread that writes it, before it queues for its
commit. Runs are merged, and segments built, in the background: what died meanwhile is removed when the result is
swapped in.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from whamming.storage.items.live_part import LivePart, merged_rows
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import Durability
from whamming.storage.storage_errors import ClosedError, ReadOnlyError
from whamming.storage.store import maintenance
from whamming.storage.store.background import BackgroundTask, at_low_priority
from whamming.storage.store.contents import Change, Contents
from whamming.storage.store.faults import point
from whamming.storage.store.group_commit import GroupCommit, QueuedWrite
from whamming.storage.store.journal import Journal, JournalState, SealedSegment
from whamming.storage.store.protocol import Progress, StoreStats, VerifyReport, share_of
from whamming.storage.store.snapshot import Snapshot

log = logging.getLogger("whamming.storage")

ASYNC_SECONDS = 0.05
"""After so long, ``async`` writes are on disk."""
_BACKPRESSURE_SECONDS = 10.0
"""A writer waits at most so long for the background to catch up."""
PACE_SECONDS = 0.015
"""While an index is searched, each write waits at most so long for merges and seals that are under way. Otherwise
writing and merging would take all processors, and searches would have to wait for them."""
SEARCHED_SECONDS = 0.1
"""An index counts as searched if a snapshot was taken within this time."""


class SegmentedStore:
    """One index, open, over a journal; see :class:`whamming.storage.Store`."""

    def __init__(self, journal: Journal, *, read_only: bool = False) -> None:
        """Load what the journal holds; closes it if that fails."""
        self.read_only = read_only
        self._journal = journal
        self._closing = threading.Lock()
        self._maintaining = threading.Lock()
        self._writing = threading.Lock()
        self._changing = threading.Lock()
        self._closed = False
        self._last_snapshot = -math.inf
        self._unsaved: list[WriteBatch] = []
        self._group = GroupCommit(self._writing, self._commit)
        self._saver = BackgroundTask("whamming-save", self.flush, delay=ASYNC_SECONDS, retry=True)
        self._merger = BackgroundTask("whamming-merge", self._merge_runs)
        self._upkeep = BackgroundTask("whamming-upkeep", self.maintain)
        self._writes = self._commits = self._seals = self._compactions = 0
        try:
            state = journal.load()
            self.settings = journal.settings
            self._contents = self._contents_of(state, version=0)
        except BaseException:
            journal.close()
            raise

    def _contents_of(self, state: JournalState, version: int) -> Contents:
        sealed = tuple(LivePart(found.segment, found.number, found.dead) for found in state.segments)
        return Contents(self.settings, sealed, version=version).with_pending(state.batches).apply_pending()

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """:meth:`snapshot` returns at once: it needs no lock and reads no file."""
        return not self.read_only and not self._contents.pending

    def snapshot(self) -> Snapshot:
        """Return an immutable view of every write that has been acknowledged."""
        if self.read_only:
            self._refresh()
        self._last_snapshot = time.monotonic()
        contents = self._contents
        if contents.pending:
            with self._changing:
                contents = self._contents = self._contents.apply_pending()
        self._check_open()  # after the contents were read: closing empties them
        return contents.snapshot()

    def _refresh(self) -> None:
        """Take in what another process has written."""
        with self._changing:
            self._check_open()
            found = self._journal.refresh()
            if isinstance(found, JournalState):
                self._contents = self._contents_of(found, self._contents.version + 1)
            elif found:
                self._contents = self._contents.with_pending(found)
            contents = self._contents = self._contents.reopened(self._journal.reopen()).apply_pending()
        if maintenance.choose_runs(contents.runs):
            self._merger.request()

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> int:
        """Apply a batch, all of it or nothing; concurrent writes share a commit.

        Returns how many items a batch that only deletes has removed, and 0 for any other batch.
        """
        self._check_writable()
        if len(batch) == 0:
            return 0
        self._journal.check(batch)
        change = Change.of(self.settings, batch)
        if (durability or self.settings.durability) == "async":
            removed = self._write_async(change)
        else:
            removed = self._group.write(change)
        self._request_maintenance()
        return removed

    def _write_async(self, change: Change) -> int:
        with self._writing:
            self._check_writable()
            with self._changing:
                self._contents, removed = _after(self._contents, change)
            self._unsaved.append(change.batch)
            self._writes += 1
        self._saver.request()
        return removed

    def _commit(self) -> None:
        """Save all that is queued or unsaved, or raise what kept it. Called with ``_writing`` held."""
        unsaved = self._unsaved
        writes: Sequence[QueuedWrite] = ()
        recovered: Sequence[WriteBatch] | None = None
        try:
            writes = self._group.take()
            batches = [*unsaved, *(write.change.batch for write in writes)]
            if not batches:
                return
            self._check_writable()
            recovered = self._journal.append(batches)
            self._publish(recovered, unsaved, writes)
        except BaseException as error:
            if recovered is None:
                for write in writes:
                    write.fail(error)
            else:  # an interrupt; but what is on disk must be in the contents: the next seal drops it there
                self._publish(recovered, unsaved, writes)
            raise
        self._commits += 1
        self._reopen()

    def _publish(
        self, recovered: Sequence[WriteBatch], unsaved: Sequence[WriteBatch], writes: Sequence[QueuedWrite]
    ) -> None:
        """Let the next snapshot show what was saved. Doing it twice gives the same items."""
        with self._changing:
            contents = self._contents
            if recovered:  # the unsaved ones come after those, also if they are among them
                contents = contents.with_pending([*recovered, *unsaved])
            removed = []
            for write in writes:
                contents, count = _after(contents, write.change)
                removed.append(count)
            self._contents, self._unsaved = contents, []
            for write, count in zip(writes, removed, strict=True):
                if not write.done:
                    self._writes += 1
                    write.removed, write.done = count, True

    def _reopen(self) -> None:
        """Read segments from elsewhere if the journal wants that. Called with ``_writing`` held."""
        try:
            segments = self._journal.reopen()
            if segments:
                with self._changing:
                    self._contents = self._contents.reopened(segments)
        except Exception:
            log.warning("segments could not be opened anew; those in use are kept", exc_info=True)

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. Raises what kept one from getting there."""
        with self._writing:
            self._commit()

    # -- maintenance ------------------------------------------------------------------------------------------------

    def seal(self, progress: Progress | None = None) -> None:
        """Turn the delta into a segment. Writing and searching go on meanwhile."""
        self._check_writable()
        with self._maintaining:
            self._seal(progress)

    def compact(self, progress: Progress | None = None) -> None:
        """Merge all segments and the delta into one, without the items that are gone."""
        self._check_writable()
        with self._maintaining:
            self._seal(None)
            groups = maintenance.group(self._contents.sealed, self._most_rows)
            for done, numbers in enumerate([{part.number for part in group} for group in groups]):
                group = [part for part in self._contents.sealed if part.number in numbers]  # as they are now
                if len(group) > 1 or group[0].dead_count:
                    self._merge(group, share_of(progress, done, len(groups)))

    def maintain(self) -> None:
        """Seal the delta if it is large, then merge segments until no tier is full and few items are dead."""
        with self._maintaining:
            if maintenance.wants_seal(self._contents.delta_rows, self._contents.delta_bytes):
                self._seal(None, threads=_background_threads())
            while True:
                with self._changing:
                    self._check_open()
                    self._contents = self._contents.apply_pending()  # or what was deleted lately would not count
                chosen = maintenance.choose_merge(self._contents.sealed, self._most_rows)
                if not chosen:
                    return
                self._merge(chosen, None, threads=_background_threads())

    def _seal(self, progress: Progress | None, threads: int | None = None) -> None:
        with self._writing:
            self._commit()
            with self._changing:
                self._check_open()
                contents = self._contents = self._contents.freeze(self._most_rows)
            position = self._journal.position
        if contents.frozen:
            groups = maintenance.group(contents.frozen, self._most_rows)
            for number, group in enumerate(groups, 1):  # the delta goes with the last: what it repeats does no harm
                share = share_of(progress, number - 1, len(groups))
                self._replace(group, share, threads, position if number == len(groups) else None)
            self._seals += 1
        elif contents.frozen_rows:  # writes of which nothing is left
            self._install((), None, position)
        with self._changing:
            self._contents = self._contents.without_frozen_count()

    def _merge(self, parts: Sequence[LivePart], progress: Progress | None, threads: int | None = None) -> None:
        self._journal.check_segments([part.number for part in parts if part.number is not None])
        self._replace(parts, progress, threads, None)
        self._compactions += 1

    def _replace(
        self, parts: Sequence[LivePart], progress: Progress | None, threads: int | None, sealed: int | None
    ) -> None:
        """Build a segment from parts and put it in their place.

        ``threads``: of a build in the background; None: the caller waits for it, so it takes what it can get.
        ``sealed``: as in :meth:`Journal.install`.
        """

        def build() -> Segment | None:
            rows = Rows.concatenate([part.rows() for part in parts])
            return Segment.build(self.settings, rows, threads=threads, progress=progress) if len(rows) else None

        new = build() if threads is None else at_low_priority(build)
        point("built")
        made = LivePart(new, self._journal.store(new)) if new is not None else None
        point("stored")
        self._install(parts, made, sealed)
        point("installed")

    def _install(self, old: Sequence[LivePart], new: LivePart | None, sealed: int | None) -> None:
        with self._writing:
            self._commit()  # what dies in segments because of a write must not be saved before the write
            with self._changing:
                self._check_open()
                contents = self._contents = self._contents.apply_pending()
            # No write comes in between; only merges of runs go on, which leave the sealed and frozen parts alone.
            after = contents.with_segment(old, new)
            segments = [
                SealedSegment(part.number, part.segment, part.dead) for part in after.sealed if part.number is not None
            ]
            try:
                self._journal.install(segments, sealed)
                with self._changing:
                    self._contents = self._contents.replace(sealed=after.sealed, frozen=after.frozen)
            except BaseException:
                if self._journal.persistent:  # to know: an interrupt may come when it is done
                    loaded = self._contents_of(self._journal.load(), self._contents.version + 1)
                    with self._changing:
                        self._contents = loaded
                raise
            self._reopen()

    def _merge_runs(self) -> None:
        """Merge the runs of one tier."""
        self._check_open()
        old = maintenance.choose_runs(self._contents.runs)
        if not old:
            return
        merged = at_low_priority(lambda: LivePart(Segment.build_run(self.settings, merged_rows(old))))
        with self._changing:
            self._check_open()
            after = self._contents.with_merged_runs(old, merged)
            if after is not None:  # else they are being sealed
                self._contents = after
        if maintenance.choose_runs(self._contents.runs):
            self._merger.request()

    def _request_maintenance(self) -> None:
        """Wake the background tasks that have work; wait for them where they have fallen far behind."""
        contents = self._contents
        if maintenance.choose_runs(contents.runs):
            self._merger.request()
            if len(contents.runs) > maintenance.MOST_RUNS:
                self._merger.wait(_BACKPRESSURE_SECONDS)
        rows, size = contents.delta_rows, contents.delta_bytes
        if maintenance.wants_seal(rows, size):
            self._upkeep.request()
            if maintenance.wants_seal(rows, size, maintenance.MOST_DELTA):  # the delta must not outgrow memory
                self._upkeep.wait(_BACKPRESSURE_SECONDS)
        if time.monotonic() - self._last_snapshot < SEARCHED_SECONDS:
            self._merger.wait_until_idle(PACE_SECONDS)
            self._upkeep.wait_until_idle(PACE_SECONDS)

    @property
    def _most_rows(self) -> int:
        """Items that one segment may have."""
        return min(self._journal.most_rows, maintenance.MOST_PAYLOAD // max(1, self.settings.vector_bytes))

    # -- the rest ---------------------------------------------------------------------------------------------------

    def stats(self) -> StoreStats:
        """Tell what the store holds."""
        snapshot = self.snapshot()
        contents = self._contents
        sizes = self._journal.sizes()
        if sizes is None:
            sizes = 0, sum(part.segment.nbytes for part in (*contents.sealed, *contents.frozen, *contents.runs))
        return StoreStats(
            items=len(snapshot),
            segments=len(contents.sealed),
            sealed_rows=sum(part.segment.n for part in contents.sealed),
            dead_rows=sum(part.dead_count for part in contents.sealed),
            delta_rows=contents.delta_rows,
            disk_bytes=sizes[0],
            used_bytes=sizes[1],
            version=snapshot.version,
            writes=self._writes,
            commits=self._commits,
            seals=self._seals,
            compactions=self._compactions,
        )

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum; in RAM there are none."""
        self._check_open()
        return self._journal.verify(progress)

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new directory; writing goes on meanwhile."""
        self._check_open()
        if not self.read_only:
            self.flush()
        self._journal.backup(path, self.snapshot())

    def close(self) -> None:
        """Finish what is under way and release everything. Closing twice is fine."""
        with self._closing:
            if self._closed:
                return
            tasks = (self._saver, self._merger, self._upkeep)
            try:
                with self._writing:  # no write may come between the last commit and the end
                    try:
                        if not self.read_only:
                            self._commit()
                    finally:
                        self._closed = True
                        for task in tasks:
                            task.stop()
            finally:
                for task in tasks:
                    task.join()
                with self._maintaining, self._writing, self._changing:
                    self._contents = Contents(self.settings)
                    self._journal.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the index is closed; open the database again")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("the database was opened for reading; open it with mode='w' to write")


def _background_threads() -> int:
    """Return how many threads a build in the background takes: half of the cores are left to searches."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)


def _after(contents: Contents, change: Change) -> tuple[Contents, int]:
    """Return the contents after a change, and how many items it has removed if it only deletes."""
    return contents.with_deletes(change) if change.only_deletes else (contents.with_change(change), 0)
