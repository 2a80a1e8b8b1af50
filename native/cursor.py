"""One search at work: hits come out in order of (distance, id), each as soon as it is proven."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi, lib
from whamming.native.errors import InvalidArgumentError, check

if TYPE_CHECKING:
    from whamming.native.costs import Costs
    from whamming.native.index import Index

Plan = Literal["auto", "probe", "sweep"]
StopReason = Literal["more", "exhausted", "budget", "cancelled"]

UNLIMITED: Final = 2**64 - 1
_PLANS = {"auto": lib.WH_AUTO, "probe": lib.WH_PROBE, "sweep": lib.WH_SWEEP}
_PLAN_NAMES: tuple[Plan, ...] = ("auto", "probe", "sweep")
_STOPS: tuple[StopReason, ...] = ("more", "exhausted", "budget", "cancelled")
_CHUNK = 64


class Hit(NamedTuple):
    """A code found: its id, and its distance to the query."""

    id: int
    distance: float


@dataclass(frozen=True)
class Budget:
    """What one call may cost, about; None: no limit."""

    candidates: int | None = None
    """Codes to compare."""
    seconds: float | None = None


@dataclass(frozen=True)
class Stats:
    """What a search has cost so far."""

    plan: Plan
    """The plan that finished, or is at work."""
    switched: bool
    """It began by probing and went over to the sweep."""
    rounds: int
    """Passes over the index: more than one only past 65,536 hits or in unlimited iteration."""
    buckets: int
    buckets_nonempty: int
    candidates: int
    """Codes met in buckets, or left over by the sweep's filter."""
    verified: int
    """Codes whose exact distance was computed."""
    blocks: int
    """Blocks of 128 codes swept."""
    planes: int
    """Planes of those blocks read, 64 bytes each."""
    seconds: float
    """Time inside the engine."""


def read_stats(raw: Any) -> Stats:
    """Turn the engine's struct into :class:`Stats`."""
    return Stats(
        plan=_PLAN_NAMES[raw.plan],
        switched=bool(raw.switched),
        rounds=raw.rounds,
        buckets=raw.buckets,
        buckets_nonempty=raw.buckets_nonempty,
        candidates=raw.candidates,
        verified=raw.verified,
        blocks=raw.blocks,
        planes=raw.planes,
        seconds=raw.nanoseconds / 1e9,
    )


def check_plan(plan: str, tables: str) -> None:
    """Refuse a plan that does not exist, or that an index without tables cannot run."""
    if plan not in _PLANS:
        raise InvalidArgumentError(f"plan = {plan!r}; choose one of {get_args(Plan)}")
    if plan == "probe" and tables == "none":
        raise InvalidArgumentError("plan = 'probe' needs tables; this index was built with tables='none'")


def fill_search(
    search: Any,
    costs: Costs,
    query: int,
    k: int,
    radius: float | None,
    plan: Plan,
    after: tuple[float, int] | None,
) -> None:
    """Fill the engine's description of one search. The costs must outlive the call it is passed to."""
    if radius is not None and math.isnan(radius):
        raise InvalidArgumentError("radius = nan; it must be a number, or None for no limit")
    search.optimum = ffi.cast("uint8_t *", costs.optimum[query].ctypes.data)
    search.delta = ffi.cast("uint64_t *", costs.deltas[query].ctypes.data)
    search.floor = int(costs.floors[query])
    search.exponent = int(costs.exponents[query])
    search.plan = _PLANS[plan]
    search.k = k
    search.radius = math.inf if radius is None else radius
    if after is not None:
        distance, last_id = after
        if math.isnan(distance) or not 0 <= last_id < 2**64:
            raise InvalidArgumentError(f"after = {after}; it must be a (distance, id) that a search has handed out")
        search.resumed = 1
        search.after_distance = distance
        search.after_id = last_id


