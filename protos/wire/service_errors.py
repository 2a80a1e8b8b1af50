"""Errors of remote databases, and the table that maps errors to statuses and back.

::

    WhammingError
    └── ServiceError                 the call failed
        ├── UnavailableError         the server cannot be reached, or is shutting down
        ├── DeadlineError            the deadline passed
        ├── OverloadedError          the server is overloaded; try again later
        ├── AnswerTooLargeError      the answer does not fit into one message; request less
        └── LocalOnlyError           remote databases do not support this; local ones do

The server looks up an error's type in :data:`TABLE` to get a status code and a reason. The client looks up the reason
to get the type back. So most operations raise the same type of error on a local and on a remote database. But
``WriterBusyError`` arrives as ``UnavailableError``, and ``CorruptIndexError`` as ``CorruptStoreError``.
"""

from __future__ import annotations

from typing import Final

from google.rpc import code_pb2

from whamming.native import CorruptIndexError, InvalidArgumentError, NoTablesError, OutOfMemoryError, WhammingError
from whamming.storage import (
    AlreadyExistsError,
    ClosedError,
    CorruptStoreError,
    FormatError,
    NoEncoderError,
    NotFoundError,
    ProcessLimitError,
    ReadOnlyError,
    StorageError,
    StorageFullError,
    WriterBusyError,
)
from whamming.v1 import error_pb2
from whamming.wire.fields import FieldError


class ServiceError(WhammingError):
    """A call failed for a reason that only remote databases have."""


class UnavailableError(ServiceError):
    """The server cannot be reached, or is shutting down."""


class DeadlineError(ServiceError, TimeoutError):
    """The deadline passed before the server answered."""


class OverloadedError(ServiceError):
    """The server is overloaded. Try again later."""


class AnswerTooLargeError(ServiceError):
    """The answer does not fit into one message. Request less."""


class LocalOnlyError(ServiceError, NotImplementedError):
    """Remote databases do not support this yet. Local databases do."""


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
    (ProcessLimitError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_PROCESS_LIMIT),
    (ClosedError, code_pb2.ABORTED, error_pb2.ERROR_REASON_INDEX_CLOSED),
    (StorageError, code_pb2.INTERNAL, error_pb2.ERROR_REASON_STORAGE),
    (OutOfMemoryError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OUT_OF_MEMORY),
    (MemoryError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OUT_OF_MEMORY),
    (OverloadedError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_OVERLOADED),
    (AnswerTooLargeError, code_pb2.RESOURCE_EXHAUSTED, error_pb2.ERROR_REASON_ANSWER_TOO_LARGE),
    (UnavailableError, code_pb2.UNAVAILABLE, error_pb2.ERROR_REASON_SHUTTING_DOWN),
    (ServiceError, code_pb2.INTERNAL, error_pb2.ERROR_REASON_INTERNAL),
)
"""Error type, status code, reason. The first row that matches an error's type, or a reason, is used."""

DOMAIN: Final = "whamming"
"""The domain of ErrorInfo."""
PREFIX: Final = "ERROR_REASON_"

_TYPES: Final = {reason: kind for kind, _, reason in reversed(TABLE)}


def error_of(reason: int, message: str, field: str = "") -> WhammingError:
    """Return the exception for an error that a server reported."""
    kind = _TYPES.get(reason, ServiceError)  # type: ignore[call-overload]
    error: BaseException
    if kind is WriterBusyError:  # for a client, this means that the server is busy
        error = UnavailableError(message)
    elif field and kind is InvalidArgumentError:
        error = FieldError(field, message)
    else:
        error = kind(message)
    assert isinstance(error, WhammingError)
    return error


def reason_named(name: str) -> int:
    """Return the ErrorReason for a ``reason`` of ErrorInfo, or 0 if this version does not know it."""
    value = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(PREFIX + name)
    return 0 if value is None else value.number
