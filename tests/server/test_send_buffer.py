"""The send buffer: results are sent in order and once, and the buffer is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming.server.search.results import CANCELLED, CHUNK_BYTES, End, Results, ends
from whamming.server.search.send_buffer import RESPONSE_BYTES, SendBuffer


def results(query_id: int, size: int = CHUNK_BYTES + 2) -> Results:
    """Return one chunk of ``size`` bytes."""
    return Results((query_id,), (1,), bytes(size - CHUNK_BYTES), b"", (0.0,))


def query_ids(some: Sequence[Results]) -> list[int]:
    return [one.query_ids[0] for one in some]


class Shared:
    """A buffer, and the lock that it shares with its call."""

    def __init__(self, limit: int) -> None:
        self.lock = threading.Lock()
        self.buffer = SendBuffer(limit, self.lock)

    def put(self, some: Results) -> None:
        with self.lock:
            self.buffer.put(some)

    def finish(self, error: BaseException | None = None) -> None:
        with self.lock:
            self.buffer.finish(error)

    async def take(self) -> list[int]:
        return query_ids(await self.buffer.take())


async def test_results_are_taken_in_order() -> None:
    shared = Shared(1000)
    shared.put(results(1))
    shared.put(results(2))
    assert await shared.take() == [1, 2]
    waiting = asyncio.ensure_future(shared.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    threading.Thread(target=shared.put, args=(results(3),)).start()
    assert await waiting == [3]


async def test_results_from_the_event_loop_wake_the_reader() -> None:
    shared = Shared(1000)
    waiting = asyncio.ensure_future(shared.take())
    await asyncio.sleep(0)
    shared.put(results(1))
    shared.put(results(2))
    assert await waiting == [1, 2]


async def test_results_are_joined_up_to_the_message_size() -> None:
    shared = Shared(1 << 30)
    half, double = RESPONSE_BYTES // 2, 2 * RESPONSE_BYTES
    for query_id, size in enumerate([half, half, CHUNK_BYTES, double, CHUNK_BYTES]):
        shared.put(results(query_id, size))
    assert await shared.take() == [0, 1]
    assert await shared.take() == [2]
    assert await shared.take() == [3]
    assert await shared.take() == [4]


@pytest.mark.parametrize("again", [results(1), ends([End(1, CANCELLED)])], ids=["hits", "an end"])
async def test_a_reused_id_starts_another_message(again: Results) -> None:
    shared = Shared(1000)
    for some in (results(1), results(2), ends([End(1, CANCELLED)]), results(3), again, results(4)):
        shared.put(some)
    assert await shared.take() == [1, 2, 1, 3]
    assert await shared.take() == [1, 4]


async def test_the_end_comes_after_waiting_results() -> None:
    shared = Shared(1000)
    shared.put(results(1))
    shared.finish()
    assert await shared.take() == [1]
    assert await shared.take() == []
    assert await shared.take() == []


async def test_the_end_wakes_the_reader() -> None:
    shared = Shared(1000)
    waiting = asyncio.ensure_future(shared.take())
    await asyncio.sleep(0)
    shared.finish()
    assert await waiting == []


async def test_a_last_error_comes_after_waiting_results() -> None:
    shared = Shared(1000)
    shared.put(results(1))
    with shared.lock:
        shared.buffer.finish(last=LookupError("over"))
    assert await shared.take() == [1]
    with pytest.raises(LookupError, match="over"):
        await shared.take()


async def test_an_error_comes_first() -> None:
    shared = Shared(1000)
    shared.put(results(1))
    shared.finish(ValueError("first"))
    shared.finish(ValueError("second"))
    shared.finish()
    with pytest.raises(ValueError, match="first"):
        await shared.take()


async def test_an_error_wakes_the_reader() -> None:
    shared = Shared(1000)
    waiting = asyncio.ensure_future(shared.take())
    await asyncio.sleep(0)
    threading.Thread(target=shared.finish, args=(ValueError("wrong"),)).start()
    with pytest.raises(ValueError, match="wrong"):
        await waiting


async def test_room_is_counted_in_bytes() -> None:
    shared = Shared(200)
    assert shared.buffer.has_room()
    shared.put(results(1, 199))
    assert shared.buffer.has_room()
    shared.put(results(2, 64))
    assert not shared.buffer.has_room()
    shared.put(results(3, RESPONSE_BYTES))
    assert await shared.take() == [1, 2]
    assert not shared.buffer.has_room()
    assert await shared.take() == [3]
    assert shared.buffer.has_room()


async def test_a_discarded_buffer_keeps_nothing() -> None:
    shared = Shared(100)
    shared.put(results(1, 100))
    shared.buffer.discard()
    shared.put(results(2, 100))
    assert shared.buffer.has_room()
    shared.finish()
    assert await shared.take() == []


async def test_a_cancelled_reader_loses_nothing() -> None:
    shared = Shared(1000)
    waiting = asyncio.ensure_future(shared.take())
    await asyncio.sleep(0)
    waiting.cancel()
    shared.put(results(1))
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await shared.take() == [1]


def test_a_closed_event_loop_is_tolerated() -> None:
    async def read_in_vain() -> Shared:
        shared = Shared(10)
        asyncio.ensure_future(shared.take()).add_done_callback(lambda _: None)
        await asyncio.sleep(0)
        return shared

    shared = asyncio.run(read_in_vain())
    thread = threading.Thread(target=shared.put, args=(results(1),))
    thread.start()
    thread.join()
    shared.put(results(2))
    shared.finish()


@given(
    sizes=st.lists(st.integers(CHUNK_BYTES, 2000), max_size=60),
    limit=st.integers(1, 3000),
    senders=st.integers(1, 4),
)
@generated(40)
def test_senders_that_wait_for_room_keep_the_limit(sizes: list[int], limit: int, senders: int) -> None:
    """All results arrive in the order of their sender, and the buffer stays within its limit."""

    async def run() -> None:
        shared = Shared(limit)
        room = threading.Condition()
        most = 0

        def send(number: int) -> None:
            nonlocal most
            for place, size in enumerate(sizes):
                with room:
                    assert room.wait_for(shared.buffer.has_room, 20), "the buffer stayed full"
                shared.put(results(number * 1000 + place, size))
                most = max(most, shared.buffer._bytes)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
        for thread in threads:
            thread.start()

        def finish() -> None:
            for thread in threads:
                thread.join()
            shared.finish()

        finisher = threading.Thread(target=finish)
        finisher.start()
        found: list[int] = []
        while some := await shared.take():
            found += some
            with room:
                room.notify_all()
        await asyncio.to_thread(finisher.join)
        for number in range(senders):
            assert [one % 1000 for one in found if one // 1000 == number] == list(range(len(sizes)))
        assert most <= limit + senders * max(sizes, default=0)

    asyncio.run(run())
