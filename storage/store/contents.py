"""What an index contains at a moment: sealed segments, and the delta of recent writes.

::

    sealed    large segments with tables, in RAM or in a memory map
    frozen    runs that are being sealed
    runs      small segments in RAM, without tables, of recent writes, each at least twice as large as the next
    pending   batches that no search has asked for yet

A write only appends to ``pending``. The next snapshot settles all pending batches at once: the ids that they touch die
in every segment, the items that are left become a run. Runs of like size are merged, so that there are few.

Not thread-safe: the store that owns it holds a lock. What it hands out is immutable.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError, Part, View
from whamming.native.arguments import as_whole
from whamming.storage.items.rows import Rows, WriteBatch, settle
from whamming.storage.items.segment import Live, Run, Segment
from whamming.storage.settings import IndexSettings
from whamming.storage.store import maintenance
from whamming.storage.vectors.kept import unpack_vectors

PIECE_BYTES = 1 << 23
"""Of payloads in one piece of a scan, unless a single item has more."""
SMALL_RUN = 4096
"""Rows: runs of at most so many are always merged."""


@dataclass(frozen=True)
class Items:
    """Some items by id, in the index's bit order; what ``get`` returns."""

    ids: NDArray[np.uint64]
    found: NDArray[np.bool_]
    codes: NDArray[np.uint8]
    """Zero where the id was not found."""
    payloads: list[bytes]
    """Empty where the id was not found."""
    vectors: NDArray[np.float32] | None = None
    """As they are kept; zero where the id was not found. None: the index keeps none."""

    def __len__(self) -> int:
        """Return how many ids were asked for."""
        return len(self.ids)


