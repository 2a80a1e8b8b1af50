"""Where copies of a database are written."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from whamming.native import InvalidArgumentError
from whamming.storage.directory import MARK, prepare
from whamming.storage.files.locks import sync
from whamming.storage.storage_errors import AlreadyExistsError, from_system


def check_target(target: Path, database: Path | None) -> None:
    """Refuse a path that cannot be the copy of a database: one that exists, or is inside of a database.

    Files in a database's directory would be taken for indexes, or removed with them.
    """
    if target.name == ":memory:":
        raise InvalidArgumentError("a copy to ':memory:'; give a directory")
    real = target.resolve()
    for parent in (real, *real.parents):
        if database is not None and _is_same(parent, database):
            raise InvalidArgumentError(f"{target} is inside of the database at {database}; give a path outside of it")
    if (real.parent / MARK).exists():
        raise InvalidArgumentError(f"{target} is inside of the database at {target.parent}; give a path outside of it")
    if target.exists() or target.is_symlink():
        raise AlreadyExistsError(f"{target} exists; give a path that does not")


def _is_same(path: Path, other: Path) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:
        return False


@contextlib.contextmanager
def new_copy(target: Path, store: str) -> Iterator[Path]:
    """Make an empty database that gets its name, ``target``, once the block has filled it; half a copy never does."""
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex}.new")
    try:
        prepare(new, "w", True, store)
        yield new
        sync(new)
        new.rename(target)
        sync(target.parent)
    except OSError as error:
        raise from_system(error, target) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
