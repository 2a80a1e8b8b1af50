"""Tests of how a search resumes when the server refuses it, its snapshot expires or the call breaks."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import numpy as np
import pytest

from tests.clients.scripted import Answer, Responses, Scripted, chunk, ended, serving
from tests.serving import PATIENCE
from whamming import OverloadedError, ServiceError, UnavailableError
from whamming.remote.queries import Queries, options_message, query_request
from whamming.remote.search import CREDIT_WITH_PAYLOADS, Connection, Search
from whamming.v1 import error_pb2, search_pb2
from whamming.v1.search_pb2 import END_REASON_EXHAUSTED, END_REASON_FAILED, END_REASON_SNAPSHOT_EXPIRED

UNAVAILABLE, CANCELLED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED
CODE = np.zeros(2, dtype=np.uint8)


async def every_id(connection: Connection, *, payloads: bool = False) -> list[int]:
    """Return the ids of all hits."""
    options = options_message(None, None, "auto", payloads=payloads)
    request = query_request("docs", Queries(CODE, None, None, None, None), options, None)
    found, _ = await asyncio.wait_for(Search(connection, request, None).all(), PATIENCE)
    ids: list[int] = found.tolist()
    return ids


def search_all(answer: Answer, retry_seconds: float) -> tuple[list[int], Scripted]:
    """Return the ids of all hits, and the server with the messages that it received."""
    script = Scripted(answer)

    async def search() -> list[int]:
        async with serving(script, retry_seconds) as connection:
            return await every_id(connection)

    return asyncio.run(search()), script


def overload(query_id: int) -> search_pb2.SearchResponse:
    error = search_pb2.QueryError(reason=error_pb2.ERROR_REASON_OVERLOADED, message="9 queries under way; at most 8")
    return ended(query_id, END_REASON_FAILED, error=error)


class Turns:
    """Gives one answer per query, in order."""

    def __init__(self, *answers: Responses) -> None:
        self._answers = iter(answers)

    def __call__(self, request: search_pb2.SearchRequest) -> Responses:
        if request.WhichOneof("request") != "queries":
            return ()
        responses = next(self._answers)
        (query_id,) = request.queries.query_ids
        for response in responses:
            if not isinstance(response, search_pb2.SearchResponse):
                continue
            response.query_ids[:] = [query_id]
            if response.ends.query_ids:
                response.ends.query_ids[:] = [query_id]
            for error in response.ends.errors:
                error.query_id = query_id
        return responses


def test_a_refused_query_is_sent_again() -> None:
    answer = Turns([overload(0)], [chunk(0, [(7, 1.0)]), overload(0)], [ended(0, END_REASON_EXHAUSTED, [(8, 2.0)])])
    ids, script = search_all(answer, PATIENCE)
    assert ids == [7, 8]
    assert [list(query.after_distances) for query in script.queries] == [[], [], [1.0]]


@pytest.mark.parametrize("status", [UNAVAILABLE, CANCELLED], ids=str)
def test_a_search_resumes_if_the_server_ends_the_call(status: grpc.StatusCode) -> None:
    """gRPC ends calls as CANCELLED that reach a server at the end of its shutdown."""
    answer = Turns([chunk(0, [(7, 1.0)]), status], [ended(0, END_REASON_EXHAUSTED, [(8, 2.0)])])
    ids, _ = search_all(answer, PATIENCE)
    assert ids == [7, 8]


def test_a_query_fails_if_it_is_refused_for_too_long() -> None:
    with pytest.raises(OverloadedError, match="at most 8"):
        search_all(lambda request: [overload(request.queries.query_ids[0])], 0.2)


def test_a_search_fails_if_snapshots_expire_without_a_hit() -> None:
    with pytest.raises(UnavailableError, match="snapshot"):
        search_all(lambda request: [ended(request.queries.query_ids[0], END_REASON_SNAPSHOT_EXPIRED)], 0.2)


def test_a_search_continues_if_snapshots_expire_after_a_hit() -> None:
    """It continues even with ``retry_seconds=0``."""
    expiring = [[ended(0, END_REASON_SNAPSHOT_EXPIRED, [(id_, float(id_))])] for id_ in range(5)]
    ids, _ = search_all(Turns(*expiring, [ended(0, END_REASON_EXHAUSTED)]), 0)
    assert ids == [0, 1, 2, 3, 4]


def test_a_resumed_query_starts_with_full_credit() -> None:
    """Hits consumed before the break do not grant credit to the new query."""
    few = CREDIT_WITH_PAYLOADS // 2 - 1
    broken = [chunk(0, [(id_, 0.0) for id_ in range(few)]), UNAVAILABLE]
    resumed = [chunk(0, [(few, 1.0)]), ended(0, END_REASON_EXHAUSTED, [(few + 1, 2.0)])]
    script = Scripted(Turns(broken, resumed, [ended(0, END_REASON_EXHAUSTED)]))

    async def search() -> None:
        async with serving(script, PATIENCE) as connection:
            assert await every_id(connection, payloads=True) == list(range(few + 2))
            assert (
                await every_id(connection) == []
            )  # the server receives this query after all messages of the first search

    asyncio.run(search())
    assert [request.WhichOneof("request") for request in script.received] == ["queries"] * 3


def rubbish() -> dict[str, search_pb2.SearchResponse | bytes]:
    """Responses that no Whamming server sends."""
    torn, few, unbound, unexplained, unasked, exact = (chunk(2, [(7, 1.0)]) for _ in range(6))
    torn.distances = bytes(7)
    few.counts[0] = 2
    unbound.ClearField("lower_bounds")
    unexplained.ends.query_ids.append(2)
    unasked.ends.query_ids.append(1)
    unasked.ends.reasons.append(END_REASON_EXHAUSTED)
    exact.last_sums = bytes(5)
    return {
        "distances of 7 bytes": torn,
        "fewer hits than counted": few,
        "a chunk without a bound": unbound,
        "an end without a reason": unexplained,
        "an end without a chunk": unasked,
        "an exact distance of 5 bytes": exact,
        "bytes that are no message": b"\xff\xff",
    }


@pytest.mark.parametrize("what", rubbish())
def test_rubbish_from_the_server_fails_all_running_searches_but_no_later_ones(what: str) -> None:
    answers: dict[int, Responses] = {2: [rubbish()[what]], 3: [ended(3, END_REASON_EXHAUSTED, [(8, 2.0)])]}
    script = Scripted(lambda request: [some for id_ in request.queries.query_ids for some in answers.get(id_, ())])

    async def search() -> None:
        async with serving(script, PATIENCE) as connection:
            failures = await asyncio.gather(every_id(connection), every_id(connection), return_exceptions=True)
            for failure in failures:
                assert type(failure) is ServiceError
                assert "the server sent an invalid response" in str(failure)
            assert await every_id(connection) == [8]

    asyncio.run(search())


class Unsendable:
    """A stub whose requests gRPC cannot send."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.Search: Any = channel.stream_stream("/whamming.v1.SearchService/Search", lambda request: "not bytes")


def test_a_request_that_cannot_be_sent_fails_the_search() -> None:
    async def search() -> None:
        async with serving(Scripted(lambda request: ()), PATIENCE, Unsendable) as connection:
            with pytest.raises(ServiceError, match="could not be sent"):
                await every_id(connection)

    asyncio.run(search())
