"""The one table that turns errors into gRPC statuses, and statuses' details that programs can read.

A status carries a ``google.rpc.ErrorInfo`` (domain ``whamming``, a stable reason), a ``BadRequest`` that names the
field where one is at fault, and a ``RetryInfo`` where trying again later makes sense.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc_status import rpc_status

from whamming import storage
from whamming.native import CorruptIndexError, InvalidArgumentError, OutOfMemoryError, WhammingError

log = logging.getLogger("whamming.server")

DOMAIN: Final = "whamming"
MESSAGE_BYTES: Final = 1000
"""Of an error's text. It is sent up to three times in the trailers, where clients take 8 KiB in all by default."""


class OverloadedError(WhammingError):
    """The server has as much to do as it takes on."""


class AnswerTooLargeError(WhammingError):
    """An answer does not fit into one message."""


class ShuttingDownError(WhammingError):
    """The server stops."""


class NoTablesError(InvalidArgumentError):
    """Probing was asked of an index without tables."""


class NoEncoderError(InvalidArgumentError):
    """A vector was brought to an index without an encoder."""


@dataclass(frozen=True)
class Refusal:
    """What an error is to a client."""

    code: int
    """A ``google.rpc.Code``."""
    reason: str
    message: str
    field: str = ""
    retry_seconds: float = 0.0

    def status(self) -> status_pb2.Status:
        """Return the rich status."""
        details: list[Any] = [error_details_pb2.ErrorInfo(reason=self.reason, domain=DOMAIN)]
        if self.field:
            violation = error_details_pb2.BadRequest.FieldViolation(field=self.field, description=self.message)
            details.append(error_details_pb2.BadRequest(field_violations=[violation]))
        if self.retry_seconds:
            delay = duration_pb2.Duration(nanos=int(self.retry_seconds * 1e9) % 10**9, seconds=int(self.retry_seconds))
            details.append(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=self.code, message=self.message)
        for detail in details:
            packed = any_pb2.Any()
            packed.Pack(detail)
            status.details.append(packed)
        return status


_TABLE: Final[tuple[tuple[type[BaseException], int, str], ...]] = (
    # The first that matches counts.
    (NoTablesError, code_pb2.FAILED_PRECONDITION, "NO_TABLES"),
    (NoEncoderError, code_pb2.FAILED_PRECONDITION, "NO_ENCODER"),
    (InvalidArgumentError, code_pb2.INVALID_ARGUMENT, "INVALID_ARGUMENT"),
    (storage.NotFoundError, code_pb2.NOT_FOUND, "INDEX_NOT_FOUND"),
    (storage.AlreadyExistsError, code_pb2.ALREADY_EXISTS, "INDEX_EXISTS"),
    (storage.ReadOnlyError, code_pb2.FAILED_PRECONDITION, "READ_ONLY"),
    (storage.WriterBusyError, code_pb2.UNAVAILABLE, "WRITER_BUSY"),
    (storage.FormatError, code_pb2.FAILED_PRECONDITION, "FORMAT"),
    (storage.CorruptStoreError, code_pb2.DATA_LOSS, "CORRUPT"),
    (storage.StorageFullError, code_pb2.RESOURCE_EXHAUSTED, "STORAGE_FULL"),
    (storage.ClosedError, code_pb2.ABORTED, "INDEX_CLOSED"),
    (storage.StorageError, code_pb2.INTERNAL, "STORAGE"),
    (CorruptIndexError, code_pb2.DATA_LOSS, "CORRUPT"),
    (OutOfMemoryError, code_pb2.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY"),
    (MemoryError, code_pb2.RESOURCE_EXHAUSTED, "OUT_OF_MEMORY"),
    (OverloadedError, code_pb2.RESOURCE_EXHAUSTED, "OVERLOADED"),
    (AnswerTooLargeError, code_pb2.RESOURCE_EXHAUSTED, "ANSWER_TOO_LARGE"),
    (ShuttingDownError, code_pb2.UNAVAILABLE, "SHUTTING_DOWN"),
)
_RETRY_SECONDS: Final = {"OVERLOADED": 0.5, "WRITER_BUSY": 1.0, "SHUTTING_DOWN": 1.0}


def refusal(error: BaseException) -> Refusal:
    """Return what an error is to a client; one that nobody foresaw is logged with its traceback."""
    for kind, code, reason in _TABLE:
        if isinstance(error, kind):
            field = getattr(error, "field", "")
            return Refusal(code, reason, shortened(str(error)), field, _RETRY_SECONDS.get(reason, 0.0))
    log.error("unforeseen error", exc_info=error)
    return Refusal(code_pb2.INTERNAL, "INTERNAL", "the server failed; its log says why")


def shortened(text: str) -> str:
    """Return a text of moderate size: without its middle, where a value that is far too long stands, if need be."""
    data = text.encode()
    if len(data) <= MESSAGE_BYTES:
        return text
    half = MESSAGE_BYTES // 2 - 4
    start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{start} ... {end}"


@contextlib.asynccontextmanager
async def reporting(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """End the call with the status that an error stands for; where its client has gone, without a word."""
    try:
        try:
            yield
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise
        except Exception as error:
            await context.abort_with_status(rpc_status.to_status(refusal(error).status()))
    except grpc.aio.InternalError as error:  # nothing could be written to the client
        raise asyncio.CancelledError from error


class _Gone(logging.Filter):
    """Drops what could not be written to a client."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether to keep a record."""
        return record.exc_info is None or not isinstance(record.exc_info[1], grpc.aio.InternalError)


_GONE: Final = _Gone()


def overlook_gone_clients() -> None:
    """Keep gRPC from logging an error where a client goes away just as its call ends, after our handlers have."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_GONE)
