"""How far an import has come, in a file of its own, so that another run goes on there.

The file is a JSON object: what is being imported, and how many of its rows are in the index and on disk. It is removed
when all are. One that is lost or damaged costs time and nothing else: writing a row twice comes to the same as once.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from whamming.cli.parser import FailureError
from whamming.storage.transfer.columns import ids_path


@dataclass(frozen=True)
class ImportJob:
    """What is being imported: a checkpoint of another job does not count."""

    index: str
    target: str
    """Which server, or which directory."""
    file: str
    size: int
    """Bytes."""
    modified: int
    """Nanoseconds; of the file of ids beside it, if that is later."""
    first_id: int

    @classmethod
    def of(cls, index: str, target: str, file: Path, first_id: int) -> ImportJob:
        """Look at a file."""
        found = file.stat()
        modified = found.st_mtime_ns
        with contextlib.suppress(OSError):
            modified = max(modified, ids_path(file).stat().st_mtime_ns)
        return cls(index, target, str(file.resolve()), found.st_size, modified, first_id)


class Checkpoint:
    """The file that says how many rows are done."""

    def __init__(self, path: Path, job: ImportJob) -> None:
        """Name it; nothing is read or written yet."""
        self.path = path
        self._new = path.with_name(f".{path.name}.new")
        self._job = asdict(job)

    def check(self) -> None:
        """Refuse a file that is something else, since it would be overwritten and then removed."""
        if not self.path.exists():
            return
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            values = None
        if not isinstance(values, dict) or not values.keys() >= self._job.keys():
            raise FailureError(f"{self.path} is not a checkpoint of an import; give another --checkpoint, or remove it")

    def rows(self) -> int | None:
        """Return how many rows of the job are done; None: there is no checkpoint of it."""
        try:
            values = json.loads(self.path.read_text(encoding="utf-8"))
            rows = values.pop("rows")
        except (OSError, ValueError, AttributeError, KeyError, TypeError):
            return None
        return rows if values == self._job and isinstance(rows, int) and rows >= 0 else None

    def save(self, rows: int) -> None:
        """Say how many rows are done."""
        self._new.write_text(json.dumps({**self._job, "rows": rows}), encoding="utf-8")
        self._new.replace(self.path)

    def remove(self) -> None:
        """All is done."""
        self._new.unlink(missing_ok=True)  # left by an import that was killed
        self.path.unlink(missing_ok=True)
