"""The checkpoint file of an import, from which an interrupted import resumes.

The file is a JSON object. It describes the import and says how many rows are in the index and on disk. It is removed
when the import is done. Losing it costs only time: the import starts over, and writing a row twice has no effect.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from whamming.cli.parser import FailureError
from whamming.storage.files.regular import read_small
from whamming.storage.transfer.columns import ids_path

CHECKPOINT_BYTES: Final = 1 << 20
"""Maximum size of a checkpoint file. Usually it has less than 1 KiB."""


@dataclass(frozen=True)
class ImportJob:
    """Describes an import. A checkpoint is used only if it describes the same import."""

    index: str
    target: str
    """The server's address or the directory."""
    file: str
    size: int
    """Bytes."""
    modified: int
    """Modification time in nanoseconds, of the file or of its ``*.ids.npy``, whichever is later."""
    first_id: int

    @classmethod
    def of(cls, index: str, target: str, file: Path, first_id: int) -> ImportJob:
        found = file.stat()
        modified = found.st_mtime_ns
        with contextlib.suppress(OSError):
            modified = max(modified, ids_path(file).stat().st_mtime_ns)
        return cls(index, target, str(file.resolve()), found.st_size, modified, first_id)


class Checkpoint:
    def __init__(self, path: Path, job: ImportJob) -> None:
        self.path = path
        self._new = path.with_name(f".{path.name}.new")
        self._job = asdict(job)

    def check(self) -> None:
        """Fail if the file is not a checkpoint: the import would overwrite and then remove it."""
        if not self.path.exists():
            return
        try:
            values = json.loads(read_small(self.path, CHECKPOINT_BYTES))
        except (OSError, ValueError, RecursionError):
            values = None
        if not isinstance(values, dict) or not values.keys() >= self._job.keys():
            raise FailureError(f"--checkpoint {self.path} is not a checkpoint; choose another file, or remove this one")

    def rows(self) -> int | None:
        """Return how many rows of the job are done, or None if there is no checkpoint for it."""
        try:
            values = json.loads(read_small(self.path, CHECKPOINT_BYTES))
            rows = values.pop("rows")
        except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
            return None
        return rows if values == self._job and isinstance(rows, int) and rows >= 0 else None

    def save(self, rows: int) -> None:
        self._new.write_text(json.dumps({**self._job, "rows": rows}), encoding="utf-8")
        self._new.replace(self.path)

    def remove(self) -> None:
        self._new.unlink(missing_ok=True)  # left over from a killed import
        self.path.unlink(missing_ok=True)
