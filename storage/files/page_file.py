"""An LMDB file read page by page, and its two meta pages. ``pages.py`` draws the layout."""

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
"""The root of a tree without pages."""
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_META_PAGE: Final = 8
_INTEGER_KEYS: Final = 0x08
_WITHOUT_FOLDER: Final = 0x4000
_LEAST_PAGE, _MOST_PAGE = 512, 32768
_MOST_MAP: Final = 2**47
_MOST_DEPTH: Final = 32


class PageError(Exception):
    """The file is damaged, or not one of LMDB 0.9; the message says where, what is there, and what should be."""


def fault(pgno: int, text: str) -> PageError:
    """Return the error that something is wrong with a page."""
    return PageError(f"page {pgno}: {text}")


class TreeRecord(NamedTuple):
    """A database as its meta page describes it."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """What a meta page says of its commit."""

    number: int
    mapsize: int
    free: TreeRecord
    main: TreeRecord
    last_pgno: int
    txnid: int


class PageFile:
    """Reads with pread, as a map would turn a bad sector, or a file cut short meanwhile, into a signal."""

    def __init__(self, fd: int) -> None:
        """Take an open file."""
        self._fd = fd
        self.page_size = _LEAST_PAGE
        """Known once the first meta page is read."""
        self.measure()

    def measure(self) -> None:
        """Note how long the file is now."""
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            raise PageError("not a regular file")
        self.size = status.st_size

    def read(self, pgno: int, size: int, skip: int = 0) -> bytes:
        """Return ``size`` bytes from the start of a page on, or from ``skip`` bytes further."""
        parts: list[bytes] = []
        start = pgno * self.page_size + skip
        while size:
            try:
                part = os.pread(self._fd, size, start)
            except OSError as error:
                raise fault(pgno, f"cannot be read: {error.strerror}") from error
            if not part:
                raise fault(pgno, f"the file ends at its byte {start}; should go on for {size} more at least")
            parts.append(part)
            start += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_inside(self, pgno: int, pages: int, last_pgno: int) -> None:
        """Refuse pages that a commit does not have, or the file not any more."""
        if not 2 <= pgno <= last_pgno + 1 - pages:
            raise fault(pgno, f"used, {pages} pages from there on; the commit has only pages 2 to {last_pgno}")
        if (end := (pgno + pages) * self.page_size) > self.size:
            raise fault(pgno, f"the file was cut: it has {self.size} bytes; should be {end} at least")


@contextmanager
def opened(path: Path | str) -> Iterator[PageFile]:
    """Open a file for as long as it is read."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield PageFile(fd)
    finally:
        os.close(fd)


def read_metas(file: PageFile) -> tuple[Meta, Meta]:
    """Return what both meta pages say, the older first."""
    if file.size < 2 * _LEAST_PAGE:
        raise PageError(f"a file of {file.size} bytes; should have two meta pages at least")
    first = _read_meta(file, 0)
    file.page_size = first.free.pad
    if file.size < 2 * file.page_size:
        raise fault(1, f"the file has {file.size} bytes; two meta pages need {2 * file.page_size}")
    second = _read_meta(file, 1)
    if second.free.pad != first.free.pad:
        raise fault(1, f"page size {second.free.pad}; page 0 has {first.free.pad}")
    for meta in (first, second):
        _check_meta(meta)
    file.measure()  # anew, as what these commits use may have been appended since
    if first.txnid == second.txnid == 0:
        return second, first
    if abs(first.txnid - second.txnid) != 1:
        raise PageError(f"meta pages of commits {first.txnid} and {second.txnid}; one should follow the other")
    return (first, second) if first.txnid < second.txnid else (second, first)


def _read_meta(file: PageFile, number: int) -> Meta:
    """Return what a meta page says, as far as it is one."""
    fields = _META.unpack(file.read(number, _META.size))
    pgno, _, flags, _, _, magic, version, address, mapsize = fields[:9]
    if magic != _MAGIC:
        raise fault(number, f"magic {magic:#x}; a meta page of LMDB has {_MAGIC:#x}")
    if version != _VERSION:
        raise fault(number, f"format {version}; LMDB 0.9 writes {_VERSION}")
    if pgno != number or flags != _META_PAGE:
        raise fault(number, f"page number {pgno} and flags {flags:#x}; should be {number} and {_META_PAGE:#x}")
    if address:
        raise fault(number, f"address {address:#x}; should be 0, as maps have no fixed place")
    meta = Meta(number, mapsize, TreeRecord(*fields[9:17]), TreeRecord(*fields[17:25]), *fields[25:])
    size = meta.free.pad
    if size & (size - 1) or not _LEAST_PAGE <= size <= _MOST_PAGE:
        raise fault(number, f"page size {size}; should be a power of two from {_LEAST_PAGE} to {_MOST_PAGE}")
    return meta


def _check_meta(meta: Meta) -> None:
    """Refuse a meta page that contradicts itself."""
    number = meta.number
    if not meta.last_pgno < meta.mapsize // meta.free.pad or not meta.mapsize <= _MOST_MAP:
        text = f"map of {meta.mapsize} bytes; should hold pages 0 to {meta.last_pgno} and be {_MOST_MAP} at most"
        raise fault(number, text)
    if meta.free.flags & ~_WITHOUT_FOLDER != _INTEGER_KEYS:
        raise fault(number, f"free database of flags {meta.free.flags:#x}; should be {_INTEGER_KEYS:#x}")
    if meta.main.flags or meta.main.pad:
        text = f"main database of flags {meta.main.flags:#x} and pad {meta.main.pad}; both should be 0"
        raise fault(number, text)
    for name, record in (("free", meta.free), ("main", meta.main)):
        if record.root == EMPTY and any(record[2:-1]):
            raise fault(number, f"{name} database without a root; should have no pages and entries")
        if record.root != EMPTY and not 1 <= record.depth <= _MOST_DEPTH:
            raise fault(number, f"{name} database of depth {record.depth}; should be 1 to {_MOST_DEPTH}")
    if meta.txnid & 1 != number and meta.txnid:
        raise fault(number, f"commit {meta.txnid}; even ones are written to page 0, odd ones to page 1")
    if not meta.txnid and not meta.free.root == meta.main.root == EMPTY:
        raise fault(number, "commit 0, but with pages; the file is empty before its first commit")
    if meta.last_pgno < 1 or (not meta.txnid and meta.last_pgno > 1):
        raise fault(number, f"last page {meta.last_pgno} in commit {meta.txnid}; should be 1, or after commit 0 more")
