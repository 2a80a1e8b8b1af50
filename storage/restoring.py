"""Making a database from a backup."""

from __future__ import annotations

from pathlib import Path

from whamming.storage.backups import check_target
from whamming.storage.database import open_database
from whamming.storage.storage_errors import NotFoundError, StorageError
from whamming.storage.store.protocol import Progress


def restore(source: str | Path, target: str | Path, progress: Progress | None = None) -> None:
    """Copy a backup, or any database that nobody is writing to, to a new directory.

    Every byte of the source is verified first. If an index is damaged, nothing is copied and :class:`StorageError` is
    raised. ``progress`` is called from time to time with the fraction verified, 0.0 to 1.0.
    """
    try:
        opened = open_database(source, mode="r")
    except NotFoundError:
        raise NotFoundError(f"there is no backup at {source}; give the directory of a backup or database") from None
    with opened as database:
        check_target(Path(target), database.path)
        for name, report in database.verify(progress).items():
            if not report.ok:
                raise StorageError(f"index {name!r} of {source} is damaged: {report.problems[0]}; nothing was restored")
        database.backup(target)
