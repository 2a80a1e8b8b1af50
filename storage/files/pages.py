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

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.storage.files.page_file import Meta, PageError, fault, opened, read_metas
from whamming.storage.files.page_tree import PageTree

__all__ = ["PageError", "PageReport", "check_pages"]


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
    with opened(path) as file:
        older, newest = read_metas(file)
        before = PageTree(file, older, older.free, "free")
        free = PageTree(file, newest, newest.free, "free")
        main = PageTree(file, newest, newest.main, "main")
        _check_age(older, before, newest, free)
        shares = _share_out(newest, free, main)
        pages = newest.last_pgno + 1
        if deep and shares.leaked is not None:
            others = pages - shares.used - shares.free - 1
            raise fault(shares.leaked, f"neither used nor free, nor are {others} others; each should be either")
        return PageReport(
            page_size=file.page_size,
            txnid=newest.txnid,
            pages=pages,
            used=shares.used,
            free=shares.free,
            entries=newest.main.entries,
            file_bytes=file.size,
        )


def _check_age(older: Meta, before: PageTree, newest: Meta, free: PageTree) -> None:
    """Refuse meta pages whose contents say that their numbers are not those of their commits."""
    last = [max((txnid for txnid, _, _ in tree.lists), default=0) for tree in (before, free)]
    for meta, txnid in zip((older, newest), last, strict=True):
        if txnid > meta.txnid:
            raise fault(meta.number, f"commit {meta.txnid}; should be {txnid} or later, as that has freed pages")
    if last[1] < last[0] or newest.last_pgno < older.last_pgno:
        text = (
            f"commit {newest.txnid} knows of pages freed up to commit {last[1]} and of {newest.last_pgno + 1} pages; "
            f"should be no less than in commit {older.txnid} before it, {last[0]} and {older.last_pgno + 1}"
        )
        raise fault(newest.number, text)


class _Shares(NamedTuple):
    """How the pages of a commit are shared out."""

    used: int
    free: int
    leaked: int | None
    """The first page that is neither."""


def _share_out(meta: Meta, free: PageTree, main: PageTree) -> _Shares:
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
        raise fault(int(starts[place + 1]), text)
    gaps = stops[stops < np.append(starts[1:], meta.last_pgno + 1)]
    return _Shares(int(used[:, 1].sum()), len(listed), int(gaps[0]) if len(gaps) else None)


def _free_pages(meta: Meta, free: PageTree) -> NDArray[np.int64]:
    """Return the pages in the free list. A value of it is a count and, descending, so many pages, or 0 and room."""
    lists = [np.empty(0, dtype=np.int64)]
    for txnid, pgno, value in free.lists:
        count = int.from_bytes(value[:8], "little")
        if len(value) % 8 or len(value) < 8 or (count and len(value) != 8 + 8 * count):
            text = f"{count} pages freed by commit {txnid}, in a list of {len(value)} bytes; should be {8 + 8 * count}"
            raise fault(pgno, text)
        if not txnid:
            raise fault(pgno, "pages freed by commit 0; should be 1 or later")
        pages = np.frombuffer(value, "<u8", count, 8)
        if len(pages) and (pages.max() > meta.last_pgno or pages.min() < 2):
            text = f"pages {pages.min()} to {pages.max()} freed by commit {txnid}; should be 2 to {meta.last_pgno}"
            raise fault(pgno, text)
        lists.append(pages.astype(np.int64))
        if (wrong := lists[-1][:-1] <= lists[-1][1:]).any():
            place = int(wrong.argmax())
            text = f"page {pages[place + 1]} after {pages[place]} in the pages freed by commit {txnid}; should descend"
            raise fault(pgno, text)
    return np.concatenate(lists)
