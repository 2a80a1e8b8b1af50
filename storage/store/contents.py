"""What an index contains at a moment: sealed segments, and the delta of recent writes.

::

    sealed    large segments with tables, in RAM or in a memory map
    frozen    runs that are being sealed
    runs      small segments in RAM, without tables, of recent writes
    pending   small batches that no search has asked for yet

Contents are immutable: each change returns its successor. So a search needs no lock to read them, whatever happens
meanwhile; those who change them take turns (see ``segmented.py``).

A batch touches some ids: they die in every part, and the items that it upserts become a run. A large batch's run is
built before the write is committed (:meth:`Change.of`). Small batches wait in ``pending`` until they are many, or until
a snapshot is wanted: then one run is built of all of them, of PENDING_ROWS rows at most (more only of writes that were
read back from a file).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whamming.storage.items.live_part import LivePart, merged_rows
from whamming.storage.items.segment import Segment
from whamming.storage.items.write_batch import WriteBatch, net_changes
from whamming.storage.settings import IndexSettings
from whamming.storage.store import maintenance
from whamming.storage.store.snapshot import Snapshot

PENDING_ROWS = 1024
"""Changes that may wait in ``pending``."""


@dataclass(frozen=True)
class Change:
    """A batch, and what it does to the contents if it is large: computed before it is committed."""

    batch: WriteBatch
    touched: NDArray[np.uint64] | None = None
    """Sorted. None: the batch is small."""
    run: LivePart | None = None

    @property
    def only_deletes(self) -> bool:
        """The batch has no items to upsert."""
        return len(self.batch.upserts) == 0

    @classmethod
    def of(cls, settings: IndexSettings, batch: WriteBatch) -> Change:
        """Prepare a batch; builds the run of a large one."""
        if len(batch) < PENDING_ROWS:
            return cls(batch)
        touched, rows = net_changes([batch])
        return cls(batch, touched, LivePart(Segment.build_run(settings, rows)) if len(rows) else None)


@dataclass(frozen=True)
class Contents:
    """The contents of an index at a moment."""

    settings: IndexSettings
    sealed: tuple[LivePart, ...] = ()
    frozen: tuple[LivePart, ...] = ()
    runs: tuple[LivePart, ...] = ()
    pending: tuple[WriteBatch, ...] = ()
    pending_rows: int = 0
    version: int = 0
    delta_rows: int = 0
    """Changes written since the last seal. Deletes count, and items that were replaced again: all take room."""
    delta_bytes: int = 0
    """Bytes of those, and what maintenance counts per write."""
    frozen_rows: int = 0
    frozen_bytes: int = 0
    """Of the delta, what was written before the runs were frozen."""

    def replace(self, **changes: Any) -> Contents:
        """Return other contents with some fields changed, as dataclasses.replace does but in a tenth of its time."""
        other = object.__new__(Contents)
        other.__dict__.update(self.__dict__, **changes)
        other.__dict__.pop("_snapshot", None)
        return other

    def snapshot(self) -> Snapshot:
        """Return a view of everything, made once. There must be no pending batches."""
        assert not self.pending
        made: Snapshot | None = self.__dict__.get("_snapshot")
        if made is None:
            made = Snapshot(self.settings, (*self.sealed, *self.frozen, *self.runs), self.version)
            self.__dict__["_snapshot"] = made
        return made

    def with_change(self, change: Change) -> Contents:
        """Return the contents after a change."""
        if change.touched is None:
            after = self.with_pending([change.batch])
            return after if after.pending_rows < PENDING_ROWS else after.apply_pending()
        after = self.apply_pending()._applied(change.touched, change.run)
        return after.replace(**self._counts([change.batch]))

    def with_deletes(self, change: Change) -> tuple[Contents, int]:
        """Return the contents after a change that only deletes, and how many of its items there were."""
        before = self.apply_pending()
        after = before.with_change(change).apply_pending()
        return after, before.live - after.live

    @property
    def live(self) -> int:
        """Items, without those of pending batches."""
        return sum(part.live for part in (*self.sealed, *self.frozen, *self.runs))

    def with_pending(self, batches: Sequence[WriteBatch]) -> Contents:
        """Return the contents after some batches, which :meth:`apply_pending` brings in."""
        rows = self.pending_rows + sum(map(len, batches))
        return self.replace(pending=(*self.pending, *batches), pending_rows=rows, **self._counts(batches))

    def apply_pending(self) -> Contents:
        """Return the same contents without pending batches."""
        if not self.pending:
            return self
        touched, rows = net_changes(self.pending)
        run = LivePart(Segment.build_run(self.settings, rows)) if len(rows) else None
        return self._applied(touched, run).replace(pending=(), pending_rows=0)

    def _counts(self, batches: Sequence[WriteBatch]) -> dict[str, Any]:
        """Return the fields that count writes, after some batches."""
        return {
            "version": self.version + len(batches),
            "delta_rows": self.delta_rows + sum(map(len, batches)),
            "delta_bytes": self.delta_bytes + sum(batch.nbytes + maintenance.WRITE_BYTES for batch in batches),
        }

    def _applied(self, touched: NDArray[np.uint64], run: LivePart | None) -> Contents:
        runs, left = _removing(self.runs, touched)
        frozen, left = _removing(self.frozen, left)
        sealed, _ = _removing(self.sealed, left)
        runs = [part for part in runs if part.live]
        if run is not None:
            runs.append(run)
        small = maintenance.choose_small_runs(runs)
        if small:
            runs = [part for part in runs if part not in small]
            runs.append(LivePart(Segment.build_run(self.settings, merged_rows(small))))
        return self.replace(sealed=tuple(sealed), frozen=tuple(frozen), runs=tuple(runs))

    def with_merged_runs(self, old: Sequence[LivePart], merged: LivePart) -> Contents | None:
        """Return the contents with a run in the place of those that it was built from; None if those are gone.

        What died in them while the run was being built dies in it, too.
        """
        now = [[part for part in self.runs if part.is_same_as(before)] for before in old]
        if not all(now):
            return None
        merged = _without_removed(merged, old, [part for (part,) in now])
        rest = [part for part in self.runs if not any(part.is_same_as(before) for before in old)]
        return self.replace(runs=(*rest, *([merged] if merged.live else [])))

    def freeze(self, most_rows: int) -> Contents:
        """Return the contents with all runs set aside to be sealed, none larger than a segment may be.

        Later writes still kill in them, but go to runs of their own.
        """
        after = self.apply_pending()
        pieces = [piece for run in after.runs for piece in _split(self.settings, run, most_rows)]
        return after.replace(
            frozen=(*after.frozen, *pieces),
            runs=(),
            frozen_rows=after.delta_rows,
            frozen_bytes=after.delta_bytes,
        )

    def without_frozen_count(self) -> Contents:
        """Return the contents without counting what was frozen as recent writes: it is sealed."""
        return self.replace(
            delta_rows=self.delta_rows - self.frozen_rows,
            delta_bytes=self.delta_bytes - self.frozen_bytes,
            frozen_rows=0,
            frozen_bytes=0,
        )

    def with_segment(self, old: Sequence[LivePart], new: LivePart | None) -> Contents:
        """Return the contents with a segment in the place of those, sealed or frozen, that it was built from.

        What died in them while the segment was being built dies in it, too.
        """
        if new is not None:
            every = (*self.sealed, *self.frozen)
            now = [next(part for part in every if part.is_same_as(before)) for before in old]
            new = _without_removed(new, old, now)
        kept, frozen = (
            tuple(part for part in parts if not any(part.is_same_as(before) for before in old))
            for parts in (self.sealed, self.frozen)
        )
        return self.replace(sealed=kept if new is None else (*kept, new), frozen=frozen)

    def reopened(self, segments: Mapping[int, Segment]) -> Contents:
        """Return the contents with some sealed segments, by number, read from elsewhere."""
        if not segments:
            return self  # with the snapshot that was made of them
        sealed = tuple(
            LivePart(segments[part.number], part.number, part.dead, part.dead_count)
            if part.number is not None and part.number in segments
            else part
            for part in self.sealed
        )
        return self.replace(sealed=sealed)


def _removing(parts: Sequence[LivePart], ids: NDArray[np.uint64]) -> tuple[list[LivePart], NDArray[np.uint64]]:
    """Return parts without some ids, and the ids that none of them had: an id is alive in one part only."""
    after = []
    for part in parts:
        changed, ids = part.removing(ids)
        after.append(changed)
    return after, ids


def _without_removed(new: LivePart, old: Sequence[LivePart], now: Sequence[LivePart]) -> LivePart:
    """Return a part without the ids that died in the parts that it was built from."""
    removed = np.concatenate([part.ids_removed_since(before) for part, before in zip(now, old, strict=True)])
    return new.without_ids(np.sort(removed)) if len(removed) else new


def _split(settings: IndexSettings, run: LivePart, most_rows: int) -> list[LivePart]:
    if run.segment.n <= most_rows and run.segment.payload_bytes <= maintenance.MOST_PAYLOAD:
        return [run]
    pieces = run.rows().split(most_rows, maintenance.MOST_PAYLOAD)
    return [LivePart(Segment.build_run(settings, piece)) for piece in pieces]