class Cursor:
    """A search of one query. Use it in a ``with`` block, or call :meth:`close`.

    Iterating yields :class:`Hit` after :class:`Hit` for as long as the caller wants. One thread at a time may use a
    cursor; :meth:`cancel` alone may be called from another.
    """

    def __init__(
        self,
        index: Index,
        costs: Costs,
        *,
        k: int,
        radius: float | None,
        plan: Plan,
        after: tuple[float, int] | None = None,
    ) -> None:
        """Start the search; prefer :meth:`Index.cursor`."""
        search = ffi.new("struct wh_search *")
        fill_search(search, costs, 0, k, radius, plan, after)
        handle = ffi.new("wh_cursor **")
        check(lib.wh_cursor_open(index._handle, search, handle), "starting a search")
        self._index = index  # keeps the arrays alive
        self._handle: Any = ffi.gc(handle[0], lib.wh_cursor_close)
        self._left = k
        self._pending: list[Hit] = []
        self._chunk = 1
        self.stop: StopReason = "more"
        """Why the last :meth:`next` returned."""

    def __enter__(self) -> Self:
        """Return the cursor itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the cursor."""
        self.close()

    def close(self) -> None:
        """Free what the search holds. Closing twice is fine."""
        if self._handle is not None:
            ffi.release(self._handle)
            self._handle = None

    def next(
        self, n: int, *, budget: Budget | None = None, eager: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits, all proven; fewer where :attr:`stop` says why.

        ``eager``: return as soon as at least one is proven.
        """
        _check_count(n)
        if self._pending:  # iterating has taken these from the engine already
            early = self._pending[-n:][::-1] if n else []
            del self._pending[len(self._pending) - len(early) :]
            ids = np.array([hit.id for hit in early], dtype=np.uint64)
            distances = np.array([hit.distance for hit in early], dtype=np.float64)
            if len(early) == n or eager:
                return ids, distances
            more_ids, more_distances = self.next(n - len(early), budget=budget)
            return np.concatenate([ids, more_ids]), np.concatenate([distances, more_distances])
        n = min(n, self._left, self._index.n)
        ids = np.empty(n, dtype=np.uint64)
        distances = np.empty(n, dtype=np.float64)
        count = ffi.new("size_t *")
        stop = ffi.new("int *")
        check(
            lib.wh_cursor_next(
                self._open,
                n,
                _raw_budget(budget),
                int(eager),
                ffi.cast("uint64_t *", ids.ctypes.data),
                ffi.cast("double *", distances.ctypes.data),
                count,
                stop,
            ),
            "searching",
        )
        self.stop = _STOPS[stop[0]]
        if self._left != UNLIMITED:
            self._left -= count[0]
        return ids[: count[0]], distances[: count[0]]

    def guess(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the best ``n`` hits known but not handed out: what a search out of budget can say beyond its proof."""
        _check_count(n)
        n = min(n, self._left, self._index.n)
        ids = np.empty(n, dtype=np.uint64)
        distances = np.empty(n, dtype=np.float64)
        count = ffi.new("size_t *")
        check(
            lib.wh_cursor_guess(
                self._open,
                n,
                ffi.cast("uint64_t *", ids.ctypes.data),
                ffi.cast("double *", distances.ctypes.data),
                count,
            ),
            "guessing",
        )
        return ids[: count[0]], distances[: count[0]]

    def __iter__(self) -> Self:
        """Return the cursor itself."""
        return self

    def __next__(self) -> Hit:
        """Return the next hit, as soon as it is proven."""
        if not self._pending:
            ids, distances = self.next(self._chunk, eager=True)
            self._chunk = min(2 * self._chunk, _CHUNK)
            self._pending = [Hit(i, d) for i, d in zip(ids.tolist(), distances.tolist(), strict=True)][::-1]
            if not self._pending:
                raise StopIteration
        return self._pending.pop()

    @property
    def exhausted(self) -> bool:
        """Every hit that k and radius admit has been handed out by :meth:`next`."""
        return self.stop == "exhausted"

    @property
    def lower_bound(self) -> float:
        """No code of the index that was not handed out is nearer than this; infinity when all were."""
        if self._pending:
            return self._pending[-1].distance
        return float(lib.wh_cursor_bound(self._open))

    @property
    def stats(self) -> Stats:
        """What the search has cost so far."""
        raw = ffi.new("struct wh_stats *")
        lib.wh_cursor_stats(self._open, raw)
        return read_stats(raw)

    def cancel(self) -> None:
        """Make the running or next :meth:`next` stop soon. May be called from any thread."""
        lib.wh_cursor_cancel(self._open)

    @property
    def _open(self) -> Any:
        if self._handle is None:
            raise InvalidArgumentError("the cursor is closed; start a new one with Index.cursor()")
        return self._handle


def _check_count(n: int) -> None:
    if n < 0:
        raise InvalidArgumentError(f"n = {n}; it must be 0 or more")


def _raw_budget(budget: Budget | None) -> Any:
    if budget is None:
        return ffi.NULL
    candidates, seconds = budget.candidates, budget.seconds
    if (candidates is not None and candidates <= 0) or (seconds is not None and not seconds > 0):
        raise InvalidArgumentError(f"{budget}: candidates and seconds must be positive, or None for no limit")
    nanoseconds = 0 if seconds is None else max(1, round(min(seconds, 1e9) * 1e9))
    return ffi.new("struct wh_budget *", {"candidates": candidates or 0, "nanoseconds": nanoseconds})
