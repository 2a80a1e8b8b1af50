"""Walking the page tree of one database in an LMDB file. ``pages.py`` describes the layout."""

from __future__ import annotations

import struct
from itertools import pairwise
from operator import lt
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.storage.files.page_file import EMPTY, HEADER, Meta, PageFile, TreeRecord, page_error

_RUN_HEADER: Final = struct.Struct("<QHHI")
_PGNO: Final = struct.Struct("<Q")

_BRANCH, _LEAF, _OVERFLOW = 1, 2, 4
_KINDS: Final = {_BRANCH: "branch", _LEAF: "leaf"}
_BIG: Final = 1
_MAX_KEY: Final = 511
_NODE_HEADER: Final = 8


class _Nodes(NamedTuple):
    """The nodes of one page, in the order of their keys."""

    page: bytes
    keys: list[bytes]
    heads: NDArray[np.int64]
    """The first four 16-bit words of each node."""
    ends: NDArray[np.int64]
    """The byte at which each node's key ends."""


class PageTree:
    """The page tree of a database.

    Walking it checks every branch and leaf page, and the first page of each run of overflow pages. It also compares the
    counts with the database's record.
    """

    def __init__(self, file: PageFile, meta: Meta, record: TreeRecord, name: str) -> None:
        """Walk the tree of the database ``name``, "free" or "main". Raises PageError."""
        self._file = file
        self._last_pgno = meta.last_pgno
        self._is_free = name == "free"
        self._branches: set[int] = set()
        self._leaves: set[int] = set()
        self._entries = 0
        self.runs: list[tuple[int, int]] = []
        """First page and number of pages of each value that is in overflow pages."""
        self.lists: list[tuple[int, int, bytes]] = []
        """The lists of freed pages; free database only. Each has the commit that freed the pages, the leaf page of its
        record (even if the list itself is in overflow pages), and the list."""
        if record.root == EMPTY:
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
                raise page_error(meta.number, f"records {recorded} {what} in the {name} database; {found} were found")

    @property
    def pages(self) -> list[int]:
        """All branch and leaf pages."""
        return [*self._branches, *self._leaves]

    def _walk(self, pgno: int, depth: int, least: bytes, below: bytes | None) -> None:
        """Check a page and everything below it. Its keys must be at least ``least`` and less than ``below``."""
        file = self._file
        if pgno in self._branches or pgno in self._leaves:
            raise page_error(pgno, "reached twice")
        file.check_inside(pgno, 1, self._last_pgno)
        kind = _LEAF if depth == 1 else _BRANCH
        (self._leaves if kind == _LEAF else self._branches).add(pgno)
        nodes = self._nodes(pgno, kind)
        keys = nodes.keys if kind == _LEAF else [least, *nodes.keys[1:]]
        if not all(map(lt, keys, keys[1:])):
            node = next(i for i, (one, other) in enumerate(pairwise(keys)) if one >= other)
            text = f"key {keys[node + 1].hex()} of node {node + 1}; should be greater than {keys[node].hex()}"
            raise page_error(pgno, text)
        if keys[0] < least:
            raise page_error(pgno, f"first key {keys[0].hex()}; its parent page requires at least {least.hex()}")
        if below is not None and keys[-1] >= below:
            raise page_error(pgno, f"last key {keys[-1].hex()}; its parent page requires less than {below.hex()}")
        if kind == _LEAF:
            self._check_values(pgno, nodes)
            return
        if len(keys) < 2 and not self._is_free:
            raise page_error(pgno, "branch page with a single child; should have two or more")
        children = nodes.heads[:, 0] | nodes.heads[:, 1] << 16 | nodes.heads[:, 2] << 32
        for child, low, high in zip(children.tolist(), keys, [*keys[1:], below], strict=True):
            self._walk(child, depth - 1, low, high)

    def _nodes(self, pgno: int, kind: int) -> _Nodes:
        """Return the nodes of a page, after checking its header and that the nodes fill it."""
        file, size = self._file, self._file.page_size
        page = file.read(pgno, size)
        stored, _, flags, lower, upper = HEADER.unpack_from(page)
        if stored != pgno or flags != kind:
            text = f"has number {stored} and flags {flags:#x}; a {_KINDS[kind]} page should have {pgno} and {kind:#x}"
            raise page_error(pgno, text)
        if lower & 1 or upper & 1 or not HEADER.size < lower <= upper < size:
            text = f"lower {lower} and upper {upper}; should be even, and {HEADER.size} < lower <= upper < {size}"
            raise page_error(pgno, text)
        words = np.frombuffer(page, "<u2").astype(np.int64)
        offsets = words[HEADER.size // 2 : lower // 2]
        if (wrong := (offsets & 1 != 0) | (offsets < upper) | (offsets > size - _NODE_HEADER)).any():
            node = int(wrong.argmax())
            text = f"node {node} at byte {offsets[node]}; should be even, and from {upper} to {size - _NODE_HEADER}"
            raise page_error(pgno, text)
        heads = words[(offsets[:, None] >> 1) + np.arange(4)]
        key_ends = offsets + _NODE_HEADER + heads[:, 3]
        ends = key_ends.copy()
        if kind == _LEAF:
            if (wrong := heads[:, 2] & ~_BIG != 0).any():
                node = int(wrong.argmax())
                raise page_error(pgno, f"node {node} with flags {heads[node, 2]:#x}; should be 0 or {_BIG:#x}")
            ends += np.where(heads[:, 2] == _BIG, _PGNO.size, heads[:, 0] | heads[:, 1] << 16)
        order = offsets.argsort(kind="stable")
        begins, stops = offsets[order], (ends[order] + 1) & ~1
        should = np.append(begins[1:], size)
        if begins[0] != upper:
            raise page_error(pgno, f"upper {upper}; should be {begins[0]}, where the first node begins")
        if (wrong := stops != should).any():
            place = int(wrong.argmax())
            text = f"node {order[place]} from byte {begins[place]} to {stops[place]}; should end at {should[place]}"
            raise page_error(pgno, text)
        least, most = (8, 8) if self._is_free else (1, _MAX_KEY)
        wrong = (heads[:, 3] < least) | (heads[:, 3] > most)
        if kind == _BRANCH:
            wrong[0] = heads[0, 3] > most
        if wrong.any():
            node = int(wrong.argmax())
            raise page_error(pgno, f"key of {heads[node, 3]} bytes in node {node}; should be {least} to {most}")
        # Keys of the free database are little-endian numbers. With their bytes reversed, they sort as byte strings.
        step = -1 if self._is_free else 1
        bounds = zip((offsets + _NODE_HEADER).tolist(), key_ends.tolist(), strict=True)
        return _Nodes(page, [page[begin:end][::step] for begin, end in bounds], heads, key_ends)

    def _check_values(self, pgno: int, nodes: _Nodes) -> None:
        """Check the overflow pages of a leaf page's values, and keep the values of the free database."""
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
                value = nodes.page[end : end + size] if run is None else file.read(run, size, HEADER.size)
                self.lists.append((txnid, pgno, value))

    def _check_run(self, pgno: int, size: int) -> None:
        """Check the header of a run of overflow pages that holds a value.

        The run may be longer than necessary. A transaction may write a value and then a shorter one in its place; the
        shorter value keeps all pages.
        """
        file = self._file
        need = -(-(_RUN_HEADER.size + size) // file.page_size)
        file.check_inside(pgno, need, self._last_pgno)
        stored, _, flags, pages = _RUN_HEADER.unpack(file.read(pgno, _RUN_HEADER.size))
        if stored != pgno or flags != _OVERFLOW:
            text = f"has number {stored} and flags {flags:#x}; an overflow page should have {pgno} and {_OVERFLOW:#x}"
            raise page_error(pgno, text)
        if pages < need:
            raise page_error(pgno, f"{pages} overflow pages; a value of {size} bytes needs {need}")
        file.check_inside(pgno, pages, self._last_pgno)
        self.runs.append((pgno, pages))
