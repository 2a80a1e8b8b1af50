"""Search calls without gRPC: a real searcher, a real event loop, and a record of what each query has received.

Without workers, a :class:`Bench` runs slices in the thread of the test when the test says so, which makes the order of
events deterministic. With workers, it searches in the background like a server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.native.oracle import Floats, Truth, truth
from tests.server.answers import in_order, place_of
from tests.server.columns import read_sums
from whamming import Database, StoredIndex
from whamming.native import Position, Stats
from whamming.server.search.call import SearchCall
from whamming.server.search.options import OptionsReader
from whamming.server.search.query import Query
from whamming.server.search.results import response
from whamming.server.search.scheduler import ClientQueue
from whamming.server.search.searcher import Searcher
from whamming.v1 import search_pb2
from whamming.v1.search_pb2 import (
    END_REASON_BUDGET,
    END_REASON_COMPLETE,
    END_REASON_EXHAUSTED,
    END_REASON_FAILED,
    END_REASON_UNSPECIFIED,
    QueryBatch,
    QueryOptions,
    SearchResponse,
)
from whamming.wire.columns import id_column, matrix, payload_list_of, sum_column
from whamming.wire.statistics import stats_at

SLICE = 0.01
LONG = 3600.0
FINISHED = (END_REASON_COMPLETE, END_REASON_EXHAUSTED)


def batch(
    index: str,
    query_ids: Iterable[int],
    options: QueryOptions | None = None,
    *,
    codes: bytes = b"",
    weights: Any = None,
    tables: Any = None,
    vectors: Any = None,
    form: Any = 0,
    after: Sequence[Position] = (),
) -> QueryBatch:
    """Return a batch of queries. Matrices have the shape ``[n, columns]``; cost tables may be ``[n, bits, 2]``."""
    message = QueryBatch(index=index, query_ids=query_ids, codes=codes, form=form, options=options)
    for name, rows in (("weights", weights), ("tables", tables), ("vectors", vectors)):
        if rows is not None:
            array = np.asarray(rows)
            getattr(message, name).CopyFrom(matrix(array.reshape(len(array), -1)))
    if after:
        message.after_distances.extend([place[0] for place in after])
        message.after_ids.CopyFrom(id_column(np.array([place[1] for place in after], dtype=np.uint64)))
        message.after_sums = sum_column([place[2] if len(place) == 3 else b"" for place in after])
    return message


@dataclass(frozen=True)
class Ending:
    """How a query ended, as a client sees it."""

    reason: int
    exact: bool
    stats: Stats
    elapsed: float
    error: search_pb2.QueryError | None = None
    resume: Position | None = None
    guess: Truth | None = None


@dataclass
class Account:
    """Everything that one query has received. Each chunk is checked against the guarantees of the proto."""

    options: QueryOptions
    last: Position = (-math.inf, -1)
    """The last hit, or the position after which the query was to continue."""
    granted: float = math.inf
    ids: list[int] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    bounds: list[float] = field(default_factory=list)
    _end: Ending | None = None

    def add(self, hits: Truth, payloads: Sequence[bytes], bound: float, last_sum: bytes) -> None:
        """Check and record a chunk."""
        assert self._end is None, "a chunk after the end"
        assert len(hits) <= (self.options.chunk_size or 4096)
        for hit in zip(hits.distances.tolist(), hits.ids.tolist(), strict=True):
            assert in_order(self.last, *hit), "a hit out of order, or sent twice"
            assert hit[0] >= max(self.bounds, default=-math.inf), "a hit nearer than an earlier lower bound"
            self.last = hit
        if len(hits):
            self.last = place_of(*self.last[:2], last_sum)
        self.ids += hits.ids.tolist()
        self.distances += hits.distances.tolist()
        self.payloads += payloads
        self.counts.append(len(hits))
        self.bounds.append(bound)
        assert len(self.ids) <= self.granted, "more hits than granted"
        assert not math.isnan(bound)

    def finish(self, end: Ending) -> None:
        """Check and record the end."""
        assert self._end is None, "it ended twice"
        self._end = end
        finished = end.reason in FINISHED
        assert end.reason != END_REASON_UNSPECIFIED
        assert end.elapsed >= 0
        assert end.exact == finished or self._is_reranked
        assert (end.error is not None) == (end.reason == END_REASON_FAILED)
        assert end.guess is None or end.reason == END_REASON_BUDGET
        if finished or self.last[1] < 0:
            assert end.resume is None
        elif not self._is_reranked:
            assert end.resume == self.last
        if end.reason == END_REASON_COMPLETE:
            assert len(self.ids) == self.options.k
        if self.options.HasField("k"):
            assert len(self.ids) + len(end.guess or ()) <= self.options.k

    @property
    def _is_reranked(self) -> bool:
        return bool(self.options.rerank or self.options.rerank_exactly)

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    @property
    def end(self) -> Ending:
        assert self._end is not None, "it has not ended"
        return self._end

    @property
    def reason(self) -> int:
        return self.end.reason

    @property
    def error(self) -> search_pb2.QueryError:
        assert self.end.error is not None
        return self.end.error

    @property
    def hits(self) -> Truth:
        return Truth(np.array(self.ids, dtype=np.uint64), np.array(self.distances, dtype=np.float64))

    def check_prefix(self, answer: Truth) -> None:
        """Check that all hits so far are the first of the answer, and that all bounds were right."""
        assert self.hits.bytes() == answer[: len(self.ids)].bytes()
        if len(self.ids) < len(answer):
            assert max(self.bounds, default=-math.inf) <= answer.distances[len(self.ids)]


class Bench:
    """A searcher of a database. Without workers, the test runs the slices."""

    def __init__(
        self, database: Database, threads: int = 0, *, slice_seconds: float = SLICE, snapshot_seconds: float = LONG
    ) -> None:
        self.database = database
        self.searcher = Searcher(database, threads, slice_seconds, snapshot_seconds)

    def step(self) -> bool:
        """Run what a worker would run next. Returns False if there was nothing to do."""
        scheduler = self.searcher._scheduler
        with scheduler._lock:
            turn = scheduler._take(LONG)
            scheduler._busy += turn is not None
        if turn is not None:
            scheduler._execute(turn)
        return turn is not None

    def run(self) -> int:
        """Run slices until there is nothing to do. Returns their number."""
        count = 0
        while self.step():
            count += 1
        return count

    def call(self, **limits: Any) -> Call:
        return Call(self, **limits)

    async def learn(self, index: str, bits: int) -> None:
        """Search an index once. If it is small, its later queries form groups."""
        call = self.call()
        call.ask(batch(index, [0], QueryOptions(k=1), tables=np.ones((1, bits, 2))))
        await call.finish()
        assert call[0].reason in FINISHED
        assert self.searcher.is_quick(index)

    def close(self) -> None:
        self.searcher.close()


class Call:
    """A Search call, and everything that its client has read."""

    def __init__(
        self,
        bench: Bench,
        *,
        client: ClientQueue | None = None,
        max_k: int = 2**31 - 1,
        max_queries: int = 4096,
        buffer_bytes: int = 1 << 20,
    ) -> None:
        self.bench = bench
        options_of = OptionsReader(max_k)
        self.search = SearchCall(bench.searcher, options_of, client, max_queries=max_queries, buffer_bytes=buffer_bytes)
        self.accounts: dict[int, Account] = {}
        self.order: list[int] = []
        """The query id of each chunk, in the order of arrival."""

    def __getitem__(self, query_id: int) -> Account:
        return self.accounts[query_id]

    def ask(self, message: QueryBatch) -> None:
        for row, query_id in enumerate(message.query_ids):
            account = self.accounts[query_id] = Account(message.options)
            if message.options.HasField("credit"):
                account.granted = message.options.credit
            ids = np.frombuffer(message.after_ids.uint64, "<u8")
            sums = read_sums(message.after_sums, len(message.query_ids))
            if row < min(len(message.after_distances), len(ids)) and message.after_distances[row] > -math.inf:
                account.last = place_of(message.after_distances[row], int(ids[row]), sums[row])
        self.search.add(message)

    def grant(self, query_id: int, hits: int) -> None:
        """Grant credit to a query."""
        if query_id in self.accounts:
            self.accounts[query_id].granted += hits
        self.search.grant(query_id, hits)

    def cancel(self, *query_ids: int) -> None:
        self.search.cancel(query_ids)

    def query(self, query_id: int) -> Query:
        """The server's state of a running query."""
        return self.search._queries[query_id]

    @property
    def under_way(self) -> set[int]:
        return set(self.search._queries)

    @property
    def waiting(self) -> int:
        """Bytes in the send buffer."""
        return self.search.buffer._bytes

    async def read_message(self) -> bool:
        """Wait for the next message and record it. Returns False at the end of the call."""
        some = await self.search.next_results()
        if not some:
            return False
        self.enter(SearchResponse.FromString(response(some).SerializeToString()))
        return True

    async def read(self) -> int:
        """Read all waiting messages. Returns their number."""
        count = 0
        while self.waiting:
            await self.read_message()
            count += 1
        return count

    async def run(self) -> None:
        """Run slices and read messages until there is nothing left to do."""
        while self.bench.run() + await self.read():
            pass

    async def until(self, condition: Callable[[], bool]) -> None:
        """Read messages until a condition holds, while the workers search."""
        while not condition():
            assert await self.read_message(), "the call ended first"

    async def until_ended(self, *query_ids: int) -> None:
        await self.until(lambda: all(self[query_id].has_ended for query_id in query_ids))

    async def finish(self) -> dict[int, Account]:
        """Close the requests and read the rest. All queries must have ended by then."""
        self.search.close_requests()
        await self.run()
        while await self.read_message():
            pass
        assert all(account.has_ended for account in self.accounts.values())
        assert not self.under_way
        return self.accounts

    def enter(self, message: SearchResponse) -> None:
        """Check a message and record it in the accounts."""
        ids, distances = np.frombuffer(message.ids.uint64, "<u8"), np.frombuffer(message.distances, "<f8")
        payloads = payload_list_of(message.payloads, len(ids))
        assert sum(message.counts) == len(ids) == len(distances) == len(payloads)
        ends = message.ends
        ending = set(ends.query_ids)
        assert len(ending) == len(ends.query_ids)
        first = 0
        sums = read_sums(message.last_sums, len(message.counts))
        for query_id, count, bound, last_sum in zip(
            message.query_ids, message.counts, message.lower_bounds, sums, strict=True
        ):
            part = slice(first, first + count)
            first += count
            account = self[query_id]
            assert count or query_id in ending, "an empty chunk"
            kept = payloads[part] if account.options.payloads else []
            assert account.options.payloads or not any(payloads[part])
            account.add(Truth(ids[part], distances[part]), kept, bound, last_sum)
            self.order.append(query_id)
        errors = {error.query_id: error for error in ends.errors}
        tokens = {one.query_id: one.token for one in ends.resumes}
        resumes = {query_id: place_of(token.distance, token.id, token.sum) for query_id, token in tokens.items()}
        guesses = {
            one.query_id: Truth(np.frombuffer(one.ids.uint64, "<u8"), np.frombuffer(one.distances, "<f8"))
            for one in ends.guesses
        }
        for row, query_id in enumerate(ends.query_ids):
            assert query_id in message.query_ids, "an end comes with a chunk"
            extras = errors.pop(query_id, None), resumes.pop(query_id, None), guesses.pop(query_id, None)
            elapsed = ends.statistics.elapsed_seconds[row] if ends.HasField("statistics") else 0.0
            stats = stats_at(ends.statistics, row)
            assert ends.HasField("statistics") <= any(self[one].options.statistics for one in ends.query_ids)
            self[query_id].finish(Ending(ends.reasons[row], ends.exact[row], stats, elapsed, *extras))
        assert not errors
        assert not resumes
        assert not guesses


def random_table(bits: int, seed: int = 0) -> Floats:
    """Return a random cost table ``[bits, 2]`` with so few digits that all distances are exact."""
    return np.random.default_rng(seed).random((bits, 2)).astype(np.float32).astype(np.float64)


def answer_of(index: StoredIndex, costs: Floats) -> Truth:
    """Return all items of an index in the order of the oracle."""
    parts = list(index.snapshot().scan(1000))
    if not parts:
        return Truth(np.empty(0, dtype=np.uint64), np.empty(0))
    ids = np.concatenate([part.ids for part in parts])
    codes = np.concatenate([part.codes for part in parts])
    if index.settings.bit_order == "big":
        codes = np.packbits(np.unpackbits(codes, axis=1), axis=1, bitorder="little")
    return truth(codes, costs, ids)
