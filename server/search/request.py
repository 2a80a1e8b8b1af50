"""One batch of queries as it arrived: columns of a message, and what the engine needs of them.

The event loop makes a request and reads its options. A worker then checks its columns against the index and turns rows
of them into costs. Nothing is copied until the engine rounds the costs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.native import Costs
from whamming.server.search.options import Options
from whamming.storage import Encoder, Form, IndexSettings, StoredIndex
from whamming.storage.stored_index import make_costs
from whamming.v1 import search_pb2
from whamming.wire.columns import ids_of, matrix_of
from whamming.wire.enums import COST_FORMS
from whamming.wire.fields import FieldError, in_field
from whamming.wire.service_errors import NoEncoderError, NoTablesError

_FLOATS: Final = (np.dtype("<f8"), np.dtype("<f4"))


class Group(NamedTuple):
    """What queries that can be searched together have in common."""

    index_name: str
    options: Options
    has_codes: bool
    has_weights: bool
    has_tables: bool
    form: int


class Given(NamedTuple):
    """The columns that say the costs of some queries; None: not given."""

    codes: NDArray[np.uint8] | None
    weights: NDArray[Any] | None
    tables: NDArray[Any] | None
    vectors: NDArray[Any] | None


class QueryRequest:
    """The queries of one message. Immutable once :meth:`check` has passed."""

    __slots__ = (
        "_checked",
        "_given",
        "_message",
        "after_distances",
        "after_ids",
        "arrived",
        "index",
        "options",
        "query_ids",
    )

    def __init__(self, message: search_pb2.QueryBatch, options: Options) -> None:
        """Take a message. Raises :class:`FieldError` where its columns cannot be read."""
        self.arrived = time.perf_counter()
        self.index = message.index
        self.options = options
        self.query_ids: list[int] = list(message.query_ids)
        self._message = message
        self._given: Given | None = None
        self._checked: IndexSettings | None = None
        self.after_distances: Sequence[float] = message.after_distances
        self.after_ids: Sequence[int] = ()
        if self.after_distances or message.HasField("after_ids"):
            self._read_resume_tokens(message)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.query_ids)

    def _read_resume_tokens(self, message: search_pb2.QueryBatch) -> None:
        count = len(self)
        self.after_ids = ids_of(message.after_ids, "after_ids").tolist()
        for field, values in (("after_distances", self.after_distances), ("after_ids", self.after_ids)):
            if len(values) != count:
                raise FieldError(field, f"{field} has {len(values)} values for {count} queries; give one per query")
        if np.isnan(self.after_distances).any():
            raise FieldError("after_distances", "a distance in after_distances is nan; send what a search has returned")

    def after(self, row: int) -> tuple[float, int] | None:
        """Return the place that a query continues after; None: it starts at the beginning."""
        if not self.after_distances or self.after_distances[row] == -np.inf:
            return None
        return self.after_distances[row], self.after_ids[row]

    @property
    def group(self) -> Group | None:
        """Which other queries these can be searched together with; None: each needs a cursor of its own."""
        message, options = self._message, self.options
        if self.after_distances or not options.can_be_grouped:
            return None
        has_tables = message.HasField("tables")
        return Group(self.index, options, bool(message.codes), message.HasField("weights"), has_tables, message.form)

    def check(self, index: StoredIndex) -> None:
        """Check the columns against the index. Raises :class:`FieldError` for the first that is wrong."""
        settings = index.settings
        if self._checked == settings:
            return
        message, options, count, bits = self._message, self.options, len(self), settings.bits
        if options.plan == "probe" and settings.tables == "none":
            raise NoTablesError("plan = PROBE needs tables; the index was created with TABLES_NONE")
        codes = weights = tables = vectors = None
        if message.codes:
            width = settings.code_bytes
            if len(message.codes) != count * width:
                raise FieldError(
                    "codes",
                    f"codes has {len(message.codes)} bytes for {count} queries; codes of {bits} bits have {width} each",
                )
            codes = np.frombuffer(message.codes, dtype=np.uint8).reshape(count, width)
        if message.HasField("weights"):
            weights = _costs_matrix(message.weights, "weights", bits, bits)
            if len(weights) not in (1, count):
                raise FieldError(
                    "weights", f"weights has {len(weights)} rows for {count} queries; give one each, or one for all"
                )
            weights = np.broadcast_to(weights, (count, bits))
        if message.HasField("tables"):
            if codes is not None or weights is not None:
                raise FieldError("tables", "queries have cost tables and codes or weights; give one or the other")
            tables = _costs_matrix(message.tables, "tables", 2 * bits, bits)
            _check_rows("tables", tables, count)
        if message.HasField("vectors"):
            if codes is not None or tables is not None:
                raise FieldError("vectors", "queries have vectors and codes or cost tables; give one of them")
            vectors = matrix_of(message.vectors, "vectors")
            dim = need_encoder(index).dim
            if vectors.shape[1] != dim:
                raise FieldError("vectors", f"vectors has {vectors.shape[1]} columns; the index's encoder takes {dim}")
            _check_rows("vectors", vectors, count)
            self._check_vectors(index)
        elif message.form:
            raise FieldError("form", f"form = {message.form} without vectors; it says how costs are made from them")
        elif codes is None and tables is None:
            raise FieldError("codes", "queries have no codes, cost tables or vectors; give one of them")
        self._given = Given(codes, weights, tables, vectors)
        self._checked = settings

    def _check_vectors(self, index: StoredIndex) -> None:
        COST_FORMS.word("form", self._message.form)
        if self.options.rerank is None:
            return
        if self.after_distances or self._message.HasField("weights"):
            raise FieldError("options.rerank", "re-ranking takes neither weights nor a resume token; leave them out")
        if index.settings.keep_vectors is None:
            raise NoEncoderError(f"re-ranking needs kept vectors; the index {index.name} was created without them")

    @property
    def form(self) -> Form | None:
        """How costs are made from vectors; None: as the encoder does by default."""
        return COST_FORMS.word("form", self._message.form)

    def given(self, rows: slice) -> Given:
        """Return the columns of some queries; :meth:`check` has passed."""
        assert self._given is not None
        return Given(*(None if column is None else column[rows] for column in self._given))

    def vector(self, row: int) -> NDArray[Any]:
        """Return a query's vector, or refuse to re-rank without one."""
        assert self._given is not None
        if self._given.vectors is None:
            raise FieldError("options.rerank", "re-ranking needs a vector; these queries have none")
        return np.asarray(self._given.vectors[row])


