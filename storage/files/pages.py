"""Whether the pages of an LMDB file fit together, found out before liblmdb touches them.

liblmdb trusts its pages: a flipped bit or a file cut short ends in a signal, or in other data than was written.
:func:`check_pages` reads what liblmdb would follow, and follows it with suspicion. It knows the files of LMDB 0.9 on
little-endian 64-bit machines, with the main database only: no named databases, no duplicate keys.

::

    page 0    page 1    page 2 ...                                     page last_pgno
    meta      meta      branch | leaf | run of overflow pages | free

    page      pgno 8, pad 2, flags 2, then lower 2 and upper 2, or for a run of overflow pages its length 4
    meta      page, magic 4, version 4, address 8, mapsize 8, record of the free database, record of the main one,
              last_pgno 8, txnid 8
    record    pad 4 (free database: the page size), flags 2, depth 2, branch pages 8, leaf pages 8, overflow pages 8,
              entries 8, root 8 (all ones: empty)

    branch or leaf      16         lower             upper                          page size
                        | offset 2 | ... |    gap    | node | node | ... | node     |

    node of a leaf      value size 4, flags 2, key size 2, key, then the value, or the 8-byte number of its first
                        overflow page; filled up to an even size
    node of a branch    child page 6, key size 2, key: the least that the child may hold (the first one's is not used)

Nodes fill ``[upper, page size)`` without gaps, so every bit of lower, upper, an offset or a node's size is held in
place by the others. What nothing else in the file holds in place is not checked: the bytes of keys (but for their
order) and of values, and the size of a key or value where the node or run of overflow pages would be as long with
another.

*Which commit is the newest* is the one thing that a single bit could change and leave everything whole: commit n
writes its number to meta page n mod 2, liblmdb reads the page with the greater number, and a bit taken from the one,
or added to the other, would silently bring back commit n - 1. That the numbers have the right parity and differ by
one is not enough: n - 2 is often a bit away from n, as is n + 1 from n - 1, and keeps both rules. But a commit stores
the pages that it freed under its own number, and one that frees none, as the database was empty, takes new pages at
the end. Hence no meta page may know of pages freed later than by itself, and the newer one must know of pages freed
as late, and of as many pages, as the older one.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from operator import lt
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

_HEADER: Final = struct.Struct("<QHHHH")
_RUN_HEADER: Final = struct.Struct("<QHHI")
_META: Final = struct.Struct("<QHHHH IIQQ IHHQQQQQ IHHQQQQQ QQ")
_PGNO: Final = struct.Struct("<Q")

_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_EMPTY: Final = 2**64 - 1
_BRANCH, _LEAF, _OVERFLOW, _META_PAGE = 1, 2, 4, 8
_KINDS: Final = {_BRANCH: "branch", _LEAF: "leaf"}
_BIG: Final = 1
_INTEGER_KEYS: Final = 0x08
_WITHOUT_FOLDER: Final = 0x4000
_LEAST_PAGE, _MOST_PAGE = 512, 32768
_MOST_MAP: Final = 2**47
_MOST_DEPTH: Final = 32
_MOST_KEY: Final = 511
_NODE: Final = 8


class PageError(Exception):
    """The file is damaged, or not one of LMDB 0.9; the message says where, what is there, and what should be."""


@dataclass(frozen=True)
class PageReport:
    """What a sound file is made of."""

    page_size: int
    """In bytes."""
    txnid: int
    """The newest commit; 0: nothing was ever committed."""
    pages: int
    """All there are, the two meta pages included: ``used + free``, and what has leaked (see :func:`check_pages`)."""
    used: int
    """Meta pages and pages reachable from them."""
    free: int
    """Pages that commits to come may use."""
    entries: int
    """Records in the main database."""
    file_bytes: int
    """The file's length. May be less than ``pages`` need, where the last of them are free and were never written."""


