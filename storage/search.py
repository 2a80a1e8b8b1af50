"""A running search of a database in this process, and the costs of its queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Budget, Costs, Hit, InvalidArgumentError, Stats
from whamming.native.costs import as_array, as_codes, as_numbers
from whamming.native.display import counted
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import ClosedError
from whamming.storage.store.snapshot import Snapshot
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.verbs import SearchVerbs, verb


class SearchCursor(Protocol):
    """The source of a search's hits: an engine cursor, or a re-ranked one."""

    def __next__(self) -> Hit:
        """Return the next hit."""

    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the next ``n`` hits."""

    @property
    def lower_bound(self) -> float:
        """A lower bound on the distances of all items not returned yet."""

    @property
    def stats(self) -> Stats:
        """Counters of the work done so far."""

    def close(self) -> None:
        """Free the resources of the search."""


class Search(Unpicklable, SearchVerbs):
    """A search: an iterator of hits. Use it in a ``with`` block, or let it go out of scope."""

    def __init__(self, snapshot: Snapshot, cursor: SearchCursor) -> None:
        """Prefer :meth:`StoredIndex.search`."""
        self._snapshot = snapshot
        self._cursor = cursor
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"lower bound {self.lower_bound:g}"
        return f"Search(of {counted(len(self._snapshot), 'item')}, {state})"

    @verb
    def __enter__(self) -> Self:
        return self

    @verb
    def __exit__(self, *exc: object) -> None:
        self.close()

    @verb
    def __iter__(self) -> Iterator[Hit]:
        return self

    @verb
    def __next__(self) -> Hit:
        self._check_open()
        return next(self._cursor)

    @verb
    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        self._check_open()
        return self._cursor.next(n, budget=budget)

    @verb
    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        self._check_open()
        return self._cursor.next(len(self._snapshot))

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the search is closed; start a new one")

    @property
    @verb
    def lower_bound(self) -> float:
        self._check_open()
        return self._cursor.lower_bound

    @property
    @verb
    def stats(self) -> Stats:
        self._check_open()
        return self._cursor.stats

    @verb
    def close(self) -> None:
        self._closed = True
        self._cursor.close()


def check_single(count: int, *, single: bool) -> None:
    """Raise InvalidArgumentError unless the user gave a single query, without a batch dimension."""
    if not single:
        raise InvalidArgumentError(
            f"search takes one query, not a batch of {count}; give it without a batch dimension, or use search_batch"
        )


def make_costs(
    settings: IndexSettings, code: ArrayLike | None, weights: ArrayLike | None, table: ArrayLike | None
) -> Costs:
    """Return the costs of a query, or of a batch of them, from the user's arguments."""
    if table is not None:
        if code is not None or weights is not None:
            raise InvalidArgumentError("both a cost table and a code or weights; give one or the other")
        return Costs.table(table)
    packed, single = as_query_codes(settings, code)
    codes = settings.to_engine(packed)
    given = np.ones(settings.bits) if weights is None else as_weights(settings, weights)
    return Costs.weights(codes[0] if single else codes, given)


def as_query_codes(settings: IndexSettings, code: ArrayLike | None) -> tuple[NDArray[np.uint8], bool]:
    """Return the codes of queries ``[q, code_bytes]``, and whether a single one was given. Checks their shape."""
    if code is None:
        raise InvalidArgumentError("no query; give a code or a cost table")
    packed = as_array(code, "query codes")
    single = packed.ndim == 1
    return as_codes(packed[None] if single else packed, settings.bits, "query codes"), single


def as_weights(settings: IndexSettings, weights: ArrayLike) -> NDArray[Any]:
    """Return weights ``[bits]`` or ``[q, bits]``. Checks their shape."""
    given = as_numbers(weights, "weights")
    if given.ndim not in (1, 2) or given.shape[-1] != settings.bits:
        raise InvalidArgumentError(
            f"weights have shape {given.shape}; codes of {settings.bits} bits need one weight per bit"
        )
    return given
