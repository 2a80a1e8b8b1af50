"""A Search call through raw stubs that checks each chunk against the guarantees of the proto."""

from __future__ import annotations

import math
import queue
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import numpy as np
import pytest

from tests.native.oracle import Truth
from tests.server.answers import BUDGET, COMPLETE, EXHAUSTED, FAILED, Chunk, End, Place, chunks_of, in_order
from tests.server.questions import Options, Question, batch_of
from tests.serving import PATIENCE
from whamming.v1 import search_pb2


@dataclass
class Account:
    """Everything that one query has received."""

    options: Options
    after: Place = (-math.inf, -1)
    """The last hit, or the position after which the query was to continue."""
    granted: float = math.inf
    ids: list[int] = field(default_factory=list)
    distances: list[float] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    chunks: int = 0
    bound: float = -math.inf
    """The greatest lower bound received."""
    last_bound: float = -math.inf
    end: End | None = None

    @classmethod
    def of(cls, question: Question, options: Options) -> Account:
        account = cls(options)
        if question.after is not None and not math.isnan(question.after[0]):
            account.after = question.after
        if options.HasField("credit"):
            account.granted = options.credit
        return account

    def enter(self, chunk: Chunk) -> None:
        """Check a chunk against everything received before, and record it."""
        assert self.end is None, "a chunk after the end"
        assert len(chunk.ids) <= (self.options.chunk_size or 4096)
        assert chunk.ids or chunk.end is not None, "an empty chunk"
        for place in zip(chunk.distances, chunk.ids, strict=True):
            assert in_order(self.after, *place), "a hit out of order, or sent twice"
            assert place[0] >= self.bound, "a hit nearer than an earlier lower bound"
            self.after = place
        if chunk.ids:
            self.after = chunk.last
        self.ids.extend(chunk.ids)
        self.distances.extend(chunk.distances)
        if self.options.payloads:
            assert chunk.payloads is not None or not chunk.ids, "payloads were requested"
            self.payloads.extend(chunk.payloads or ())
        else:
            assert not any(chunk.payloads or ()), "payloads were not requested"
        self.chunks += 1
        assert len(self.ids) <= self.granted, "more hits than granted"
        assert not math.isnan(chunk.lower_bound)
        self.bound = max(self.bound, chunk.lower_bound)
        self.last_bound = chunk.lower_bound
        if chunk.end is not None:
            self.end = chunk.end
            self._check_end(chunk.end)

    def _check_end(self, end: End) -> None:
        finished = end.reason in (COMPLETE, EXHAUSTED)
        assert end.reason != search_pb2.END_REASON_UNSPECIFIED
        assert end.exact == finished
        assert end.statistics["elapsed_seconds"] >= 0
        assert (end.error is not None) == (end.reason == FAILED)
        assert not end.guess or end.reason == BUDGET
        if finished:
            assert end.resume is None
        elif self.after[1] >= 0:
            assert end.resume == self.after, "a missing or wrong resume token"
        else:
            assert end.resume is None
        if end.reason == COMPLETE:
            assert len(self.ids) == self.options.k
        if self.options.HasField("k"):
            assert len(self.ids) + len(end.guess) <= self.options.k

    @property
    def bytes(self) -> tuple[bytes, bytes]:
        """The hits as bytes, to compare with :meth:`Truth.bytes`."""
        return np.array(self.ids, dtype=np.uint64).tobytes(), np.array(self.distances, dtype=np.float64).tobytes()

    def check_prefix(self, answer: Truth) -> None:
        """Check that all hits so far are the first of the answer, and that all bounds were right."""
        assert self.bytes == answer[: len(self.ids)].bytes()
        if len(self.ids) < len(answer):
            assert self.bound <= answer.distances[len(self.ids)]


class Conversation:
    """One Search call. Use it in a ``with`` block, which cancels the call at its end."""

    def __init__(self, stub: Any, timeout: float = PATIENCE) -> None:
        self._requests: queue.SimpleQueue[search_pb2.SearchRequest | None] = queue.SimpleQueue()
        self.call = stub.Search(iter(self._requests.get, None), timeout=timeout)
        self.accounts: dict[int, Account] = {}
        self.order: list[int] = []
        """The query id of each chunk, in the order of arrival."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._requests.put(None)
        self.call.cancel()

    def ask(self, index: str, questions: Sequence[Question], options: Options | None = None) -> None:
        """Send a batch of queries of one form."""
        batch = batch_of(index, questions, options)
        for question in questions:
            self.accounts[question.id] = Account.of(question, batch.options)
        self.send(search_pb2.SearchRequest(queries=batch))

    def send(self, request: search_pb2.SearchRequest) -> None:
        """Send any request without recording it."""
        self._requests.put(request)

    def cancel(self, *query_ids: int) -> None:
        self.send(search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=query_ids)))

    def grant(self, query_id: int, hits: int) -> None:
        """Grant credit to a query."""
        if query_id in self.accounts:
            self.accounts[query_id].granted += hits
        self.send(search_pb2.SearchRequest(grant=search_pb2.GrantCredit(query_id=query_id, hits=hits)))

    def done(self) -> None:
        """Close the sending side."""
        self._requests.put(None)

    def responses(self) -> Iterator[list[Chunk]]:
        """Yield the chunks of each message, after checking and recording them."""
        for response in self.call:
            chunks = chunks_of(response)
            if response.HasField("payloads"):
                asked = [self.accounts[chunk.query_id].options.payloads for chunk in chunks]
                assert any(asked), "payloads that no query requested"
            for chunk in chunks:
                self.accounts[chunk.query_id].enter(chunk)
                self.order.append(chunk.query_id)
            yield chunks

    def until(self, condition: Any) -> None:
        """Receive messages until a condition holds."""
        if condition():
            return
        for _ in self.responses():
            if condition():
                return
        raise AssertionError("the call ended first")

    def until_ended(self, *query_ids: int) -> None:
        """Receive messages until the given queries have ended."""
        self.until(lambda: all(self.accounts[query_id].end is not None for query_id in query_ids))

    def finish(self) -> Mapping[int, Account]:
        """Close the sending side and receive the rest. The call must end with OK, after all its queries."""
        self.done()
        for _ in self.responses():
            pass
        assert all(account.end is not None for account in self.accounts.values())
        return self.accounts

    def finish_unavailable(self) -> Mapping[int, Account]:
        """Receive the rest from a stopping server. The call must end with UNAVAILABLE, after all its queries."""
        with pytest.raises(grpc.RpcError) as caught:
            for _ in self.responses():
                pass
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        assert all(account.end is not None for account in self.accounts.values())
        return self.accounts


def end_of(account: Account) -> End:
    """Return how a query ended."""
    assert account.end is not None, "it has not ended"
    return account.end


def reason_of(account: Account) -> int:
    """Return why a query ended."""
    return end_of(account).reason
