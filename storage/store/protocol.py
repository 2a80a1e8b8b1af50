"""The store protocol: a store holds one index.

Plug-ins can add kinds of stores. In the entry point group ``whamming.stores``, a plug-in registers an object that
implements :class:`Backend`. :func:`backend` finds it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from whamming.native import InvalidArgumentError
from whamming.native.display import counted, table
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import Durability, IndexSettings
from whamming.storage.store.snapshot import Snapshot

Progress = Callable[[float], None]
"""Called from time to time with the fraction done, 0.0 to 1.0."""

GROUP = "whamming.stores"


def share_of(progress: Progress | None, done: int, count: int) -> Progress | None:
    """Return a callback for the progress of one task, of ``count`` equal tasks of which ``done`` are finished.

    The callback calls ``progress`` with the progress of all tasks together.
    """
    return None if progress is None else lambda share: progress((done + share) / count)


@dataclass(frozen=True)
class StoreStats:
    """What a store holds, and counts of its operations since it was opened."""

    items: int
    segments: int
    """Number of sealed segments."""
    sealed_rows: int
    """Items in sealed segments, including dead ones."""
    dead_rows: int
    """Dead items in sealed segments: deleted or replaced since. Merging keeps them below a quarter."""
    delta_rows: int
    """Changes written since the last seal."""
    disk_bytes: int
    """Size of the file, including space that is free for reuse; 0 in RAM."""
    used_bytes: int
    """Size of the part of the file that is in use; in RAM, of all arrays."""
    version: int
    """Increases with every write; starts again when the index is opened."""
    writes: int
    """Number of batches written."""
    commits: int
    """Number of transactions that they took. Concurrent writes share one."""
    seals: int
    compactions: int

    def _repr_html_(self) -> str:
        return table(("statistic", "value"), vars(self).items())


@dataclass(frozen=True)
class VerifyReport:
    """The result of :meth:`Store.verify`."""

    problems: tuple[str, ...]
    bytes_checked: int
    arrays_checked: int

    @property
    def ok(self) -> bool:
        """Whether no problems were found."""
        return not self.problems

    def __repr__(self) -> str:
        """Return one line with the first problem."""
        found = "ok" if self.ok else f"{counted(len(self.problems), 'problem')}, the first: {self.problems[0]}"
        return f"VerifyReport({found}; {self.bytes_checked:,} bytes checked)"


class Store(Protocol):
    """One open index. Any number of threads may use it at once."""

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index."""

    def snapshot(self) -> Snapshot:
        """Return an immutable view of every write that has been acknowledged."""

    def check_files(self, *, writing: bool) -> None:
        """Raise a StorageError if somebody else has deleted, replaced or cut short the files. Must be quick.

        ``writing``: False if reading must be safe; True if writes must not get lost.
        """

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> int:
        """Apply a batch, all of it or nothing.

        When this returns, the next snapshot includes the batch, and with ``fsync`` no crash can lose it. Returns how
        many items a batch that only deletes has removed, and 0 for any other batch. Raises StorageFullError,
        ReadOnlyError or ClosedError.
        """

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. If a write cannot be saved, raises the error."""

    def seal(self, progress: Progress | None = None) -> None:
        """Turn the delta into a segment. Writes and searches continue meanwhile."""

    def compact(self, progress: Progress | None = None) -> None:
        """Merge all segments and the delta into as few segments as possible, usually one, without dead items."""

    def stats(self) -> StoreStats:
        """Return statistics."""

    def file_sizes(self) -> tuple[int, int]:
        """Return the size of the files and how much of it is in use, in bytes; zeros without files. Must be quick."""

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Verify the structure, and every byte against its checksum."""

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new directory, which the same backend can open. Writes continue meanwhile."""

    def close(self) -> None:
        """Save all writes, and release all resources. Closing twice is allowed.

        Seals and merges that are running are abandoned; they raise ClosedError, and lose nothing.
        """


class Backend(Protocol):
    """A kind of store: creates and opens stores."""

    persistent: bool
    """Whether each index lives in a directory. If False, indexes are in memory and ``path`` is only a name."""

    files: Sequence[str]
    """Patterns of the names of all files that the store writes to the directory of an index, as for :mod:`fnmatch`.
    When an index is dropped, only files with such names are removed. If there are others, it cannot be dropped."""

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Create an empty index at ``path``, a directory that does not exist yet.

        The database then adds a file ``encoder`` to the directory if the index has an encoder, and renames the
        directory. Leave no file open. If this raises an error, the database removes the directory.
        """

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> Store:
        """Open the index at ``path``. ``settings`` is given only if the backend is not persistent.

        Raises FormatError if the directory does not contain an index of this kind.
        """


_backends: dict[str, Backend] = {}
"""A cache: searching the metadata of all installed packages takes longer than opening a small index."""


def backend(name: str) -> Backend:
    """Return the backend registered under a name. Raises InvalidArgumentError if there is none."""
    if name not in _backends:
        found = entry_points(group=GROUP)
        for entry in found:
            if entry.name == name:
                _backends[name] = entry.load()
                break
        else:
            installed = ", ".join(sorted({entry.name for entry in found}))
            raise InvalidArgumentError(f"store = {name!r} is not installed; choose one of: {installed}")
    return _backends[name]
