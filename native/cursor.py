"""Cursors: searches that return hits in order of (distance, id), each as soon as it is proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi, lib
from whamming.native.arguments import SUM_BYTES, UNLIMITED, Plan, Position, check_count
from whamming.native.budget import Budget, raw_budget
from whamming.native.display import shortened, table
from whamming.native.errors import InvalidArgumentError, check
from whamming.native.searches import describe_searches
from whamming.native.stats import BatchStats, Stats

if TYPE_CHECKING:
    from whamming.native.costs import Costs
    from whamming.native.view import View

Payloads = Callable[[NDArray[np.uint64]], Sequence[bytes]]
"""A function that returns the payloads of these ids."""
StopReason = Literal["more", "exhausted", "budget", "cancelled"]

_STOPS: Final[tuple[StopReason, ...]] = ("more", "exhausted", "budget", "cancelled")
_MAX_CHUNK: Final = 64
"""Maximum number of hits that iteration takes from the engine at a time."""


class Hit(NamedTuple):
    """An item that was found: its id and its distance to the query."""

    id: int
    distance: float
    payload: bytes = b""
    """The item's payload, if it was requested."""

    def __repr__(self) -> str:
        """Describe the hit in a line; long payloads are truncated."""
        kept = f", payload={shortened(self.payload)}" if self.payload else ""
        return f"Hit(id={self.id}, distance={self.distance}{kept})"

    def _repr_html_(self) -> str:
        kept = [shortened(self.payload)] if self.payload else []
        return table(("id", "distance", "payload")[: 2 + len(kept)], [[str(self.id), self.distance, *kept]])


class Cursor:
    """A search of one query. Use it in a ``with`` block, or call :meth:`close`.

    Iteration yields one :class:`Hit` at a time. One thread at a time may use a cursor; only :meth:`cancel` may be
    called from another thread.
    """

    def __init__(
        self,
        view: View,
        costs: Costs,
        *,
        k: int,
        radius: float | None,
        plan: Plan,
        after: Position | None = None,
        payloads: Payloads | None = None,
    ) -> None:
        """Start the search. Users call :meth:`View.cursor` or :meth:`Index.cursor`."""
        handle = ffi.new("wh_cursor **")
        search = describe_searches(costs, k, radius, plan, after)
        check(lib.wh_cursor_open(view._raw, len(view.parts), search, handle), "starting a search")
        self._view = view  # keeps the arrays alive
        self._handle: Any = ffi.gc(handle[0], lib.wh_cursor_close)
        self._remaining = k
        self._payloads = payloads
        self._pending: list[Hit] = []
        self._chunk = 1
        self._rounded = bool(costs.scales["rounded"][0])
        self.sums: NDArray[np.uint8] | None = None
        """``[n, 16]``, the exact distances of the hits that the engine returned last; None if all distances are exact.
        A hit's distance, its id and its row of ``sums`` make a :data:`Position`."""
        self.stop: StopReason = "more"
        """Why the last call of :meth:`next` returned."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the memory of the search. May be called more than once."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def next(
        self, n: int, *, budget: Budget | None = None, eager: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits, all proven. If there are fewer, :attr:`stop` says why.

        ``eager``: return as soon as at least one hit is proven.
        """
        n = check_count(n)
        if self._pending:  # iteration has already taken these from the engine
            early = self._pending[-n:][::-1] if n else []
            del self._pending[len(self._pending) - len(early) :]
            ids = np.array([hit.id for hit in early], dtype=np.uint64)
            distances = np.array([hit.distance for hit in early], dtype=np.float64)
            if len(early) == n or eager:
                return ids, distances
            more_ids, more_distances = self.next(n - len(early), budget=budget)
            return np.concatenate([ids, more_ids]), np.concatenate([distances, more_distances])
        n = min(n, self._remaining, self._view.n)
        ids = np.empty(n, dtype=np.uint64)
        distances = np.empty(n, dtype=np.float64)
        if self._rounded:
            self.sums = np.empty((n, SUM_BYTES), dtype=np.uint8)
        count = ffi.new("size_t *")
        stop = ffi.new("int *")
        check(
            lib.wh_cursor_next(
                self._open,
                n,
                raw_budget(budget),
                int(eager),
                ffi.from_buffer("uint64_t[]", ids),
                ffi.from_buffer("double[]", distances),
                ffi.NULL if self.sums is None else ffi.from_buffer("struct wh_sum[]", self.sums),
                count,
                stop,
            ),
            "searching",
        )
        self.stop = _STOPS[stop[0]]
        if self._remaining != UNLIMITED:
            self._remaining -= count[0]
        return ids[: count[0]], distances[: count[0]]

    def guess(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the best ``n`` hits known so far that have not been returned, proven or not.

        After a budget has run out, these are the best guess at the rest of the answer.
        """
        n = check_count(n)
        n = min(n, self._remaining, self._view.n)
        ids = np.empty(n, dtype=np.uint64)
        distances = np.empty(n, dtype=np.float64)
        count = ffi.new("size_t *")
        check(
            lib.wh_cursor_guess(
                self._open,
                n,
                ffi.from_buffer("uint64_t[]", ids),
                ffi.from_buffer("double[]", distances),
                count,
            ),
            "guessing",
        )
        return ids[: count[0]], distances[: count[0]]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Hit:
        if not self._pending:
            ids, distances = self.next(self._chunk, eager=True)
            self._chunk = min(2 * self._chunk, _MAX_CHUNK)
            kept = [b""] * len(ids) if self._payloads is None else self._payloads(ids)
            self._pending = [Hit(*hit) for hit in zip(ids.tolist(), distances.tolist(), kept, strict=True)][::-1]
            if not self._pending:
                raise StopIteration
        return self._pending.pop()

    @property
    def exhausted(self) -> bool:
        """Whether all hits within k and radius have been taken from the engine."""
        return self.stop == "exhausted"

    @property
    def lower_bound(self) -> float:
        """Lower bound on the distance of every item that has yet to be returned; infinity if there is none."""
        if self._pending:
            return self._pending[-1].distance
        return float(lib.wh_cursor_bound(self._open))

    @property
    def stats(self) -> Stats:
        """Statistics of the search so far."""
        stats = BatchStats.allocate(1)
        lib.wh_cursor_stats(self._open, stats.pointer)
        return stats[0]

    @property
    def memory(self) -> int:
        """About how many bytes the search has allocated."""
        return int(lib.wh_cursor_memory(self._open))

    def cancel(self) -> None:
        """Make a running or later :meth:`next` return soon. May be called from any thread."""
        lib.wh_cursor_cancel(self._open)

    @property
    def _open(self) -> Any:
        if self._handle is None:
            raise InvalidArgumentError("the cursor is closed; start a new one with Index.cursor()")
        return self._handle
