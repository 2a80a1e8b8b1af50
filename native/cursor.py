"""One search at work: hits come out in order of (distance, id), each as soon as it is proven."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi, lib
from whamming.native.errors import InvalidArgumentError, check

if TYPE_CHECKING:
    from whamming.native.costs import Costs
    from whamming.native.view import View

Plan = Literal["auto", "probe", "sweep"]
Payloads = Callable[[NDArray[np.uint64]], Sequence[bytes]]
"""From ids to what is kept with them."""
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
    payload: bytes = b""
    """What is kept with the item, where it was asked for."""


@dataclass(frozen=True)
class Budget:
    """What one call may cost, about; None: no limit."""

    candidates: int | None = None
    """Codes to compare."""
    seconds: float | None = None


class Stats(NamedTuple):
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


def _dtype(struct: str) -> np.dtype[np.void]:
    """Return the numpy dtype of one of the engine's structs, so that arrays of them are filled and read at once."""
    kinds = {4: {"uint32_t": "u4", "int32_t": "i4"}, 8: {"int64_t": "i8", "double": "f8"}}
    fields = ffi.typeof(struct).fields
    return np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [kinds[ffi.sizeof(f.type)].get(f.type.cname, "u8") for _, f in fields],
            "offsets": [f.offset for _, f in fields],
            "itemsize": ffi.sizeof(struct),
        }
    )


_SEARCH = _dtype("struct wh_search")
_STATS = _dtype("struct wh_stats")


class BatchStats(Sequence[Stats]):
    """The :class:`Stats` of each query of a batch."""

    def __init__(self, raw: NDArray[np.void]) -> None:
        """Wrap the engine's structs; each is read when it is asked for."""
        self.raw = raw

    @classmethod
    def room(cls, count: int) -> Self:
        """Return room for so many, for the engine to fill."""
        return cls(np.zeros(count, dtype=_STATS))

    @property
    def pointer(self) -> Any:
        """What the engine writes to."""
        return ffi.from_buffer("struct wh_stats[]", self.raw)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.raw)

    @overload
    def __getitem__(self, query: int) -> Stats: ...
    @overload
    def __getitem__(self, query: slice) -> BatchStats: ...
    def __getitem__(self, query: int | slice) -> Stats | BatchStats:
        """Return the statistics of one query, or of several."""
        if isinstance(query, slice):
            return BatchStats(self.raw[query])
        return _stats_of(self.raw[query].item())

    def __iter__(self) -> Iterator[Stats]:
        """Yield the statistics of each query."""
        return map(_stats_of, self.raw.tolist())


def _stats_of(row: tuple[int, ...]) -> Stats:
    """Return what the engine has written, in the order of its struct."""
    plan, switched, rounds, _, buckets, nonempty, candidates, verified, blocks, planes, spent = row
    name = _PLAN_NAMES[plan]
    return Stats(name, bool(switched), rounds, buckets, nonempty, candidates, verified, blocks, planes, spent / 1e9)


def check_plan(plan: str, can_probe: bool) -> None:
    """Refuse a plan that does not exist, or that an index without tables cannot run."""
    if plan not in _PLAN_NAMES:
        raise InvalidArgumentError(f"plan = {plan!r}; choose one of {_PLAN_NAMES}")
    if plan == "probe" and not can_probe:
        raise InvalidArgumentError("plan = 'probe' needs tables; this index was built with tables='none'")


def as_whole(name: str, value: int) -> int:
    """Return a whole number, of numpy's kinds too, as a Python integer."""
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{name} = {value!r}; it must be a whole number") from None


def _is_number(value: float) -> bool:
    """Tell whether a value is a number, not NaN, that fits a double."""
    try:
        return not math.isnan(value)
    except (TypeError, OverflowError):
        return False


def check_radius(radius: float | None) -> None:
    """Refuse a radius that is no number."""
    if radius is not None and not _is_number(radius):
        raise InvalidArgumentError(f"radius = {radius!r}; it must be a number, or None for no limit")


def check_wanted(k: int | None) -> int:
    """Return how many hits a search hands out at most."""
    wanted = UNLIMITED if k is None else as_whole("k", k)
    if k is not None and not 0 <= wanted < 2**63:
        raise InvalidArgumentError(f"k = {k}; it must be 0 or more, or None for no limit")
    return wanted


def describe_searches(
    costs: Costs, k: int, radius: float | None, plan: Plan, after: tuple[float, int] | None = None
) -> Any:
    """Return the engine's description of one search per query. The costs must outlive the call it is passed to."""
    check_radius(radius)
    search = np.zeros(len(costs), dtype=_SEARCH)
    search["optimum"] = _addresses(costs.optimum)
    search["delta"] = _addresses(costs.deltas)
    search["floor"] = costs.floors
    search["exponent"] = costs.exponents
    search["plan"] = _PLANS[plan]
    search["k"] = k
    search["radius"] = math.inf if radius is None else radius
    if after is not None:
        search["resumed"] = 1
        search["after_distance"], search["after_id"] = checked_place(after)
    return ffi.from_buffer("struct wh_search[]", search)


