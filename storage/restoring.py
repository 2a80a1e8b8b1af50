"""Making a database from a backup."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from whamming.storage.backups import check_target
from whamming.storage.database import SHOWN_NAMES, open_database
from whamming.storage.directory import MAX_MISSING, missing_from
from whamming.storage.storage_errors import FormatError, IncompleteBackupError, NotFoundError, StorageError
from whamming.storage.store.protocol import Progress

_REMEDY: Final = re.compile(r"; (or )?restore (it from )?a backup$")
"""The remedy of errors about a damaged database. It does not help if a backup itself is damaged."""


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
    except FormatError as error:
        if not _REMEDY.search(str(error)):
            raise
        raise FormatError(f"{_REMEDY.sub('', str(error))}; use another backup") from error
    with opened as database:
        check_target(Path(target), database.path)
        assert database.path is not None
        missing = missing_from(database.path)
        for name, report in database.verify(progress).items():
            if not report.ok:
                problem = _REMEDY.sub("", report.problems[0])
                raise StorageError(
                    f"index {name!r} of {source} is damaged: {problem}; nothing was restored; use another backup"
                )
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
