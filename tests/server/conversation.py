"""A Search call by raw stubs, and a book that is kept on it: every promise of the proto, checked chunk by chunk."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from tests.native.oracle import Truth
from tests.serving import PATIENCE
from whamming.v1 import search_pb2

Query = search_pb2.Query
Options = search_pb2.QueryOptions
Chunk = search_pb2.Chunk

COMPLETE = search_pb2.END_REASON_COMPLETE
EXHAUSTED = search_pb2.END_REASON_EXHAUSTED
BUDGET = search_pb2.END_REASON_BUDGET
CANCELLED = search_pb2.END_REASON_CANCELLED
SNAPSHOT_EXPIRED = search_pb2.END_REASON_SNAPSHOT_EXPIRED
SHUTDOWN = search_pb2.END_REASON_SHUTDOWN
FAILED = search_pb2.END_REASON_FAILED


@dataclass
class Account:
    """What one query has been sent."""

    options: Options
    after: tuple[float, int] = (-math.inf, -1)
    """The last hit, or where the query was to go on."""
    granted: float = math.inf
    ids: list[int] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    chunks: int = 0
    bound: float = -math.inf
    """The greatest lower bound sent."""
    last_bound: float = -math.inf
    end: search_pb2.QueryEnd | None = None

    @classmethod
    def of(cls, query: Query, options: Options) -> Account:
        account = cls(options)
        if query.HasField("after") and not math.isnan(query.after.distance):
            account.after = query.after.distance, query.after.id
        if options.HasField("credit"):
            account.granted = options.credit
        return account

    def enter(self, chunk: Chunk) -> None:
        """Check a chunk against all that was promised before, and add it up."""
        assert self.end is None, "a chunk after the end"
        assert len(chunk.ids) == len(chunk.distances)
        assert len(chunk.ids) <= (self.options.chunk_size or 4096)
        assert len(chunk.payloads) == (len(chunk.ids) if self.options.payloads else 0)
        assert chunk.ids or chunk.HasField("end"), "a chunk of nothing"
        for distance, id_ in zip(chunk.distances, chunk.ids, strict=True):
            assert (distance, id_) > self.after, "out of order, or twice"
            assert distance >= self.bound, "nearer than a bound that was sent"
            self.after = distance, id_
        self.ids.extend(chunk.ids)
        self.distances.extend(chunk.distances)
        self.payloads.extend(chunk.payloads)
        self.chunks += 1
        assert len(self.ids) <= self.granted, "more hits than granted"
        assert not math.isnan(chunk.lower_bound)
        self.bound = max(self.bound, chunk.lower_bound)
        self.last_bound = chunk.lower_bound
        if chunk.HasField("end"):
            self.end = chunk.end
            self._check_end(chunk.end)

    def _check_end(self, end: search_pb2.QueryEnd) -> None:
        finished = end.reason in (COMPLETE, EXHAUSTED)
        assert end.reason != search_pb2.END_REASON_UNSPECIFIED
        assert end.exact == finished
        assert end.HasField("statistics")
        assert end.statistics.elapsed_seconds >= 0
        assert end.HasField("error") == (end.reason == FAILED)
        assert not end.guess_ids or end.reason == BUDGET
        assert len(end.guess_ids) == len(end.guess_distances)
        if finished:
            assert not end.HasField("resume")
        elif self.after[1] >= 0:
            assert end.HasField("resume"), "no token, though there was a hit, or a token to begin with"
            assert (end.resume.distance, end.resume.id) == self.after
        else:
            assert not end.HasField("resume")
        if end.reason == COMPLETE:
            assert len(self.ids) == self.options.k
        if self.options.HasField("k"):
            assert len(self.ids) + len(end.guess_ids) <= self.options.k

    @property
    def bytes(self) -> tuple[bytes, bytes]:
        """The hits, to be compared with the truth's."""
        return np.array(self.ids, dtype=np.uint64).tobytes(), np.array(self.distances, dtype=np.float64).tobytes()

    def check_prefix(self, answer: Truth) -> None:
        """All hits so far are the first of the answer, and no bound was a lie."""
        assert self.bytes == answer[: len(self.ids)].bytes()
        if len(self.ids) < len(answer):
            assert self.bound <= answer.distances[len(self.ids)]


class Conversation:
    """One Search call. Use it in a ``with`` block, which cancels it."""

    def __init__(self, stub: Any, timeout: float = PATIENCE) -> None:
        self._requests: queue.SimpleQueue[search_pb2.SearchRequest | None] = queue.SimpleQueue()
        self.call = stub.Search(iter(self._requests.get, None), timeout=timeout)
        self.accounts: dict[int, Account] = {}
        self.order: list[int] = []
        """The query of each chunk, in the order of their arrival."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._requests.put(None)
        self.call.cancel()

    def ask(self, index: str, queries: Iterable[Query], options: Options | None = None) -> None:
        """Send a batch."""
        batch = search_pb2.QueryBatch(index=index, queries=queries, options=options)
        for query in batch.queries:
            chosen = query.options if query.HasField("options") else batch.options
            self.accounts[query.id] = Account.of(query, chosen)
        self.send(search_pb2.SearchRequest(batch=batch))

    def send(self, request: search_pb2.SearchRequest) -> None:
        """Send any request; nothing is noted."""
        self._requests.put(request)

    def cancel(self, *query_ids: int) -> None:
        """Stop queries."""
        self.send(search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=query_ids)))

    def grant(self, query_id: int, hits: int) -> None:
        """Let a query send more."""
        if query_id in self.accounts:
            self.accounts[query_id].granted += hits
        self.send(search_pb2.SearchRequest(grant=search_pb2.GrantCredit(query_id=query_id, hits=hits)))

    def done(self) -> None:
        """Close the sending side."""
        self._requests.put(None)

    def responses(self) -> Iterator[list[Chunk]]:
        """Receive message after message, each entered into the book."""
        for response in self.call:
            for chunk in response.chunks:
                self.accounts[chunk.query_id].enter(chunk)
                self.order.append(chunk.query_id)
            yield list(response.chunks)

    def until(self, condition: Any) -> None:
        """Receive messages until a condition holds."""
        if condition():
            return
        for _ in self.responses():
            if condition():
                return
        raise AssertionError("the call ended first")

    def until_ended(self, *query_ids: int) -> None:
        """Receive until some queries have ended."""
        self.until(lambda: all(self.accounts[query_id].end is not None for query_id in query_ids))

    def finish(self) -> Mapping[int, Account]:
        """Close the sending side and receive the rest; all queries have ended when the call has, with OK."""
        self.done()
        for _ in self.responses():
            pass
        assert all(account.end is not None for account in self.accounts.values())
        return self.accounts


def reason_of(account: Account) -> int:
    """Why a query has ended."""
    assert account.end is not None, "it has not ended"
    return account.end.reason
