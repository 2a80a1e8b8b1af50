"""Items as columns: ids, codes, payloads and kept vectors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.costs import as_array
from whamming.native.display import counted
from whamming.storage.items.payloads import Payloads


@dataclass(frozen=True)
class Rows:
    """Items as columns. No two items have the same id."""

    ids: NDArray[np.uint64]
    codes: NDArray[np.uint8]
    payloads: Payloads | None = None
    """None if all are empty."""
    vectors: NDArray[np.uint8] | None = None
    """Bytes ``[n, vector_bytes]`` as :mod:`whamming.storage.vectors.kept` packs them; None if no vectors are kept."""

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        columns = {"payloads": self.payloads, "vectors": self.vectors}
        kept = [name for name, column in columns.items() if column is not None]
        return f"Rows({counted(len(self), 'item')}{', with ' if kept else ''}{' and '.join(kept)})"

    @classmethod
    def none(cls, code_bytes: int, vector_bytes: int = 0) -> Rows:
        vectors = np.empty((0, vector_bytes), dtype=np.uint8) if vector_bytes else None
        return cls(np.empty(0, dtype=np.uint64), np.empty((0, code_bytes), dtype=np.uint8), None, vectors)

    @property
    def nbytes(self) -> int:
        """Size of all columns in bytes, without the ends of payloads."""
        size = self.ids.nbytes + self.codes.nbytes + (len(self.payloads.data) if self.payloads else 0)
        return size + (0 if self.vectors is None else self.vectors.nbytes)

    def take(self, order: NDArray[np.integer[Any]]) -> Rows:
        """Return the items at some positions, in that order."""
        return Rows(
            self.ids.take(order),
            self.codes.take(order, axis=0),
            self.payloads.take(order) if self.payloads else None,
            None if self.vectors is None else self.vectors.take(order, axis=0),
        )

    def split(self, max_rows: int, max_payload: int) -> Iterator[Rows]:
        """Yield all items in order, in pieces within both limits. A piece of one item may exceed ``max_payload``."""
        first = 0
        while first < len(self):
            last = first + max_rows
            if self.payloads is not None:
                ends = self.payloads.ends
                most = (int(ends[first - 1]) if first else 0) + max_payload
                last = min(last, int(np.searchsorted(ends, np.uint64(most), side="right")))
            last = max(last, first + 1)
            yield self.take(np.arange(first, min(last, len(self))))
            first = last

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """Join several lists of items of the same index."""
        payloads = None
        if any(part.payloads is not None for part in parts):
            payloads = Payloads.concatenate([part.payloads or Payloads.empty(len(part)) for part in parts])
        kept = [part.vectors for part in parts if part.vectors is not None]
        return Rows(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([part.codes for part in parts]),
            payloads,
            np.concatenate(kept) if kept else None,
        )


def as_ids(ids: ArrayLike) -> NDArray[np.uint64]:
    """Return a copy of ids as ``uint64 [n]``. Raises InvalidArgumentError."""
    array = as_array(ids, "ids")
    if array.size == 0:
        return np.empty(0, dtype=np.uint64)
    if array.ndim != 1:
        raise InvalidArgumentError(f"ids have shape {array.shape}; they must be a list, [n]")
    if array.dtype.kind in "fO":  # numpy converts a list with ids of 2**63 and more to one of these
        values = np.array(ids, dtype=object)
        if all(isinstance(value, int | np.integer) for value in values):
            for row, value in enumerate(values):
                if not 0 <= value < 2**64:
                    raise InvalidArgumentError(f"id {value} in row {row}; ids must be 0 to {2**64 - 1}")
            return values.astype(np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"ids have dtype {array.dtype}; they must be integers from 0 to 2**64 - 1")
    if array.dtype.kind == "i" and array.min() < 0:
        row = int(np.flatnonzero(array < 0)[0])
        raise InvalidArgumentError(f"id {array[row]} in row {row}; ids must be 0 to {2**64 - 1}")
    return np.array(array, dtype=np.uint64)