def joined(parts: Sequence[Given]) -> Given:
    """Return the columns of several requests that belong to one group, end to end."""
    if len(parts) == 1:
        return parts[0]
    return Given(*(None if columns[0] is None else np.concatenate(columns) for columns in zip(*parts, strict=True)))


def costs_of(given: Given, settings: IndexSettings, encoder: Encoder | None, form: Form | None) -> Costs:
    """Return the costs of queries as a batch. Raises :class:`FieldError` where one is not finite."""
    codes, weights, tables, vectors = given
    if tables is not None:
        with in_field("tables"):
            return Costs.table(tables.reshape(len(tables), settings.bits, 2))
    if vectors is not None:
        assert encoder is not None
        if weights is None:
            with in_field("vectors"):
                return encoder.costs(vectors, form)
        with in_field("weights"):
            rows = [encoder.cost_table(vector, form, weights=row) for vector, row in zip(vectors, weights, strict=True)]
            return Costs.table(np.stack(rows))
    with in_field("weights"):
        return make_costs(settings, codes, weights, None)


def need_encoder(index: StoredIndex) -> Encoder:
    """Return the encoder of an index that is given vectors."""
    if index.encoder is None:
        raise NoEncoderError(f"the index {index.name} has no encoder; send codes, or create it with an encoder")
    return index.encoder


def _costs_matrix(message: Any, field: str, columns: int, bits: int) -> NDArray[Any]:
    rows = matrix_of(message, field)
    if rows.dtype not in _FLOATS:
        raise FieldError(f"{field}.type", f"{field} has numbers of type {rows.dtype.name}; use float64 or float32")
    if rows.shape[1] != columns:
        raise FieldError(field, f"{field} has {rows.shape[1]} columns; codes of {bits} bits need {columns}")
    return rows


def _check_rows(field: str, rows: NDArray[Any], count: int) -> None:
    if len(rows) != count:
        raise FieldError(field, f"{field} has {len(rows)} rows for {count} queries; give one per query")