def check_pages(path: Path | str, *, deep: bool = True) -> PageReport:
    """Check all that liblmdb would follow in a ``data.mdb``, and return what was found.

    Reads branch and leaf pages, the free list, and the first 16 bytes of each run of overflow pages; never a value in
    overflow pages. Of the older of the two commits in a file, only the free database is read.

    ``deep`` also refuses a file with pages that are neither used nor free. LMDB leaves none behind, even if it is
    killed while writing, so they are a sign of damage; but all they cost is their room.

    While another process commits, a sound file may look damaged: pages are written anew once two commits have passed
    that do not use them. Hold the writer's lock to rule that out. A read transaction keeps the pages as they are, but
    not the meta pages, which may be read half written: then check again if the check fails, as without either.

    Raises :class:`PageError` where anything is wrong, and what :func:`os.open` raises where the file cannot be opened.
    A commit that failed at the very end, as the disk refused its meta page, leaves one with an old number and new
    contents. That looks the same as a commit that a flipped bit would take back, and is refused like it.
    """
    with _opened(path) as file:
        older, newest = _read_metas(file)
        before = _Tree(file, older, older.free, "free")
        free = _Tree(file, newest, newest.free, "free")
        main = _Tree(file, newest, newest.main, "main")
        _check_age(older, before, newest, free)
        shares = _share_out(newest, free, main)
        pages = newest.last_pgno + 1
        if deep and shares.leaked is not None:
            others = pages - shares.used - shares.free - 1
            raise _fault(shares.leaked, f"neither used nor free, nor are {others} others; each should be either")
        return PageReport(
            page_size=file.page_size,
            txnid=newest.txnid,
            pages=pages,
            used=shares.used,
            free=shares.free,
            entries=newest.main.entries,
            file_bytes=file.size,
        )


