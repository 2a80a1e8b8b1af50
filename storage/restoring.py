"""Making a database from a backup."""

from __future__ import annotations

from pathlib import Path

from whamming.storage.backups import check_target
from whamming.storage.database import SHOWN_NAMES, open_database
from whamming.storage.directory import MAX_MISSING, missing_from
from whamming.storage.storage_errors import IncompleteBackupError, NotFoundError, StorageError
from whamming.storage.store.protocol import Progress


def restore(source: str | Path, target: str | Path, progress: Progress | None = None) -> None:
    """Copy a backup, or any database that nobody is writing to, to a new directory.

    Every byte of the source is verified first. If an index is damaged, nothing is copied and :class:`StorageError` is
    raised. If the backup is incomplete, what it has is copied, and then :class:`IncompleteBackupError` names the
    indexes that are missing. ``progress`` is called from time to time with the fraction verified, 0.0 to 1.0.
    """
    try:
        opened = open_database(source, mode="r")
    except NotFoundError:
        raise NotFoundError(f"there is no backup at {source}; give the directory of a backup or database") from None
    with opened as database:
        check_target(Path(target), database.path)
        assert database.path is not None
        missing = missing_from(database.path)
        for name, report in database.verify(progress).items():
            if not report.ok:
                raise StorageError(f"index {name!r} of {source} is damaged: {report.problems[0]}; nothing was restored")
        broken = database.copy_to(Path(target), missing)  # an index may have been damaged since it was verified
    if missing or broken:
        names = sorted({*missing, *broken})
        listed = ", ".join(names[:SHOWN_NAMES])
        if len(names) > SHOWN_NAMES:
            listed += f", and {'at least ' if len(missing) == MAX_MISSING else ''}{len(names) - SHOWN_NAMES} more"
        raise IncompleteBackupError(
            f"the backup {source} was restored to {target}, but is not complete: it lacks indexes that were broken "
            f"when it was made: {listed}; import them again, or restore another backup"
        )
