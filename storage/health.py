"""Whether an open database still has the files that it has opened."""

from __future__ import annotations

import os

from whamming.native import WhammingError
from whamming.storage.database import Database
from whamming.storage.storage_errors import MOVE_BACK


def file_problems(database: Database) -> list[str]:
    """Return a sentence for each open index whose files were deleted, replaced or cut short by somebody else.

    If the directory of the database was lost, there is a sentence for it, too. Takes a few system calls per open index.
    """
    problems = []
    path, opened = database.path, database.directory
    if path is not None and opened is not None:
        try:
            if not os.path.samestat(path.stat(), opened):
                problems.append(f"{path} was replaced by another directory; move it back, or restart the server")
        except FileNotFoundError:
            remedy = f"{MOVE_BACK}; otherwise, restore a backup, then restart the server"
            problems.append(f"{path} was deleted or moved away; {remedy}")
        except OSError as error:
            problems.append(f"{path} cannot be used: {error.strerror}")
    for name, index in database.indexes.all().items():
        try:
            index.check_files(writing=not database.read_only)
        except WhammingError as error:
            if index.is_open:  # an index that was dropped, or closed for being idle, meanwhile is no problem
                problems.append(f"index {name!r}: {error}")
    return problems
