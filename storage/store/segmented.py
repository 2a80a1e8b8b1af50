"""What the stores of this package have in common: group commit, sealing, compaction, in the background or on demand.

A subclass says where bytes go: :meth:`SegmentedStore._save` and :meth:`SegmentedStore._install`.

Locks, in the order in which they may be taken: ``_closing``, ``_maintaining`` (one seal or merge at a time),
``_writing`` (one commit at a time), ``_state`` (the contents; held shortly, so that searches never wait for the disk),
``_wake`` (what the background thread has to do).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from whamming.storage.items.rows import Rows, WriteBatch
from whamming.storage.items.segment import Live, Segment
from whamming.storage.settings import Durability, IndexSettings
from whamming.storage.storage_errors import ClosedError, ReadOnlyError
from whamming.storage.store import maintenance
from whamming.storage.store.contents import Contents, Snapshot
from whamming.storage.store.faults import point
from whamming.storage.store.protocol import Progress, StoreStats, VerifyReport, share_of

log = logging.getLogger("whamming.storage")

ASYNC_SECONDS = 0.05
"""After so long, ``async`` writes are on disk."""

GATHER_SECONDS = 0.002
"""A commit waits at most so long for other threads, if they have been writing within RECENT_SECONDS: one wait for the
disk then serves them all. A thread that writes alone never waits."""
RECENT_SECONDS = 0.05


class _Ticket:
    """A write that waits for its group's commit."""

    def __init__(self, batch: WriteBatch) -> None:
        self.batch = batch
        self.thread = threading.get_ident()
        self.done = False
        self.error: BaseException | None = None


