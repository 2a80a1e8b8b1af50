"""Reading an LMDB file page by page, and its two meta pages. ``pages.py`` describes the layout."""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<QHHHH")
_META: Final = struct.Struct("<QHHHH IIQQ IHHQQQQQ IHHQQQQQ QQ")

EMPTY: Final = 2**64 - 1
"""The root of a tree that has no pages."""
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_META_PAGE: Final = 8
_INTEGER_KEYS: Final = 0x08
_NO_SUBDIR: Final = 0x4000
_MIN_PAGE, _MAX_PAGE = 512, 32768
_MAX_MAP: Final = 2**47
_MAX_DEPTH: Final = 32


class PageError(Exception):
    """The file is damaged, or not written by LMDB 0.9. The message says where, and what was found and expected."""


def page_error(pgno: int, text: str) -> PageError:
    """Return the error for a problem with a page."""
    return PageError(f"page {pgno}: {text}")


class TreeRecord(NamedTuple):
    """A meta page's record of a database."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """The contents of a meta page."""

    number: int
    mapsize: int
    free: TreeRecord
    main: TreeRecord
    last_pgno: int
    txnid: int


class PageFile:
    """Reads pages with pread. With a memory map, a bad sector or a file that shrinks would kill the process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.page_size = _MIN_PAGE
        """A default until the first meta page has been read."""
        self.measure()

    def measure(self) -> None:
        """Update :attr:`size`."""
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise PageError("not a regular file")
        self.size = status.st_size

    def read(self, pgno: int, size: int, skip: int = 0) -> bytes:
        """Return ``size`` bytes, starting ``skip`` bytes into a page. They may extend into the pages after it."""
        parts: list[bytes] = []
        start = pgno * self.page_size + skip
        while size:
            try:
                part = os.pread(self._fd, size, start)
            except OSError as error:
                raise page_error(pgno, f"cannot be read: {error.strerror}") from error
            if not part:
                raise page_error(pgno, f"the file ends at byte {start}; at least {size} more bytes are expected")
            parts.append(part)
            start += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_inside(self, pgno: int, pages: int, last_pgno: int) -> None:
        """Refuse pages outside the commit or beyond the end of the file."""
        if not 2 <= pgno <= last_pgno + 1 - pages:
            text = f"something refers to {pages} pages from here on; the commit has only pages 2 to {last_pgno}"
            raise page_error(pgno, text)
        if (end := (pgno + pages) * self.page_size) > self.size:
            raise page_error(pgno, f"the file was cut short: it has {self.size} bytes; at least {end} are expected")


@contextmanager
def opened(path: Path | str) -> Iterator[PageFile]:
    """Open a file during the block."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield PageFile(fd)
    finally:
        os.close(fd)


def read_metas(file: PageFile) -> tuple[Meta, Meta]:
    """Return both meta pages, the older one first."""
    if file.size < 2 * _MIN_PAGE:
        raise PageError(f"the file has {file.size} bytes; it should have at least two meta pages")
    first = _read_meta(file, 0)
    file.page_size = first.free.pad
    if file.size < 2 * file.page_size:
        raise page_error(1, f"the file has {file.size} bytes; two meta pages need {2 * file.page_size}")
    second = _read_meta(file, 1)
    if second.free.pad != first.free.pad:
        raise page_error(1, f"page size {second.free.pad}; page 0 has {first.free.pad}")
    for meta in (first, second):
        _check_meta(meta)
    file.measure()  # again, as pages of these commits may have been appended since
    if first.txnid == second.txnid == 0:
        return second, first
    if abs(first.txnid - second.txnid) != 1:
        raise PageError(f"the meta pages are of commits {first.txnid} and {second.txnid}; these should be consecutive")
    return (first, second) if first.txnid < second.txnid else (second, first)


def _read_meta(file: PageFile, number: int) -> Meta:
    """Read a meta page and check that it is one."""
    fields = _META.unpack(file.read(number, _META.size))
    pgno, _, flags, _, _, magic, version, address, mapsize = fields[:9]
    if magic != _MAGIC:
        raise page_error(number, f"magic {magic:#x}; a meta page of LMDB has {_MAGIC:#x}")
    if version != _VERSION:
        raise page_error(number, f"format {version}; LMDB 0.9 writes {_VERSION}")
    if pgno != number or flags != _META_PAGE:
        raise page_error(
            number, f"has number {pgno} and flags {flags:#x}; a meta page should have {number} and {_META_PAGE:#x}"
        )
    if address:
        raise page_error(number, f"address {address:#x}; should be 0, as the map has no fixed address")
    meta = Meta(number, mapsize, TreeRecord(*fields[9:17]), TreeRecord(*fields[17:25]), *fields[25:])
    size = meta.free.pad
    if size & (size - 1) or not _MIN_PAGE <= size <= _MAX_PAGE:
        raise page_error(number, f"page size {size}; should be a power of two from {_MIN_PAGE} to {_MAX_PAGE}")
    return meta


def _check_meta(meta: Meta) -> None:
    """Refuse a meta page whose values contradict each other."""
    number = meta.number
    if not meta.last_pgno < meta.mapsize // meta.free.pad or not meta.mapsize <= _MAX_MAP:
        text = f"map of {meta.mapsize} bytes; should hold pages 0 to {meta.last_pgno} and be at most {_MAX_MAP}"
        raise page_error(number, text)
    if meta.free.flags & ~_NO_SUBDIR != _INTEGER_KEYS:
        raise page_error(number, f"free database with flags {meta.free.flags:#x}; should be {_INTEGER_KEYS:#x}")
    if meta.main.flags or meta.main.pad:
        text = f"main database with flags {meta.main.flags:#x} and pad {meta.main.pad}; both should be 0"
        raise page_error(number, text)
    for name, record in (("free", meta.free), ("main", meta.main)):
        if record.root == EMPTY and any(record[2:-1]):
            raise page_error(number, f"{name} database without a root; should have no pages and entries")
        if record.root != EMPTY and not 1 <= record.depth <= _MAX_DEPTH:
            raise page_error(number, f"{name} database of depth {record.depth}; should be 1 to {_MAX_DEPTH}")
    if meta.txnid & 1 != number and meta.txnid:
        raise page_error(number, f"commit {meta.txnid}; even commits are written to page 0, odd ones to page 1")
    if not meta.txnid and not meta.free.root == meta.main.root == EMPTY:
        raise page_error(number, "commit 0 has pages; a file is empty before its first commit")
    if meta.last_pgno < 1 or (not meta.txnid and meta.last_pgno > 1):
        text = f"last page {meta.last_pgno} in commit {meta.txnid}; should be 1 in commit 0, and at least 1 later"
        raise page_error(number, text)
