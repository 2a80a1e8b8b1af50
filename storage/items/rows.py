"""Items as columns: ids, codes in the engine's bit order, payloads end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.costs import as_array, as_codes
from whamming.storage.settings import MAX_PAYLOAD, IndexSettings

_CHUNK_BYTES = 1 << 18
"""Of payloads that are brought into another order at a time, for which some 24 bytes each are needed."""


@dataclass(frozen=True)
class Payloads:
    """Byte strings end to end; item i is ``data[ends[i - 1] : ends[i]]``."""

    ends: NDArray[np.uint64]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.ends)

    def __getitem__(self, i: int) -> bytes:
        """Return one."""
        start = int(self.ends[i - 1]) if i else 0
        return self.data[start : int(self.ends[i])].tobytes()

    @property
    def lengths(self) -> NDArray[np.uint64]:
        """Bytes of each."""
        lengths = self.ends.copy()
        lengths[1:] -= self.ends[:-1]
        return lengths

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        """Put byte strings end to end."""
        lengths = np.fromiter((len(p) for p in payloads), dtype=np.uint64, count=len(payloads))
        return cls(np.cumsum(lengths, dtype=np.uint64), np.frombuffer(b"".join(payloads), dtype=np.uint8))

    @classmethod
    def empty(cls, count: int) -> Payloads:
        """Return so many empty ones."""
        return cls(np.zeros(count, dtype=np.uint64), np.empty(0, dtype=np.uint8))

    def with_heads(self, heads: NDArray[np.uint8]) -> Payloads:
        """Return them with some bytes, ``[n, width]``, in front of each."""
        count, width = heads.shape
        first = Payloads(np.arange(1, count + 1, dtype=np.uint64) * np.uint64(width), heads.reshape(-1))
        if len(self.data) == 0:
            return first
        both = Payloads.concatenate([first, self]).take(np.arange(2 * count).reshape(2, count).T.ravel())
        return Payloads(both.ends[1::2], both.data)

    def without_heads(self, width: int) -> Payloads:
        """Return them without the first ``width`` bytes of each."""
        starts = np.concatenate([np.zeros(1, dtype=np.uint64), self.ends])[:-1]
        both = Payloads(np.stack([starts + np.uint64(width), self.ends], axis=1).ravel(), self.data)
        return both.take(np.arange(1, 2 * len(self), 2))

    def take(self, order: NDArray[np.integer[Any]]) -> Payloads:
        """Return some, in another order. Needs memory for the result and a few megabytes."""
        starts = np.concatenate([np.zeros(1, dtype=np.uint64), self.ends])[:-1][order]
        lengths = self.ends[order] - starts
        ends = np.cumsum(lengths, dtype=np.uint64)
        if len(lengths) and lengths[0] and (lengths == lengths[0]).all():  # as kept vectors are: much faster
            windows = np.lib.stride_tricks.sliding_window_view(self.data, int(lengths[0]))
            return Payloads(ends, windows[starts.astype(np.int64)].reshape(-1))
        data = np.empty(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
        first = 0
        while first < len(ends):
            base = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, np.uint64(base + _CHUNK_BYTES))))
            part = lengths[first:last]
            out_starts = ends[first:last] - part - np.uint64(base)
            size = int(ends[last - 1]) - base
            where = np.repeat(starts[first:last] - out_starts, part.astype(np.int64)) + np.arange(size, dtype=np.uint64)
            data[base : base + size] = self.data[where]
            first = last
        return Payloads(ends, data)

    @staticmethod
    def concatenate(parts: Sequence[Payloads]) -> Payloads:
        """Put several end to end."""
        shifts = np.cumsum([0] + [len(p.data) for p in parts], dtype=np.uint64)
        ends = [p.ends + shift for p, shift in zip(parts, shifts, strict=False)]
        return Payloads(np.concatenate(ends), np.concatenate([p.data for p in parts]))


@dataclass(frozen=True)
class Rows:
    """Items; no two have the same id."""

    ids: NDArray[np.uint64]
    codes: NDArray[np.uint8]
    payloads: Payloads | None
    """None: all empty."""

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.ids)

    @classmethod
    def none(cls, code_bytes: int) -> Rows:
        """Return no items."""
        return cls(np.empty(0, dtype=np.uint64), np.empty((0, code_bytes), dtype=np.uint8), None)

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        return self.ids.nbytes + self.codes.nbytes + (len(self.payloads.data) if self.payloads else 0)

    def take(self, order: NDArray[np.integer[Any]]) -> Rows:
        """Return some, in another order."""
        return Rows(self.ids[order], self.codes[order], self.payloads.take(order) if self.payloads else None)

    def divided(self, most_rows: int, most_payload: int) -> Iterator[Rows]:
        """Return all, in their order, in pieces of at most so many items and bytes of payloads; one item at least."""
        first = 0
        while first < len(self):
            last = first + most_rows
            if self.payloads is not None:
                ends = self.payloads.ends
                most = (int(ends[first - 1]) if first else 0) + most_payload
                last = min(last, int(np.searchsorted(ends, np.uint64(most), side="right")))
            last = max(last, first + 1)
            yield self.take(np.arange(first, min(last, len(self))))
            first = last

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """Put several lists of items one after the other."""
        payloads = None
        if any(part.payloads is not None for part in parts):
            payloads = Payloads.concatenate([part.payloads or Payloads.empty(len(part)) for part in parts])
        return Rows(np.concatenate([p.ids for p in parts]), np.concatenate([p.codes for p in parts]), payloads)


def as_ids(ids: ArrayLike) -> NDArray[np.uint64]:
    """Return ids as ``uint64 [n]``, the caller's no more, or say what is wrong with them."""
    array = as_array(ids, "ids")
    if array.size == 0:
        return np.empty(0, dtype=np.uint64)
    if array.ndim != 1:
        raise InvalidArgumentError(f"ids have shape {array.shape}; they must be a list, [n]")
    if array.dtype.kind in "fO":  # what numpy makes of a list with ids of 2**63 and more
        values = np.array(ids, dtype=object)
        if all(isinstance(value, int | np.integer) for value in values):
            for row, value in enumerate(values):
                if not 0 <= value < 2**64:
                    raise InvalidArgumentError(f"id {value} of row {row}; ids are 0 to {2**64 - 1}")
            return values.astype(np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"ids have dtype {array.dtype}; they must be integers of 0 to 2**64 - 1")
    if array.dtype.kind == "i" and array.min() < 0:
        row = int(np.flatnonzero(array < 0)[0])
        raise InvalidArgumentError(f"id {array[row]} of row {row}; ids are 0 to {2**64 - 1}")
    return np.array(array, dtype=np.uint64)


