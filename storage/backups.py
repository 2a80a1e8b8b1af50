"""Choosing and writing the target directory of a backup."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from whamming.native import InvalidArgumentError
from whamming.storage.directory import MARK, prepare
from whamming.storage.files.locks import sync
from whamming.storage.files.temporary import temporary
from whamming.storage.storage_errors import AlreadyExistsError, from_system


def check_target(target: Path, database: Path | None) -> None:
    """Refuse a target that already exists, lies inside a database, or has no parent directory.

    A backup inside a database's directory would be mistaken for an index, or removed together with one.
    """
    if target.name == ":memory:":
        raise InvalidArgumentError("cannot back up to ':memory:'; give the path of a directory")
    real = target.resolve()
    for parent in (real, *real.parents):
        if database is not None and _is_same(parent, database):
            raise InvalidArgumentError(f"{target} is inside the database at {database}; give a path outside it")
    if (real.parent / MARK).exists():
        raise InvalidArgumentError(f"{target} is inside the database at {target.parent}; give a path outside it")
    if target.exists() or target.is_symlink():
        raise AlreadyExistsError(f"{target} already exists; give a path that does not exist")
    if not target.parent.is_dir():  # perhaps a mistake, or a disk that is not mounted
        raise InvalidArgumentError(f"there is no directory {target.parent}; create it first, or give another path")


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


@contextlib.contextmanager
def new_copy(target: Path, store: str) -> Iterator[Path]:
    """Yield a new, empty database directory, and rename it to ``target`` when the block succeeds.

    If the block fails, the directory is removed, so an incomplete copy never gets the name ``target``.
    """
    try:
        with temporary(target, directory=True) as new:
            prepare(new, "w", True, store)
            yield new
            sync(new)
            new.rename(target)
            sync(target.parent)
    except OSError as error:
        raise from_system(error, target) from error
