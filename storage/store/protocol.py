"""What a store is: the place where one index lives. Third parties add one through the entry point ``whamming.stores``.

The entry point names an object with the methods of :class:`Backend`; :func:`backend` finds it by name.
"""

from __future__ import annotations

from collections.abc import Callable
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
"""Called now and then with the share done, 0.0 to 1.0."""

GROUP = "whamming.stores"


def share_of(progress: Progress | None, done: int, count: int) -> Progress | None:
    """Return what reports the progress of one of ``count`` like tasks, ``done`` of which are over, as that of all."""
    return None if progress is None else lambda share: progress((done + share) / count)


@dataclass(frozen=True)
class StoreStats:
    """What a store holds, and what it has done since it was opened."""

    items: int
    segments: int
    """Sealed ones."""
    sealed_rows: int
    """Items in sealed segments, with those that are gone."""
    dead_rows: int
    """Of them, gone: deleted or replaced since. Compaction keeps them below a quarter."""
    delta_rows: int
    """Written since the last seal."""
    disk_bytes: int
    """Of the file, with space that is free for reuse; 0 in RAM."""
    used_bytes: int
    """Of the file, in use; in RAM, of all arrays."""
    version: int
    """Grows with every write; not kept across restarts."""
    writes: int
    """Batches written."""
    commits: int
    """Transactions that they took: a group of concurrent writes shares one."""
    seals: int
    compactions: int

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return table(("statistic", "value"), vars(self).items())


@dataclass(frozen=True)
class VerifyReport:
    """What :meth:`Store.verify` found."""

    problems: tuple[str, ...]
    bytes_checked: int
    arrays_checked: int

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    def __repr__(self) -> str:
        """Describe the report in a line, with the first problem."""
        found = "ok" if self.ok else f"{counted(len(self.problems), 'problem')}, the first: {self.problems[0]}"
        return f"VerifyReport({found}; {self.bytes_checked:,} bytes checked)"


class Store(Protocol):
    """One index, open. Any number of threads may use it at once."""

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""

    def snapshot(self) -> Snapshot:
        """Return an immutable view of every write that has been acknowledged."""

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> int:
        """Apply a batch, all of it or nothing. When it returns, the next snapshot shows it, and with ``fsync`` a crash
        does not lose it. Returns how many items a batch that only deletes has removed; 0 for any other batch. Raises
        StorageFullError, ReadOnlyError, ClosedError."""

    def flush(self) -> None:
        """Wait until every ``async`` write is durable. Raises what kept one from it."""

    def seal(self, progress: Progress | None = None) -> None:
        """Turn the delta into a segment. Writing and searching go on meanwhile."""

    def compact(self, progress: Progress | None = None) -> None:
        """Merge all segments and the delta into one, without the items that are gone."""

    def stats(self) -> StoreStats:
        """Tell what the store holds."""

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum, and the structure."""

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new directory, for the same backend to open; writing goes on meanwhile."""

    def close(self) -> None:
        """Finish what is under way and let go of everything. Closing twice is fine."""


class Backend(Protocol):
    """A kind of store."""

    persistent: bool
    """Indexes live in a directory each; else in memory, and ``path`` is only a name."""

    def create(self, path: Path, settings: IndexSettings) -> None:
        """Make an empty index at ``path``, a directory that does not exist yet."""

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> Store:
        """Open the index at ``path``. ``settings`` are given where the backend is not persistent."""


_backends: dict[str, Backend] = {}
"""Those that were asked for: looking through all that is installed takes longer than opening a small index."""


def backend(name: str) -> Backend:
    """Return the backend that is registered under a name."""
    if name not in _backends:
        found = entry_points(group=GROUP)
        for entry in found:
            if entry.name == name:
                _backends[name] = entry.load()
                break
        else:
            installed = ", ".join(sorted({entry.name for entry in found}))
            raise InvalidArgumentError(f"store = {name!r}; installed stores: {installed}")
    return _backends[name]
