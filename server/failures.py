"""Translate exceptions into what a client receives: a status code, a reason, a short message, the field at fault."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from google.rpc import code_pb2

from whamming.v1 import error_pb2
from whamming.wire.service_errors import TABLE

log = logging.getLogger("whamming.server")

ERROR_TEXT_BYTES: Final = 1000
"""Maximum length of an error message. It is sent up to three times in trailers, which clients limit to 8 KiB."""
_RETRY_SECONDS: Final[dict[int, float]] = {
    error_pb2.ERROR_REASON_OVERLOADED: 0.5,
    error_pb2.ERROR_REASON_WRITER_BUSY: 1.0,
    error_pb2.ERROR_REASON_SHUTTING_DOWN: 1.0,
}


@dataclass(frozen=True)
class Failure:
    """An error as reported to a client."""

    code: int
    """A ``google.rpc.Code``."""
    reason: error_pb2.ErrorReason
    message: str
    field: str = ""
    retry_seconds: float = 0.0
    """Suggested delay before a retry. 0: a retry does not help."""


def failure_of(error: BaseException) -> Failure:
    """Translate an error, and drop its traceback. An unexpected one is logged with its traceback."""
    try:
        for kind, code, reason in TABLE:
            if isinstance(error, kind):
                field = getattr(error, "field", "")
                return Failure(code, reason, shortened(str(error)), field, _RETRY_SECONDS.get(reason, 0.0))
        log.error("unexpected error", exc_info=error)
        reason = error_pb2.ERROR_REASON_INTERNAL
        return Failure(code_pb2.INTERNAL, reason, "internal error; the server's log has the details")
    finally:
        drop_tracebacks(error)


def drop_tracebacks(error: BaseException) -> None:
    """Drop the tracebacks of an error and of its causes.

    They refer to the variables of the functions that failed, and so to the call's messages, of up to 16 MiB. If such a
    variable leads back to the error, all of it would stay in memory until the garbage collector runs.
    """
    found: BaseException | None = error
    while found is not None:
        found.__traceback__ = None
        if found.__cause__ is not None:
            found.__cause__.__traceback__ = None
        found = found.__context__


def shortened(text: str) -> str:
    """Shorten a text to ERROR_TEXT_BYTES by cutting out its middle, which is where an overlong value usually is."""
    if len(text) > 2 * ERROR_TEXT_BYTES:  # encode no more than can be sent
        text = text[:ERROR_TEXT_BYTES] + text[-ERROR_TEXT_BYTES:]
    data = text.encode()
    if len(data) <= ERROR_TEXT_BYTES:
        return text
    half = ERROR_TEXT_BYTES // 2 - 4
    start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{start} ... {end}"
