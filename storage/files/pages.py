"""Checks the structure of an LMDB file before liblmdb opens it.

liblmdb trusts its pages. A flipped bit or a truncated file makes it crash, or return data that was never written.
:func:`check_pages` reads everything that liblmdb would follow, and trusts nothing. It supports the files of LMDB 0.9 on
little-endian 64-bit machines that have only the main database: no named databases, no duplicate keys.

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
                        overflow page; padded to an even size
    node of a branch    child page 6, key size 2, key: the least one that the child may hold (the first is unused)

Nodes fill ``[upper, page size)`` without gaps, so every bit of lower, upper, an offset or a node's size is determined
by the others. Some things cannot be checked, because no other part of the file determines them. These are the bytes of
values, and the bytes of keys (except for their order). The size of a key or value is checked only up to padding. A
wrong size is not found if it would give the node, or the run of overflow pages, the same length.

*Which commit is the newest* is the one fact that a single bit could change without breaking any of these rules. Commit
n writes its number to meta page n mod 2, and liblmdb uses the page with the greater number. Clearing a bit of that
number, or setting one in the other number, would silently restore commit n - 1. It is not enough to check that the
numbers have the right parity and differ by one: a single bit often turns n into n - 2, or n - 1 into n + 1, and both
results pass. But a commit stores the list of the pages that it freed, with its own number as the key. A commit that
frees no pages, because the database was empty, adds new pages at the end of the file. So there are two more rules.
First, the free list of a meta page must not have pages that a later commit freed. Second, the newer meta page must have
at least as many pages as the older one, and its free list must not end with an earlier commit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.storage.files.page_file import Meta, PageError, opened, page_error, read_metas
from whamming.storage.files.page_tree import PageTree

__all__ = ["PageError", "PageReport", "check_pages"]


@dataclass(frozen=True)
class PageReport:
    """What a sound file consists of."""

    page_size: int
    """In bytes."""
    txnid: int
    """The newest commit; 0 if nothing was ever committed."""
    pages: int
    """All pages, including the two meta pages: ``used + free``, plus leaked pages (see :func:`check_pages`)."""
    used: int
    """Meta pages and the pages reachable from them."""
    free: int
    """Pages that later commits may use."""
    entries: int
    """Records in the main database."""
    file_bytes: int
    """The file's length. The file may be shorter than its pages, if the last ones are free and were never written."""


def check_pages(path: Path | str, *, deep: bool = True) -> PageReport:
    """Check everything that liblmdb would follow in a ``data.mdb``, and return what was found.

    This reads branch and leaf pages, the free list, and the first 16 bytes of each run of overflow pages, but no value
    in overflow pages. A file has two commits; of the older one, only the free database is read.

    ``deep`` also refuses a file with leaked pages, which are neither used nor free. LMDB leaves none behind, even if it
    is killed while writing, so they are a sign of damage. They do no harm except for wasting space.

    While another process commits, a sound file may look damaged, because pages that the last two commits do not use are
    overwritten. Holding the writer's lock rules that out. A read transaction protects the pages but not the meta pages,
    which may be read half-written. So if the check fails without the writer's lock, check again.

    Raises :class:`PageError` if anything is wrong, and what :func:`os.open` raises if the file cannot be opened. If a
    commit failed at the very end because the disk refused its meta page, that page may have an old number and new
    contents. A flipped bit can make a sound file look the same, so such a file is refused too.
    """
    with opened(path) as file:
        older, newest = read_metas(file)
        before = PageTree(file, older, older.free, "free")
        free = PageTree(file, newest, newest.free, "free")
        main = PageTree(file, newest, newest.main, "main")
        _check_age(older, before, newest, free)
        usage = _count_pages(newest, free, main)
        pages = newest.last_pgno + 1
        if deep and usage.leaked is not None:
            others = pages - usage.used - usage.free - 1
            raise page_error(usage.leaked, f"neither used nor free, like {others} others; each should be one of them")
        return PageReport(
            page_size=file.page_size,
            txnid=newest.txnid,
            pages=pages,
            used=usage.used,
            free=usage.free,
            entries=newest.main.entries,
            file_bytes=file.size,
        )


def _check_age(older: Meta, before: PageTree, newest: Meta, free: PageTree) -> None:
    """Refuse meta pages whose contents contradict their commit numbers."""
    last = [max((txnid for txnid, _, _ in tree.lists), default=0) for tree in (before, free)]
    for meta, txnid in zip((older, newest), last, strict=True):
        if txnid > meta.txnid:
            raise page_error(meta.number, f"commit {meta.txnid}; should be at least {txnid}, which freed pages")
    if last[1] < last[0] or newest.last_pgno < older.last_pgno:
        text = (
            f"commit {newest.txnid} knows of pages freed up to commit {last[1]} and of {newest.last_pgno + 1} pages; "
            f"should not be less than in commit {older.txnid} before it: {last[0]} and {older.last_pgno + 1}"
        )
        raise page_error(newest.number, text)


class _PageUsage(NamedTuple):
    """How many pages of a commit are used and free."""

    used: int
    free: int
    leaked: int | None
    """The first page that is neither used nor free; None if there is no such page."""


def _count_pages(meta: Meta, free: PageTree, main: PageTree) -> _PageUsage:
    """Count used and free pages. Refuses pages that are used twice, or both used and free."""
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
        raise page_error(int(starts[place + 1]), text)
    gaps = stops[stops < np.append(starts[1:], meta.last_pgno + 1)]
    return _PageUsage(int(used[:, 1].sum()), len(listed), int(gaps[0]) if len(gaps) else None)


def _free_pages(meta: Meta, free: PageTree) -> NDArray[np.int64]:
    """Return the pages in the free list. Each value of the list is a count and that many pages in descending order.

    A count of 0 may be followed by unused space.
    """
    lists = [np.empty(0, dtype=np.int64)]
    for txnid, pgno, value in free.lists:
        count = int.from_bytes(value[:8], "little")
        if len(value) % 8 or len(value) < 8 or (count and len(value) != 8 + 8 * count):
            text = f"{count} pages freed by commit {txnid}, in a list of {len(value)} bytes; should be {8 + 8 * count}"
            raise page_error(pgno, text)
        if not txnid:
            raise page_error(pgno, "pages freed by commit 0; should be 1 or later")
        pages = np.frombuffer(value, "<u8", count, 8)
        if len(pages) and (pages.max() > meta.last_pgno or pages.min() < 2):
            text = f"pages {pages.min()} to {pages.max()} freed by commit {txnid}; should be 2 to {meta.last_pgno}"
            raise page_error(pgno, text)
        lists.append(pages.astype(np.int64))
        if (wrong := lists[-1][:-1] <= lists[-1][1:]).any():
            place = int(wrong.argmax())
            text = f"page {pages[place + 1]} after {pages[place]} in the pages freed by commit {txnid}; should descend"
            raise page_error(pgno, text)
    return np.concatenate(lists)
