"""Private files, file locks, and syncing to disk.

New files and directories are accessible to their owner only. The modes of existing ones are never changed.

A lock belongs to an open file, so it also excludes other handles in the same process. The operating system releases
the locks of a process that dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import IO, Final

PRIVATE_FILE: Final = 0o600
"""The mode of new files."""
PRIVATE_DIRECTORY: Final = 0o700
"""The mode of new directories."""


def open_private(path: Path, mode: str) -> IO[bytes]:
    """Open a binary file. If it does not exist and the mode creates it, only its owner can access it."""
    file: IO[bytes] = open(path, mode, opener=lambda name, flags: os.open(name, flags, PRIVATE_FILE))  # noqa: SIM115
    return file


def try_lock(path: Path, mode: str, *, shared: bool = False) -> IO[bytes] | None:
    """Open a file and lock it, exclusively or shared. Returns None if another lock on it prevents that."""
    handle = open_private(path, mode)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def unlock(handle: IO[bytes]) -> None:
    """Release a lock and close its file. Closing alone is not enough if a forked process has the file open too."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    handle.close()


def sync(path: Path) -> None:
    """Flush a file's bytes, or the entries of a directory, to disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_parents(path: Path) -> None:
    """Flush the entries of all directories above a path, on the same file system.

    Any of them may be new: created by this process, or by another one that died before it could sync them.
    """
    device = path.stat().st_dev
    for parent in path.resolve().parents:
        if parent.stat().st_dev != device:
            return
        with contextlib.suppress(PermissionError):  # a directory that we may enter but not read
            sync(parent)
