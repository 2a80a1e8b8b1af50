"""A search under way, as users see it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from whamming.native import Budget, Hit, Stats
from whamming.storage.store.snapshot import Snapshot


class Hits(Protocol):
    """Where a search's hits come from."""

    def __next__(self) -> Hit:
        """Return the next hit."""

    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the next ``n`` hits."""

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this."""

    @property
    def stats(self) -> Stats:
        """What it has cost so far."""

    def close(self) -> None:
        """Free what it holds."""


class Search:
    """A search under way: an iterator of hits. Use it in a ``with`` block, or let it go."""

    def __init__(self, snapshot: Snapshot, cursor: Hits) -> None:
        """Start; prefer :meth:`StoredIndex.search`."""
        self._snapshot = snapshot
        self._cursor = cursor

    def __enter__(self) -> Self:
        """Return the search itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the search."""
        self.close()

    def __iter__(self) -> Iterator[Hit]:
        """Return the search itself."""
        return self

    def __next__(self) -> Hit:
        """Return the next hit, as soon as it is proven."""
        return next(self._cursor)

    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer where no more exist or the budget ran out."""
        return self._cursor.next(n, budget=budget)

    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all hits that are left; give ``search`` a k or a radius first."""
        return self._cursor.next(len(self._snapshot))

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this; infinity when all were. Minus infinity where a search is
        ranked again by a factor: nothing is known of the rest."""
        return self._cursor.lower_bound

    @property
    def stats(self) -> Stats:
        """What the search has cost so far."""
        return self._cursor.stats

    def close(self) -> None:
        """Free what the search holds. Closing twice is fine."""
        self._cursor.close()
