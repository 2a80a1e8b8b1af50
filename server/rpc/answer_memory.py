"""The memory for answers of unary methods: how many bytes wait for clients to read them, in total and per client.

gRPC keeps an answer until the client has read it. So a call whose answer may be large reserves its maximum size before
it makes the answer, and holds it until gRPC has sent it. If there is no room, the call waits, and is then refused.

gRPC takes the first 64 KiB of an answer at once. Smaller answers need no room, so that nobody can hold them up.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from whamming.wire.service_errors import OverloadedError

if TYPE_CHECKING:
    from whamming.server.rpc.clients import Client, ClientCall

CLIENT_ANSWER_BYTES: Final = 96 << 20
"""Limit per client: one encoder and ten other answers."""
TOTAL_ANSWER_BYTES: Final = 512 << 20
ANSWER_SECONDS: Final = 5.0
"""How long a call waits for room, before it is refused."""
SMALL_ANSWER_BYTES: Final = 1 << 16
"""Answers up to this size need no room."""
LARGE_ANSWERS: Final = {
    "/whamming.v1.IndexService/GetEncoder": 64 << 20,
    "/whamming.v1.IndexService/ListIndexes": 1 << 20,
    "/whamming.v1.ItemService/Get": 3 << 20,
}
"""The maximum size of large answers, for each method but SearchOnce, where it depends on the request."""


class AnswerMemory:
    """The memory for answers to all clients. Only the event loop may use it."""

    def __init__(self) -> None:
        self._waiting: dict[ClientCall, tuple[int, asyncio.Future[None]]] = {}
        self.used = 0

    async def reserve(self, call: ClientCall, size: int) -> None:
        """Wait until there is room for an answer, and reserve it for the call until :meth:`free`."""
        if size <= SMALL_ANSWER_BYTES:
            return
        if self._has_room(call.client, size) and not self._has_to_wait(call.client):
            self._add(call, size)
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting[call] = size, turn
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await turn
        except TimeoutError:
            raise OverloadedError(
                f"answers of up to {self.used} bytes are under way, {call.client.answer_bytes} of them to this client, "
                f"and this one may have {size}; the maximum is {TOTAL_ANSWER_BYTES}, and {CLIENT_ANSWER_BYTES} per "
                "client: read them, or try again later"
            ) from None
        finally:
            self._waiting.pop(call, None)
            if not turn.done() or turn.cancelled():
                self._continue()  # it held up others

    def free(self, call: ClientCall) -> None:
        """Give back what a call has reserved, and let others continue in the order in which they came.

        A call that waits for room of its own client holds up later calls of this client only. One that waits for room
        in total holds up all later calls.
        """
        if not call.answer_bytes:
            return
        self._add(call, -call.answer_bytes)
        self._continue()

    def _continue(self) -> None:
        held_up: set[Client] = set()
        for waiting, (size, turn) in self._waiting.items():
            if turn.done() or waiting.client in held_up:
                continue
            if self._has_room(waiting.client, size):
                self._add(waiting, size)
                turn.set_result(None)
            elif self.used + size > TOTAL_ANSWER_BYTES and waiting.client.answer_bytes + size <= CLIENT_ANSWER_BYTES:
                break
            else:
                held_up.add(waiting.client)

    def _has_to_wait(self, client: Client) -> bool:
        """Return whether a call that waits holds up new calls of this client."""
        return any(
            waiting.client is client
            or (self.used + size > TOTAL_ANSWER_BYTES and waiting.client.answer_bytes + size <= CLIENT_ANSWER_BYTES)
            for waiting, (size, turn) in self._waiting.items()
            if not turn.done()
        )

    def _has_room(self, client: Client, size: int) -> bool:
        return client.answer_bytes + size <= CLIENT_ANSWER_BYTES and self.used + size <= TOTAL_ANSWER_BYTES

    def _add(self, call: ClientCall, size: int) -> None:
        call.answer_bytes += size
        call.client.answer_bytes += size
        self.used += size
