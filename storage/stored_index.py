"""One index of a database, as users see it: writing, reading, searching."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Answer, Budget, Costs, Cursor, Hit, InvalidArgumentError, Plan, Stats
from whamming.native.costs import as_codes
from whamming.storage.contents import Items, Snapshot
from whamming.storage.rows import Rows, WriteBatch, as_ids
from whamming.storage.settings import Durability, IndexSettings, check_choice
from whamming.storage.store import Progress, Store, StoreStats, VerifyReport


class StoredIndex:
    """One index of a database. Any number of threads may use it at once."""

    def __init__(self, name: str, store: Store) -> None:
        """Wrap a store; prefer :meth:`Database.index`."""
        self.name = name
        self.store = store
        self.closed = False
        """:meth:`close` was called."""
        self._closing = threading.Lock()

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""
        return self.store.settings

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.store.snapshot())

    def __repr__(self) -> str:
        """Describe the index in a line."""
        return f"StoredIndex({self.name!r}, {self.settings.bits} bits)"

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        payloads: Sequence[bytes | None] | None = None,
        *,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists: all of them or, where one is refused, none.

        Parameters
        ----------
        ids : ``uint64 [n]``. Of an id that repeats, the last item counts.
        codes : ``uint8 [n, ceil(bits / 8)]`` in the index's bit order.
        payloads : opaque bytes to keep with each item, at most 64 KiB; None or b"" for none.
        durability : ``"fsync"``: on disk when this returns; ``"async"``: soon after; by default as the index says.
        """
        self.write(WriteBatch.of(self.settings, ids, codes, payloads), durability)

    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> None:
        """Remove items; ids that do not exist are ignored."""
        self.write(WriteBatch.of(self.settings, deletes=ids), durability)

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Apply upserts and deletes together."""
        if durability is not None:
            check_choice("durability", durability, ("fsync", "async"))
        self.store.write(batch, durability)

    def get(self, ids: ArrayLike) -> Items:
        """Look items up by id."""
        return self.store.snapshot().get(as_ids(ids))

    def snapshot(self) -> Snapshot:
        """Return an immutable view of the index as it is now."""
        return self.store.snapshot()

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items as they are now, in no particular order, in pieces of at most ``size``.

        Codes are in the index's bit order.
        """
        return self.store.snapshot().scan(size)

    def search(
        self,
        code: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        table: ArrayLike | None = None,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        payloads: bool = False,
        after: tuple[float, int] | None = None,
    ) -> Search:
        """Search one query. Hits come in order of (distance, id), each as soon as it is proven, for as long as asked.

        Parameters
        ----------
        code : the query's packed code, in the index's bit order.
        weights : what a mismatch of each bit costs, ``[bits]``; by default 1: plain Hamming distance.
        table : instead of code and weights, the cost of a stored 0 and of a stored 1 of each bit, ``[bits, 2]``.
        k : at most so many hits; by default all.
        radius : only hits of at most this distance.
        payloads : bring the items' payloads along.
        after : only hits after this (distance, id), to go on with a search that broke off.
        """
        costs = make_costs(self.settings, code, weights, table)
        if not costs.single:
            raise InvalidArgumentError(f"search takes one query, these are {len(costs)}; use search_batch")
        snapshot = self.store.snapshot()
        fetch = snapshot.payloads if payloads else None
        return Search(snapshot, snapshot.view.cursor(costs, k, radius, plan, after=after, payloads=fetch))

    def search_batch(
        self,
        codes: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        table: ArrayLike | None = None,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        budget: Budget | None = None,
        threads: int | None = None,
    ) -> Answer:
        """Search many queries at once; unpacks to ``ids, distances``, numpy arrays ``[q, k]``.

        Rows with fewer hits are padded with id 2**64 - 1 and distance infinity. ``weights``: ``[bits]`` for all, or
        ``[q, bits]``; ``table``: ``[q, bits, 2]``.
        """
        costs = make_costs(self.settings, codes, weights, table)
        return self.store.snapshot().view.search(costs, k, radius, plan, budget=budget, threads=threads)

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. Raises what kept one from getting there."""
        self.store.flush()

    def seal(self, progress: Progress | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many."""
        self.store.seal(progress)

    def compact(self, progress: Progress | None = None) -> None:
        """Merge everything into one segment, without the items that are gone."""
        self.store.compact(progress)

    def stats(self) -> StoreStats:
        """Tell what the index holds."""
        return self.store.stats()

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum."""
        return self.store.verify(progress)

    def close(self) -> None:
        """Close the index; :meth:`Database.index` opens it again. One in memory is gone. Closing twice is fine."""
        self.closed = True
        with self._closing:
            self.store.close()


class Search:
    """A search under way: an iterator of hits. Use it in a ``with`` block, or let it go."""

    def __init__(self, snapshot: Snapshot, cursor: Cursor) -> None:
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
        """No item that was not handed out is nearer than this; infinity when all were."""
        return self._cursor.lower_bound

    @property
    def stats(self) -> Stats:
        """What the search has cost so far."""
        return self._cursor.stats

    def close(self) -> None:
        """Free what the search holds. Closing twice is fine."""
        self._cursor.close()


def make_costs(
    settings: IndexSettings, code: ArrayLike | None, weights: ArrayLike | None, table: ArrayLike | None
) -> Costs:
    """Return a query's or a batch's costs from what the user gave."""
    if table is not None:
        if code is not None or weights is not None:
            raise InvalidArgumentError("give a cost table, or a code with or without weights, not both")
        return Costs.table(table)
    if code is None:
        raise InvalidArgumentError("give a query code, or a cost table")
    packed = np.asarray(code)
    single = packed.ndim == 1
    codes = settings.to_engine(as_codes(packed[None] if single else packed, settings.bits, "query codes"))
    given = np.ones(settings.bits) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] != settings.bits:
        raise InvalidArgumentError(f"the weights have shape {given.shape}; the index has codes of {settings.bits} bits")
    return Costs.weights(codes[0] if single else codes, given)
