"""Queries that block: on credit from the client, and on room in the send buffer."""

from __future__ import annotations

import pytest

from tests.native.oracle import Truth
from tests.server import stepped_queries
from tests.server.calls import Bench
from tests.server.stepped_queries import N, ask, blocked_on_buffer, blocked_on_credit
from whamming.server.search import results
from whamming.server.search.query import Query, State
from whamming.server.search.results import END_BYTES
from whamming.server.search.scheduler import MAX_OPEN

database = stepped_queries.database
index = stepped_queries.index
whole = stepped_queries.whole
bench = stepped_queries.bench


# -- credit ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("credit", [0, 1, 5])
async def test_credit_blocks_a_query(bench: Bench, whole: Truth, credit: int) -> None:
    call = await blocked_on_credit(bench, credit)
    assert call.query(1).needs_credit
    assert not bench.step(), "blocked queries are not scheduled"
    call.grant(1, 2)
    assert call.query(1).state is State.WAITING
    assert not call.query(1).needs_credit
    call.grant(1, 1)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert call[1].hits.bytes() == whole[: credit + 3].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_of_zero_blocks_the_query_again(bench: Bench) -> None:
    call = await blocked_on_credit(bench, 2)
    call.grant(1, 0)
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert len(call[1].ids) == 2
    assert call.search.flow.open == 0


@pytest.mark.usefixtures("index")
async def test_a_grant_before_the_query_begins_is_not_lost(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, credit=0)
    call.grant(1, 4)
    assert call.query(1).state is State.WAITING
    await call.run()
    assert call[1].hits.bytes() == whole[:4].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_during_the_search_is_not_lost(bench: Bench, whole: Truth) -> None:
    """The grant arrives after the query has used up its credit, but before its slice ends."""
    call = bench.call()
    ask(call, 1, credit=3)
    while not call.query(1).needs_credit:
        assert bench.step()
        if call.query(1).state is State.BLOCKED_ON_CREDIT:
            call.grant(1, 1)
            break
    query = call.query(1)
    assert query.take()
    call.grant(1, 2)
    assert query.state is State.SEARCHING, "its slice continues"
    assert query.leave() is State.WAITING
    bench.searcher.resume([query])
    await call.run()
    assert len(call[1].ids) == 6
    assert call[1].hits.bytes() == whole[:6].bytes()


@pytest.mark.usefixtures("index")
async def test_credit_for_exactly_all_hits_is_enough(bench: Bench, whole: Truth) -> None:
    call = bench.call()
    ask(call, 1, credit=5, k=5, payloads=True)  # payloads need a cursor, so the query is not grouped
    ask(call, 2, credit=N)
    ask(call, 3, credit=N - 1)
    await call.run()
    assert call[1].reason == results.COMPLETE
    assert call[2].hits.bytes() == whole.bytes()
    assert call.query(3).state is State.BLOCKED_ON_CREDIT
    call.grant(3, 1)
    if call[2].has_ended:  # the engine already knew that there are no more hits
        assert call[2].reason == results.EXHAUSTED
    else:
        call.grant(2, 1)
    await call.run()
    assert call[2].reason == call[3].reason == results.EXHAUSTED


@pytest.mark.usefixtures("index")
async def test_a_grant_does_not_wake_a_query_that_waits_for_room(bench: Bench, whole: Truth) -> None:
    """The grants add up, and the query uses them when there is room again."""
    call = bench.call(buffer_bytes=1)
    ask(call, 1, credit=10, chunk_size=4)
    bench.run()
    assert call.query(1).state is State.BLOCKED_ON_BUFFER
    for _ in range(100):
        call.grant(1, 1)
        assert call.query(1).state is State.BLOCKED_ON_BUFFER
        assert not bench.step()
    assert len(call.search.blocked) == 1
    await call.run()
    assert call.query(1).state is State.BLOCKED_ON_CREDIT
    assert call[1].hits.bytes() == whole[:110].bytes()


@pytest.mark.usefixtures("index")
async def test_a_grant_to_an_unknown_query_is_ignored(bench: Bench) -> None:
    call = bench.call()
    call.grant(99, 5)
    ask(call, 1, k=1)
    await call.run()
    call.search.grant(1, 5)
    assert not bench.step()


@pytest.mark.usefixtures("index")
async def test_a_grant_while_a_query_blocks_keeps_the_open_count(bench: Bench) -> None:
    """A worker reports to the scheduler after the query has blocked. The client may grant credit in between."""
    call = bench.call()
    ask(call, *range(2 * MAX_OPEN), credit=0)
    granted: set[int] = set()

    class Granted(Query):
        """A query whose client grants a hit at this moment."""

        __slots__ = ()

        def leave(self) -> State:
            state = super().leave()
            if state is State.BLOCKED_ON_CREDIT and self.id not in granted:
                granted.add(self.id)
                call.grant(self.id, 1)
            return state

    for query_id in call.under_way:
        call.query(query_id).__class__ = Granted
    await call.run()
    assert len(granted) == 2 * MAX_OPEN
    assert [len(account.ids) for account in call.accounts.values()] == [1] * (2 * MAX_OPEN)
    assert call.search.flow.open == 0


# -- room in the buffer ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("index")
async def test_a_full_buffer_blocks_a_query(bench: Bench, whole: Truth) -> None:
    call = await blocked_on_buffer(bench)
    held = call.waiting
    assert not bench.step(), "blocked queries are not scheduled"
    while not call[1].has_ended:
        assert await call.read_message()
        assert call[1].has_ended or call.query(1).state is State.WAITING, "there is room again"
        bench.run()
        assert call.waiting <= held + END_BYTES
    assert call[1].hits.bytes() == whole.bytes()


@pytest.mark.usefixtures("index")
async def test_queries_stay_blocked_until_there_is_room(bench: Bench) -> None:
    call = bench.call(buffer_bytes=600_000)
    ask(call, *range(150), chunk_size=N)  # about 6,400 bytes of hits each, several messages in total
    bench.run()
    blocked = [i for i in call.under_way if call.query(i).state is State.BLOCKED_ON_BUFFER]
    assert len(blocked) > 10
    waiting = call.waiting
    assert 600_000 <= waiting < 620_000
    while call.waiting >= 600_000:
        assert not bench.step()
        await call.read_message()
    assert {call.query(i).state for i in blocked} == {State.WAITING}
    await call.finish()
