"""Opening files that somebody else has made. Such a file may be a named pipe or a device, which has no end."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Final

from whamming.native import InvalidArgumentError

_KINDS: Final = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading. Raises InvalidArgumentError if it is not a regular file, or OSError.

    The file is checked before it is opened, because opening a device may have an effect. It is checked again
    afterwards, because it may have been replaced in between. Opening a named pipe does not wait for a writer.
    """
    _check(path, path.stat())
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    try:
        _check(path, os.fstat(file.fileno()))
    except BaseException:
        file.close()
        raise
    return file


def read_small(path: Path, limit: int) -> bytes:
    """Return the contents of a regular file. Raises InvalidArgumentError if it has more than ``limit`` bytes."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, limit) + 1)  # not more: Python takes the memory before it reads
    if len(data) > limit:
        raise InvalidArgumentError(f"{path} has more than {limit} bytes, too many for a file of its kind")
    return data


def _check(path: Path, status: os.stat_result) -> None:
    for is_kind, kind in _KINDS:
        if is_kind(status.st_mode):
            raise InvalidArgumentError(f"{path} is {kind}, not a regular file; copy the data to one first")
