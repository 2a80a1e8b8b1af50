"""Temporary files and directories, and removing those that killed processes have left.

A process locks each temporary file that it creates, and keeps the lock until it has renamed or removed the file. The
system releases the locks of a process that dies. So a temporary file that can be locked is a leftover. It is removed
when a process creates another temporary file in the same directory, or opens a database there for writing. Files of
other users, and files whose names do not have the form of a temporary name, are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from whamming.storage.files.locks import PRIVATE_DIRECTORY, PRIVATE_FILE, sync

_NAME: Final = re.compile(r"\..+\.[0-9a-f]{32}\.new", re.DOTALL)
_OPENED: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def temporary(path: Path, *, directory: bool = False) -> Iterator[Path]:
    """Create an empty file, or a directory, with a temporary name next to ``path``.

    It is removed at the end of the block, unless it was renamed.
    """
    remove_leftovers(path.parent)
    with locked_path(path, directory=directory) as new:
        yield new


@contextlib.contextmanager
def locked_path(path: Path, *, directory: bool = False) -> Iterator[Path]:
    """Like :func:`temporary`, but leave leftovers alone, so that this takes no longer in a large directory."""
    new, handle = _create(path, directory=directory)
    try:
        yield new
    finally:
        remove(new)
        os.close(handle)


def _create(path: Path, *, directory: bool) -> tuple[Path, int]:
    """Create a temporary file or directory. Returns its path, and a descriptor that holds its lock.

    Some file systems have no locks, for example some network file systems. There, it is not locked. It is safe all the
    same: other processes remove only what they can lock.
    """
    while True:
        new = path.with_name(f".{path.name}.{uuid.uuid4().hex}.new")
        if directory:
            new.mkdir(mode=PRIVATE_DIRECTORY)
        else:
            os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, PRIVATE_FILE))
        try:
            handle = os.open(new, _OPENED)
        except FileNotFoundError:  # another process has removed it as a leftover
            continue
        except BaseException:
            remove(new)
            raise
        try:
            if _lock(handle, new):
                return new, handle
        except OSError:  # no locks
            return new, handle
        os.close(handle)  # another process is removing it as a leftover
        remove(new)


@contextlib.contextmanager
def replacing(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """Open new files. When the block succeeds, rename them to ``paths``, starting with the last one.

    A file that replaces another one gets the mode of that file.
    """
    with contextlib.ExitStack() as temporaries:
        new = [temporaries.enter_context(temporary(path)) for path in paths]
        with contextlib.ExitStack() as closing:
            files: list[IO[bytes]] = [closing.enter_context(part.open("wb")) for part in new]
            yield files
        for part, path in zip(new, paths, strict=True):
            if path.exists():
                part.chmod(stat.S_IMODE(path.stat().st_mode))
        for part in new:
            sync(part)
        if len(paths) > 1:
            # The old first file must never exist next to new versions of the others, even after a power failure.
            paths[0].unlink(missing_ok=True)
            sync(paths[0].parent)
        for part, path in zip(reversed(new), reversed(paths), strict=True):
            part.replace(path)
            sync(path.parent)


def remove_leftovers(directory: Path) -> None:
    """Remove temporary files and directories of killed processes."""
    with contextlib.suppress(PermissionError):  # a directory that we may write to but not list
        for entry in os.listdir(directory):
            if _NAME.fullmatch(entry):
                _remove_leftover(directory / entry)


def _remove_leftover(path: Path) -> None:
    """Remove a file or directory of our own user if it can be locked. Otherwise it may be in use."""
    with contextlib.suppress(OSError):
        handle = os.open(path, _OPENED)
        try:
            if _is_own(handle) and _lock(handle, path):
                remove(path)
        finally:
            os.close(handle)


def remove(path: Path) -> None:
    """Remove a file, a symbolic link, or a directory with its contents. What cannot be removed is left."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def _is_own(handle: int) -> bool:
    """Return whether an open path is a file or a directory of our own user."""
    status = os.fstat(handle)
    return status.st_uid == os.geteuid() and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))


def _lock(handle: int, path: Path) -> bool:
    """Lock an open path. Returns False if another process has locked or removed it.

    Raises OSError if the file system has no locks.
    """
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), path.lstat())
    except (BlockingIOError, FileNotFoundError):
        return False
