"""What waits to be sent: in order, nothing twice, a bounded number of bytes; who parks is handed in again, once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming.server.search.outlet import MESSAGE_BYTES, Outlet
from whamming.server.search.scheduler import Job, Outcome


class Parker:
    """A job that is only handed around."""

    def step(self, seconds: float) -> Outcome:
        raise NotImplementedError

    def pause(self) -> bool:
        raise NotImplementedError


class Handed:
    """Hears of the jobs that are handed in again."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def __call__(self, jobs: Sequence[Job]) -> None:
        self.jobs += jobs


async def test_messages_come_out_in_order_and_together() -> None:
    outlet = Outlet(1000, Handed())
    outlet.put(b"a")
    outlet.put(b"b")
    assert await outlet.take() == b"ab"
    waiting = asyncio.ensure_future(outlet.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    threading.Thread(target=outlet.put, args=(b"c",)).start()
    assert await waiting == b"c"


async def test_messages_are_put_together_up_to_a_size() -> None:
    outlet = Outlet(1 << 30, Handed())
    large, larger = bytes(MESSAGE_BYTES // 2), bytes(2 * MESSAGE_BYTES)
    for data in (large, large, b"x", larger, b"y"):
        outlet.put(data)
    assert await outlet.take() == large + large
    assert await outlet.take() == b"x"
    assert await outlet.take() == larger
    assert await outlet.take() == b"y"


async def test_it_ends_after_what_waits() -> None:
    outlet = Outlet(1000, Handed())
    outlet.put(b"a")
    outlet.finish()
    assert await outlet.take() == b"a"
    assert await outlet.take() is None
    assert await outlet.take() is None


async def test_an_error_comes_first() -> None:
    outlet = Outlet(1000, Handed())
    outlet.put(b"a")
    outlet.finish(ValueError("first"))
    outlet.finish(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        await outlet.take()


async def test_an_error_wakes_who_waits() -> None:
    outlet = Outlet(1000, Handed())
    waiting = asyncio.ensure_future(outlet.take())
    await asyncio.sleep(0)
    threading.Thread(target=outlet.finish, args=(ValueError("wrong"),)).start()
    with pytest.raises(ValueError, match="wrong"):
        await waiting


async def test_jobs_park_where_there_is_no_room() -> None:
    handed = Handed()
    outlet = Outlet(10, handed)
    early, late, gone = Parker(), Parker(), Parker()
    assert outlet.has_room()
    assert not outlet.park(early), "there is room"
    outlet.put(bytes(10))
    assert not outlet.has_room()
    assert outlet.park(late)
    assert outlet.park(gone)
    assert outlet.unpark(gone)
    assert not outlet.unpark(gone), "it is told once"
    assert not outlet.unpark(early)
    await outlet.take()
    assert handed.jobs == [late]
    assert outlet.has_room()
    assert not outlet.unpark(late)


async def test_jobs_stay_parked_until_there_is_room() -> None:
    handed = Handed()
    outlet = Outlet(10, handed)
    job = Parker()
    outlet.put(bytes(MESSAGE_BYTES))
    outlet.put(bytes(10))
    assert outlet.park(job)
    await outlet.take()
    assert handed.jobs == []
    await outlet.take()
    assert handed.jobs == [job]


async def test_nothing_is_kept_for_nobody() -> None:
    outlet = Outlet(10, Handed())
    outlet.put(bytes(100))
    outlet.discard()
    outlet.put(bytes(100))
    assert outlet.has_room()
    assert not outlet.park(Parker())
    outlet.finish()
    assert await outlet.take() is None


def test_a_closed_loop_is_nobody() -> None:
    async def make() -> Outlet:
        return Outlet(10, Handed())

    outlet = asyncio.run(make())
    outlet.put(b"x" * 20)
    outlet.put(b"y" * 20)
    outlet.finish()


@given(sizes=st.lists(st.integers(0, 2000), max_size=60), limit=st.integers(1, 3000), senders=st.integers(1, 4))
@generated(40)
def test_who_asks_for_room_keeps_the_limit(sizes: list[int], limit: int, senders: int) -> None:
    """Threads that put only where there is room, and park elsewhere: everything arrives, little is kept."""

    async def run() -> None:
        resumed: dict[Job, threading.Event] = {}

        def resume(jobs: Sequence[Job]) -> None:
            for job in jobs:
                resumed[job].set()

        outlet = Outlet(limit, resume)
        most = 0

        def send(number: int) -> None:
            nonlocal most
            job = Parker()
            resumed[job] = threading.Event()
            for place, size in enumerate(sizes):
                while not outlet.has_room():
                    if outlet.park(job):
                        assert resumed[job].wait(20), "parked, and never handed in again"
                        resumed[job].clear()
                outlet.put(b"%d,%d;" % (number, place) + b"." * size)
                most = max(most, outlet._bytes)

        threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
        for thread in threads:
            thread.start()

        def finish() -> None:
            for thread in threads:
                thread.join()
            outlet.finish()

        finisher = threading.Thread(target=finish)
        finisher.start()
        data = b""
        while (piece := await outlet.take()) is not None:
            data += piece
        await asyncio.to_thread(finisher.join)
        marks = [tuple(map(int, mark.split(b","))) for mark in data.replace(b".", b"").split(b";")[:-1]]
        for number in range(senders):
            assert [place for sender, place in marks if sender == number] == list(range(len(sizes)))
        assert most <= limit + senders * (max(sizes, default=0) + 10)

    asyncio.run(run())


async def test_who_parks_is_handed_in_exactly_once_however_threads_race() -> None:
    """Parking, taking, and letting go by others: each job that was kept is handed in by one of them."""
    handed: Counter[Job] = Counter()
    lock = threading.Lock()

    def hand_in(jobs: Sequence[Job]) -> None:
        with lock:
            handed.update(jobs)

    outlet = Outlet(10, hand_in)
    kept: list[Job] = []
    over = threading.Event()

    def park() -> None:
        for _ in range(2000):
            outlet.put(bytes(4))
            job = Parker()
            if outlet.park(job):
                with lock:
                    kept.append(job)

    def unpark() -> None:
        while not over.is_set():
            with lock:
                some = kept[-5:]
            for job in some:
                if outlet.unpark(job):
                    hand_in([job])

    threads = [threading.Thread(target=park) for _ in range(3)]
    stopper = threading.Thread(target=unpark)
    for thread in (*threads, stopper):
        thread.start()

    async def take_all() -> int:
        total = 0
        while (data := await outlet.take()) is not None:
            total += len(data)
        return total

    taking = asyncio.ensure_future(take_all())
    for thread in threads:
        await asyncio.to_thread(thread.join)
    outlet.finish()
    assert await taking == 3 * 2000 * 4
    over.set()
    await asyncio.to_thread(stopper.join)
    assert handed == Counter(kept)
    assert len(kept) > 0