class SegmentedStore:
    """One index, open; see :class:`whamming.storage.store.protocol.Store`."""

    def __init__(self, settings: IndexSettings, contents: Contents, *, read_only: bool) -> None:
        """Start with some contents."""
        self.settings = settings
        self.read_only = read_only
        self._contents = contents
        self._closing = threading.Lock()
        self._maintaining = threading.Lock()
        self._writing = threading.Lock()
        self._state = threading.RLock()
        self._queueing = threading.Condition()
        self._leading = False  # a thread is about to commit for the others
        self._queue: list[_Ticket] = []
        self._writers: dict[int, float] = {}  # threads that wrote lately, and when
        self._unsaved: list[WriteBatch] = []
        self._closed = False
        self._wake = threading.Condition()
        self._wanted = False
        self._attempts = 0  # at what was wanted, successful or not
        self._background: threading.Thread | None = None
        self._writes = self._commits = self._seals = self._compactions = 0

    # -- where bytes go ---------------------------------------------------------------------------------------------

    def _check_batch(self, batch: WriteBatch) -> None:
        """Refuse a batch that could never be saved: it would keep those that share its commit from being so."""

    def _save(self, batches: Sequence[WriteBatch]) -> None:
        """Make batches durable, all or none. Called with ``_writing`` held."""

    def _store(self, segment: Segment) -> int:
        """Write a new segment's arrays, which nothing refers to yet; returns its number."""
        raise NotImplementedError

    def _install(self, old: Sequence[Live], new: Segment | None, number: int | None, *, seals: bool) -> None:
        """Make a segment take the place of others, and of the delta if it ``seals``. Called with ``_writing`` and
        ``_state`` held, and the contents settled."""
        self._contents.replace(old, new, number)

    def _most_rows(self) -> int:
        """Items that one segment may have."""
        return 2**31

    def _refresh(self) -> None:
        """Take in what another process has written. Called with ``_state`` held."""

    # -- reading ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Return an immutable view of every write that has been acknowledged."""
        with self._state:
            self._check_open()
            if self.read_only:
                self._refresh()
            return self._contents.snapshot()

    # -- writing ----------------------------------------------------------------------------------------------------

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Apply a batch, all of it or nothing; concurrent writes share a commit."""
        self._check_writable()
        if len(batch) == 0:
            return
        self._check_batch(batch)
        if (durability or self.settings.durability) == "async":
            self._write_async(batch)
        else:
            ticket = _Ticket(batch)
            self._commit_with_others(ticket)
            if ticket.error is not None:
                raise ticket.error
        self._maintain_soon()

    def _commit_with_others(self, ticket: _Ticket) -> None:
        """Return when a write is done: by the commit of another thread, or by our own for all that have queued up."""
        with self._queueing:
            self._queue.append(ticket)
            while self._leading and not ticket.done:
                self._queueing.wait()
            if ticket.done:
                return
            self._leading = True
        try:
            with self._writing:
                if not ticket.done:
                    self._gather()
                    with contextlib.suppress(Exception):  # the tickets carry it
                        self._commit()
        finally:
            with self._queueing:
                self._leading = False
                self._queueing.notify_all()

    def _gather(self) -> None:
        """Wait a moment for the other threads that have been writing, so that they share this commit."""
        now = time.monotonic()
        self._writers = {thread: last for thread, last in self._writers.items() if now - last < RECENT_SECONDS}
        with self._queueing:
            self._writers |= dict.fromkeys((ticket.thread for ticket in self._queue), now)
        end = now + GATHER_SECONDS
        while len(self._queue) < len(self._writers) and time.monotonic() < end:
            time.sleep(GATHER_SECONDS / 20)

    def _write_async(self, batch: WriteBatch) -> None:
        with self._writing, self._state:
            self._check_writable()
            self._contents.add(batch)
            self._unsaved.append(batch)
            self._writes += 1
        self._ensure_background()
        with self._wake:
            self._wake.notify_all()

    def _commit(self) -> None:
        """Save all that is queued or unsaved, or raise what kept it. Called with ``_writing`` held."""
        with self._queueing:
            tickets, self._queue = self._queue, []
        batches = [*self._unsaved, *(ticket.batch for ticket in tickets)]
        if not batches:
            return
        try:
            self._check_writable()
            self._save(batches)
        except BaseException as error:
            for ticket in tickets:
                ticket.error, ticket.done = error, True
            raise
        self._commits += 1
        self._unsaved = []
        try:
            self._take_in(tickets)
        except BaseException:  # an interrupt; but what is on disk must be in the contents: the next seal drops it there
            self._take_in(tickets)
            raise

    def _take_in(self, tickets: Sequence[_Ticket]) -> None:
        """Bring what was saved into the contents, unless that is done."""
        with self._state:
            for ticket in tickets:
                if not ticket.done:
                    self._contents.add(ticket.batch)
                    ticket.done = True
                    self._writes += 1

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
            with self._state:
                groups = _groups(self._contents.sealed, self._most_rows())
            for done, numbers in enumerate([{part.number for part in group} for group in groups]):
                with self._state:  # as they are now: installing the last merge has opened all segments anew
                    group = [part for part in self._contents.sealed if part.number in numbers]
                if len(group) > 1 or group[0].dead_count:
                    self._merge(group, share_of(progress, done, len(groups)))

    def _seal(self, progress: Progress | None) -> None:
        with self._writing:
            self._commit()
            with self._state:
                runs = self._contents.freeze(self._most_rows())
                self._mark()
        if runs:
            groups = _groups(runs, self._most_rows())
            for number, group in enumerate(groups, 1):  # the delta goes with the last: what it repeats does no harm
                self._replace(group, share_of(progress, number - 1, len(groups)), seals=number == len(groups))
            self._seals += 1
        elif self._delta_to_drop():
            self._install_settled((), None, None, seals=True)
        with self._state:
            self._contents.forget_frozen()

    def _mark(self) -> None:
        """Remember up to where the delta is about to be sealed. Called with ``_writing`` held."""

    def _delta_to_drop(self) -> bool:
        """The delta holds no items but has records all the same."""
        return False

    def _merge(self, parts: Sequence[Live], progress: Progress | None) -> None:
        self._replace(parts, progress, seals=False)
        self._compactions += 1

    def _replace(self, parts: Sequence[Live], progress: Progress | None, *, seals: bool) -> None:
        rows = Rows.concatenate([part.rows() for part in parts])
        new = Segment.build(self.settings, rows, progress=progress) if len(rows) else None
        del rows
        point("built")
        number = self._store(new) if new is not None else None
        point("stored")
        self._install_settled(parts, new, number, seals=seals)
        point("installed")

    def _install_settled(self, old: Sequence[Live], new: Segment | None, number: int | None, *, seals: bool) -> None:
        with self._writing:
            self._commit()  # what dies in segments for the sake of a write must not be saved before the write
            with self._state:
                self._check_open()
                self._contents.settle()
                self._install(old, new, number, seals=seals)

    def _maintain_soon(self) -> None:
        with self._state:
            rows, size = self._contents.delta_rows, self._contents.delta_bytes
        if not maintenance.wants_seal(rows, size):
            return
        self._ensure_background()
        with self._wake:
            self._wanted = True
            self._wake.notify_all()
            if maintenance.wants_seal(rows, size, maintenance.MOST_DELTA):  # the delta must not outgrow memory
                before = self._attempts
                self._wake.wait_for(lambda: self._closed or self._attempts != before, timeout=10)

    def _ensure_background(self) -> None:
        with self._wake:
            if self._background is None and not self._closed:
                self._background = threading.Thread(target=self._work, name="whamming-maintenance", daemon=True)
                self._background.start()

    def _work(self) -> None:
        """Save async writes, seal and merge, until the store is closed."""
        while True:
            with self._wake:
                if not self._closed and not self._wanted and not self._unsaved:
                    self._wake.wait()
                if self._closed:
                    return
                wanted, self._wanted = self._wanted, False
                if not wanted:  # more writes may come: save them together
                    self._wake.wait_for(lambda: self._closed or self._wanted, timeout=ASYNC_SECONDS)
            try:
                self.flush()
                if wanted:
                    self.maintain()
            except ClosedError:
                return
            except Exception:
                log.exception("maintenance of an index failed; the next write tries it again")
                with self._wake:
                    self._wake.wait(timeout=1)
            with self._wake:
                self._attempts += wanted
                self._wake.notify_all()

    def maintain(self) -> None:
        """Seal the delta if it is large, then merge segments until no tier is full and few items are dead."""
        with self._maintaining:
            with self._state:
                rows, size = self._contents.delta_rows, self._contents.delta_bytes
            if maintenance.wants_seal(rows, size):
                self._seal(None)
            while True:
                with self._state:
                    self._check_open()
                    self._contents.settle()  # or what was deleted lately would not count
                    chosen = maintenance.choose_merge(self._contents.sealed, self._most_rows())
                if not chosen:
                    return
                self._merge(chosen, None)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def _sizes(self) -> tuple[int, int]:
        """Return bytes of the file, and in use."""
        with self._state:
            return 0, sum(
                part.segment.nbytes for part in (*self._contents.sealed, *self._contents.frozen, *self._contents.runs)
            )

    def stats(self) -> StoreStats:
        """Tell what the store holds."""
        snapshot = self.snapshot()
        with self._state:
            sealed, delta = self._contents.sealed, self._contents.delta_rows
        disk, used = self._sizes()
        return StoreStats(
            items=len(snapshot),
            segments=len(sealed),
            sealed_rows=sum(part.segment.n for part in sealed),
            dead_rows=sum(part.dead_count for part in sealed),
            delta_rows=delta,
            disk_bytes=disk,
            used_bytes=used,
            version=snapshot.version,
            writes=self._writes,
            commits=self._commits,
            seals=self._seals,
            compactions=self._compactions,
        )

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum; in RAM there are none."""
        self._check_open()
        return VerifyReport((), 0, 0)

    def backup(self, path: Path) -> None:
        """Write a consistent copy."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is under way and let go of everything."""
        with self._closing:
            if self._closed:
                return
            try:
                with self._writing:  # no write may come between the last commit and the end
                    try:
                        if not self.read_only:
                            self._commit()
                    finally:
                        with self._wake:
                            self._closed = True
                            self._wake.notify_all()
            finally:
                if self._background is not None:
                    self._background.join()
                with self._maintaining, self._writing, self._state:
                    self._release()

    def _release(self) -> None:
        """Let go of everything. Called once, with all locks held."""
        self._contents = Contents(self.settings)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the index is closed; open the database again")

    def _check_writable(self) -> None:
        self._check_open()
        if self.read_only:
            raise ReadOnlyError("the database was opened for reading; open it with mode='w' to write")


def _groups(parts: Sequence[Live], most_rows: int) -> list[list[Live]]:
    """Divide segments into groups that fit one segment each."""
    groups: list[list[Live]] = []
    for part in sorted(parts, key=lambda p: -p.live):
        for group in groups:
            fits = sum(p.live for p in group) + part.live <= most_rows
            if fits and sum(p.segment.payload_bytes for p in (*group, part)) <= maintenance.MOST_PAYLOAD:
                group.append(part)
                break
        else:
            groups.append([part])
    return groups
