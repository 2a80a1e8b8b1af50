"""Packs queries into messages. It checks what the client can know; the server checks the rest."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Budget, InvalidArgumentError, Plan, Position
from whamming.native.arguments import check_flag, check_plan, check_radius, checked_position
from whamming.native.budget import checked_budget
from whamming.native.costs import as_array, as_numbers, remedy_for
from whamming.storage import Form, IndexSettings, Rerank
from whamming.storage.reranking import check_factor, check_k
from whamming.storage.search import as_query_codes, as_weights, check_single
from whamming.storage.storage_errors import no_encoder
from whamming.storage.vectors.arrays import as_vectors
from whamming.v1 import search_pb2
from whamming.wire.columns import id_column, matrix
from whamming.wire.enums import COST_FORMS, PLANS

MAX_K: Final = 2**31 - 1
"""Largest k of a query on the wire. A search for more hits continues with another query."""


def check_shapes(
    index: str,
    settings: IndexSettings,
    code: ArrayLike | None,
    weights: ArrayLike | None,
    table: ArrayLike | None,
    vectors: ArrayLike | None,
) -> None:
    """Raise the errors of a database in this process for queries that do not fit the index.

    Cost tables, and queries of more than one kind, are not checked here.
    """
    if vectors is not None:
        if settings.dim is None:
            raise no_encoder(index)
        as_vectors(vectors, settings.dim)
    elif table is None:
        as_query_codes(settings, code)
        if weights is not None:
            as_weights(settings, weights)


class Queries:
    """Queries of one kind, stored as columns."""

    def __init__(
        self,
        code: ArrayLike | None,
        weights: ArrayLike | None,
        table: ArrayLike | None,
        vectors: ArrayLike | None,
        form: Form | None,
    ) -> None:
        """Take one query, or several along a leading batch dimension."""
        self._codes = None if code is None else _codes(as_array(code, "query codes"))
        self._tables = None if table is None else _tables(as_numbers(table, "costs"))
        self._vectors = None if vectors is None else as_vectors(vectors)[0]
        self._weights = None if weights is None else _rows(as_numbers(weights, "weights"), 1, "the weights")
        self._form = COST_FORMS.number("costs", form)
        if form is not None and vectors is None:
            raise InvalidArgumentError(f"costs = {form!r} without a vector; costs are computed from a vector")
        self.single = all(
            value is None or np.ndim(value) == dimensions
            for value, dimensions in ((code, 1), (weights, 1), (table, 2), (vectors, 1))
        )
        """True if there is one query, without a batch dimension."""
        given = [rows for rows in (self._codes, self._tables, self._vectors) if rows is not None]
        if len(given) > 1:
            raise InvalidArgumentError("more than one kind of query given; give a code, a cost table or a vector")
        count = len(given[0]) if given else 1
        if count == 1 and self._weights is not None and self._codes is not None:  # one code, several rows of weights
            count = len(self._weights)
            self._codes = np.broadcast_to(self._codes, (count, self._codes.shape[1]))
        if self._weights is not None and len(self._weights) not in (1, count):
            raise InvalidArgumentError(
                f"weights have {len(self._weights)} rows for {count} queries; give one row per query, or one for all"
            )
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property
    def bytes_each(self) -> int:
        """Approximate size of a query in a message."""
        columns = (self._codes, self._tables, self._vectors, self._weights)
        return 16 + sum(int(rows.shape[1]) * rows.itemsize for rows in columns if rows is not None)

    def request(
        self, index: str, rows: NDArray[np.int64], options: search_pb2.QueryOptions
    ) -> search_pb2.SearchRequest:
        """Pack the queries of some rows. A query's id is its row."""
        request = search_pb2.SearchRequest()
        batch = request.queries
        batch.index, batch.form = index, self._form
        batch.query_ids[:] = rows.tolist()
        batch.options.CopyFrom(options)
        if self._codes is not None:
            batch.codes = self._codes[rows].tobytes()
        if self._weights is not None:
            shared = len(self._weights) == 1
            batch.weights.CopyFrom(matrix(self._weights if shared else self._weights[rows]))
        if self._tables is not None:
            batch.tables.CopyFrom(matrix(self._tables[rows]))
        if self._vectors is not None:
            batch.vectors.CopyFrom(matrix(self._vectors[rows]))
        return request


def _rows(array: NDArray[Any], dimensions: int, what: str) -> NDArray[Any]:
    """Return an array with a batch dimension."""
    if array.ndim not in (dimensions, dimensions + 1) or array.shape[-1] == 0:
        raise InvalidArgumentError(f"{what} have shape {array.shape}; give a single row, or one row per query")
    return array[None] if array.ndim == dimensions else array


def _codes(array: NDArray[Any]) -> NDArray[Any]:
    rows = _rows(array, 1, "the query codes")
    if rows.dtype != np.uint8:
        raise InvalidArgumentError(f"query codes have dtype {rows.dtype}, not uint8; {remedy_for(rows.dtype)}")
    return rows


def _tables(array: NDArray[Any]) -> NDArray[Any]:
    if array.ndim not in (2, 3) or array.shape[-1] != 2:
        raise InvalidArgumentError(f"the cost table has shape {array.shape}; it must be [bits, 2] or [q, bits, 2]")
    return array.reshape(1 if array.ndim == 2 else len(array), -1)


def options_message(
    k: int | None,
    radius: float | None,
    plan: Plan,
    *,
    payloads: bool = False,
    budget: Budget | None = None,
    credit: int | None = None,
    rerank: Rerank | None = None,
) -> search_pb2.QueryOptions:
    check_radius(radius)
    check_plan(plan, can_probe=True)  # the server knows whether the index has tables
    flag = check_flag("payloads", payloads)
    message = search_pb2.QueryOptions(plan=PLANS.number("plan", plan), payloads=flag, radius=radius, statistics=True)
    if k is not None:
        message.k = min(k, MAX_K)
    if credit is not None:
        message.credit = credit
    if budget is not None:
        message.budget.candidates, message.budget.seconds = checked_budget(budget)
    if rerank is not None and k is not None:
        check_k(k)
    if rerank == "exact":
        message.rerank_exactly = True
    elif rerank is not None:
        message.rerank = check_factor(rerank)
        if k is None:
            raise InvalidArgumentError(f"rerank = {rerank} without k; give k, as k x {rerank} items are re-ranked")
    return message


def query_request(
    index: str, queries: Queries, options: search_pb2.QueryOptions, after: Position | None
) -> search_pb2.SearchRequest:
    """Pack a single query. ``after`` is the hit after which it continues."""
    check_single(len(queries), single=queries.single)
    request = queries.request(index, np.zeros(1, dtype=np.int64), options)
    if after is not None:
        distance, last_id, sum_of_costs = checked_position(after)
        request.queries.after_distances.append(distance)
        request.queries.after_ids.CopyFrom(id_column(np.array([last_id], dtype=np.uint64)))
        request.queries.after_sums = sum_of_costs
    return request
