"""Messages to values and back, as only a client needs it; statuses to errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import grpc
import numpy as np
from google.rpc import error_details_pb2, status_pb2
from numpy.typing import ArrayLike, NDArray

from whamming import storage
from whamming.native import Budget, InvalidArgumentError, OutOfMemoryError, Plan, Stats, WhammingError
from whamming.native.budget import checked_budget
from whamming.service_errors import AnswerTooLargeError, DeadlineError, OverloadedError, ServiceError, UnavailableError
from whamming.storage import Rows
from whamming.storage.reranking import Rerank, check_factor
from whamming.storage.vectors.arrays import as_vectors
from whamming.storage.vectors.encoders import Encoder, Form, Kind
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.wire.packed import field_head
from whamming.wire.values import form_number, items_message, kind_number, plan_number, statistics_of, vectors_message

MESSAGE_BYTES: Final = 4 << 20
"""Items are sent in messages of at most about so many bytes."""
MOST_K: Final = 2**31 - 1
"""Of a query, on the wire; a search for more goes on where it stops."""
SAMPLE_BYTES: Final = 12 << 20
"""Of the sample that an encoder is made from; of a larger one, vectors are chosen at random."""
_STORED: Final = {"code": "u1", "weights": "<f8", "table": "<f8", "vector": "<f4"}
"""How the fields of a query are written."""


def batches(rows: Rows, vectors: NDArray[Any] | None = None) -> Iterator[item_pb2.ItemBatch]:
    """Pack items, whose codes are in the index's bit order, into messages of a moderate size.

    ``vectors``: what the server is to make the codes of; those of the rows are left out.
    """
    width = rows.codes.shape[1] if vectors is None else vectors.shape[1] * vectors.itemsize
    sizes = np.full(len(rows), 8 + width, dtype=np.int64)
    if rows.payloads is not None:
        ends = rows.payloads.ends.astype(np.int64)
        sizes += 4 + ends
        sizes[1:] -= ends[:-1]
    ends = np.cumsum(sizes)
    first = 0
    while first < len(rows):
        start = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + MESSAGE_BYTES, side="right")))
        message = items_message(rows if last - first == len(rows) else rows.take(np.arange(first, last)))
        if vectors is not None:
            message.codes = b""
            message.vectors.CopyFrom(vectors_message(vectors[first:last]))
        yield message
        first = last


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
    message = search_pb2.QueryOptions(plan=plan_number(plan), payloads=payloads)
    if k is not None:
        message.k = min(k, MOST_K)
    if radius is not None:
        message.radius = radius
    if credit is not None:
        message.credit = credit
    if budget is not None:
        message.budget.candidates, message.budget.seconds = checked_budget(budget)
    if rerank == "exact":
        message.rerank_exactly = True
    elif rerank is not None:
        message.rerank = check_factor(rerank)
    return message


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
            raise InvalidArgumentError("dim, train or centre without an encoder; say which: 'sign', 'lsh' or 'itq'")
        return None, b""
    if isinstance(encoder, Encoder):
        if train is not None or centre is not None or dim not in (None, encoder.dim):
            raise InvalidArgumentError(
                f"dim, train or centre with {encoder!r}, which is fitted already; leave them out"
            )
        return None, encoder.to_bytes()
    settings = index_pb2.EncoderSettings(kind=kind_number(encoder), dimension=dim or 0, seed=seed)
    if centre is not None:
        settings.centred = centre
    if train is not None:
        rows, _ = as_vectors(train, dim, "the sample's vectors")
        most = max(1, SAMPLE_BYTES // (rows.shape[1] * rows.itemsize))
        if len(rows) > most:
            rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]
        settings.sample.CopyFrom(vectors_message(rows))
    return settings, b""


class Queries:
    """Queries of one kind, without ids. Each is packed when it is asked for: while the server is at work on others."""

    def __init__(self, count: int, *, form: Form | None = None, **fields: NDArray[Any] | None) -> None:
        """Keep the numbers or bytes of ``count`` queries: of each field a row per query, or one for all."""
        self._count = count
        self._fields: list[tuple[bytes, bytes, int]] = []
        for name, numbers in fields.items():
            if numbers is not None:
                rows = np.ascontiguousarray(numbers, dtype=_STORED[name])
                width = rows.nbytes // count if rows.ndim > 1 and count else 0
                head = field_head(search_pb2.Query.DESCRIPTOR.fields_by_name[name].number, width or rows.nbytes)
                self._fields.append((head, rows.tobytes(), width))
        self._form = form_number(form)

    def __len__(self) -> int:
        """Return the number of queries."""
        return self._count

    def __getitem__(self, place: int) -> search_pb2.Query:
        """Return one query as a message."""
        pieces: list[bytes] = []
        for head, data, width in self._fields:
            pieces += head, data[place * width : (place + 1) * width] if width else data
        query = search_pb2.Query.FromString(b"".join(pieces))
        if self._form:
            query.form = self._form
        return query


class ManyStats(Sequence[Stats]):
    """What each query of a batch has cost; unpacked when it is looked at."""

    def __init__(self, messages: Sequence[search_pb2.QueryStatistics]) -> None:
        """Keep the messages."""
        self._messages = messages

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self._messages)

    def __getitem__(self, query: Any) -> Any:
        """Return the costs of one query, or of several."""
        if isinstance(query, slice):
            return ManyStats(self._messages[query])
        return statistics_of(self._messages[query])


_BY_REASON: Final[dict[str, type[WhammingError]]] = {
    "INVALID_ARGUMENT": InvalidArgumentError,
    "NO_TABLES": InvalidArgumentError,
    "NO_ENCODER": InvalidArgumentError,
    "INDEX_NOT_FOUND": storage.NotFoundError,
    "INDEX_EXISTS": storage.AlreadyExistsError,
    "READ_ONLY": storage.ReadOnlyError,
    "FORMAT": storage.FormatError,
    "STORAGE_FULL": storage.StorageFullError,
    "STORAGE": storage.StorageError,
    "CORRUPT": storage.CorruptStoreError,
    "OUT_OF_MEMORY": OutOfMemoryError,
    "INDEX_CLOSED": storage.ClosedError,
    "OVERLOADED": OverloadedError,
    "ANSWER_TOO_LARGE": AnswerTooLargeError,
    "SHUTTING_DOWN": UnavailableError,
    "WRITER_BUSY": UnavailableError,
}


def error_of(reason: str, message: str) -> WhammingError:
    """Return the error that the server refused something with: the same as in this process, where there is one."""
    return _BY_REASON.get(reason, ServiceError)(message)


def error_of_call(error: grpc.aio.AioRpcError) -> WhammingError:
    """Return what a failed call is to our users."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            for detail in status.details:
                info = error_details_pb2.ErrorInfo()
                if detail.Unpack(info) and info.domain == "whamming":
                    return error_of(info.reason, status.message)
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"no answer within the time given: {text}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"the server cannot be reached: {text}; is it running, and is the address right?")
    return ServiceError(f"{code.name}: {text}")
