"""Removing the directories of indexes, but no files of others.

A directory of an index has the files of its store, and perhaps the file of its encoder. Somebody may put other files
there, or put a directory of their own into the directory of a database. Neither can be dropped.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from whamming.storage.files.temporary import remove
from whamming.storage.storage_errors import FormatError, StorageError, from_system
from whamming.storage.stored_index import StoredIndex
from whamming.storage.vectors.encoder_file import ENCODER_FILE

_DROPPED: Final = re.compile(r"\..+\.[0-9a-f]{32}\.dropped")
_SHOWN_FILES: Final = 3
"""How many names of files an error message lists."""


def check_droppable(path: Path, own: Sequence[str]) -> None:
    """Raise FormatError if ``path`` is neither a symbolic link nor a directory that contains only files of an index.

    ``own``: the patterns of the names of the store's files, see :attr:`Backend.files`.
    """
    if path.is_symlink():  # only the link is removed
        return
    if not path.is_dir():
        raise FormatError(f"{path} is not an index but a stray file; move it away")
    try:
        foreign = sorted(entry.name for entry in os.scandir(path) if not _is_own(entry, own))
    except OSError as error:
        raise from_system(error, path) from error
    if foreign:
        more = f" and {len(foreign) - _SHOWN_FILES} more" if len(foreign) > _SHOWN_FILES else ""
        raise FormatError(
            f"{path} contains files that Whamming has not written: {', '.join(foreign[:_SHOWN_FILES])}{more}; move it "
            "away, or move these files to another place"
        )


def remedy_for(path: Path, own: Sequence[str]) -> str:
    """Return what to do about something that has the name of an index and cannot be opened."""
    try:
        check_droppable(path, own)
    except StorageError:
        return "move it away"
    return "drop it"


def finish_drop(index: StoredIndex | None, gone: Path | None, own: Sequence[str]) -> None:
    """Close an index that was abandoned, and remove its directory. None: it was not open, or it has no directory."""
    try:
        if index is not None:
            index.close()
    finally:
        if gone is not None:
            _remove_index(gone, own)


def remove_dropped(directory: Path, own: Sequence[str]) -> None:
    """Remove what a killed process has left of indexes that it was dropping."""
    for name in os.listdir(directory):
        if _DROPPED.fullmatch(name):
            _remove_index(directory / name, own)


def _remove_index(path: Path, own: Sequence[str]) -> None:
    """Remove a symbolic link, or the directory of an index. A directory with other files is left, with these files."""
    if path.is_symlink() or not path.is_dir():
        remove(path)
        return
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(path)):
            if _is_own(entry, own):
                with contextlib.suppress(OSError):
                    os.rmdir(entry) if entry.is_dir(follow_symlinks=False) else os.unlink(entry)
        path.rmdir()


def _is_own(entry: os.DirEntry[str], own: Sequence[str]) -> bool:
    """Return whether an entry in the directory of an index has the name of one of its files, and nothing in it."""
    if not any(fnmatchcase(entry.name, pattern) for pattern in (ENCODER_FILE, f".{ENCODER_FILE}.*.new", *own)):
        return False
    return not entry.is_dir(follow_symlinks=False) or not os.listdir(entry)
