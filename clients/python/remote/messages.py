"""What clients send, as messages. Only what is needed to pack is checked here; the server decides what is valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Budget, InvalidArgumentError, Plan
from whamming.native.arguments import as_whole, check_radius
from whamming.native.budget import checked_budget
from whamming.native.costs import as_array
from whamming.storage import Encoder, Form, Kind, Payloads, Rerank
from whamming.storage.items.rows import as_ids, as_payloads
from whamming.storage.reranking import check_factor
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.wire.columns import id_column, matrix, payload_column
from whamming.wire.enums import COST_FORMS, ENCODER_KINDS, PLANS

MESSAGE_BYTES: Final = 4 << 20
"""Items and queries are sent in messages of at most about so many bytes."""
MAX_K: Final = 2**31 - 1
"""Of a query, on the wire. A search for more goes on where it stops."""
SAMPLE_BYTES: Final = 12 << 20
"""Of the sample that an encoder is fitted to. Of a larger one, vectors are chosen at random."""
_VECTOR_DTYPES: Final = ("float32", "float16", "float64", "int8", "uint8")


class Queries:
    """Queries of one kind as columns, to be sent as messages."""

    def __init__(
        self,
        code: ArrayLike | None,
        weights: ArrayLike | None,
        table: ArrayLike | None,
        vectors: ArrayLike | None,
        form: Form | None,
    ) -> None:
        """Take what the user gave: one query, or several in a batch dimension."""
        self._codes = None if code is None else _rows(as_array(code, "query codes"), 1, "the query codes")
        self._tables = None if table is None else _tables(as_array(table, "costs", np.float64))
        self._vectors = None if vectors is None else _rows(as_vectors(vectors), 1, "the vectors")
        self._weights = None if weights is None else _rows(as_array(weights, "weights", np.float64), 1, "the weights")
        self._form = COST_FORMS.number("costs", form)
        self.single = all(
            value is None or np.ndim(value) == dimensions
            for value, dimensions in ((code, 1), (weights, 1), (table, 2), (vectors, 1))
        )
        """There is one query, without a batch dimension."""
        given = [rows for rows in (self._codes, self._tables, self._vectors) if rows is not None]
        count = len(given[0]) if given else 1
        if count == 1 and self._weights is not None and self._codes is not None:  # one code with several weights
            count = len(self._weights)
            self._codes = np.broadcast_to(self._codes, (count, self._codes.shape[1]))
        self._count = count

    def __len__(self) -> int:
        """Return the number of queries."""
        return self._count

    @property
    def bytes_each(self) -> int:
        """About what a query takes in a message."""
        columns = (self._codes, self._tables, self._vectors, self._weights)
        return 16 + sum(int(rows.shape[1]) * rows.itemsize for rows in columns if rows is not None)

    def message(self, index: str, rows: NDArray[np.int64], options: search_pb2.QueryOptions) -> search_pb2.QueryBatch:
        """Pack the queries at some places. Their ids are these places."""
        batch = search_pb2.QueryBatch(index=index, query_ids=rows.tolist(), form=self._form, options=options)
        if self._codes is not None:
            if self._codes.dtype != np.uint8:
                raise InvalidArgumentError(
                    f"query codes have dtype {self._codes.dtype}, not uint8; pack booleans with "
                    "np.packbits(x, axis=-1, bitorder='little')"
                )
            batch.codes = self._codes[rows].tobytes()
        if self._weights is not None:
            shared = len(self._weights) == 1
            batch.weights.CopyFrom(matrix(self._weights if shared else self._weights[rows]))
        if self._tables is not None:
            batch.tables.CopyFrom(matrix(self._tables[rows]))
        if self._vectors is not None:
            batch.vectors.CopyFrom(matrix(self._vectors[rows]))
        return batch


def _rows(array: NDArray[Any], dimensions: int, what: str) -> NDArray[Any]:
    """Return an array with a batch dimension."""
    if array.ndim not in (dimensions, dimensions + 1) or array.shape[-1] == 0:
        raise InvalidArgumentError(f"{what} have shape {array.shape}; give one row, or one row per query")
    return array[None] if array.ndim == dimensions else array


def _tables(array: NDArray[np.float64]) -> NDArray[np.float64]:
    if array.ndim not in (2, 3) or array.shape[-1] != 2:
        raise InvalidArgumentError(f"the cost table has shape {array.shape}; it must be [bits, 2] or [q, bits, 2]")
    return array.reshape(1 if array.ndim == 2 else len(array), -1)


def as_vectors(vectors: ArrayLike, what: str = "vectors") -> NDArray[Any]:
    """Return vectors in a type that the wire has."""
    array = as_array(vectors, what)
    if array.dtype.name not in _VECTOR_DTYPES:
        raise InvalidArgumentError(
            f"{what} have dtype {array.dtype}; use one of {', '.join(_VECTOR_DTYPES)}, such as x.astype(np.float32)"
        )
    return array


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
    """Pack what is wanted of a query."""
    check_radius(radius)
    message = search_pb2.QueryOptions(plan=PLANS.number("plan", plan), payloads=bool(payloads), radius=radius)
    if k is not None:
        message.k = min(k, MAX_K)
    if credit is not None:
        message.credit = credit
    if budget is not None:
        message.budget.candidates, message.budget.seconds = checked_budget(budget)
    if rerank == "exact":
        message.rerank_exactly = True
    elif rerank is not None:
        message.rerank = check_factor(rerank)
    return message


def item_messages(
    ids: ArrayLike,
    codes: ArrayLike | None,
    payloads: Sequence[bytes | None] | Payloads | None,
    vectors: ArrayLike | None,
) -> Iterator[item_pb2.ItemBatch]:
    """Pack items into messages of a moderate size. Everything is packed before the first one is sent."""
    own = as_ids(ids)
    count = len(own)
    columns: dict[str, NDArray[Any]] = {}
    if codes is not None:
        columns["codes"] = _rows_of_items(as_array(codes, "codes"), count, "codes")
        if columns["codes"].dtype != np.uint8 and count:
            raise InvalidArgumentError(
                f"codes have dtype {columns['codes'].dtype}, not uint8; pack booleans with "
                "np.packbits(x, axis=-1, bitorder='little')"
            )
    if vectors is not None:
        columns["vectors"] = _rows_of_items(as_vectors(vectors), count, "vectors")
    if not columns and count:
        raise InvalidArgumentError("items without codes; give codes, or vectors if the index has an encoder")
    packed = as_payloads(payloads, count)
    sizes = np.full(count, 8 + sum(rows.shape[1] * rows.itemsize for rows in columns.values()), dtype=np.int64)
    if packed is not None:
        sizes += 4 + packed.lengths.astype(np.int64)
    ends = np.cumsum(sizes)
    first = 0
    while first < count:
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + MESSAGE_BYTES, side="right")))
        piece = slice(first, last)
        message = item_pb2.ItemBatch(ids=id_column(own[piece]))
        if "codes" in columns:
            message.codes = columns["codes"][piece].tobytes()
        if "vectors" in columns:
            message.vectors.CopyFrom(matrix(columns["vectors"][piece]))
        if packed is not None:
            message.payloads.CopyFrom(payload_column(packed.take(np.arange(first, min(last, count)))))
        yield message
        first = last


def _rows_of_items(array: NDArray[Any], count: int, what: str) -> NDArray[Any]:
    if array.size == 0 and count == 0:
        return array.reshape(0, 0)
    if array.ndim != 2 or len(array) != count:
        raise InvalidArgumentError(f"{what} have shape {array.shape} for {count} ids; give one row per id")
    return array


def encoder_messages(
    encoder: Kind | Encoder | None,
    dim: int | None,
    train: ArrayLike | None,
    seed: int,
    centre: bool | None,
) -> tuple[index_pb2.EncoderSettings | None, bytes]:
    """Pack the encoder that an index is to have: how to make it, or one that is made."""
    if encoder is None:
        if dim is not None or train is not None or centre is not None:
            raise InvalidArgumentError("dim, train or centre without an encoder; say which: sign, lsh or itq")
        return None, b""
    if isinstance(encoder, Encoder):
        if train is not None or centre is not None or dim not in (None, encoder.dim):
            raise InvalidArgumentError(
                f"dim, train or centre with {encoder!r}, which is fitted already; leave them out"
            )
        return None, encoder.to_bytes()
    settings = index_pb2.EncoderSettings(
        kind=ENCODER_KINDS.number("encoder", encoder),
        dimension=0 if dim is None else as_whole("dim", dim),
        seed=as_whole("seed", seed),
    )
    if centre is not None:
        settings.centred = centre
    if train is not None:
        rows = as_vectors(train, "the sample's vectors")
        if rows.ndim != 2:
            raise InvalidArgumentError(f"the sample's vectors have shape {rows.shape}; give [n, dim]")
        most = max(1, SAMPLE_BYTES // max(1, rows.shape[1] * rows.itemsize))
        if len(rows) > most:
            rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]
        settings.sample.CopyFrom(matrix(rows))
    return settings, b""