class _Record(NamedTuple):
    """A database as its meta page describes it."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class _Meta(NamedTuple):
    number: int
    mapsize: int
    free: _Record
    main: _Record
    last_pgno: int
    txnid: int


def _fault(pgno: int, text: str) -> PageError:
    return PageError(f"page {pgno}: {text}")


class _File:
    """Reads with pread, as a map would turn a bad sector, or a file cut short meanwhile, into a signal."""

    def __init__(self, fd: int) -> None:
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
                raise _fault(pgno, f"cannot be read: {error.strerror}") from error
            if not part:
                raise _fault(pgno, f"the file ends at its byte {start}; should go on for {size} more at least")
            parts.append(part)
            start += len(part)
            size -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def check_inside(self, pgno: int, pages: int, last_pgno: int) -> None:
        """Refuse pages that a commit does not have, or the file not any more."""
        if not 2 <= pgno <= last_pgno + 1 - pages:
            raise _fault(pgno, f"used, {pages} pages from there on; the commit has only pages 2 to {last_pgno}")
        if (end := (pgno + pages) * self.page_size) > self.size:
            raise _fault(pgno, f"the file was cut: it has {self.size} bytes; should be {end} at least")


@contextmanager
def _opened(path: Path | str) -> Iterator[_File]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield _File(fd)
    finally:
        os.close(fd)


def _read_metas(file: _File) -> tuple[_Meta, _Meta]:
    """Return what both meta pages say, the older first."""
    if file.size < 2 * _LEAST_PAGE:
        raise PageError(f"a file of {file.size} bytes; should have two meta pages at least")
    first = _read_meta(file, 0)
    file.page_size = first.free.pad
    if file.size < 2 * file.page_size:
        raise _fault(1, f"the file has {file.size} bytes; two meta pages need {2 * file.page_size}")
    second = _read_meta(file, 1)
    if second.free.pad != first.free.pad:
        raise _fault(1, f"page size {second.free.pad}; page 0 has {first.free.pad}")
    for meta in (first, second):
        _check_meta(meta)
    file.measure()  # anew, as what these commits use may have been appended since
    if first.txnid == second.txnid == 0:
        return second, first
    if abs(first.txnid - second.txnid) != 1:
        raise PageError(f"meta pages of commits {first.txnid} and {second.txnid}; one should follow the other")
    return (first, second) if first.txnid < second.txnid else (second, first)


def _read_meta(file: _File, number: int) -> _Meta:
    """Return what a meta page says, as far as it is one."""
    fields = _META.unpack(file.read(number, _META.size))
    pgno, _, flags, _, _, magic, version, address, mapsize = fields[:9]
    if magic != _MAGIC:
        raise _fault(number, f"magic {magic:#x}; a meta page of LMDB has {_MAGIC:#x}")
    if version != _VERSION:
        raise _fault(number, f"format {version}; LMDB 0.9 writes {_VERSION}")
    if pgno != number or flags != _META_PAGE:
        raise _fault(number, f"page number {pgno} and flags {flags:#x}; should be {number} and {_META_PAGE:#x}")
    if address:
        raise _fault(number, f"address {address:#x}; should be 0, as maps have no fixed place")
    meta = _Meta(number, mapsize, _Record(*fields[9:17]), _Record(*fields[17:25]), *fields[25:])
    size = meta.free.pad
    if size & (size - 1) or not _LEAST_PAGE <= size <= _MOST_PAGE:
        raise _fault(number, f"page size {size}; should be a power of two from {_LEAST_PAGE} to {_MOST_PAGE}")
    return meta


def _check_meta(meta: _Meta) -> None:
    """Refuse a meta page that contradicts itself."""
    number = meta.number
    if not meta.last_pgno < meta.mapsize // meta.free.pad or not meta.mapsize <= _MOST_MAP:
        text = f"map of {meta.mapsize} bytes; should hold pages 0 to {meta.last_pgno} and be {_MOST_MAP} at most"
        raise _fault(number, text)
    if meta.free.flags & ~_WITHOUT_FOLDER != _INTEGER_KEYS:
        raise _fault(number, f"free database of flags {meta.free.flags:#x}; should be {_INTEGER_KEYS:#x}")
    if meta.main.flags or meta.main.pad:
        text = f"main database of flags {meta.main.flags:#x} and pad {meta.main.pad}; both should be 0"
        raise _fault(number, text)
    for name, record in (("free", meta.free), ("main", meta.main)):
        if record.root == _EMPTY and any(record[2:-1]):
            raise _fault(number, f"{name} database without a root; should have no pages and entries")
        if record.root != _EMPTY and not 1 <= record.depth <= _MOST_DEPTH:
            raise _fault(number, f"{name} database of depth {record.depth}; should be 1 to {_MOST_DEPTH}")
    if meta.txnid & 1 != number and meta.txnid:
        raise _fault(number, f"commit {meta.txnid}; even ones are written to page 0, odd ones to page 1")
    if not meta.txnid and not meta.free.root == meta.main.root == _EMPTY:
        raise _fault(number, "commit 0, but with pages; the file is empty before its first commit")
    if meta.last_pgno < 1 or (not meta.txnid and meta.last_pgno > 1):
        raise _fault(number, f"last page {meta.last_pgno} in commit {meta.txnid}; should be 1, or after commit 0 more")


class _Nodes(NamedTuple):
    """The nodes of one page, in the order of their keys."""

    page: bytes
    keys: list[bytes]
    heads: NDArray[np.int64]
    """Per node the four 16-bit words that it starts with."""
    ends: NDArray[np.int64]
    """Where its key ends."""


class _Tree:
    """A database, walked from its root: counted, checked against its record, and the places of its pages noted."""

    def __init__(self, file: _File, meta: _Meta, record: _Record, name: str) -> None:
        self._file = file
        self._last_pgno = meta.last_pgno
        self._is_free = name == "free"
        self._branches: set[int] = set()
        self._leaves: set[int] = set()
        self._entries = 0
        self.runs: list[tuple[int, int]] = []
        """First page and number of pages of each value in overflow pages."""
        self.lists: list[tuple[int, int, bytes]] = []
        """Free database only: the commit that freed the pages, the page where that is stored, and their list."""
        if record.root == _EMPTY:
            return
        self._walk(record.root, record.depth, b"", None)
        walked = (
            ("branch pages", len(self._branches), record.branch_pages),
            ("leaf pages", len(self._leaves), record.leaf_pages),
            ("overflow pages", sum(length for _, length in self.runs), record.overflow_pages),
            ("entries", self._entries, record.entries),
        )
        for what, found, recorded in walked:
            if found != recorded:
                raise _fault(meta.number, f"{recorded} {what} in the {name} database; there are {found}")

    @property
    def pages(self) -> list[int]:
        """Its branch and leaf pages."""
        return [*self._branches, *self._leaves]

    def _walk(self, pgno: int, depth: int, least: bytes, below: bytes | None) -> None:
        """Check a page and all under it. Its keys are not less than ``least``, and less than ``below``."""
        file = self._file
        if pgno in self._branches or pgno in self._leaves:
            raise _fault(pgno, "reached twice")
        file.check_inside(pgno, 1, self._last_pgno)
        kind = _LEAF if depth == 1 else _BRANCH
        (self._leaves if kind == _LEAF else self._branches).add(pgno)
        nodes = self._nodes(pgno, kind)
        keys = nodes.keys if kind == _LEAF else [least, *nodes.keys[1:]]
        if not all(map(lt, keys, keys[1:])):
            node = next(i for i, (one, other) in enumerate(pairwise(keys)) if one >= other)
            text = f"key {keys[node + 1].hex()} of node {node + 1}; should be greater than {keys[node].hex()}"
            raise _fault(pgno, text)
        if keys[0] < least:
            raise _fault(pgno, f"first key {keys[0].hex()}; its parent page says none is less than {least.hex()}")
        if below is not None and keys[-1] >= below:
            raise _fault(pgno, f"last key {keys[-1].hex()}; its parent page says all are less than {below.hex()}")
        if kind == _LEAF:
            self._check_values(pgno, nodes)
            return
        if len(keys) < 2 and not self._is_free:
            raise _fault(pgno, "branch page with a single child; should have two or more")
        children = nodes.heads[:, 0] | nodes.heads[:, 1] << 16 | nodes.heads[:, 2] << 32
        for child, low, high in zip(children.tolist(), keys, [*keys[1:], below], strict=True):
            self._walk(child, depth - 1, low, high)

    def _nodes(self, pgno: int, kind: int) -> _Nodes:
        """Check a page's header and that its nodes fill it; return them."""
        file, size = self._file, self._file.page_size
        page = file.read(pgno, size)
        stored, _, flags, lower, upper = _HEADER.unpack_from(page)
        if stored != pgno or flags != kind:
            text = f"page number {stored}, flags {flags:#x}; should be {pgno} and {kind:#x}, of a {_KINDS[kind]} page"
            raise _fault(pgno, text)
        if lower & 1 or upper & 1 or not _HEADER.size < lower <= upper < size:
            text = f"lower {lower} and upper {upper}; should be even, and {_HEADER.size} < lower <= upper < {size}"
            raise _fault(pgno, text)
        words = np.frombuffer(page, "<u2").astype(np.int64)
        offsets = words[_HEADER.size // 2 : lower // 2]
        if (wrong := (offsets & 1 != 0) | (offsets < upper) | (offsets > size - _NODE)).any():
            node = int(wrong.argmax())
            text = f"node {node} at byte {offsets[node]}; should be even, and from {upper} to {size - _NODE}"
            raise _fault(pgno, text)
        heads = words[(offsets[:, None] >> 1) + np.arange(4)]
        key_ends = offsets + _NODE + heads[:, 3]
        ends = key_ends.copy()
        if kind == _LEAF:
            if (wrong := heads[:, 2] & ~_BIG != 0).any():
                node = int(wrong.argmax())
                raise _fault(pgno, f"node {node} of flags {heads[node, 2]:#x}; should be 0 or {_BIG:#x}")
            ends += np.where(heads[:, 2] == _BIG, _PGNO.size, heads[:, 0] | heads[:, 1] << 16)
        order = offsets.argsort(kind="stable")
        begins, stops = offsets[order], (ends[order] + 1) & ~1
        should = np.append(begins[1:], size)
        if begins[0] != upper:
            raise _fault(pgno, f"upper {upper}; should be {begins[0]}, where the first node begins")
        if (wrong := stops != should).any():
            place = int(wrong.argmax())
            text = f"node {order[place]} from byte {begins[place]} to {stops[place]}; should end at {should[place]}"
            raise _fault(pgno, text)
        least, most = (8, 8) if self._is_free else (1, _MOST_KEY)
        wrong = (heads[:, 3] < least) | (heads[:, 3] > most)
        if kind == _BRANCH:
            wrong[0] = heads[0, 3] > most
        if wrong.any():
            node = int(wrong.argmax())
            raise _fault(pgno, f"key of {heads[node, 3]} bytes in node {node}; should be {least} to {most}")
        # Little-endian numbers, turned round, are in order as bytes.
        step = -1 if self._is_free else 1
        bounds = zip((offsets + _NODE).tolist(), key_ends.tolist(), strict=True)
        return _Nodes(page, [page[begin:end][::step] for begin, end in bounds], heads, key_ends)

    def _check_values(self, pgno: int, nodes: _Nodes) -> None:
        """Follow the values of a leaf page that are in overflow pages; keep the free database's."""
        file = self._file
        self._entries += len(nodes.keys)
        wanted = range(len(nodes.keys)) if self._is_free else np.flatnonzero(nodes.heads[:, 2] == _BIG).tolist()
        for node in wanted:
            low, high, flags, _ = nodes.heads[node].tolist()
            size, end = low | high << 16, int(nodes.ends[node])
            run = None
            if flags == _BIG:
                (run,) = _PGNO.unpack_from(nodes.page, end)
                self._check_run(run, size)
            if self._is_free:
                txnid = int.from_bytes(nodes.keys[node])
                value = nodes.page[end : end + size] if run is None else file.read(run, size, _HEADER.size)
                self.lists.append((txnid, pgno, value))

    def _check_run(self, pgno: int, size: int) -> None:
        """Check the header of a value's overflow pages.

        There may be more of them than it needs: a value that is made smaller by the transaction that wrote it keeps
        its place.
        """
        file = self._file
        need = -(-(_RUN_HEADER.size + size) // file.page_size)
        file.check_inside(pgno, need, self._last_pgno)
        stored, _, flags, pages = _RUN_HEADER.unpack(file.read(pgno, _RUN_HEADER.size))
        if stored != pgno or flags != _OVERFLOW:
            text = f"page number {stored}, flags {flags:#x}; should be {pgno} and {_OVERFLOW:#x}, of an overflow page"
            raise _fault(pgno, text)
        if pages < need:
            raise _fault(pgno, f"{pages} overflow pages; a value of {size} bytes needs {need}")
        file.check_inside(pgno, pages, self._last_pgno)
        self.runs.append((pgno, pages))


def _check_age(older: _Meta, before: _Tree, newest: _Meta, free: _Tree) -> None:
    """Refuse meta pages whose contents say that their numbers are not those of their commits."""
    last = [max((txnid for txnid, _, _ in tree.lists), default=0) for tree in (before, free)]
    for meta, txnid in zip((older, newest), last, strict=True):
        if txnid > meta.txnid:
            raise _fault(meta.number, f"commit {meta.txnid}; should be {txnid} or later, as that has freed pages")
    if last[1] < last[0] or newest.last_pgno < older.last_pgno:
        text = (
            f"commit {newest.txnid} knows of pages freed up to commit {last[1]} and of {newest.last_pgno + 1} pages; "
            f"should be no less than in commit {older.txnid} before it, {last[0]} and {older.last_pgno + 1}"
        )
        raise _fault(newest.number, text)


class _Shares(NamedTuple):
    """How the pages of a commit are shared out."""

    used: int
    free: int
    leaked: int | None
    """The first page that is neither."""


def _share_out(meta: _Meta, free: _Tree, main: _Tree) -> _Shares:
    """Refuse pages that have two uses, or a use and are free."""
    listed = _free_pages(meta, free)
    runs = [(pgno, 1) for pgno in (*free.pages, *main.pages)] + free.runs + main.runs
    used = np.array([(0, 2), *runs], dtype=np.int64)
    starts = np.concatenate([used[:, 0], listed])
    stops = np.concatenate([used.sum(axis=1), listed + 1])
    order = starts.argsort(kind="stable")
    starts, stops = starts[order], stops[order]
    if (wrong := stops[:-1] > starts[1:]).any():
        place = int(wrong.argmax())
        uses = sum(int(order[place + i]) < len(used) for i in range(2))
        text = ("twice in the free list", "used, and in the free list", "reached twice")[uses]
        raise _fault(int(starts[place + 1]), text)
    gaps = stops[stops < np.append(starts[1:], meta.last_pgno + 1)]
    return _Shares(int(used[:, 1].sum()), len(listed), int(gaps[0]) if len(gaps) else None)


def _free_pages(meta: _Meta, free: _Tree) -> NDArray[np.int64]:
    """Return the pages in the free list. A value of it is a count and, descending, so many pages, or 0 and room."""
    lists = [np.empty(0, dtype=np.int64)]
    for txnid, pgno, value in free.lists:
        count = int.from_bytes(value[:8], "little")
        if len(value) % 8 or len(value) < 8 or (count and len(value) != 8 + 8 * count):
            text = f"{count} pages freed by commit {txnid}, in a list of {len(value)} bytes; should be {8 + 8 * count}"
            raise _fault(pgno, text)
        if not txnid:
            raise _fault(pgno, "pages freed by commit 0; should be 1 or later")
        pages = np.frombuffer(value, "<u8", count, 8)
        if len(pages) and (pages.max() > meta.last_pgno or pages.min() < 2):
            text = f"pages {pages.min()} to {pages.max()} freed by commit {txnid}; should be 2 to {meta.last_pgno}"
            raise _fault(pgno, text)
        lists.append(pages.astype(np.int64))
        if (wrong := lists[-1][:-1] <= lists[-1][1:]).any():
            place = int(wrong.argmax())
            text = f"page {pages[place + 1]} after {pages[place]} in the pages freed by commit {txnid}; should descend"
            raise _fault(pgno, text)
    return np.concatenate(lists)
