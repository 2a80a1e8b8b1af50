"""Re-ranking hits by the vectors that an index keeps.

There are two ways, with different guarantees.

*By a factor*: the k x factor items that are nearest by their codes are ranked by the metric. The result is exact among
these items. An item that is near by the metric but not among the k x factor nearest by its code is missed.

*Exact*: the result is the same as if the query was compared with every kept vector. This works for ``l2`` only, because
it needs the following bound. If a bit of a code differs from the query's bit, the two projections lie on different
sides of zero, at least ``|p_i(q)|`` apart. Let each such bit cost ``p_i(q)²``, and let s be the largest factor by which
the encoder's matrix stretches a vector. Then

    distance by code  <=  |p(q) - p(x)|²  <=  s² |q - x|²

A hit is proven once its distance is below the bound for all remaining items. The data determine how many items must be
compared before that. If the neighbours are much nearer than the rest, like near-duplicates, a few items are enough.
Otherwise many items are needed, or all of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Answer, Budget, Costs, Cursor, Hit, InvalidArgumentError, Plan, Stats, StopReason
from whamming.native.arguments import UNLIMITED, as_whole
from whamming.native.costs import shortened
from whamming.native.cursor import Payloads
from whamming.native.view import padded
from whamming.storage.settings import IndexSettings
from whamming.storage.store.snapshot import Snapshot
from whamming.storage.vectors.arrays import as_vectors, blocks
from whamming.storage.vectors.encoders import Encoder, Form
from whamming.storage.vectors.kept import measure
from whamming.storage.vectors.ranked_hits import RankedHits
from whamming.storage.vectors.steps import Steps

Rerank = int | Literal["exact"]
"""How hits are re-ranked by the kept vectors: the nearest ``k * rerank`` items by code, or ``"exact"``."""

MAX_FACTOR: Final = 1_000_000
_FIRST_CHUNK: Final = 64
_MAX_CHUNK: Final = 8192
"""The number of items fetched from the cursor at a time grows from _FIRST_CHUNK to _MAX_CHUNK."""
_CHUNK_CELLS: Final = 1 << 17
"""The vectors of a chunk have at most about this many components. Reading and measuring them takes half a
millisecond."""
_STEP_SECONDS: Final = 0.005
"""A cancelled search stops within about this time."""
_SLACK: Final = 2.0**-40
"""A bound on the relative rounding errors of the costs, the projections and the distances."""


def read_queries(
    settings: IndexSettings, vectors: ArrayLike | None, rerank: Rerank, form: Form | None
) -> tuple[NDArray[np.float32], int | None]:
    """Return the query vectors and the factor (None for ``"exact"``). Raises InvalidArgumentError."""
    assert vectors is not None
    rows, single = as_vectors(vectors, settings.dim)
    queries = np.empty(rows.shape, dtype=np.float32)
    for first, block in blocks(rows, single=single):
        queries[first : first + len(block)] = block
    if rerank == "exact":
        if settings.metric != "l2":
            remedy = "use a number"
            if settings.metric == "cosine":
                remedy += ", or an index of vectors scaled to length 1 with metric 'l2', which orders them the same way"
            raise InvalidArgumentError(
                f"rerank = 'exact' with metric = {settings.metric!r}; it works with 'l2' only: {remedy}"
            )
        if form is not None:
            raise InvalidArgumentError(f"rerank = 'exact' with costs = {form!r}; leave costs out, it computes its own")
        return queries, None
    return queries, check_factor(rerank)


def check_factor(rerank: int) -> int:
    """Return the re-ranking factor if it is valid. Raises InvalidArgumentError."""
    if isinstance(rerank, str):
        raise InvalidArgumentError(f"rerank = {rerank!r}; it must be 1 to {MAX_FACTOR}, or 'exact'")
    factor = as_whole("rerank", rerank)
    if not 1 <= factor <= MAX_FACTOR:
        raise InvalidArgumentError(f"rerank = {factor}; it must be 1 to {MAX_FACTOR}, or 'exact'")
    return factor


def check_k(k: int) -> int:
    """Return k if it is valid. Raises InvalidArgumentError."""
    count = as_whole("k", k)
    if not 0 <= count < 2**31:
        raise InvalidArgumentError(f"k = {count}; it must be 0 to {2**31 - 1}")
    return count


class Bound:
    """Turns a lower bound on the cost of a code into a lower bound on the distance of its vector from the query."""

    def __init__(self, encoder: Encoder, query: NDArray[np.float32]) -> None:
        """``query`` is one vector, ``[dim]``."""
        self._set(encoder, encoder.project(query))

    @classmethod
    def making(cls, encoder: Encoder, query: NDArray[np.float32]) -> Steps[Bound]:
        """Make the bound in short steps."""
        made = cls.__new__(cls)
        made._set(encoder, (yield from encoder.projecting(query)))
        return made

    def _set(self, encoder: Encoder, projected: NDArray[np.float64]) -> None:
        apart = np.square(projected)
        ones = projected > 0
        table = np.stack([np.where(ones, apart, 0), np.where(ones, 0, apart)], axis=-1)
        self.costs = Costs.table(shortened(table))  # not more than the true costs: the bound stays valid
        self._slack = _SLACK * float(apart.sum())
        self._stretch = encoder.stretch

    def prepare(self, end: float) -> bool:
        """Work until ``time.perf_counter()`` reaches ``end``. Returns whether the bound can be called now."""
        return self._stretch.run(end)

    def __call__(self, bound: float) -> float:
        """Return the least distance of a vector whose code costs at least ``bound``. Call :meth:`prepare` first."""
        return math.sqrt(max(0.0, bound - self._slack)) / self._stretch.result * (1 - _SLACK)


class Reranked:
    """A search whose hits are in order of (distance by the metric, id). One thread at a time may use it."""

    sums = None
    """The exact distances of hits, which a cursor of the engine returns for resuming. This search cannot be resumed."""

    def __init__(
        self,
        snapshot: Snapshot,
        query: NDArray[np.float32],
        cursor: Cursor,
        *,
        k: int = UNLIMITED,
        bound: Bound | None = None,
        payloads: Payloads | None = None,
    ) -> None:
        """Without a ``bound``, rank all hits of the cursor. With one, fetch hits until the bound proves the result."""
        self._snapshot = snapshot
        self._query = query
        self._cursor = cursor
        self._payloads = payloads
        self._left = k
        self._bound = bound
        self._largest_chunk = max(1, min(_MAX_CHUNK, _CHUNK_CELLS // len(query)))
        self._chunk = min(_FIRST_CHUNK, self._largest_chunk)
        self._seen = 0
        self._is_bound_due = False
        """Whether the bound has to be computed again, because items were fetched."""
        self._cancelled = False
        self._interrupted: StopReason | None = None
        """Why the last :meth:`next` returned early."""
        self._ranked = RankedHits(k)
        self._beyond = -math.inf  # a lower bound on the distances of all items that were not fetched yet

    def __next__(self) -> Hit:
        """Return the next hit, as soon as it is proven."""
        ids, distances = self.next(1)
        if len(ids) == 0:
            raise StopIteration
        kept = b"" if self._payloads is None else self._payloads(ids)[0]
        return Hit(int(ids[0]), float(distances[0]), kept)

    def next(
        self, n: int, *, budget: Budget | None = None, eager: bool = False
    ) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer if no more exist or the budget ran out.

        ``eager``: return as soon as at least one hit is proven.
        """
        hits: list[tuple[float, int]] = []
        end = math.inf if budget is None or budget.seconds is None else time.perf_counter() + budget.seconds
        self._interrupted = None
        while len(hits) < n and self._left and (self._certain if eager and hits else self._advance(budget, end)):
            hits.append(self._ranked.pop())
            self._left -= 1
        return np.array([i for _, i in hits], dtype=np.uint64), np.array([d for d, _ in hits], dtype=np.float64)

    def _advance(self, budget: Budget | None, end: float) -> bool:
        """Fetch items until the nearest one is proven, or the search is interrupted; returns whether it is proven."""
        while self._beyond < math.inf and not self._certain and self._interrupted is None:
            if not self._is_bound_due:
                self._fetch(budget)
            if self._is_bound_due and self._prepare(end):
                self._is_bound_due = False
            if self._cancelled:
                self._interrupted, self._cancelled = "cancelled", False
            elif self._cursor.stop in ("budget", "cancelled"):
                self._interrupted = self._cursor.stop
            elif time.perf_counter() >= end:
                self._interrupted = "budget"
        return self._certain

    def _prepare(self, end: float) -> bool:
        """Compute the bound that the fetched items give, but not for long. Returns whether it is complete."""
        assert self._bound is not None
        if not self._bound.prepare(min(end, time.perf_counter() + _STEP_SECONDS)):
            return False
        self._beyond = self._bound(self._cursor.lower_bound)
        return True

    def _fetch(self, budget: Budget | None) -> None:
        """Fetch some items, and rank them."""
        ids, _ = self._cursor.next(self._chunk, budget=budget)
        self._chunk = min(2 * self._chunk, self._largest_chunk)
        self._seen += len(ids)
        vectors = self._snapshot.vectors(ids)
        self._ranked.add(measure(self._snapshot.settings.metric, self._query, vectors), ids)
        if self._cursor.exhausted:
            self._beyond = math.inf
        else:
            self._is_bound_due = self._bound is not None

    @property
    def _certain(self) -> bool:
        return self._ranked.nearest < self._beyond

    @property
    def exact(self) -> bool:
        """Whether the hits are the same as if the query had been compared with every vector."""
        return self._bound is not None or self._seen == len(self._snapshot)

    @property
    def lower_bound(self) -> float:
        """A lower bound on the distances of all items not returned yet; minus infinity if nothing is known of them."""
        if not self.exact:
            return -math.inf
        return min(self._ranked.nearest, self._ranked.nearest_dropped, self._beyond)

    @property
    def exhausted(self) -> bool:
        """Whether all hits have been returned."""
        return self._left == 0 or (self._beyond == math.inf and not self._ranked)

    @property
    def stop(self) -> StopReason:
        """Why the last :meth:`next` returned."""
        if self.exhausted:
            return "exhausted"
        return "more" if self._certain else self._interrupted or self._cursor.stop

    def guess(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the best ``n`` hits found so far that are not proven."""
        return self._ranked.first(n)

    def cancel(self) -> None:
        """Make :meth:`next` stop soon: the running call, or else the next one. Any thread may call this."""
        self._cancelled = True
        self._cursor.cancel()

    @property
    def memory(self) -> int:
        """About how many bytes the search has allocated."""
        return self._cursor.memory + self._ranked.memory

    @property
    def stats(self) -> Stats:
        """Statistics so far of the underlying search, which compares codes."""
        return self._cursor.stats

    def close(self) -> None:
        """Free the resources of the search. Closing twice is allowed."""
        self._cursor.close()


def rerank_batch(snapshot: Snapshot, queries: NDArray[np.float32], found: Answer, k: int, *, single: bool) -> Answer:
    """Return the ``k`` nearest hits of each query by the metric, among those found by their codes."""
    hits = []
    for row, (query, count) in enumerate(zip(queries, found.counts.tolist(), strict=True)):
        ids = found.ids[row, :count]
        distances = measure(snapshot.settings.metric, query, snapshot.vectors(ids))
        order = np.lexsort((ids, distances))[:k]
        hits.append((ids[order], distances[order]))
    return _answer(hits, k, found.counts == len(snapshot), found.stats, single)


def search_exactly(
    snapshot: Snapshot, encoder: Encoder, queries: NDArray[np.float32], k: int, plan: Plan, *, single: bool
) -> Answer:
    """Return the ``k`` nearest items of each query by the metric, all proven."""
    hits, stats = [], []
    for query in queries:
        bound = Bound(encoder, query)
        with snapshot.view.cursor(bound.costs, plan=plan) as cursor:
            hits.append(Reranked(snapshot, query, cursor, k=k, bound=bound).next(k))
            stats.append(cursor.stats)
    return _answer(hits, k, np.ones(len(queries), dtype=bool), stats, single)


def _answer(
    hits: Sequence[tuple[NDArray[np.uint64], NDArray[np.float64]]],
    k: int,
    exact: NDArray[np.bool_],
    stats: Sequence[Stats],
    single: bool,
) -> Answer:
    counts = np.array([len(ids) for ids, _ in hits], dtype=np.uint64)
    columns = int(counts.max(initial=0))
    ids = np.full((len(hits), columns), np.iinfo(np.uint64).max, dtype=np.uint64)
    distances = np.full((len(hits), columns), np.inf)
    for row, hit in enumerate(hits):
        ids[row, : len(hit[0])], distances[row, : len(hit[0])] = hit
    proven = np.where(exact, counts, 0).astype(np.uint64)
    if single:
        return Answer(ids[0], distances[0], counts, proven, exact, stats)
    ids, distances = padded(ids, k, np.iinfo(np.uint64).max), padded(distances, k, np.inf)
    return Answer(ids, distances, counts, proven, exact, stats)