@dataclass(frozen=True)
class WriteBatch:
    """Changes that take effect together: first the deletes, then the upserts, of which the last of an id counts."""

    deletes: NDArray[np.uint64]
    upserts: Rows
    """The ids may repeat."""

    @classmethod
    def of(
        cls,
        settings: IndexSettings,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        kept: NDArray[np.uint8] | None = None,
    ) -> WriteBatch:
        """Check a user's values, whole batch or nothing, and bring the codes into the engine's bit order.

        ``kept``: the vectors that the codes were made from, as bytes, for an index that keeps them.
        """
        own = as_ids(ids)
        packed = as_array(np.empty((0, settings.code_bytes), dtype=np.uint8) if codes is None else codes, "codes")
        if packed.size == 0 and len(own) == 0:
            packed = np.empty((0, settings.code_bytes), dtype=np.uint8)
        packed = settings.to_engine(as_codes(packed, settings.bits)).copy()
        if len(packed) != len(own):
            raise InvalidArgumentError(f"{len(own)} ids but {len(packed)} codes; each item has one of both")
        spare = settings.bits % 8
        if spare:
            packed[:, -1] &= (1 << spare) - 1
        given = as_payloads(payloads, len(own))
        if settings.vector_bytes and len(own):
            if kept is None:
                raise InvalidArgumentError(
                    f"codes for an index that keeps vectors (keep_vectors = {settings.keep_vectors!r}); upsert the "
                    "vectors, it makes the codes itself"
                )
            given = (given or Payloads.empty(len(own))).with_heads(kept)
        return cls(as_ids(deletes), Rows(own, packed, given))

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.deletes) + len(self.upserts)

    @property
    def nbytes(self) -> int:
        """Bytes of its columns."""
        return self.deletes.nbytes + self.upserts.nbytes


