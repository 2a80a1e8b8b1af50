"""A batch of writes, and the net effect of a series of batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.costs import as_array, as_codes
from whamming.native.display import counted
from whamming.storage.items.payloads import Payloads, as_payloads
from whamming.storage.items.rows import Rows, as_ids
from whamming.storage.settings import IndexSettings

_LAYOUT: Final = ("bits", "bit_order", "encoder", "keep_vectors")
"""The settings that decide what the columns of a batch mean."""


@dataclass(frozen=True)
class WriteBatch:
    """Changes that are applied together: first the deletes, then the upserts. If an id repeats, the last item wins."""

    deletes: NDArray[np.uint64]
    upserts: Rows
    """Ids may repeat here."""
    request: bytes = b""
    """15 bytes by which the store recognises the write if it is sent again; empty if it has no request id."""
    made_for: IndexSettings | None = field(default=None, repr=False, compare=False)
    """The settings of the index that :meth:`of` made the batch for; None if a journal read the batch."""

    @classmethod
    def of(
        cls,
        settings: IndexSettings,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        vectors: NDArray[np.uint8] | None = None,
    ) -> WriteBatch:
        """Check the user's values, and convert the codes to the engine's bit order. Raises InvalidArgumentError.

        ``payloads``: a list of bytes, or a column of them, which is not copied if it is read-only.
        ``vectors``: the packed vectors that the codes were made from, for an index that keeps them.
        """
        own = as_ids(ids)
        packed = settings.to_engine(as_item_codes(settings, len(own), codes)).copy()
        spare = settings.bits % 8
        if spare:
            packed[:, -1] &= (1 << spare) - 1
        given = as_payloads(payloads, len(own))
        if settings.vector_bytes and vectors is None:
            check_no_vectors(settings, len(own))
            vectors = np.empty((0, settings.vector_bytes), dtype=np.uint8)
        return cls(as_ids(deletes), Rows(own, packed, given, vectors), made_for=settings)

    def __repr__(self) -> str:
        return f"WriteBatch({counted(len(self.upserts), 'upsert')}, {counted(len(self.deletes), 'delete')})"

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self.deletes) + len(self.upserts)

    def check_sizes(self, settings: IndexSettings) -> None:
        """Raise InvalidArgumentError if an index with these settings could not read the columns again."""
        rows, width = self.upserts, settings.vector_bytes
        count = len(rows)
        sizes = {"codes": (rows.codes, settings.code_bytes), "vectors": (rows.vectors, width)}
        for name, (column, size) in sizes.items():
            found = (0, size) if column is None else column.shape
            if found != (count, size) and not (column is None and size == 0):
                raise InvalidArgumentError(
                    f"the {name} of the batch have the shape {found}; the index needs {(count, size)}"
                )

    @property
    def nbytes(self) -> int:
        """Size of all columns in bytes."""
        return self.deletes.nbytes + self.upserts.nbytes


def check_one_kind(codes: ArrayLike | None, vectors: ArrayLike | None) -> None:
    """Raise InvalidArgumentError if items are given with both codes and vectors."""
    if codes is not None and vectors is not None:
        raise InvalidArgumentError("both codes and vectors; give only one of them")


def as_item_codes(settings: IndexSettings, count: int, codes: ArrayLike | None) -> NDArray[np.uint8]:
    """Return the codes of ``count`` items, in the index's bit order. Raises InvalidArgumentError."""
    if codes is None and count:
        raise InvalidArgumentError("items without codes; give codes, or vectors if the index has an encoder")
    packed = as_array(() if codes is None else codes, "codes")
    if packed.size == 0 and count == 0:
        return np.empty((0, settings.code_bytes), dtype=np.uint8)
    packed = as_codes(packed, settings.bits)
    if len(packed) != count:
        raise InvalidArgumentError(f"{count} ids but {len(packed)} codes; give one code per id")
    return packed


def check_no_vectors(settings: IndexSettings, count: int) -> None:
    """Raise InvalidArgumentError if items with codes only are given to an index that keeps vectors."""
    if settings.vector_bytes and count:
        raise InvalidArgumentError(
            f"codes for an index that keeps vectors (keep_vectors = {settings.keep_vectors!r}); give vectors "
            "instead, the index computes the codes"
        )


def check_batch(batch: object, settings: IndexSettings) -> None:
    """Raise InvalidArgumentError if ``batch`` is not a batch that was made for an index with these settings."""
    remedy = "make it with the method batch() of the index that you write to"
    if not isinstance(batch, WriteBatch):
        raise InvalidArgumentError(f"batch has the type {type(batch).__name__}; {remedy}")
    if batch.made_for is None:
        raise InvalidArgumentError(f"batch was not made for an index; {remedy}")
    differences = batch.made_for.differences(settings, _LAYOUT)
    if differences:
        raise InvalidArgumentError(f"batch was made for an index with {differences}; {remedy}")


def net_changes(batches: Sequence[WriteBatch]) -> tuple[NDArray[np.uint64], Rows]:
    """Return the net effect of batches that are applied in order: all ids that they touch, and the items that remain.

    Both are sorted by id. There must be at least one batch.
    """
    ids = np.concatenate([column for batch in batches for column in (batch.deletes, batch.upserts.ids)])
    rows = Rows.concatenate([batch.upserts for batch in batches]) if len(batches) > 1 else batches[0].upserts
    if len(ids) == len(rows) and (ids[1:] > ids[:-1]).all():  # the common case: new items in order of id
        return ids, rows
    places: list[NDArray[np.int64]] = []  # the row among all upserts, or -1 for a delete
    count = 0
    for batch in batches:
        places.append(np.full(len(batch.deletes), -1, dtype=np.int64))
        places.append(np.arange(count, count + len(batch.upserts), dtype=np.int64))
        count += len(batch.upserts)
    place = np.concatenate(places)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    last = np.ones(len(ordered), dtype=bool)
    last[:-1] = ordered[1:] != ordered[:-1]
    final = place[order[last]]
    return ordered[last], rows.take(final[final >= 0])
