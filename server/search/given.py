"""The queries of a batch as a client gave them: bytes, and where in them everything lies.

A batch of hundreds of queries is read by its numbers all at once. Only what a query has of its own, options or a resume
token, is read from a message of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError, wire
from whamming.v1 import search_pb2

Field = Literal["code", "weights", "table", "vector"]

_STORED: Final[dict[Field, np.dtype[Any]]] = {
    "code": np.dtype("u1"),
    "weights": np.dtype("<f8"),
    "table": np.dtype("<f8"),
    "vector": np.dtype("<f4"),
}


class GivenQueries:
    """Some queries, by their places in a batch. Immutable."""

    def __init__(self, batch: search_pb2.QueryBatch) -> None:
        """Find everything in a batch; the message is not needed afterwards."""
        count = len(batch.queries)
        self._data = batch.SerializeToString()
        try:
            found = wire.find_queries(self._data, count)
        except InvalidArgumentError:  # unknown fields may be groups, which protobuf has but for old times' sake
            batch.DiscardUnknownFields()
            self._data = batch.SerializeToString()
            found = wire.find_queries(self._data, count)
        self._rows: list[list[int]] = found.tolist()
        self.ids: list[int] = [row[wire.ID] for row in self._rows]
        """What their client calls them."""

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.ids)

    def message(self, place: int) -> search_pb2.Query:
        """Return one query as a message."""
        start, size = self._rows[place][wire.START : wire.SIZE + 1]
        return search_pb2.Query.FromString(self._data[start : start + size])

    def alike(self, places: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield places that follow each other whose queries have one shape: they can be read together."""
        for _, same in groupby(places, key=lambda place: self._rows[place][wire.SHAPE]):
            yield list(same)

    def has_own(self, place: int) -> bool:
        """Tell whether a query has options or a resume token of its own."""
        return bool(self._rows[place][wire.OWN])

    def has(self, place: int, field: Field) -> bool:
        """Tell whether a query gives a field."""
        return bool(self._rows[place][wire.SIZES[field]])

    def form(self, place: int) -> int:
        """Return the number of the form of costs that a query asks for."""
        form = self._rows[place][wire.FORM]
        return form - 2**64 if form >= 2**63 else form  # an enum's negative numbers are sign-extended

    def read(self, places: Sequence[int], field: Field) -> NDArray[Any]:
        """Return the bytes or numbers of a field, ``[count, width]``, of queries of one shape."""
        size = self._rows[places[0]][wire.SIZES[field]]
        column = wire.STARTS[field]
        starts = np.array([self._rows[place][column] for place in places], dtype=np.uint64)
        return wire.gather(self._data, starts, size).view(_STORED[field])
