"""The memory for answers is given in the order of arrival, and nobody waits for other clients without need."""

from __future__ import annotations

import asyncio

import pytest

from whamming.server.rpc.answer_memory import CLIENT_ANSWER_BYTES, SMALL_ANSWER_BYTES, TOTAL_ANSWER_BYTES, AnswerMemory
from whamming.server.rpc.clients import Client, ClientCall
from whamming.server.rpc.message_memory import MessageMemory

LARGE, SMALL = 64 << 20, 3 << 20


class Answers:
    """Calls of several clients that need memory for answers."""

    def __init__(self) -> None:
        self.memory = AnswerMemory()
        self._messages = MessageMemory(1, 1, 1)

    def call(self, client: Client) -> ClientCall:
        return ClientCall(client, self._messages, self.memory, 1.0)

    async def start(self, client: Client, size: int) -> tuple[ClientCall, asyncio.Task[None]]:
        """Start to reserve memory, and return the call and the task that may wait."""
        call = self.call(client)
        task = asyncio.create_task(self.memory.reserve(call, size))
        await asyncio.sleep(0)
        return call, task

    def end(self, call: ClientCall) -> None:
        self.memory.free(call)


@pytest.fixture
async def answers() -> Answers:
    return Answers()


async def test_small_answers_do_not_overtake_a_large_one_that_waits(answers: Answers) -> None:
    client = Client("a")
    running = [await answers.start(client, SMALL) for _ in range(CLIENT_ANSWER_BYTES // SMALL)]
    assert all(task.done() for _, task in running)
    large, waiting = await answers.start(client, LARGE)
    for call, _ in running[: LARGE // SMALL]:  # each that ends is followed by another
        _, later = await answers.start(client, SMALL)
        assert not later.done()
        answers.end(call)
        await asyncio.sleep(0)
    answers.end(running[-1][0])
    await asyncio.wait_for(waiting, 20)
    assert large.answer_bytes == LARGE


async def test_a_call_that_waits_for_its_own_client_holds_up_no_others(answers: Answers) -> None:
    full, other = Client("full"), Client("other")
    await answers.start(full, LARGE)
    _, waiting = await answers.start(full, LARGE)
    _, free = await answers.start(other, LARGE)
    assert free.done()
    assert not waiting.done()
    _, tiny = await answers.start(full, SMALL_ANSWER_BYTES)
    assert tiny.done()
    waiting.cancel()


async def test_a_call_that_waits_for_room_in_total_is_not_overtaken(answers: Answers) -> None:
    running = [await answers.start(Client(f"{number}"), LARGE) for number in range(TOTAL_ANSWER_BYTES // LARGE)]
    first, waiting = await answers.start(Client("first"), LARGE)
    answers.end(running[0][0])
    await asyncio.wait_for(waiting, 20)
    assert first.answer_bytes == LARGE
    _, next_large = await answers.start(Client("second"), LARGE)
    _, small = await answers.start(Client("third"), SMALL)
    assert not next_large.done()
    assert not small.done()
    next_large.cancel()  # whom it held up can continue
    answers.end(running[1][0])
    await asyncio.wait_for(small, 20)
