"""Turns failed gRPC calls into errors, of the same types that a database in this process raises."""

from __future__ import annotations

import re
from typing import Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from whamming.native import InvalidArgumentError, WhammingError
from whamming.wire.service_errors import (
    DOMAIN,
    DeadlineError,
    LocalOnlyError,
    OverloadedError,
    ServiceError,
    UnavailableError,
    error_of,
    reason_named,
)

_TOO_LARGE: Final = re.compile(r"larger than max \((?P<size>\d+) vs\. (?P<limit>\d+)\)")
"""What gRPC says about a message that is too large."""


class QueryIdsError(InvalidArgumentError):
    """The server refused the ids of the queries of a message, usually because it accepts fewer queries."""


def error_of_call(error: grpc.aio.AioRpcError) -> WhammingError:
    """Return the error for a failed call. It has gRPC's error as its cause if the server's failure is unexpected."""
    ours = _error_of(error)
    ours.__cause__ = error if type(ours) is ServiceError else None
    return ours


def _error_of(error: grpc.aio.AioRpcError) -> WhammingError:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            for detail in status.details:
                detail.Unpack(info)
                detail.Unpack(fields)
            if info.domain == DOMAIN:
                if any(violation.field == "queries.query_ids" for violation in fields.field_violations):
                    return QueryIdsError(status.message)
                return error_of(reason_named(info.reason), status.message)
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"the call did not finish before its deadline: {text}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"the server cannot be reached: {text}; check that it is running, and its address")
    if code == grpc.StatusCode.CANCELLED:  # a call that the client cancels raises asyncio.CancelledError instead
        return UnavailableError("the server ended the call; it may be shutting down")
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED:
        sizes = _TOO_LARGE.search(text)
        if sizes is not None:
            return _too_large(int(sizes["size"]), int(sizes["limit"]), sent="CLIENT" not in text)
        return OverloadedError(f"the server refused the call: {text}; try again later")
    return ServiceError(f"{code.name}: {text}")


def _too_large(size: int, limit: int, *, sent: bool) -> ServiceError:
    """Return the error for a message that gRPC has refused. ``sent``: this client has sent it."""
    if sent:
        return ServiceError(
            f"a message of {size} bytes is too large for the server, which accepts {limit}; send less at a time, or "
            "start it with a larger --max-message-mb"
        )
    return ServiceError(f"a message of {size} bytes from the server is too large; this client accepts {limit}")


def invalid_response(problem: object) -> ServiceError:
    """Return the error for a response that cannot be read."""
    return ServiceError(
        f"the server sent an invalid response: {problem}; check that it is a Whamming server of a compatible version"
    )


def local_only(what: str, remedy: str) -> LocalOnlyError:
    """Return the error for a method that is not available over the network."""
    return LocalOnlyError(f"{what} is not available over the network yet; {remedy}")