def as_payloads(payloads: Sequence[bytes | None] | Payloads | None, count: int) -> Payloads | None:
    """Return payloads as columns, None if all are empty; or say what is wrong with them."""
    if payloads is None:
        return None
    if isinstance(payloads, Payloads):
        return _checked_columns(payloads, count)
    if isinstance(payloads, np.ndarray) and payloads.dtype.kind == "S":
        raise InvalidArgumentError(
            f"the payloads are a numpy array of {payloads.dtype}, which does not tell zero bytes at the end of a "
            "payload from none; give a list of bytes, or an array of objects"
        )
    if not hasattr(payloads, "__len__"):
        raise InvalidArgumentError(f"the payloads are a {type(payloads).__name__}; give a list of bytes")
    if len(payloads) != count:
        raise InvalidArgumentError(f"{len(payloads)} payloads for {count} items; give one each (b'' or None for none)")
    for row, payload in enumerate(payloads):
        if payload is not None and not isinstance(payload, bytes):
            raise InvalidArgumentError(f"the payload of row {row} is a {type(payload).__name__}; it must be bytes")
        if payload is not None and len(payload) > MAX_PAYLOAD:
            raise InvalidArgumentError(
                f"the payload of row {row} has {len(payload)} bytes; at most {MAX_PAYLOAD} are kept with an item, "
                "store more elsewhere and its key here"
            )
    own = [payload or b"" for payload in payloads]
    return Payloads.of(own) if any(own) else None


def _checked_columns(payloads: Payloads, count: int) -> Payloads | None:
    if len(payloads) != count:
        raise InvalidArgumentError(f"{len(payloads)} payloads for {count} items; give one each")
    lengths = payloads.lengths
    if count and lengths.max() > MAX_PAYLOAD:
        row = int(np.argmax(lengths > MAX_PAYLOAD))
        raise InvalidArgumentError(
            f"the payload of row {row} has {lengths[row]} bytes; at most {MAX_PAYLOAD} are kept with an item, "
            "store more elsewhere and its key here"
        )
    return payloads if len(payloads.data) else None


def settle(batches: Sequence[WriteBatch], code_bytes: int) -> tuple[NDArray[np.uint64], Rows]:
    """Return what batches, one after the other, come to: all ids that they touch, and the items left in the end."""
    touched: list[NDArray[np.uint64]] = []
    places: list[NDArray[np.int64]] = []  # row among all upserts, or -1: deleted
    count = 0
    for batch in batches:
        touched += [batch.deletes, batch.upserts.ids]
        places.append(np.full(len(batch.deletes), -1, dtype=np.int64))
        places.append(np.arange(count, count + len(batch.upserts), dtype=np.int64))
        count += len(batch.upserts)
    if not touched:
        return np.empty(0, dtype=np.uint64), Rows.none(code_bytes)
    ids = np.concatenate(touched)
    rows = Rows.concatenate([batch.upserts for batch in batches])
    if len(ids) == count and (ids[1:] > ids[:-1]).all():  # the usual load of new items: nothing to settle
        return ids, rows
    place = np.concatenate(places)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    final = place[order[last]]
    return ordered[last], rows.take(final[final >= 0])
