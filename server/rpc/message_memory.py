"""The memory for messages: how many bytes a server may receive and keep, in total and per client.

gRPC buffers a message until it is complete, and does not say how much of it has arrived. But it accepts only the first
64 KiB of a message that the server has not asked for (``STREAM_WINDOW``); TCP then holds back the client. So the server
asks for a message only when there is memory for a message of maximum size, and reserves that much until the message has
arrived. Other calls wait for their turn. The client that uses the least memory is next.

A call that sends nothing must not block others forever. While calls wait, the client that uses the most memory has to
make room: its most silent call ends, if it has sent nothing for ``QUIET_SECONDS``. The client can open the call again
when it has something to send.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from whamming.wire.service_errors import OverloadedError

if TYPE_CHECKING:
    from whamming.server.rpc.clients import Client, ClientCall

STREAM_WINDOW: Final = 65_535
"""Bytes of a message that gRPC accepts before the server asks for it."""
QUIET_SECONDS: Final = 3.0


class MessageMemory:
    """The memory for messages of all clients. Only the event loop may use it."""

    def __init__(self, message_bytes: int, client_bytes: int, total_bytes: int) -> None:
        """``message_bytes`` is the maximum size of a message. The others limit the memory per client and in total."""
        self._message_bytes = message_bytes
        self._client_bytes = client_bytes
        self._total_bytes = total_bytes
        self._clients: set[Client] = set()
        """Clients that use memory."""
        self._waiting: dict[ClientCall, asyncio.Future[None]] = {}
        self._ending: ClientCall | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.used = 0

    def set(self, call: ClientCall, used: int) -> None:
        """Change how many bytes a call uses."""
        change = used - call.used
        call.used = used
        call.client.used += change
        self.used += change
        if call.client.used:
            self._clients.add(call.client)
        else:
            self._clients.discard(call.client)
        if call is self._ending and not used:
            self._ending = None
        if change < 0 and self._waiting:
            self._grant()

    async def reserve(self, call: ClientCall) -> None:
        """Wait until there is memory for a message, and reserve it for the call."""
        if not self._waiting and self._has_room(call.client):
            self._take(call)
            return
        turn = self._waiting[call] = asyncio.get_running_loop().create_future()
        self._grant()
        try:
            await turn
        finally:
            self._waiting.pop(call, None)

    def _take(self, call: ClientCall) -> None:
        """Reserve memory for a message of a call. The call counts as silent only from now on."""
        call.touch()
        self.set(call, call.used + self._message_bytes)

    def _has_room(self, client: Client) -> bool:
        size = self._message_bytes
        return client.used + size <= self._client_bytes and self.used + size <= self._total_bytes

    def _grant(self) -> None:
        """Let waiting calls continue while there is memory. The client that uses the least memory is next."""
        while ready := [call for call in self._waiting if self._has_room(call.client)]:
            call = min(ready, key=lambda call: call.client.used)
            turn = self._waiting.pop(call)
            if not turn.cancelled():
                self._take(call)
                turn.set_result(None)
        if self._waiting and self._ending is None and self._timer is None:
            self._make_room()

    def _make_room(self) -> None:
        """End the most silent call of the largest client, now or when it has been silent for QUIET_SECONDS."""
        self._timer = None
        if not self._waiting:
            return
        calls = [call for call in self._largest_client().calls if call.used and not call.is_ending]
        if not calls:
            return
        call = min(calls, key=lambda call: call.active)
        loop = asyncio.get_running_loop()
        due = call.active + QUIET_SECONDS
        if loop.time() < due:
            self._timer = loop.call_at(due, self._make_room)
            return
        self._ending = call
        seconds = f"{QUIET_SECONDS:g} seconds"
        call.end(
            OverloadedError(f"other calls need the memory of this call, which was silent for {seconds}; call again")
        )

    def _largest_client(self) -> Client:
        """Return the client that has to make room for a waiting call."""
        clients = {call.client for call in self._waiting}
        if self._total_bytes - self.used < self._message_bytes and any(
            client.used + self._message_bytes <= self._client_bytes for client in clients
        ):
            clients = self._clients
        return max(clients, key=lambda client: client.used)
