"""What a disk may hold after power is lost, from a log of what was done to it.

``disk_recorder.c`` writes the log. :class:`RecordedDisk` reads it up to some point, and then builds a directory as the
disk might hold it if power were lost there. The model:

- Certain: what a file contained when an fsync or fdatasync of it began, once the call has returned; what was written
  through an O_DSYNC descriptor, once the write has returned; and the entries that a directory had when an fsync of it
  began, once the call has returned.
- Everything else may be lost. Of writes, any subset may survive, also a later one without an earlier one, and also
  parts of one write: pages of 4096 bytes, or sectors of 512. Of the changes of directories (created, renamed and
  removed entries), any subset may survive; but a rename is never half done.
- A file may be longer than what survived of its writes. The gap then contains zeros, or bytes of other files.
- A sync of a file does not sync its entry in the directory.
- The contents of a file with a shared memory map may be anything.

So the model assumes less than what ext4 and XFS promise, which keep the order of changes in directories. It does assume
what LMDB needs: a sector of 512 bytes is written completely or not at all, and the disk does not report a sync that it
has not done. Modes are not modelled: a file gets the mode that the test process gives it.
"""

from __future__ import annotations

import enum
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

_HEADER = struct.Struct("<4Q")
SECTOR: Final = 512
PAGE: Final = 4096


@dataclass(frozen=True)
class Record:
    """A record of the log; ``disk_recorder.c`` explains the kinds."""

    kind: str
    inode: int
    offset: int
    data: bytes

    @property
    def path(self) -> str:
        """The path that it is about."""
        return self.data.decode()


def read_log(path: Path) -> list[Record]:
    """Read all records."""
    if path.stat().st_size == 0:
        return []
    records = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        at = 0
        while at < len(view):
            kind, inode, offset, size = _HEADER.unpack_from(view, at)
            at += _HEADER.size
            records.append(Record(chr(kind), inode, offset, view[at : at + size]))
            at += size
    return records


class Kept(enum.Enum):
    """Which part of what is not certain survives."""

    NOTHING = enum.auto()
    EVERYTHING = enum.auto()
    FIRST = enum.auto()
    """Everything up to some moment, and nothing later."""
    SOME = enum.auto()
    """Any of it, complete."""
    PAGES = enum.auto()
    """Any pages of any writes; of changes of directories, any."""
    SECTORS = enum.auto()
    """Any sectors of any writes; of changes of directories, any."""


class Ignored(enum.Flag):
    """Calls whose effect the disk ignores, to show that the checks would notice."""

    NOTHING = 0
    FDATASYNC = enum.auto()
    DSYNC = enum.auto()
    FSYNC_OF_DIRECTORIES = enum.auto()
    FSYNC_OF_FILES = enum.auto()


@dataclass
class _Change:
    """A write to a file (``data``), a new length of it (``size``), or new entries of a directory (``entries``)."""

    number: int
    offset: int = 0
    data: bytes | None = None
    size: int = 0
    extends: bool = False
    entries: dict[str, _Inode | None] = field(default_factory=dict)
    """None: the name is removed."""
    certain: bool = False


@dataclass(eq=False)
class _Inode:
    is_directory: bool
    bytes: bytearray = field(default_factory=bytearray)
    """What is certain."""
    entries: dict[str, _Inode] = field(default_factory=dict)
    """What is certain."""
    changes: list[_Change] = field(default_factory=list)
    """What has happened since."""
    mapped: bool = False

    def settle(self, number: int) -> None:
        """Make all changes before this number certain."""
        count = next((i for i, change in enumerate(self.changes) if change.number >= number), len(self.changes))
        for change in self.changes[:count]:
            self.apply(self.bytes, change)
            _apply_entries(self.entries, change)
        del self.changes[:count]

    @staticmethod
    def apply(content: bytearray, change: _Change) -> None:
        if change.data is not None:
            _write(content, change.offset, change.data)
        elif not change.entries:
            _resize(content, max(len(content), change.size) if change.extends else change.size)

    def current_entries(self) -> dict[str, _Inode]:
        """Return the entries that a process sees."""
        entries = dict(self.entries)
        for change in self.changes:
            _apply_entries(entries, change)
        return entries


