"""An oracle for fuzzing: control indexes that no case changes, and the right answer to any query to them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tests.native.oracle import Codes, Floats, Ids, Truth, is_accepted, truth
from tests.server.answers import Place, place_of
from tests.server.columns import pack_ids, pack_matrix, read_sums
from whamming.storage import IndexSettings
from whamming.v1 import search_pb2, types_pb2

MAX_K: Final = 2**31 - 1
CERTAIN: Final = 1e290
"""With costs up to this size, no distance can overflow."""
_FLOATS: Final = {types_pb2.ELEMENT_TYPE_FLOAT32: "<f4", types_pb2.ELEMENT_TYPE_FLOAT64: "<f8"}
_OPTIONS: Final = {"k", "radius", "plan", "payloads", "chunk_size", "credit", "budget"}
"""The options that the oracle knows."""


@dataclass(frozen=True)
class Expected:
    """What is known about the answer to one query."""

    whole: Truth | None
    """All hits. None: the query is invalid and must be refused."""
    is_certain: bool = True
    """Whether the oracle knows the answer: no distance can overflow, and it knows all options."""


@dataclass(frozen=True)
class Control:
    """An index that no case writes to, and its contents."""

    settings: IndexSettings
    ids: Ids
    codes: Codes
    """In the index's bit order."""
    payloads: Sequence[bytes]

    @classmethod
    def make(cls, settings: IndexSettings, count: int) -> Control:
        """Generate items with many ties, including the smallest and the largest id."""
        rng = np.random.default_rng(settings.bits)
        ids = np.array([0, 2**64 - 1, *rng.choice(3 * count, count - 2, replace=False) + 1], dtype=np.uint64)
        codes = rng.integers(0, 256, (count, settings.code_bytes), dtype=np.uint8)
        codes[: count // 2] = codes[0]
        codes[: count // 2, 0] = rng.integers(0, 256, count // 2)
        return cls(settings, ids, codes, [b"payload of %d" % i for i in ids])

    def expected(self, batch: search_pb2.QueryBatch) -> list[Expected]:
        """Return the expected answer to each query of a batch."""
        count, options = len(batch.query_ids), batch.options
        known = {field.name for field, _ in options.ListFields()} <= _OPTIONS and not batch.HasField("vectors")
        known = known and not batch.after_sums  # sums are in units of the server's own
        tables, places = self._tables(batch), places_of(batch)
        if tables is None or places is None or not self._are_valid(options) or batch.form:
            return [Expected(None, known)] * count
        return [
            Expected(self._truth(table, after, options))
            if known and not (abs(table) > CERTAIN).any()
            else Expected(None, is_certain=False)
            for table, after in zip(tables, places, strict=True)
        ]

    def _truth(self, table: Floats, after: Place | None, options: search_pb2.QueryOptions) -> Truth | None:
        if not np.isfinite(table).all() or not is_accepted(table):
            return None
        found = truth(self.settings.to_engine(self.codes), table, self.ids)
        if after is not None:
            found = found.after_item(*after[:2])
        if options.HasField("radius"):
            found = found.within(options.radius)
        return found[: options.k] if options.HasField("k") else found

    def _tables(self, batch: search_pb2.QueryBatch) -> list[Floats] | None:
        """Return the cost table ``[bits, 2]`` of each query, or None if the columns are invalid."""
        bits, count = self.settings.bits, len(batch.query_ids)
        if batch.HasField("tables"):
            rows = rows_of(batch.tables, 2 * bits)
            if batch.codes or batch.HasField("weights") or rows is None or len(rows) != count:
                return None
            return list(rows.reshape(count, bits, 2))
        if not batch.codes or len(batch.codes) != count * self.settings.code_bytes:
            return None
        weights: Floats | None = np.ones((1, bits))
        if batch.HasField("weights"):
            weights = rows_of(batch.weights, bits)
        if weights is None or len(weights) not in (1, count):
            return None
        codes = np.frombuffer(batch.codes, dtype=np.uint8).reshape(count, -1)
        ones = np.unpackbits(self.settings.to_engine(codes), axis=1, count=bits, bitorder="little").astype(bool)
        return list(np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1))

    def _are_valid(self, options: search_pb2.QueryOptions) -> bool:
        return (
            (not options.HasField("k") or 1 <= options.k <= MAX_K)
            and not math.isnan(options.radius)
            and 0 <= options.budget.seconds < math.inf
            and 0 <= options.plan <= 3
            and not (options.plan == search_pb2.PLAN_PROBE and self.settings.tables == "none")
        )


def rows_of(matrix: types_pb2.Matrix, columns: int) -> Floats | None:
    """Return weights or costs, or None if they are invalid."""
    if matrix.type not in _FLOATS or matrix.columns != columns:
        return None
    dtype = np.dtype(_FLOATS[matrix.type])
    if len(matrix.data) % (columns * dtype.itemsize):
        return None
    return np.frombuffer(matrix.data, dtype=dtype).reshape(-1, columns).astype(np.float64)


def places_of(batch: search_pb2.QueryBatch) -> Sequence[Place | None] | None:
    """Return the start position of each query, None for the beginning. Returns None if the columns are invalid."""
    count, distances, ids = len(batch.query_ids), batch.after_distances, batch.after_ids.uint64
    if not distances and not batch.after_sums and not batch.HasField("after_ids"):
        return [None] * count
    if len(distances) != count or len(ids) != 8 * count or any(map(math.isnan, distances)):
        return None
    if len(batch.after_sums) not in (0, 16 * count):
        return None
    sums = read_sums(batch.after_sums, count)
    places = map(place_of, distances, np.frombuffer(ids, dtype="<u8").tolist(), sums)
    return [None if place[0] == -math.inf else place for place in places]


def batch_of_once(request: search_pb2.SearchOnceRequest) -> search_pb2.QueryBatch:
    """Return the query of SearchOnce as a batch of one query."""
    batch = search_pb2.QueryBatch(index=request.index, query_ids=[0], codes=request.code, form=request.form)
    if request.weights:
        batch.weights.CopyFrom(pack_matrix([list(request.weights)], "<f8"))
    if request.table:
        batch.tables.CopyFrom(pack_matrix([list(request.table)], "<f8"))
    if request.vector:
        batch.vectors.CopyFrom(pack_matrix([list(request.vector)], "<f4"))
    if request.HasField("after"):
        batch.after_distances.append(request.after.distance)
        batch.after_ids.CopyFrom(pack_ids([request.after.id]))
        batch.after_sums = request.after.sum
    if request.HasField("options"):
        batch.options.CopyFrom(request.options)
        batch.options.ClearField("credit")
    batch.options.chunk_size = 2**32 - 1  # all hits come in one message
    return batch
