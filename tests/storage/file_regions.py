"""Maps the bytes of an index's data.mdb, so that every kind of them can be damaged.

This is an independent walk through LMDB's pages. It trusts the file, which is still undamaged.
"""

from __future__ import annotations

import struct

Regions = dict[str, list[tuple[int, int]]]
"""Ranges in the file, by kind of bytes."""

_HEADER = 16
_META = struct.Struct("<16x24x IHHQQQQQ IHHQQQQQ QQ")
_NOWHERE = 2**64 - 1
_RECORDS = {b"m": "manifest", b"d": "delta", b"t": "tombstones"}
_ARRAY_HEADER = 48


def regions_of(file: bytes) -> Regions:
    """Return the ranges of each kind of bytes in a data.mdb."""
    page_size = _META.unpack_from(file)[0]
    metas = [_META.unpack_from(file, number * page_size) for number in range(2)]
    newest = max(metas, key=lambda meta: int(meta[-1]))
    walk = _Walk(file, page_size)
    for number in range(2):
        walk.add("meta pages", number * page_size, number * page_size + _META.size)
    walk.used |= {0, 1}
    for root, name in ((newest[7], "free list"), (newest[15], "leaf pages")):
        if root != _NOWHERE:
            walk.page(root, name)
    for number in range(len(file) // page_size):
        if number not in walk.used:
            walk.add("free pages", number * page_size, (number + 1) * page_size)
    walk.add("file end", max(0, len(file) - 64), len(file))
    return walk.regions


class _Walk:
    def __init__(self, file: bytes, page_size: int) -> None:
        self._file = file
        self._page_size = page_size
        self.used: set[int] = set()
        self.regions: Regions = {}

    def add(self, kind: str, start: int, stop: int) -> None:
        if stop > start:
            self.regions.setdefault(kind, []).append((start, stop))

    def page(self, number: int, leaves: str) -> None:
        """Add a branch or leaf page and everything below it. ``leaves`` is the name for its leaf pages."""
        self.used.add(number)
        start = number * self._page_size
        flags, lower = struct.unpack_from("<HH", self._file, start + 10)
        is_leaf = bool(flags & 2)
        kind = leaves if is_leaf else "branch pages"
        self.add(kind, start, start + lower)
        for (offset,) in struct.iter_unpack("<H", self._file[start + _HEADER : start + lower]):
            low, high, third, key_size = struct.unpack_from("<HHHH", self._file, start + offset)
            end = start + offset + 8 + key_size
            key = self._file[end - key_size : end]
            self.add(kind, start + offset, end - key_size)
            self.add("keys" if leaves != "free list" else kind, end - key_size, end)
            if not is_leaf:
                self.page(low | high << 16 | third << 32, leaves)
            elif third & 1:
                self.add(kind, end, end + 8)
                self._run(struct.unpack_from("<Q", self._file, end)[0], key, low | high << 16, leaves)
            elif leaves == "free list":
                self.add(kind, end, end + (low | high << 16))
            else:
                self._record(key, end, low | high << 16)

    def _run(self, number: int, key: bytes, size: int, leaves: str) -> None:
        start = number * self._page_size
        (pages,) = struct.unpack_from("<I", self._file, start + 12)
        self.used |= set(range(number, number + pages))
        self.add("overflow headers", start, start + _HEADER)
        if leaves == "free list":
            self.add(leaves, start + _HEADER, start + _HEADER + size)
        else:
            self._record(key, start + _HEADER, size)

    def _record(self, key: bytes, start: int, size: int) -> None:
        if key[:1] == b"s":
            self.add("array headers", start, start + _ARRAY_HEADER)
            self.add("array contents", start + _ARRAY_HEADER, start + size)
        else:
            self.add(_RECORDS[key[:1]], start, start + size)
