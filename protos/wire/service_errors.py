"""Errors that only a service has, and the one table of error reasons that servers and clients share.

::

    WhammingError
    └── ServiceError                 the call failed
        ├── UnavailableError         the server cannot be reached, or is shutting down
        ├── DeadlineError            no answer in time
        ├── OverloadedError          the server takes on no more; try again later
        ├── AnswerTooLargeError      an answer does not fit into one message; ask for less
        └── LocalOnlyError           the network cannot do this yet; a database in this process can

A server turns an error into a status by the first row of :data:`TABLE` that matches its type. A client turns the
status's reason back into the row's type. So an error is of the same type in this process and on a server.
"""

from __future__ import annotations

from typing import Final

from google.rpc import code_pb2

from whamming.native import CorruptIndexError, InvalidArgumentError, OutOfMemoryError, WhammingError
from whamming.storage import (
    AlreadyExistsError,
    ClosedError,
    CorruptStoreError,
    FormatError,
    NotFoundError,
    ReadOnlyError,
    StorageError,
    StorageFullError,
    WriterBusyError,
)
from whamming.v1 import error_pb2
from whamming.wire.fields import FieldError


class ServiceError(WhammingError):
    """A call failed for a reason that only a remote database has."""


class UnavailableError(ServiceError):
    """The server cannot be reached, or is shutting down."""


class DeadlineError(ServiceError, TimeoutError):
    """There was no answer in time."""


class OverloadedError(ServiceError):
    """The server takes on no more. Try again later."""


class AnswerTooLargeError(ServiceError):
    """An answer does not fit into one message. Ask for less."""


class LocalOnlyError(ServiceError, NotImplementedError):
    """The network cannot do this yet; a database in this process can."""


class NoTablesError(InvalidArgumentError):
    """The probe plan was asked of an index without tables."""


class NoEncoderError(InvalidArgumentError):
    """Vectors were given to an index without an encoder, or re-ranking to one that keeps no vectors."""


TABLE: Final[tuple[tuple[type[BaseException], int, error_pb2.ErrorReason], ...]] = (
    (NoTablesError, code_pb2.FAILED_PRECONDITION, error_pb2.ERROR_REASON_NO_TABLES),
    (NoEncoderError, code_pb2.FAILED_PRECONDITION, error_pb2.ERROR_REASON_NO_ENCODER),
    (InvalidArgumentError, code_pb2.INVALID_ARGUMENT, error_pb2.ERROR_REASON_INVALID_ARGUMENT),
    (NotFoundError, code_pb2.NOT_FOUND, error_pb2.ERROR_REASON_INDEX_NOT_FOUND),
    (AlreadyExistsError, code_pb2.ALREADY_EXISTS, error_pb2.ERROR_REASON_INDEX_EXISTS),
    (ReadOnlyError, code_pb2.FAILED_PRECONDITION, error_pb2.ERROR_REASON_READ_ONLY),
    (WriterBusyError, code_pb2.UNAVAILABLE, error_pb2.ERROR_REASON_WRITER_BUSY),
    (FormatError, code_pb2.FAILED_PRECONDITION, error_pb2.ERROR_REASON_FORMAT),
    (CorruptStoreError, code_pb2.DATA_LOSS, error_pb2.ERROR_REASON_CORRUPT),
    (CorruptIndexError, code_pb2.DATA_LOSS, error_pb2.ERROR_REASON_CORRUPT),
    (StorageFullError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_STORAGE_FULL),
    (ClosedError, code_pb2.ABORTED, error_pb2.ERROR_REASON_INDEX_CLOSED),
    (StorageError, code_pb2.INTERNAL, error_pb2.ERROR_REASON_STORAGE),
    (OutOfMemoryError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OUT_OF_MEMORY),
    (MemoryError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OUT_OF_MEMORY),
    (OverloadedError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OVERLOADED),
    (AnswerTooLargeError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_ANSWER_TOO_LARGE),
    (UnavailableError, code_pb2.UNAVAILABLE, error_pb2.ERROR_REASON_SHUTTING_DOWN),
    (ServiceError, code_pb2.INTERNAL, error_pb2.ERROR_REASON_INTERNAL),
)
"""The first row that matches an error's type counts; of a reason's rows, the first."""

DOMAIN: Final = "whamming"
"""Of ErrorInfo."""
PREFIX: Final = "ERROR_REASON_"

_TYPES: Final = {reason: kind for kind, _, reason in reversed(TABLE)}


def error_of(reason: int, message: str, field: str = "") -> WhammingError:
    """Return the error that a server has refused something with."""
    kind = _TYPES.get(reason, ServiceError)  # type: ignore[call-overload]
    error: BaseException
    if kind is WriterBusyError:  # a client has no files of its own: to it, the server is busy
        error = UnavailableError(message)
    elif field and kind is InvalidArgumentError:
        error = FieldError(field, message)
    else:
        error = kind(message)
    assert isinstance(error, WhammingError)
    return error


def reason_named(name: str) -> int:
    """Return the number of a reason, given as in ErrorInfo; 0 for one that this version does not know."""
    value = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(PREFIX + name)
    return 0 if value is None else value.number
