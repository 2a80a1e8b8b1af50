"""What the engine refuses, and why.

::

    WhammingError
    ├── InvalidArgumentError (also a ValueError)   a value outside its limits; the message names both, and the remedy
    ├── CorruptIndexError                          arrays that contradict themselves, or of an unknown format
    └── OutOfMemoryError (also a MemoryError)      the engine could not allocate
"""

from __future__ import annotations

from whamming.native._engine import ffi, lib


class WhammingError(Exception):
    """The root of every error that Whamming raises on purpose."""


class InvalidArgumentError(WhammingError, ValueError):
    """A value is outside its limits."""


class CorruptIndexError(WhammingError):
    """An index's arrays contradict themselves, or have a format that this version does not read."""


class OutOfMemoryError(WhammingError, MemoryError):
    """The engine could not allocate the memory that it needs."""


_BY_STATUS: dict[int, type[WhammingError]] = {
    lib.WH_MEMORY: OutOfMemoryError,
    lib.WH_CORRUPT: CorruptIndexError,
    lib.WH_VERSION: CorruptIndexError,
}


def check(status: int, doing: str) -> None:
    """Raise the error that an engine status stands for; ``doing`` says what was tried."""
    if status != lib.WH_OK:
        text = ffi.string(lib.wh_status_text(status)).decode()
        raise _BY_STATUS.get(status, InvalidArgumentError)(f"{doing}: {text}")
