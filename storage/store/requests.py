"""Remembering which writes were applied, so that a write that is sent twice is applied once.

A client that has lost its connection cannot know whether its last write arrived, so it sends the write again. Meanwhile
another client may have replaced the items. So a write may have a *request id*, chosen by its client at random. The
store remembers the ids of recent writes, and does not apply a write whose id it knows.

The journal stores the id with the write, in one commit. When writes move into a segment, the journal keeps the last
``KEPT`` of their ids. So a write that is sent again after a crash is applied only once, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

from whamming.storage.items.write_batch import WriteBatch

REMEMBERED: Final = 16_384
"""How many ids an open index remembers. They take up to 2 MiB."""
KEPT: Final = 1024
"""A journal keeps the ids of this many of the writes that are in segments."""
REQUEST_BYTES: Final = 15
"""Size of a request id inside the store, which fits into the header of a record."""


def digest_of(request_id: bytes) -> bytes:
    """Return the form in which the store keeps a client's request id of any length."""
    return hashlib.blake2b(request_id, digest_size=REQUEST_BYTES).digest()


class AppliedRequests:
    """The ids of recent writes, with the number of items that each has removed. The caller serializes changes."""

    def __init__(self) -> None:
        self._removed: dict[bytes, int] = {}  # in the order of the writes

    def removed_by(self, batch: WriteBatch) -> int | None:
        """Return how many items a write has removed; None if it has no id, or its id is unknown."""
        return self._removed.get(batch.request) if batch.request else None

    def without_repeats(self, batches: Iterable[WriteBatch]) -> list[WriteBatch]:
        """Return the writes that were not applied yet. If several have the same id, return only the first of these."""
        new: dict[object, WriteBatch] = {}
        for batch in batches:
            if self.removed_by(batch) is None:
                new.setdefault(batch.request or object(), batch)
        return list(new.values())

    def add(self, removed: Mapping[bytes, int]) -> None:
        """Remember writes, and forget the oldest ones."""
        for request, count in removed.items():
            if request:
                self._removed.setdefault(request, count)
        while len(self._removed) > REMEMBERED:
            del self._removed[next(iter(self._removed))]

    def recover(self, requests: Iterable[bytes], batches: Iterable[WriteBatch]) -> None:
        """Remember what a journal has kept. How many items were removed is not known any more."""
        self.add(dict.fromkeys((*requests, *(batch.request for batch in batches if batch.request)), 0))