class Snapshot:
    """An immutable view of an index, to be searched for as long as it is kept.

    A store's own shows what is stored: a kept vector is a part of its item's payload. :meth:`shown` is for users.
    """

    def __init__(self, settings: IndexSettings, parts: Sequence[Live], version: int) -> None:
        """Put the parts together; ``version`` grows with every write."""
        self.settings = settings
        self.version = version
        self._hidden = 0
        self._parts = tuple(part for part in parts if part.live)
        searched: list[Part] = [part.part for part in self._parts]
        if not searched:
            searched = [Live(Run(settings, Rows.none(settings.code_bytes))).part]
        self.view = View(searched, settings.bits, lenient=settings.tables != "none")

    def __len__(self) -> int:
        """Return the number of items."""
        return self.view.n

    def shown(self) -> Snapshot:
        """Return the same without the vectors that are kept in front of payloads."""
        if self._hidden == self.settings.vector_bytes:
            return self
        other = copy.copy(self)
        other._hidden = self.settings.vector_bytes
        return other

    def get(self, ids: NDArray[np.uint64]) -> Items:
        """Look some items up by id."""
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        found = np.zeros(len(ids), dtype=bool)
        codes = np.zeros((len(ids), self.settings.code_bytes), dtype=np.uint8)
        payloads = [b""] * len(ids)
        for part in self._parts:
            places = part.segment.find(wanted)
            mine = np.flatnonzero(part.alive(places))
            if len(mine) == 0:
                continue
            rows = order[mine]
            found[rows] = True
            codes[rows] = part.segment.codes(places[mine])
            if part.segment.payload_bytes:
                for row, place in zip(rows.tolist(), places[mine].tolist(), strict=True):
                    payloads[row] = part.segment.payload(place)[self._hidden :]
        vectors = self.vectors(ids) if self._hidden else None
        return Items(ids, found, self.settings.from_engine(codes), payloads, vectors)

    def vectors(self, ids: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the kept vectors of some ids, ``[n, dim]``; zero for those that are not there."""
        kind, width = self.settings.keep_vectors, self.settings.vector_bytes
        if kind is None:
            raise InvalidArgumentError("the index keeps no vectors; create it with keep_vectors='float16' or 'int8'")
        order = np.argsort(ids, kind="stable")
        packed = np.zeros((len(ids), width), dtype=np.uint8)
        for part in self._parts:
            places = part.segment.find(ids[order])
            mine = np.flatnonzero(part.alive(places))
            if len(mine):
                packed[order[mine]] = part.segment.heads(places[mine], width)
        return unpack_vectors(packed, kind)

    def payloads(self, ids: NDArray[np.uint64]) -> list[bytes]:
        """Return the payloads of some ids; empty for those that are not there."""
        if not any(part.segment.payload_bytes > self._hidden * part.segment.n for part in self._parts):
            return [b""] * len(ids)
        return self.get(ids).payloads

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items, in no particular order, in pieces of at most ``size``; codes in the index's bit order."""
        if as_whole("size", size) < 1:
            raise InvalidArgumentError(f"size = {size}; it must be 1 or more items")
        return self._pieces(size)

    def _pieces(self, size: int) -> Iterator[Rows]:
        for part in self._parts:
            places = part.places()
            ends = part.segment.payload_ends(places)
            first = 0
            while first < len(places):
                last = first + size
                if ends is not None:
                    start = int(ends[first - 1]) if first else 0
                    fits = int(np.searchsorted(ends, np.uint64(start + PIECE_BYTES), side="right"))
                    last = max(first + 1, min(last, fits))
                rows = part.segment.rows(places[first:last])
                payloads = rows.payloads
                if self._hidden and payloads is not None:
                    payloads = payloads.without_heads(self._hidden)
                yield Rows(rows.ids, self.settings.from_engine(rows.codes), payloads)
                first = last


class Contents:
    """The present contents of an index, and how writes change them."""

    def __init__(self, settings: IndexSettings, sealed: Sequence[Live] = ()) -> None:
        """Start with sealed segments and no delta."""
        self.settings = settings
        self.sealed: tuple[Live, ...] = tuple(sealed)
        self.frozen: tuple[Live, ...] = ()
        self.runs: tuple[Live, ...] = ()
        self.pending: list[WriteBatch] = []
        self.version = 0
        self.delta_rows = 0
        """Changes written since the last seal: deletes too, and items that were replaced again, for all of them take
        room until then."""
        self.delta_bytes = 0
        """Bytes of those, and what maintenance counts per write."""
        self._frozen_rows = self._frozen_bytes = 0
        self._snapshot: Snapshot | None = None

    def add(self, batch: WriteBatch) -> None:
        """Take a batch of changes in."""
        self.pending.append(batch)
        self.delta_rows += len(batch)
        self.delta_bytes += batch.nbytes + maintenance.WRITE_BYTES
        self.version += 1
        self._snapshot = None

    def snapshot(self) -> Snapshot:
        """Return a view of all that was added."""
        if self._snapshot is None:
            self.settle()
            self._snapshot = Snapshot(self.settings, (*self.sealed, *self.frozen, *self.runs), self.version)
        return self._snapshot

    def settle(self) -> None:
        """Bring the pending batches in: all of them or, where that is interrupted, none."""
        if not self.pending:
            return
        touched, rows = settle(self.pending, self.settings.code_bytes)
        sealed = tuple(part.killing(touched) for part in self.sealed)
        frozen = tuple(run.killing(touched) for run in self.frozen)
        runs = [run for run in (run.killing(touched) for run in self.runs) if run.live]
        if len(rows):
            self._add_run(runs, rows)
        # Last, and without a call in between: a batch that was neither here nor there would be gone with the next seal.
        self.sealed, self.frozen, self.runs, self.pending = sealed, frozen, (*runs,), []

    def _add_run(self, runs: list[Live], rows: Rows) -> None:
        merged = [rows]
        size = len(rows)
        while runs and (runs[-1].live <= 2 * size or runs[-1].live + size <= SMALL_RUN):
            size += runs[-1].live
            merged.append(runs.pop().rows())
        if len(merged) > 1:
            rows = Rows.concatenate(merged)
            rows = rows.take(np.argsort(rows.ids))
        runs.append(Live(Run(self.settings, rows)))

    def freeze(self, most_rows: int) -> tuple[Live, ...]:
        """Set the runs aside to be sealed, none larger than a segment may be.

        Later writes still kill in them, but go to runs of their own.
        """
        self.settle()
        runs = [piece for run in self.runs for piece in self._divided(run, most_rows)]
        self.frozen, self.runs = (*self.frozen, *runs), ()
        self._frozen_rows, self._frozen_bytes = self.delta_rows, self.delta_bytes
        return self.frozen

    def _divided(self, run: Live, most_rows: int) -> list[Live]:
        if run.segment.n <= most_rows and run.segment.payload_bytes <= maintenance.MOST_PAYLOAD:
            return [run]
        rows = run.rows()
        return [Live(Run(self.settings, piece)) for piece in rows.divided(most_rows, maintenance.MOST_PAYLOAD)]

    def forget_frozen(self) -> None:
        """Count what was frozen as written no more: it is sealed."""
        self.delta_rows -= self._frozen_rows
        self.delta_bytes -= self._frozen_bytes
        self._frozen_rows = self._frozen_bytes = 0

    def replace(self, old: Sequence[Live], new: Segment | None, number: int | None) -> None:
        """Put a segment that was built from ``old``, sealed or frozen, in the place of their present selves.

        What died in them while the segment was being built dies in it, too.
        """
        now = {_identity(part): part for part in (*self.sealed, *self.frozen)}
        made: tuple[Live, ...] = ()
        if new is not None:
            live = Live(new, None, number)
            for before in old:
                places = before.places()
                gone = places[~now[_identity(before)].alive(places)]
                if len(gone):
                    live = live.killing(np.sort(before.segment.ids(gone)))
            made = (live,)
        replaced = set(map(_identity, old))
        self.sealed = (*(part for part in self.sealed if _identity(part) not in replaced), *made)
        self.frozen = tuple(run for run in self.frozen if _identity(run) not in replaced)
        self._snapshot = None

    def remap(self, segments: Mapping[int, Segment]) -> None:
        """Let the sealed segments, by number, be read from elsewhere."""
        self.sealed = tuple(
            Live(segments[part.number], part.dead, part.number) for part in self.sealed if part.number is not None
        )
        self._snapshot = None


def _identity(part: Live) -> tuple[str, int]:
    """Return what a part keeps when items die in it or its segment is read from elsewhere."""
    return ("run", id(part.segment)) if part.number is None else ("segment", part.number)
