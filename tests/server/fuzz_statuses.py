"""Checks of statuses: calls and queries may fail only with statuses, reasons and fields that the protos name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from whamming.v1 import error_pb2, search_pb2

Code = grpc.StatusCode

_ANY: Final = (Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
ONE_INDEX: Final = (*_ANY, Code.NOT_FOUND, Code.ABORTED)  # ABORTED: the index was dropped meanwhile
STATUSES: Final[dict[str, tuple[Any, ...]]] = {
    "CreateIndex": (*_ANY, Code.ALREADY_EXISTS, Code.ABORTED),
    "ListIndexes": _ANY,
    "DeleteIndex": (*_ANY, Code.NOT_FOUND),
    "GetEncoder": (*ONE_INDEX, Code.FAILED_PRECONDITION),
    "Upsert": (*ONE_INDEX, Code.FAILED_PRECONDITION),
    "SearchOnce": (*ONE_INDEX, Code.FAILED_PRECONDITION),
    "Search": _ANY,
}
"""Statuses that calls of a method may end with; ``ONE_INDEX`` for other methods."""
CODES: Final[dict[int, Any]] = {
    error_pb2.ERROR_REASON_INVALID_ARGUMENT: Code.INVALID_ARGUMENT,
    error_pb2.ERROR_REASON_NO_TABLES: Code.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_NO_ENCODER: Code.FAILED_PRECONDITION,
    error_pb2.ERROR_REASON_INDEX_NOT_FOUND: Code.NOT_FOUND,
    error_pb2.ERROR_REASON_INDEX_EXISTS: Code.ALREADY_EXISTS,
    error_pb2.ERROR_REASON_INDEX_CLOSED: Code.ABORTED,
    error_pb2.ERROR_REASON_OUT_OF_MEMORY: Code.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_OVERLOADED: Code.RESOURCE_EXHAUSTED,
    error_pb2.ERROR_REASON_ANSWER_TOO_LARGE: Code.RESOURCE_EXHAUSTED,
}
"""The reasons that cases can cause, with the status codes of error.proto."""


class UnsoundError(AssertionError):
    """An answer violates the contract of the protos."""


def expect(holds: object, what: str) -> None:
    """Raise :class:`UnsoundError` unless a condition holds."""
    if not holds:
        raise UnsoundError(what)


@dataclass
class Answer:
    """The responses and the status of a call."""

    code: Any
    details: str = ""
    trailing: Sequence[tuple[str, Any]] = ()
    responses: list[bytes] = field(default_factory=list)


def check_details(answer: Answer, request: Any = None) -> None:
    """Check the details of a status. Only gRPC's own error for messages that are too large has none."""
    for key, value in answer.trailing:
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            expect(status.code == answer.code.value[0], "the codes differ")
            info, fault = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            expect(any(detail.Unpack(info) for detail in status.details), "a status without ErrorInfo")
            expect(info.domain == "whamming", f"an ErrorInfo with the domain {info.domain!r}")
            reason = error_pb2.ErrorReason.DESCRIPTOR.values_by_name.get(f"ERROR_REASON_{info.reason}")
            expect(reason is not None, f"unknown reason {info.reason!r}")
            assert reason is not None
            expect(CODES.get(reason.number) == answer.code, f"{info.reason} with {answer.code}")
            for detail in status.details:
                if detail.Unpack(fault) and request is not None:
                    for violation in fault.field_violations:
                        check_field(violation.field, request)
            return
    by_grpc = answer.code == Code.RESOURCE_EXHAUSTED and "message larger than max" in answer.details
    expect(by_grpc, f"{answer.code.name} without ErrorInfo: {answer.details}")


def check_query_error(error: search_pb2.QueryError) -> None:
    """Check that the protos name the error."""
    code = CODES.get(error.reason)
    expect(code is not None and code.value[0] == error.code, f"a query failed with {error}")
    expect(code in ONE_INDEX or code == Code.FAILED_PRECONDITION, f"a query failed with {error}")
    expect(error.message, "an error without a message")
    check_field(error.field, search_pb2.QueryBatch.DESCRIPTOR)


def check_field(path: str, message: Any) -> None:
    """Check that a message has a field with this path. "request" stands for the message itself."""
    kind: Any = message
    for name in path.split(".") if path and path != "request" else ():
        expect(kind is not None and name in kind.fields_by_name, f"{message.name} has no field {path!r}")
        kind = kind.fields_by_name[name].message_type
