"""One batch of queries: the columns of its message, and their conversion into costs for the engine.

The event loop creates a request. It reads each column once, as an array over the bytes of the message. A worker then
checks the columns against the index and converts rows into costs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.native import Costs, NoTablesError, Position
from whamming.server.search.options import Options
from whamming.storage import Encoder, Form, IndexSettings, NoEncoderError, StoredIndex
from whamming.storage.vectors.steps import Steps, finish
from whamming.v1 import search_pb2
from whamming.wire.columns import ids_of, matrix_of, sum_list_of
from whamming.wire.enums import COST_FORMS
from whamming.wire.fields import FieldError, in_field

QUERY_BYTES: Final = 1024
"""Approximate size of a query's state, besides its columns."""
_FLOATS: Final = (np.dtype("<f8"), np.dtype("<f4"))


class Group(NamedTuple):
    """What the queries of a group have in common. Queries with equal groups can be searched together."""

    index_name: str
    options: Options
    has_codes: bool
    has_weights: bool
    has_tables: bool
    form: int


class CostColumns(NamedTuple):
    """The columns that define the costs of some queries. None: not given."""

    codes: NDArray[np.uint8] | None
    weights: NDArray[Any] | None
    tables: NDArray[Any] | None
    vectors: NDArray[Any] | None


class QueryRequest:
    """The queries of one message."""

    __slots__ = (
        "_checked",
        "_codes",
        "_columns",
        "_form",
        "_tables",
        "_vectors",
        "_weights",
        "after_distances",
        "after_ids",
        "after_sums",
        "arrived",
        "index",
        "nbytes",
        "options",
        "query_ids",
        "unfinished",
    )

    def __init__(self, message: search_pb2.QueryBatch, options: Options) -> None:
        """Read the columns of a message. Raises :class:`FieldError` if one is malformed."""
        self.arrived = time.perf_counter()
        self.index = message.index
        self.options = options
        self.query_ids: list[int] = list(message.query_ids)
        self.unfinished = len(self.query_ids)
        """Number of queries that have not ended."""
        self._form = message.form
        self._codes = message.codes
        self._weights = self._tables = self._vectors = None
        self.nbytes = len(self._codes) + len(self.index) + QUERY_BYTES * len(self.query_ids)
        """Approximate size in memory. It is kept until all queries have ended."""
        if message.HasField("weights"):
            self._weights = matrix_of(message.weights, "weights")
            self.nbytes += self._weights.nbytes
        if message.HasField("tables"):
            self._tables = matrix_of(message.tables, "tables")
            self.nbytes += self._tables.nbytes
        if message.HasField("vectors"):
            self._vectors = matrix_of(message.vectors, "vectors")
            self.nbytes += self._vectors.nbytes
        self._columns: CostColumns | None = None
        self._checked: IndexSettings | None = None
        # This is a copy, because a reference to a field of the message would keep the whole message in memory.
        self.after_distances: Sequence[float] = ()
        self.after_ids: Sequence[int] = ()
        self.after_sums: Sequence[bytes] = ()
        if message.after_distances or message.after_sums or message.HasField("after_ids"):
            self._read_resume_tokens(message)

    def __len__(self) -> int:
        return len(self.query_ids)

    def _read_resume_tokens(self, message: search_pb2.QueryBatch) -> None:
        count, ids = len(self), ids_of(message.after_ids, "after_ids")
        for field, values in (("after_distances", len(message.after_distances)), ("after_ids", len(ids))):
            if values != count:
                raise FieldError(field, f"{field} has {values} values for {count} queries; give one per query")
        self.after_distances = list(message.after_distances)
        if np.isnan(self.after_distances).any():
            raise FieldError(
                "after_distances", "a number in after_distances is nan; use the distance of a resume token"
            )
        self.after_ids, self.after_sums = ids.tolist(), sum_list_of(message.after_sums, count, "after_sums")

    def after(self, row: int) -> Position | None:
        """Return the position that a query continues after, or None. Call it only if there are resume tokens."""
        if self.after_distances[row] == -np.inf:
            return None
        return self.after_distances[row], self.after_ids[row], self.after_sums[row]

    @property
    def group(self) -> Group | None:
        """The group of these queries, or None if each needs a cursor of its own."""
        if self.after_distances or not self.options.can_be_grouped:
            return None
        has_weights, has_tables = self._weights is not None, self._tables is not None
        return Group(self.index, self.options, bool(self._codes), has_weights, has_tables, self._form)

    def check(self, index: StoredIndex) -> None:
        """Check the columns against the index. Raises :class:`FieldError` for the first invalid one."""
        settings = index.settings
        if self._checked == settings:
            return
        count, bits, tables, vectors = len(self), settings.bits, self._tables, self._vectors
        if self.options.plan == "probe" and settings.tables == "none":
            raise NoTablesError("plan = PROBE needs tables; the index was created with TABLES_NONE")
        codes = weights = None
        if self._codes:
            width, size = settings.code_bytes, len(self._codes)
            if size != count * width:
                raise FieldError(
                    "codes", f"codes has {size} bytes for {count} queries; codes of {bits} bits have {width} each"
                )
            codes = np.frombuffer(self._codes, dtype=np.uint8).reshape(count, width)
        if self._weights is not None:
            _check_costs("weights", self._weights, bits, bits)
            if len(self._weights) not in (1, count):
                raise FieldError(
                    "weights",
                    f"weights has {len(self._weights)} rows for {count} queries; give one per query, or one for all",
                )
            weights = np.broadcast_to(self._weights, (count, bits))
        if tables is not None:
            if codes is not None or weights is not None:
                raise FieldError("tables", "queries have cost tables and codes or weights; give one or the other")
            _check_costs("tables", tables, 2 * bits, bits)
            _check_rows("tables", tables, count)
        if vectors is not None:
            if codes is not None or tables is not None:
                raise FieldError("vectors", "queries have vectors and codes or cost tables; give one of them")
            dim = need_encoder(index).dim
            if vectors.shape[1] != dim:
                raise FieldError("vectors", f"vectors has {vectors.shape[1]} columns; the index's encoder takes {dim}")
            _check_rows("vectors", vectors, count)
            self._check_vectors(index)
        elif self._form:
            raise FieldError("form", f"form = {self._form} without vectors; leave it unspecified")
        elif codes is None and tables is None:
            raise FieldError("codes", "queries have no codes, cost tables or vectors; give one of them")
        self._columns = CostColumns(codes, weights, tables, vectors)
        self._checked = settings

    def _check_vectors(self, index: StoredIndex) -> None:
        COST_FORMS.word("form", self._form)
        if self.options.rerank is None:
            return
        if self.after_distances or self._weights is not None:
            raise FieldError(
                "options.rerank", "re-ranking cannot be combined with weights or a resume token; leave them out"
            )
        if index.settings.keep_vectors is None:
            raise NoEncoderError(
                f"the index {index.name!r} keeps no vectors to re-rank by; create it with keep_vectors"
            )

    @property
    def has_vectors(self) -> bool:
        """Whether the queries are vectors, which the encoder of the index projects."""
        return self._vectors is not None

    @property
    def form(self) -> Form | None:
        """How the encoder computes costs from vectors. None: the default of the encoder."""
        return COST_FORMS.word("form", self._form)

    def columns(self, first: int, end: int) -> CostColumns:
        """Return the columns of the queries from ``first`` to ``end``, exclusive. Call :meth:`check` first."""
        assert self._columns is not None
        if end - first == len(self.query_ids):
            return self._columns
        return CostColumns(*[None if column is None else column[first:end] for column in self._columns])

    def vector(self, row: int) -> NDArray[Any]:
        """Return the vector of a query for re-ranking. Raises :class:`FieldError` if there is none."""
        if self._vectors is None:
            raise FieldError("options.rerank", "re-ranking needs vectors; these queries have none")
        return np.asarray(self._vectors[row])


