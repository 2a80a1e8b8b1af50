"""Files that processes share: locks, and what a crash of the machine leaves.

Locks are taken by processes, and by handles of one process likewise. The system lets go of a dead process's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO


def try_lock(path: Path, mode: str, *, shared: bool = False) -> IO[bytes] | None:
    """Open a file and lock it, alone or with others that share it; None where that cannot be now."""
    handle: IO[bytes] = path.open(mode)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return None
    return handle


def unlock(handle: IO[bytes]) -> None:
    """Let go of a lock. Closing alone would not, where a process that was forked meanwhile has the file open, too."""
    fcntl.flock(handle, fcntl.LOCK_UN)
    handle.close()


def sync(path: Path) -> None:
    """Make a file's bytes, or the names in a directory, outlast a crash of the machine."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextlib.contextmanager
def replacing(*paths: Path) -> Iterator[list[IO[bytes]]]:
    """Open new files that take the place of others when they are whole, the first of them last."""
    new = [path.with_name(f".{path.name}.{uuid.uuid4().hex}.new") for path in paths]
    try:
        with contextlib.ExitStack() as closing:
            files: list[IO[bytes]] = [closing.enter_context(path.open("wb")) for path in new]
            yield files
        for part in new:
            sync(part)
        if len(paths) > 1:
            paths[0].unlink(missing_ok=True)  # or, for a moment, it would stand beside what is not its own
        for part, path in zip(reversed(new), reversed(paths), strict=True):
            part.replace(path)
            sync(path.parent)
    finally:
        for part in new:
            part.unlink(missing_ok=True)
