"""Snapshots: immutable views of an index, which searches run on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError, Part, View
from whamming.native.arguments import as_whole
from whamming.native.display import counted
from whamming.storage.items.live_part import LivePart
from whamming.storage.items.rows import Rows
from whamming.storage.items.segment import Segment
from whamming.storage.settings import IndexSettings
from whamming.storage.vectors.kept import unpack_vectors

PIECE_BYTES = 1 << 23
"""How many payload bytes a piece of a scan may have, unless a single item has more."""


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
    """An immutable view of an index, which can be searched as long as it is kept. Any number of threads may use it."""

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
            raise InvalidArgumentError("the index keeps no vectors; create it with keep_vectors='float16' or 'int8'")
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

    def payloads(self, ids: NDArray[np.uint64]) -> list[bytes]:
        """Return the payloads of some ids; empty for ids that do not exist."""
        if not any(part.segment.has_payloads for part in self._parts):
            return [b""] * len(ids)
        return self.get(ids).payloads

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items, in no particular order, in pieces of at most ``size``; codes in the index's bit order."""
        if as_whole("size", size) < 1:
            raise InvalidArgumentError(f"size = {size}; it must be 1 or more")
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
                yield Rows(rows.ids, self.settings.from_engine(rows.codes), rows.payloads, rows.vectors)
                first = last