def _apply_entries(entries: dict[str, _Inode], change: _Change) -> None:
    for name, inode in change.entries.items():
        for old in [old for old, other in entries.items() if other is inode]:
            del entries[old]  # a file has one name, also if an earlier renaming did not survive
        if inode is None:
            entries.pop(name, None)
        else:
            entries[name] = inode


def _resize(content: bytearray, size: int) -> None:
    if size < len(content):
        del content[size:]
    else:
        content.extend(bytes(size - len(content)))


def _write(content: bytearray, offset: int, data: bytes) -> None:
    _resize(content, max(len(content), offset))
    content[offset : offset + len(data)] = data


class EscapedWriteError(Exception):
    """The log does not explain what is in the directory."""


class RecordedDisk:
    """A directory and its contents at some point of a log: what is certain, and what has happened since."""

    def __init__(self, root: Path, ignored: Ignored = Ignored.NOTHING) -> None:
        """Start with an empty directory."""
        self._root = str(root)
        self._ignored = ignored
        self._top = _Inode(True)
        self._inodes: dict[int, _Inode] = {}
        self._syncs: dict[int, tuple[_Inode, int, bool]] = {}
        self._number = 0

    def apply(self, record: Record) -> None:
        """Go on by one record."""
        self._number += 1
        inode = self._inodes.get(record.inode, self._top)
        match record.kind:
            case "c" | "d":
                self._inodes[record.inode] = new = _Inode(record.kind == "d")
                directory, name = self._find(record.path)
                self._change(directory, entries={name: new})
            case "r":
                old, new_path = record.path.split("\0")
                (directory, before), (target, after) = self._find(old), self._find(new_path)
                moved = directory.current_entries()[before]
                if directory is target:
                    self._change(directory, entries={before: None, after: moved})
                else:  # two changes, of which the disk may keep either; after a sync of the target, it keeps that one
                    self._change(target, entries={after: moved})
                    self._change(directory, entries={before: None})
            case "u":
                directory, name = self._find(record.path)
                self._change(directory, entries={name: None})
            case "w":
                self._change(inode, offset=record.offset, data=record.data)
            case "t" | "e":
                self._change(inode, size=record.offset, extends=record.kind == "e")
            case "D":
                inode.changes[-1].certain = not self._ignored & Ignored.DSYNC
            case "F" | "A":
                if record.kind == "A":
                    ignored = Ignored.FDATASYNC
                else:
                    ignored = Ignored.FSYNC_OF_DIRECTORIES if inode.is_directory else Ignored.FSYNC_OF_FILES
                self._syncs[record.offset] = (inode, self._number, bool(self._ignored & ignored))
            case "S":
                inode, number, is_ignored = self._syncs.pop(record.offset)
                if not is_ignored:
                    inode.settle(number)
            case "m":
                inode.mapped = True
            case "x":
                raise EscapedWriteError(f"{record.path} is not modelled")

    def _change(self, inode: _Inode, **values: object) -> None:
        inode.changes.append(_Change(self._number, **values))  # type: ignore[arg-type]

    def _find(self, path: str) -> tuple[_Inode, str]:
        """Return the directory of a path, and its name there."""
        *parents, name = [part for part in path.removeprefix(self._root).split("/") if part]
        directory = self._top
        for parent in parents:
            directory = directory.current_entries()[parent]
        return directory, name

    # -- building ---------------------------------------------------------------------------------------------------

    def build(self, target: Path, data: Kept, entries: Kept, rng: np.random.Generator) -> None:
        """Write to a new directory what the disk might hold if power were lost now."""
        numbers = [change.number for inode in self._reachable() for change in inode.changes]
        until = int(rng.choice(numbers)) if numbers else 0
        _Builder(data, entries, until, rng).directory(self._top, target)

    def compare(self, real: Path) -> None:
        """Raise EscapedWriteError if the directory differs from what a process should see at this point.

        Only the contents of mapped files may differ.
        """
        self._compare(self._top, real)

    def _compare(self, inode: _Inode, real: Path) -> None:
        if not inode.is_directory:
            content = bytearray(inode.bytes)
            for change in inode.changes:
                inode.apply(content, change)
            if not inode.mapped and content != real.read_bytes():
                raise EscapedWriteError(f"{real} has other bytes than were recorded")
            return
        entries = inode.current_entries()
        found = {path.name for path in real.iterdir()}
        if set(entries) != found:
            raise EscapedWriteError(f"{real} has {sorted(found)}; recorded were {sorted(entries)}")
        for name, child in entries.items():
            self._compare(child, real / name)

    def _reachable(self) -> Iterator[_Inode]:
        """Yield all inodes that may be in the directory after a loss of power."""
        waiting, seen = [self._top], {id(self._top)}
        while waiting:
            inode = waiting.pop()
            yield inode
            children: list[_Inode | None] = list(inode.entries.values())
            for change in inode.changes:
                children += change.entries.values()
            for child in children:
                if child is not None and id(child) not in seen:
                    seen.add(id(child))
                    waiting.append(child)


