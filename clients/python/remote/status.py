"""Failed calls as errors: the same types as in this process, where there are such. And what has no call yet."""

from __future__ import annotations

import grpc
from google.rpc import error_details_pb2, status_pb2

from whamming.native import WhammingError
from whamming.wire.service_errors import (
    DOMAIN,
    DeadlineError,
    LocalOnlyError,
    ServiceError,
    UnavailableError,
    error_of,
    reason_named,
)


def error_of_call(error: grpc.aio.AioRpcError) -> WhammingError:
    """Return what a failed call means to users."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            info, fields = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
            for detail in status.details:
                detail.Unpack(info)
                detail.Unpack(fields)
            if info.domain == DOMAIN:
                field = fields.field_violations[0].field if fields.field_violations else ""
                return error_of(reason_named(info.reason), status.message, field)
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineError(f"no answer within the time given: {text}")
    if code == grpc.StatusCode.UNAVAILABLE:
        return UnavailableError(f"the server cannot be reached: {text}; is it running, and is the address right?")
    return ServiceError(f"{code.name}: {text}")


def local_only(what: str, remedy: str) -> LocalOnlyError:
    """Return the error for what cannot be done over the network yet."""
    return LocalOnlyError(f"{what} is not available over the network yet; {remedy}")
