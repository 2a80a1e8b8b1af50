"""Views: one or several indexes, without their dead items, searched as one collection."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi, lib
from whamming.native.arguments import Plan, Position, check_k, check_plan, check_threads, check_wanted
from whamming.native.budget import Budget
from whamming.native.costs import Costs
from whamming.native.cursor import Cursor, Payloads
from whamming.native.display import MAX_ROWS, counted, table
from whamming.native.errors import InvalidArgumentError, check
from whamming.native.searches import describe_searches
from whamming.native.stats import BatchStats, Stats

if TYPE_CHECKING:
    from whamming.native.index import Index

_WORDS, _DOUBLES = ffi.typeof("uint64_t[]"), ffi.typeof("double[]")

NO_ID: Final = 2**64 - 1
"""The id that pads rows with fewer than k hits."""
MAX_PADDED: Final = 1 << 28
"""Maximum size of an answer's arrays, queries x k, if k exceeds the number of items."""
_SHOWN_HITS: Final = 5
"""Number of hits per query that a notebook shows."""


@dataclass(frozen=True)
class Answer:
    """The result of a search. Unpacks to ``ids, distances``.

    For one query the arrays have one element per hit. For a batch they are ``[q, k]``; rows with fewer than k hits are
    padded with id 2**64 - 1 and distance infinity.
    """

    ids: NDArray[np.uint64]
    distances: NDArray[np.float64]
    counts: NDArray[np.uint64]
    """Hits per query."""
    proven: NDArray[np.uint64]
    """Per query: how many of the first hits are proven. Less than ``counts`` only if a budget ran out."""
    exact: NDArray[np.bool_]
    """Per query: whether the answer is complete and all of its hits are proven."""
    stats: Sequence[Stats]
    """Statistics of each query."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        yield self.ids
        yield self.distances

    def __repr__(self) -> str:
        exact = int(self.exact.sum())
        if self.ids.ndim == 1:
            return f"Answer({counted(len(self.ids), 'hit')}{', exact' if exact else ''})"
        queries = counted(len(self.ids), "query", "queries")
        return f"Answer({queries}, {counted(int(self.counts.sum()), 'hit')}, {exact:,} exact)"

    def _repr_html_(self) -> str:
        """Return an HTML table for notebooks: the hits of one query, or the first hits of each query."""
        if self.ids.ndim == 1:
            hits = zip(self.ids[:MAX_ROWS].tolist(), self.distances[:MAX_ROWS].tolist(), strict=True)
            rows: list[list[object]] = [[str(id_), distance] for id_, distance in hits]
            return table(("id", "distance"), rows, repr(self))
        shown = min(self.ids.shape[1], _SHOWN_HITS)
        rows = []
        for query, count in enumerate(self.counts[:MAX_ROWS].tolist()):
            ids, distances = self.ids[query, :shown].tolist(), self.distances[query, :shown].tolist()
            hits = zip(ids, distances, strict=True)
            cells = [f"{id_} ({distance:g})" for id_, distance in hits][:count]
            rows.append([query, *cells, *[""] * (shown - len(cells))])
        return table(("query", *(f"hit {place}" for place in range(1, shown + 1))), rows, repr(self))


@dataclass(frozen=True)
class Part:
    """An index without its dead items."""

    index: Index
    dead: NDArray[np.uint8] | None = None
    """Bitmap: bit p (byte ``p >> 3``, mask ``1 << (p & 7)``) is set if the item at place p is dead. None: none is."""
    dead_count: int = 0
    """Number of bits set in ``dead``."""

    @property
    def live(self) -> int:
        """Number of items that are not dead."""
        return self.index.n - self.dead_count


class CancelFlag:
    """Cancels a batch of searches from another thread."""

    def __init__(self) -> None:
        self.raw = ffi.new("uint32_t *")

    def set(self) -> None:
        """Stop the batch soon. Its results are then unspecified."""
        self.raw[0] = 1

    @property
    def is_set(self) -> bool:
        return bool(self.raw[0])


class View:
    """Several parts, searched as one collection. Immutable; any number of threads may search it at once."""

    def __init__(self, parts: Sequence[Part], bits: int, *, lenient: bool = False) -> None:
        """Combine one or more parts. All must have codes of ``bits`` bits; no id may be alive in more than one part.

        ``lenient``: if no part has tables (yet), run the plan ``"probe"`` as a sweep instead of refusing it.

        Raises :class:`InvalidArgumentError` if the bits differ or a bitmap is too short.
        """
        self.bits = bits
        if not parts:
            raise InvalidArgumentError("no parts; a view needs at least one, which may be empty")
        for part in parts:
            if part.index.bits != bits:
                raise InvalidArgumentError(f"a part has codes of {part.index.bits} bits; the view has {bits}")
            if part.dead_count and (part.dead is None or len(part.dead) * 8 < part.index.n):
                size = 0 if part.dead is None else len(part.dead)
                raise InvalidArgumentError(f"dead has {size} bytes; {part.index.n} items need {-(-part.index.n // 8)}")
        alive = sorted((part for part in parts if part.live), key=lambda part: -part.index.n)
        self.parts = tuple(alive or parts[:1])
        self.n = sum(part.live for part in self.parts)
        self._raw = ffi.new("struct wh_part[]", len(self.parts))
        self._pinned = []
        for raw, part in zip(self._raw, self.parts, strict=True):
            raw.index = part.index._handle
            raw.planner = part.index._planner
            if part.dead_count:
                assert part.dead is not None
                self._pinned.append(ffi.from_buffer("uint8_t[]", part.dead))
                raw.dead = self._pinned[-1]
                raw.dead_count = part.dead_count
        self._tables = any(part.index.tables != "none" for part in self.parts)
        self.can_probe = self._tables or lenient
        """Whether the plan ``"probe"`` is accepted."""

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"View({counted(self.n, 'item')}, {self.bits} bits, {counted(len(self.parts), 'part')})"

    def search(
        self,
        costs: Costs,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        *,
        budget: Budget | None = None,
        threads: int | None = None,
        cancel: CancelFlag | None = None,
    ) -> Answer:
        """Return the exact ``k`` nearest items of each query, in order of (distance, id).

        Parameters
        ----------
        costs : one query or a batch.
        k : maximum number of hits per query.
        radius : maximum distance of a hit, inclusive.
        plan : ``"auto"`` lets the planner choose. All plans give the same answer.
        budget : limits the work per query; ``Answer.proven`` says how many leading hits are proven.
        threads : number of threads; by default one per core. They share the queries of a batch. They also share the
            sweep of a single query, if the index is large.
        cancel : another thread may set this flag; the answer is then unspecified.
        """
        self._check_costs(costs)
        k = check_k(k)
        plan = self._plan_to_run(plan)
        columns = min(k, self.n)
        q = len(costs)
        batch = Batch(self, costs, columns, radius, plan, cancel)
        ids, distances, counts = batch.ids, batch.distances, batch.counts
        proven = counts
        stats: Sequence[Stats] = batch.stats
        exact = np.ones(q, dtype=bool)
        if budget is None:
            batch.run(check_threads(threads))
        else:
            ids.fill(NO_ID)
            distances.fill(np.inf)
            proven = np.zeros(q, dtype=np.uint64)
            collected = []
            for i in range(q):
                with Cursor(self, costs[i], k=columns, radius=radius, plan=plan) as cursor:
                    found, far = cursor.next(columns, budget=budget)
                    proven[i] = len(found)
                    exact[i] = cursor.exhausted or len(found) == columns
                    guess, guess_far = cursor.guess(columns - len(found))
                    row = np.concatenate([found, guess])
                    ids[i, : len(row)] = row
                    distances[i, : len(row)] = np.concatenate([far, guess_far])
                    counts[i] = len(row)
                    collected.append(cursor.stats)
            stats = collected
        if costs.single:
            found_count = int(counts[0])
            return Answer(ids[0, :found_count], distances[0, :found_count], counts, proven, exact, stats)
        if columns < k:
            ids, distances = padded(ids, k, NO_ID), padded(distances, k, np.inf)
        return Answer(ids, distances, counts, proven, exact, stats)

    def batch(
        self,
        costs: Costs,
        k: int,
        radius: float | None = None,
        plan: Plan = "auto",
        *,
        cancel: CancelFlag | None = None,
    ) -> Batch:
        """Prepare several queries to be searched together, optionally with a time limit."""
        self._check_costs(costs)
        return Batch(self, costs, min(check_k(k), self.n), radius, self._plan_to_run(plan), cancel)

    def cursor(
        self,
        costs: Costs,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        *,
        after: Position | None = None,
        payloads: Payloads | None = None,
    ) -> Cursor:
        """Start a search of one query that returns hits as soon as they are proven.

        ``after``: return only hits after this :data:`Position`, to resume an earlier search.
        ``payloads``: looks up the payloads of the hits that iteration yields.
        """
        self._check_costs(costs)
        if len(costs) != 1:
            raise InvalidArgumentError(f"the costs have {len(costs)} queries; a cursor searches one, so pass costs[i]")
        wanted = check_wanted(k)
        plan = self._plan_to_run(plan)
        return Cursor(self, costs, k=wanted, radius=radius, plan=plan, after=after, payloads=payloads)

    def _plan_to_run(self, plan: Plan) -> Plan:
        check_plan(plan, self.can_probe)
        return "auto" if plan == "probe" and not self._tables else plan

    def _check_costs(self, costs: Costs) -> None:
        if not isinstance(costs, Costs):
            raise InvalidArgumentError(f"costs = {costs!r}; make them with Costs.table, .weights or .hamming")
        if costs.bits != self.bits:
            raise InvalidArgumentError(f"the costs are for {costs.bits} bits; the index has codes of {self.bits} bits")


class Batch:
    """Several queries, prepared to be searched together. One thread at a time may use it.

    Attributes
    ----------
    ids, distances : ``[q, k]``, the hits, padded. Rows of queries that have not been searched are unspecified.
    counts : ``[q]``, hits per query.
    stats : statistics of each query.
    """

    def __init__(
        self, view: View, costs: Costs, k: int, radius: float | None, plan: Plan, cancel: CancelFlag | None
    ) -> None:
        """Allocate the results. Users call :meth:`View.batch`."""
        q = len(costs)
        self.ids: NDArray[np.uint64] = np.empty((q, k), dtype=np.uint64)
        self.distances: NDArray[np.float64] = np.empty((q, k))
        self.counts: NDArray[np.uint64] = np.zeros(q, dtype=np.uint64)
        self.stats = BatchStats.allocate(q)
        self._view, self._costs, self._cancel, self._k = view, costs, cancel, k  # C points into these
        self._searches = describe_searches(costs, k, radius, plan)

    def run(self, threads: int = 1, seconds: float = 0.0) -> int:
        """Search all queries. If cancelled, the results are unspecified.

        ``seconds``: stop after about this time; 0: no limit. Returns how many queries, counted from the first one, have
        been searched; the results of the others are unspecified.
        """
        done = ffi.new("size_t *")
        status = lib.wh_search_batch(
            self._view._raw,
            len(self._view.parts),
            self._searches,
            len(self.counts),
            self._k,
            threads,
            ffi.NULL if self._cancel is None else self._cancel.raw,
            int(seconds * 1e9),
            ffi.from_buffer(_WORDS, self.ids),
            ffi.from_buffer(_DOUBLES, self.distances),
            ffi.from_buffer(_WORDS, self.counts),
            self.stats.pointer,
            done,
        )
        if status:
            check(status, f"searching {len(self.counts)} queries")
        searched: int = done[0]
        return searched


def padded(rows: NDArray[Any], k: int, filling: float) -> NDArray[Any]:
    """Widen rows to ``k`` columns, padded with ``filling``."""
    if len(rows) * k > MAX_PADDED:
        raise InvalidArgumentError(
            f"k = {k} for {len(rows)} queries gives {len(rows) * k} hits with padding; the limit is {MAX_PADDED}. "
            f"Reduce k: no query has more than {rows.shape[1]} hits"
        )
    wide = np.full((len(rows), k), filling, dtype=rows.dtype)
    wide[:, : rows.shape[1]] = rows
    return wide
