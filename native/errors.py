"""The errors that the engine raises.

::

    WhammingError
    ├── InvalidArgumentError (also a ValueError)   a value is out of range; the message has value, limit and remedy
    │   └── NoTablesError                          a query asked for the probe plan, but the index has no tables
    ├── CorruptIndexError                          the arrays are inconsistent, or have an unknown format
    └── OutOfMemoryError (also a MemoryError)      the engine could not allocate
"""

from __future__ import annotations

from whamming.native._engine import ffi, lib


class WhammingError(Exception):
    """Base class of all errors that Whamming raises deliberately."""


class InvalidArgumentError(WhammingError, ValueError):
    """A value is out of range or of the wrong type."""


class NoTablesError(InvalidArgumentError):
    """A query asked for the probe plan, but the index has no tables."""


class CorruptIndexError(WhammingError):
    """The arrays of an index are inconsistent, or have a format that this version does not read."""


class OutOfMemoryError(WhammingError, MemoryError):
    """The engine could not allocate memory."""


_BY_STATUS: dict[int, type[WhammingError]] = {
    lib.WH_NO_TABLES: NoTablesError,
    lib.WH_MEMORY: OutOfMemoryError,
    lib.WH_CORRUPT: CorruptIndexError,
    lib.WH_VERSION: CorruptIndexError,
}


def check(status: int, action: str) -> None:
    """Raise the error of an engine status, unless it is ``WH_OK``. The message starts with ``action``."""
    if status != lib.WH_OK:
        text = ffi.string(lib.wh_status_text(status)).decode()
        raise _BY_STATUS.get(status, InvalidArgumentError)(f"{action}: {text}")
