"""Snapshots: immutable views of an index, which searches run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whamming.native import Costs, Part, View
from whamming.native.arguments import Position, checked_position
from whamming.native.display import counted
from whamming.storage.items.live_part import LivePart
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import NoEncoderError
from whamming.storage.store.scanning import PIECE_BYTES, check_scan, scan
from whamming.storage.vectors.kept import unpack_vectors


@dataclass(frozen=True)
class Items:
    """The result of ``get``: items by id, with codes in the index's bit order."""

    ids: NDArray[np.uint64]
    found: NDArray[np.bool_]
    codes: NDArray[np.uint8]
    """Zero if the id was not found."""
    payloads: list[bytes]
    """Empty if the id was not found."""
    vectors: NDArray[np.float32] | None = None
    """The kept vectors; zero if the id was not found. None if the index keeps no vectors or is on a server."""

    def __len__(self) -> int:
        """Return the number of requested ids."""
        return len(self.ids)

    def __repr__(self) -> str:
        kept = "" if self.vectors is None else ", with vectors"
        return f"Items({counted(len(self), 'id')}, {int(self.found.sum()):,} found{kept})"


class Snapshot:
    """An immutable view of an index. Any number of threads may use it.

    It stays valid, even if the index is closed or dropped, and is released with the last reference to it. ``view``
    is the engine's view, which can be searched.
    """

    def __init__(self, settings: IndexSettings, parts: Sequence[LivePart], version: int) -> None:
        """``version`` increases with every write."""
        self.settings = settings
        self.version = version
        self._parts = tuple(part for part in parts if part.live)
        searched = [part.part for part in self._parts]
        if not searched:
            nothing = Rows.none(settings.code_bytes, settings.vector_bytes)
            searched = [Part(Segment.build_run(settings, nothing).index)]
        self.view = View(searched, settings.bits, lenient=settings.tables != "none")

    def __len__(self) -> int:
        """Return the number of items."""
        return self.view.n

    def __repr__(self) -> str:
        return f"Snapshot({counted(len(self), 'item')}, {self.settings.bits} bits, version {self.version})"

    def exists(self, ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return for each id whether it exists."""
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        found = np.zeros(len(ids), dtype=bool)
        for part in self._parts:
            found[order] |= part.is_alive(part.segment.find(wanted))
        return found

    def get(self, ids: NDArray[np.uint64]) -> Items:
        """Look up items by id."""
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        found = np.zeros(len(ids), dtype=bool)
        codes = np.zeros((len(ids), self.settings.code_bytes), dtype=np.uint8)
        payloads = [b""] * len(ids)
        for part in self._parts:
            places = part.segment.find(wanted)
            mine = np.flatnonzero(part.is_alive(places))
            if len(mine) == 0:
                continue
            rows = order[mine]
            found[rows] = True
            codes[rows] = part.segment.codes(places[mine])
            if part.segment.has_payloads:
                for row, place in zip(rows.tolist(), places[mine].tolist(), strict=True):
                    payloads[row] = part.segment.payload(place)
        vectors = self.vectors(ids) if self.settings.keep_vectors else None
        return Items(ids, found, self.settings.from_engine(codes), payloads, vectors)

    def vectors(self, ids: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Return the kept vectors of some ids, ``[n, dim]``; zero for ids that do not exist."""
        kind = self.settings.keep_vectors
        if kind is None:
            raise NoEncoderError("the index keeps no vectors; create it with keep_vectors='float16' or 'int8'")
        order = np.argsort(ids, kind="stable")
        wanted = ids[order]
        packed = np.zeros((len(ids), self.settings.vector_bytes), dtype=np.uint8)
        for part in self._parts:
            places = part.segment.find(wanted)
            mine = np.flatnonzero(part.is_alive(places))
            kept = part.segment.vectors(places[mine]) if len(mine) else None
            if kept is not None:
                packed[order[mine]] = kept
        return unpack_vectors(packed, kind)

    def position(self, costs: Costs, after: Position | None) -> Position | None:
        """Add the exact distance to the position of a hit, if distances to this query are rounded.

        Returns ``after`` if this is not possible, because the item no longer exists or has another distance.
        """
        if after is None or not costs.scales["rounded"][0]:
            return after
        distance, last_id, known = checked_position(after)
        if known:
            return after
        for part in self._parts:
            places = part.segment.find(np.array([last_id], dtype=np.uint64))
            if part.is_alive(places)[0]:
                rounded, exact = costs.exact_distance(part.segment.codes(places)[0])
                return (distance, last_id, exact) if rounded == distance else after
        return after

    def payloads(self, ids: NDArray[np.uint64]) -> list[bytes]:
        """Return the payloads of some ids; empty for ids that do not exist."""
        if not any(part.segment.has_payloads for part in self._parts):
            return [b""] * len(ids)
        return self.get(ids).payloads

    def scan(self, size: int = 10_000, *, after: int | None = None, piece_bytes: int = PIECE_BYTES) -> Iterator[Rows]:
        """Return all items in order of id, in pieces of at most ``size``; codes in the index's bit order.

        ``after``: return only items with a larger id.
        ``piece_bytes``: how many payload bytes a piece may have, unless a single item has more. The iterator itself
        uses about as much memory, and keeps no piece that it has returned.
        """
        return map(self._in_bit_order, scan(self._parts, *check_scan(size, after), piece_bytes))

    def _in_bit_order(self, rows: Rows) -> Rows:
        return replace(rows, codes=self.settings.from_engine(rows.codes))