def joined(parts: Sequence[CostColumns]) -> CostColumns:
    """Concatenate the columns of several requests of one group."""
    if len(parts) == 1:
        return parts[0]
    pairs = zip(*parts, strict=True)
    return CostColumns(*(None if columns[0] is None else np.concatenate(columns) for columns in pairs))


def costs_of(columns: CostColumns, settings: IndexSettings, encoder: Encoder | None, form: Form | None) -> Costs:
    """Return the costs of queries as a batch. Raises :class:`FieldError` if one is not finite."""
    return finish(computing_costs(columns, settings, encoder, form))


def computing_costs(
    columns: CostColumns, settings: IndexSettings, encoder: Encoder | None, form: Form | None
) -> Steps[Costs]:
    """Compute the same as :func:`costs_of` in short steps.

    One query is converted as a single query, so that errors do not number it: its client knows it by its query id.
    """
    codes, weights, tables, vectors = (
        column[0] if column is not None and len(column) == 1 else column for column in columns
    )
    if tables is not None:
        with in_field("tables"):
            return Costs.table(tables.reshape(*tables.shape[:-1], settings.bits, 2))
    if vectors is not None:
        assert encoder is not None
        if vectors.ndim == 1:
            with in_field("vectors" if weights is None else "weights"):
                return Costs.table((yield from encoder.costing(vectors, form, weights=weights)))
        if weights is None:
            with in_field("vectors"):
                return Costs.table((yield from encoder.costing(vectors, form)))
        with in_field("weights"):
            rows = []
            for vector, row in zip(vectors, weights, strict=True):
                rows.append((yield from encoder.costing(vector, form, weights=row)))
            return Costs.table(np.stack(rows))
    assert codes is not None
    codes = settings.to_engine(codes)
    with in_field("weights"):
        return Costs.hamming(codes, settings.bits) if weights is None else Costs.weights(codes, weights)


def need_encoder(index: StoredIndex) -> Encoder:
    """Return the encoder of an index. Raises :class:`NoEncoderError` if it has none."""
    if index.encoder is None:
        raise NoEncoderError(
            f"the index {index.name!r} has no encoder; give codes, or create the index with an encoder"
        )
    return index.encoder


def _check_costs(field: str, rows: NDArray[Any], columns: int, bits: int) -> None:
    if rows.dtype not in _FLOATS:
        raise FieldError(f"{field}.type", f"{field} has numbers of type {rows.dtype.name}; use float64 or float32")
    if rows.shape[1] != columns:
        raise FieldError(field, f"{field} has {rows.shape[1]} columns; codes of {bits} bits need {columns}")


def _check_rows(field: str, rows: NDArray[Any], count: int) -> None:
    if len(rows) != count:
        raise FieldError(field, f"{field} has {len(rows)} rows for {count} queries; give one per query")
