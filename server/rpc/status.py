"""Errors as gRPC statuses with details that programs can read.

A status carries a ``google.rpc.ErrorInfo`` (domain ``whamming``, a stable reason), a ``BadRequest`` that names the
field at fault if there is one, and a ``RetryInfo`` where trying again later makes sense.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from whamming.server.failures import Failure, failure_of
from whamming.v1 import error_pb2
from whamming.wire.service_errors import DOMAIN, PREFIX


def status_of(failure: Failure) -> status_pb2.Status:
    """Return the rich status of a failure."""
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


@contextlib.asynccontextmanager
async def reporting(context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """End the call with the status of an error raised inside. If the client has gone, end it silently."""
    try:
        try:
            yield
        except (grpc.aio.AbortError, grpc.aio.InternalError):
            raise
        except Exception as error:
            await context.abort_with_status(rpc_status.to_status(status_of(failure_of(error))))
    except grpc.aio.InternalError as error:  # nothing could be written to the client
        raise asyncio.CancelledError from error


class _LostClients(logging.Filter):
    """Drops log records about messages that could not be written to a client."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to keep a record."""
        return record.exc_info is None or not isinstance(record.exc_info[1], grpc.aio.InternalError)


_LOST_CLIENTS: Final = _LostClients()


def silence_lost_clients() -> None:
    """Keep gRPC from logging an error when a client goes away just as its call ends."""
    logging.getLogger("grpc._cython.cygrpc").addFilter(_LOST_CLIENTS)
