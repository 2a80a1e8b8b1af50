"""Report errors to clients as gRPC statuses with machine-readable details.

A status has a ``google.rpc.ErrorInfo`` with the domain ``whamming`` and a stable reason. It has a ``BadRequest`` if one
field is at fault, and a ``RetryInfo`` if a retry may succeed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from whamming.server.failures import Failure, drop_tracebacks, failure_of
from whamming.v1 import error_pb2
from whamming.wire.service_errors import DOMAIN, PREFIX


def status_of(failure: Failure) -> status_pb2.Status:
    """Return the status of a failure, with its details."""
    reason = error_pb2.ErrorReason.Name(failure.reason).removeprefix(PREFIX)
    details: list[Any] = [error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)]
    if failure.field:
        violation = error_details_pb2.BadRequest.FieldViolation(field=failure.field, description=failure.message)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    if failure.retry_seconds:
        seconds = failure.retry_seconds
        delay = duration_pb2.Duration(seconds=int(seconds), nanos=int(seconds * 1e9) % 10**9)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=failure.code, message=failure.message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return status


class reporting:  # noqa: N801 - used like a function
    """Async context manager that ends the call with the status of an error raised inside.

    If the client is gone, it ends the call silently.
    """

    __slots__ = ("_context",)

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception):
            return
        if isinstance(error, grpc.aio.AbortError):  # gRPC keeps it
            drop_tracebacks(error)
            return
        try:
            if isinstance(error, grpc.aio.InternalError):
                raise error
            status = rpc_status.to_status(status_of(failure_of(error)))
            del trace
            await self._context.abort_with_status(status)
        except grpc.aio.InternalError as lost:  # the client is gone
            raise asyncio.CancelledError from lost


class _LostClients(logging.Filter):
    """Drops log records about messages that could not be written to a client."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.exc_info is None or not isinstance(record.exc_info[1], grpc.aio.InternalError)


_LOST_CLIENTS: Final = _LostClients()


def silence_lost_clients() -> None:
    """Stop gRPC from logging an error when a client disconnects just as its call ends."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_LOST_CLIENTS)
