"""Payloads as a column: the byte strings of all items, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.display import counted
from whamming.storage.settings import MAX_PAYLOAD

_CHUNK_BYTES = 1 << 18
"""How many payload bytes are reordered at a time. Each byte needs about 24 bytes of working memory."""


@dataclass(frozen=True)
class Payloads:
    """A column of byte strings: item i is ``data[ends[i - 1] : ends[i]]``."""

    ends: NDArray[np.uint64]
    data: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.ends)

    def __repr__(self) -> str:
        return f"Payloads({counted(len(self), 'item')}, {counted(len(self.data), 'byte')})"

    def __getitem__(self, i: int) -> bytes:
        start = int(self.ends[i - 1]) if i else 0
        return self.data[start : int(self.ends[i])].tobytes()

    @classmethod
    def of(cls, payloads: Sequence[bytes]) -> Payloads:
        lengths = np.fromiter((len(p) for p in payloads), dtype=np.uint64, count=len(payloads))
        return cls(np.cumsum(lengths, dtype=np.uint64), np.frombuffer(b"".join(payloads), dtype=np.uint8))

    @classmethod
    def from_lengths(cls, lengths: ArrayLike, data: bytes | memoryview) -> Payloads:
        """Return a column over ``data``, given the length of each payload. Messages store payloads this way.

        This neither copies nor checks anything; :meth:`WriteBatch.of` does both.
        """
        ends = np.cumsum(np.asarray(lengths), dtype=np.uint64)
        return cls(ends, np.frombuffer(data, dtype=np.uint8))

    @classmethod
    def empty(cls, count: int) -> Payloads:
        """Return ``count`` empty payloads."""
        return cls(np.zeros(count, dtype=np.uint64), np.empty(0, dtype=np.uint8))

    def lengths(self) -> NDArray[np.uint64]:
        """Return the length of each payload in bytes."""
        return np.diff(self.ends, prepend=np.uint64(0))

    def starts(self, order: NDArray[np.integer[Any]]) -> NDArray[np.uint64]:
        """Return where the payloads at some positions start."""
        return np.where(order > 0, self.ends[order - 1], np.uint64(0))

    def tolist(self) -> list[bytes]:
        data, ends = self.data.tobytes(), self.ends.tolist()
        return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def take(self, order: NDArray[np.integer[Any]]) -> Payloads:
        """Return the payloads at some positions, in that order. Needs memory for the result and a few megabytes."""
        starts = self.starts(order)
        lengths = self.ends[order] - starts
        ends = np.cumsum(lengths, dtype=np.uint64)
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
        """Join several columns."""
        shifts = np.cumsum([0] + [len(p.data) for p in parts], dtype=np.uint64)
        ends = [p.ends + shift for p, shift in zip(parts, shifts, strict=False)]
        return Payloads(np.concatenate(ends), np.concatenate([p.data for p in parts]))


def as_payloads(payloads: Sequence[bytes | None] | Payloads | None, count: int) -> Payloads | None:
    """Return the payloads of ``count`` items as a column, or None if all are empty. Raises InvalidArgumentError."""
    if payloads is None:
        return None
    if isinstance(payloads, np.ndarray) and payloads.dtype.kind == "S":
        raise InvalidArgumentError(
            f"payloads are a numpy array of {payloads.dtype}, which drops zero bytes at the end of a payload; give a "
            "list of bytes, or an array of objects"
        )
    if not hasattr(payloads, "__len__"):
        raise InvalidArgumentError(f"payloads are a {type(payloads).__name__}; give a list of bytes")
    if len(payloads) != count:
        raise InvalidArgumentError(
            f"{len(payloads)} payloads for {count} items; give one per item (None or b'' for none)"
        )
    if isinstance(payloads, Payloads):
        return _checked(payloads)
    for row, payload in enumerate(payloads):
        if payload is not None and not isinstance(payload, bytes):
            raise InvalidArgumentError(f"the payload of row {row} is a {type(payload).__name__}; it must be bytes")
        if payload is not None and len(payload) > MAX_PAYLOAD:
            raise _too_long(row, len(payload))
    own = [payload or b"" for payload in payloads]
    return Payloads.of(own) if any(own) else None


def _checked(payloads: Payloads) -> Payloads | None:
    """Check a column, and copy the arrays that the caller could still change."""
    ends, data = np.asarray(payloads.ends), np.asarray(payloads.data)
    if ends.ndim != 1 or ends.dtype != np.uint64 or data.ndim != 1 or data.dtype != np.uint8:
        raise InvalidArgumentError(
            f"payloads have ends of {ends.dtype} {ends.shape} and data of {data.dtype} {data.shape}; "
            "they must be uint64 [n] and uint8 [bytes]"
        )
    if len(ends) and ((ends[1:] < ends[:-1]).any() or int(ends[-1]) != len(data)):
        raise InvalidArgumentError(
            f"payloads end at byte {int(ends[-1])} of {len(data)}; ends must not decrease, and the last one must be "
            "the number of bytes"
        )
    if len(data) == 0:
        return None
    lengths = payloads.lengths()
    if lengths.max() > MAX_PAYLOAD:
        row = int(lengths.argmax())
        raise _too_long(row, int(lengths[row]))
    return Payloads(ends.copy(), data.copy() if data.flags.writeable else data)


def _too_long(row: int, size: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"the payload of row {row} has {size} bytes; the limit is {MAX_PAYLOAD}: keep larger data elsewhere and its "
        "key in the payload"
    )