class _Builder:
    """Makes one choice of what survives."""

    def __init__(self, data: Kept, entries: Kept, until: int, rng: np.random.Generator) -> None:
        self._data = data
        self._entries = entries
        self._until = until
        self._rng = rng
        self._share = float(rng.choice([0.1, 0.5, 0.9]))

    def _survives(self, kept: Kept, number: int) -> bool:
        if kept is Kept.FIRST:
            return number <= self._until
        if kept in (Kept.NOTHING, Kept.EVERYTHING):
            return kept is Kept.EVERYTHING
        return self._rng.random() < self._share

    def directory(self, inode: _Inode, path: Path) -> None:
        path.mkdir(mode=0o700)
        entries = dict(inode.entries)
        for change in inode.changes:
            if self._survives(self._entries, change.number):
                _apply_entries(entries, change)
        for name, child in entries.items():
            if child.is_directory:
                self.directory(child, path / name)
            else:
                (path / name).write_bytes(self._content(child))
                (path / name).chmod(0o600)

    def _content(self, inode: _Inode) -> bytes:
        content = bytearray(inode.bytes)
        for change in inode.changes:
            if change.certain or self._data is Kept.EVERYTHING:
                inode.apply(content, change)
            elif change.data is None:
                if self._survives(self._data, change.number):
                    inode.apply(content, change)
            else:
                self._write_parts(content, change.offset, change.data, change.number)
        if inode.mapped and self._data not in (Kept.NOTHING, Kept.EVERYTHING):
            return self._rng.bytes(len(content))
        return bytes(content)

    def _write_parts(self, content: bytearray, offset: int, data: bytes, number: int) -> None:
        """Write what survives of a write. The file may grow even where nothing does."""
        size = {Kept.PAGES: PAGE, Kept.SECTORS: SECTOR}.get(self._data)
        start = 0
        parts = []
        while start < len(data):
            stop = len(data) if size is None else min(len(data), (offset + start) // size * size + size - offset)
            if self._survives(self._data, number):
                parts.append((start, stop))
            start = stop
        end = offset + (len(data) if self._data is not Kept.NOTHING and self._rng.random() < 0.5 else 0)
        end = max([end, *(offset + stop for _, stop in parts)])
        if parts or end > offset:
            grown = end - len(content)
            if grown > 0:
                content.extend(self._rng.bytes(grown) if self._rng.random() < 0.5 else bytes(grown))
        for start, stop in parts:
            content[offset + start : offset + stop] = data[start:stop]
