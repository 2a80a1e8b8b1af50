"""The contents of an index at one moment: sealed segments, and the delta of recent writes.

::

    sealed    large segments with tables, in RAM or in a memory map
    frozen    runs that are being sealed
    runs      small segments of recent writes, in RAM, without tables
    pending   small batches that are not in a run yet

Contents are immutable: a change returns new contents. Hence a search reads them without a lock. Threads that change
them take turns (see ``segmented.py``).

A batch touches some ids. Old items with these ids become dead in every part, and the batch's upserts become a run. The
run of a large batch is built before the write is committed (:meth:`Change.of`). Small batches wait in ``pending`` until
there are many of them, or until a snapshot is requested. Then they become one run. This run has fewer than
2 x PENDING_ROWS rows, unless its batches were read from a file.
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
"""Pending batches become a run when they have this many changes. A batch with this many becomes a run by itself."""


@dataclass(frozen=True)
class Change:
    """A batch and, if it is large, its effect on the contents, computed before it is committed."""

    batch: WriteBatch
    touched: NDArray[np.uint64] | None = None
    """The ids that the batch touches, sorted; None if the batch is small."""
    run: LivePart | None = None

    @property
    def only_deletes(self) -> bool:
        """Whether the batch has no upserts."""
        return len(self.batch.upserts) == 0

    @classmethod
    def of(cls, settings: IndexSettings, batch: WriteBatch) -> Change:
        """Prepare a batch. Builds the run of a large one."""
        if len(batch) < PENDING_ROWS:
            return cls(batch)
        touched, rows = net_changes([batch])
        return cls(batch, touched, LivePart(Segment.build_run(settings, rows)) if len(rows) else None)


@dataclass(frozen=True)
class Contents:
    """The contents of an index at one moment."""

    settings: IndexSettings
    sealed: tuple[LivePart, ...] = ()
    frozen: tuple[LivePart, ...] = ()
    runs: tuple[LivePart, ...] = ()
    pending: tuple[WriteBatch, ...] = ()
    pending_rows: int = 0
    version: int = 0
    delta_rows: int = 0
    """Changes written since the last seal, including deletes and items that were replaced again."""
    delta_bytes: int = 0
    """Size of these changes, plus maintenance.WRITE_OVERHEAD_BYTES per write."""
    frozen_rows: int = 0
    frozen_bytes: int = 0
    """The part of the delta that was written before the runs were frozen."""

    def replace(self, **changes: Any) -> Contents:
        """Return a copy with some fields changed. Ten times faster than dataclasses.replace."""
        other = object.__new__(Contents)
        other.__dict__.update(self.__dict__, **changes)
        other.__dict__.pop("_snapshot", None)
        return other

    def snapshot(self) -> Snapshot:
        """Return a view of everything. It is created once and then cached. There must be no pending batches."""
        assert not self.pending
        made: Snapshot | None = self.__dict__.get("_snapshot")
        if made is None:
            made = Snapshot(self.settings, (*self.sealed, *self.frozen, *self.runs), self.version)
            self.__dict__["_snapshot"] = made
        return made

    def after(self, change: Change) -> tuple[Contents, int]:
        """Return the contents after a change, and how many items it removed if it only deletes."""
        return self.with_deletes(change) if change.only_deletes else (self.with_change(change), 0)

    def with_change(self, change: Change) -> Contents:
        """Return the contents after a change."""
        if change.touched is None:
            after = self.with_pending([change.batch])
            return after if after.pending_rows < PENDING_ROWS else after.apply_pending()
        after = self.apply_pending()._with_run(change.touched, change.run)
        return after.replace(**self._write_counts([change.batch]))

    def with_deletes(self, change: Change) -> tuple[Contents, int]:
        """Return the contents after a change that only deletes, and how many of its ids existed."""
        before = self.apply_pending()
        after = before.with_change(change).apply_pending()
        return after, before.live - after.live

    @property
    def live(self) -> int:
        """Number of items, not counting pending batches."""
        return sum(part.live for part in (*self.sealed, *self.frozen, *self.runs))

    @property
    def delta_memory(self) -> int:
        """About how many bytes the delta takes in memory: the changes, the arrays of runs, room for merging them."""
        return self.delta_bytes + self.delta_rows * maintenance.MEMORY_PER_ROW

    def counts(self) -> dict[str, int]:
        """Return the fields of StoreStats that count segments and rows."""
        return {
            "segments": len(self.sealed),
            "sealed_rows": sum(part.segment.n for part in self.sealed),
            "dead_rows": sum(part.dead_count for part in self.sealed),
            "delta_rows": self.delta_rows,
        }

    def with_pending(self, batches: Sequence[WriteBatch]) -> Contents:
        """Return the contents with some more pending batches."""
        rows = self.pending_rows + sum(map(len, batches))
        return self.replace(pending=(*self.pending, *batches), pending_rows=rows, **self._write_counts(batches))

    def apply_pending(self) -> Contents:
        """Return the same contents, with the pending batches applied."""
        if not self.pending:
            return self
        touched, rows = net_changes(self.pending)
        run = LivePart(Segment.build_run(self.settings, rows)) if len(rows) else None
        return self._with_run(touched, run).replace(pending=(), pending_rows=0)

    def _write_counts(self, batches: Sequence[WriteBatch]) -> dict[str, Any]:
        """Return the fields that count writes, updated for some batches."""
        return {
            "version": self.version + len(batches),
            "delta_rows": self.delta_rows + sum(map(len, batches)),
            "delta_bytes": self.delta_bytes + sum(batch.nbytes + maintenance.WRITE_OVERHEAD_BYTES for batch in batches),
        }

    def _with_run(self, touched: NDArray[np.uint64], run: LivePart | None) -> Contents:
        """Return the contents without the touched ids (sorted), and with a run added."""
        runs, left = _without_ids(self.runs, touched)
        frozen, left = _without_ids(self.frozen, left)
        sealed, _ = _without_ids(self.sealed, left)
        runs = [part for part in runs if part.live]
        if run is not None:
            runs.append(run)
        small = maintenance.choose_small_runs(runs)
        if small:
            runs = [part for part in runs if part not in small]
            runs.append(LivePart(Segment.build_run(self.settings, merged_rows(small))))
        return self.replace(sealed=tuple(sealed), frozen=tuple(frozen), runs=tuple(runs))

    def with_merged_runs(self, old: Sequence[LivePart], merged: LivePart) -> Contents | None:
        """Return the contents with the runs ``old`` replaced by ``merged``; None if one of them is gone.

        Items that died in ``old`` while ``merged`` was being built are dead in ``merged``, too.
        """
        now = [[part for part in self.runs if part.is_same_as(before)] for before in old]
        if not all(now):
            return None
        merged = _without_removed(merged, old, [part for (part,) in now])
        rest = [part for part in self.runs if not any(part.is_same_as(before) for before in old)]
        return self.replace(runs=(*rest, *([merged] if merged.live else [])))

    def freeze(self, max_rows: int) -> Contents:
        """Return the contents with all runs frozen, to be sealed. Runs larger than ``max_rows`` are split.

        Later writes can still delete items from frozen runs, but add items only to new runs.
        """
        after = self.apply_pending()
        pieces = [piece for run in after.runs for piece in _split(self.settings, run, max_rows)]
        return after.replace(
            frozen=(*after.frozen, *pieces),
            runs=(),
            frozen_rows=after.delta_rows,
            frozen_bytes=after.delta_bytes,
        )

    def without_frozen_count(self) -> Contents:
        """Return the contents after a seal, when frozen changes no longer count as recent."""
        return self.replace(
            delta_rows=self.delta_rows - self.frozen_rows,
            delta_bytes=self.delta_bytes - self.frozen_bytes,
            frozen_rows=0,
            frozen_bytes=0,
        )

    def with_segment(self, old: Sequence[LivePart], new: LivePart | None) -> Contents:
        """Return the contents with a segment in place of the sealed or frozen parts that it was built from.

        Items that died in these parts while the segment was being built are dead in the segment, too.
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
        """Return the contents with some sealed segments, by number, replaced by reopened ones."""
        if not segments:
            return self  # keeps the cached snapshot
        sealed = tuple(
            LivePart(segments[part.number], part.number, part.dead, part.dead_count)
            if part.number is not None and part.number in segments
            else part
            for part in self.sealed
        )
        return self.replace(sealed=sealed)


def _without_ids(parts: Sequence[LivePart], ids: NDArray[np.uint64]) -> tuple[list[LivePart], NDArray[np.uint64]]:
    """Return parts without some ids, and the ids that no part had. An id is alive in at most one part."""
    after = []
    for part in parts:
        changed, ids = part.removing(ids)
        after.append(changed)
    return after, ids


def _without_removed(new: LivePart, old: Sequence[LivePart], now: Sequence[LivePart]) -> LivePart:
    """Return ``new`` without the ids that died since it was built.

    ``old``: the parts that it was built from, as they were then. ``now``: the same parts as they are now.
    """
    removed = np.concatenate([part.ids_removed_since(before) for part, before in zip(now, old, strict=True)])
    return new.without_ids(np.sort(removed)) if len(removed) else new


def _split(settings: IndexSettings, run: LivePart, max_rows: int) -> list[LivePart]:
    if run.segment.n <= max_rows and run.segment.payload_bytes <= maintenance.MAX_SEGMENT_PAYLOAD:
        return [run]
    pieces = run.rows().split(max_rows, maintenance.MAX_SEGMENT_PAYLOAD)
    return [LivePart(Segment.build_run(settings, piece)) for piece in pieces]
