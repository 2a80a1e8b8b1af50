"""What an error means to a client: a status code, a reason, a text of moderate length and the field at fault."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from google.rpc import code_pb2

from whamming.v1 import error_pb2
from whamming.wire.service_errors import TABLE

log = logging.getLogger("whamming.server")

ERROR_TEXT_BYTES: Final = 1000
"""Of an error's text. It is sent up to three times in the trailers, and clients accept 8 KiB in all by default."""
_RETRY_SECONDS: Final[dict[int, float]] = {
    error_pb2.ERROR_REASON_OVERLOADED: 0.5,
    error_pb2.ERROR_REASON_WRITER_BUSY: 1.0,
    error_pb2.ERROR_REASON_SHUTTING_DOWN: 1.0,
}


@dataclass(frozen=True)
class Failure:
    """What a client is told."""

    code: int
    """A ``google.rpc.Code``."""
    reason: error_pb2.ErrorReason
    message: str
    field: str = ""
    retry_seconds: float = 0.0
    """0: trying again does not help."""


def failure_of(error: BaseException) -> Failure:
    """Return what to tell a client about an error. An unforeseen one is logged with its traceback."""
    for kind, code, reason in TABLE:
        if isinstance(error, kind):
            field = getattr(error, "field", "")
            return Failure(code, reason, shortened(str(error)), field, _RETRY_SECONDS.get(reason, 0.0))
    log.error("unforeseen error", exc_info=error)
    reason = error_pb2.ERROR_REASON_INTERNAL
    return Failure(code_pb2.INTERNAL, reason, "the server failed; its log says why")


def shortened(text: str) -> str:
    """Return a text of at most ERROR_TEXT_BYTES: a longer one loses its middle, where an overlong value stands."""
    data = text.encode()
    if len(data) <= ERROR_TEXT_BYTES:
        return text
    half = ERROR_TEXT_BYTES // 2 - 4
    start, end = data[:half].decode(errors="ignore"), data[-half:].decode(errors="ignore")
    return f"{start} ... {end}"