def _addresses(rows: NDArray[Any]) -> Any:
    """Return where each row of an array lies."""
    first = int(ffi.cast("uintptr_t", ffi.from_buffer(rows)))
    if len(rows) <= 1:
        return first
    return np.arange(first, first + len(rows) * rows.strides[0], rows.strides[0], dtype=np.uint64)


def checked_place(after: tuple[float, int]) -> tuple[float, int]:
    """Return a place in the order of hits."""
    try:
        distance, last_id = after[0], operator.index(after[1])
        if len(after) == 2 and _is_number(distance) and 0 <= last_id < 2**64:
            return distance, last_id
    except (TypeError, IndexError, KeyError):
        pass
    raise InvalidArgumentError(f"after = {after!r}; it must be a (distance, id) that a search has handed out")


class Cursor:
    """A search of one query. Use it in a ``with`` block, or call :meth:`close`.

    Iterating yields :class:`Hit` after :class:`Hit` for as long as the caller wants. One thread at a time may use a
    cursor; :meth:`cancel` alone may be called from another.
    """

    def __init__(
        self,
        view: View,
        costs: Costs,
        *,
        k: int,
        radius: float | None,
        plan: Plan,
        after: tuple[float, int] | None = None,
        payloads: Payloads | None = None,
    ) -> None:
        """Start the search; prefer :meth:`View.cursor` or :meth:`Index.cursor`."""
        handle = ffi.new("wh_cursor **")
        search = describe_searches(costs, k, radius, plan, after)
        check(lib.wh_cursor_open(view._raw, len(view.parts), search, handle), "starting a search")
        self._view = view  # keeps the arrays alive
        self._handle: Any = ffi.gc(handle[0], lib.wh_cursor_close)
        self._left = k
        self._payloads = payloads
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
        n = _checked_count(n)
        if self._pending:  # iterating has taken these from the engine already
            early = self._pending[-n:][::-1] if n else []
            del self._pending[len(self._pending) - len(early) :]
            ids = np.array([hit.id for hit in early], dtype=np.uint64)
            distances = np.array([hit.distance for hit in early], dtype=np.float64)
            if len(early) == n or eager:
                return ids, distances
            more_ids, more_distances = self.next(n - len(early), budget=budget)
            return np.concatenate([ids, more_ids]), np.concatenate([distances, more_distances])
        n = min(n, self._left, self._view.n)
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
                ffi.from_buffer("uint64_t[]", ids),
                ffi.from_buffer("double[]", distances),
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
        n = _checked_count(n)
        n = min(n, self._left, self._view.n)
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
        """Return the cursor itself."""
        return self

    def __next__(self) -> Hit:
        """Return the next hit, as soon as it is proven."""
        if not self._pending:
            ids, distances = self.next(self._chunk, eager=True)
            self._chunk = min(2 * self._chunk, _CHUNK)
            kept = [b""] * len(ids) if self._payloads is None else self._payloads(ids)
            self._pending = [Hit(*hit) for hit in zip(ids.tolist(), distances.tolist(), kept, strict=True)][::-1]
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
        stats = BatchStats.room(1)
        lib.wh_cursor_stats(self._open, stats.pointer)
        return stats[0]

    def cancel(self) -> None:
        """Make the running or next :meth:`next` stop soon. May be called from any thread."""
        lib.wh_cursor_cancel(self._open)

    @property
    def _open(self) -> Any:
        if self._handle is None:
            raise InvalidArgumentError("the cursor is closed; start a new one with Index.cursor()")
        return self._handle


def _checked_count(n: int) -> int:
    n = as_whole("n", n)
    if n < 0:
        raise InvalidArgumentError(f"n = {n}; it must be 0 or more")
    return n


def checked_budget(budget: Budget) -> tuple[int, float]:
    """Return how many candidates and seconds a budget admits; 0: no limit."""
    candidates = None if budget.candidates is None else as_whole("candidates", budget.candidates)
    seconds = budget.seconds
    if (candidates is not None and candidates <= 0) or (
        seconds is not None and not (_is_number(seconds) and seconds > 0)
    ):
        raise InvalidArgumentError(f"{budget}: candidates and seconds must be positive, or None for no limit")
    return min(candidates or 0, 2**63), 0.0 if seconds is None else min(seconds, 1e9)


def _raw_budget(budget: Budget | None) -> Any:
    if budget is None:
        return ffi.NULL
    candidates, seconds = checked_budget(budget)
    nanoseconds = max(1, round(seconds * 1e9)) if seconds else 0
    return ffi.new("struct wh_budget *", {"candidates": candidates, "nanoseconds": nanoseconds})
