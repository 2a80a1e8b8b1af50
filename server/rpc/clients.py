"""Clients: who they are, and how many calls each may have.

For now, each connection counts as one client. Only :func:`name_of` decides this. Clients share the search threads
fairly. Each client may have a limited number of calls, and a limited share of the memory for messages
(:mod:`~whamming.server.rpc.message_memory`) and for answers (:mod:`~whamming.server.rpc.answer_memory`). So a client
that opens many calls slows down only itself.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

import grpc

from whamming.server.rpc.answer_memory import AnswerMemory
from whamming.server.rpc.message_memory import MessageMemory
from whamming.server.search.scheduler import ClientQueue
from whamming.wire.service_errors import OverloadedError, UnavailableError

FORWARDED: Final = "whamming-client"
"""Metadata of a forwarded call: the name of the client that made it. Only other processes of this server may set it."""


CURRENT: Final[ContextVar[str]] = ContextVar("client", default="")
"""The name of the client whose call the current task handles; empty for the server's own work."""


def name_of(context: Any) -> str:
    """Return the name of the client that made a call."""
    peer: str = context.peer()
    if peer.startswith("unix:"):  # a process of this server: clients cannot connect to its socket
        for key, value in context.invocation_metadata() or ():
            if key == FORWARDED:
                return str(value)
    return peer


class Client:
    """One client, while it has calls."""

    __slots__ = ("answer_bytes", "calls", "name", "queue", "used")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = ClientQueue()
        """Its place among the clients whose queries wait for a worker."""
        self.calls: set[ClientCall] = set()
        self.used = 0
        """How much of the memory for messages its calls use, in bytes."""
        self.answer_bytes = 0
        """How much of the memory for answers its calls use, in bytes."""


class ClientCall:
    """A running call of a client. Only its event loop may use it."""

    __slots__ = (
        "_answers",
        "_error",
        "_first_seconds",
        "_kept",
        "_memory",
        "_task",
        "active",
        "answer_bytes",
        "client",
        "used",
    )

    def __init__(self, client: Client, memory: MessageMemory, answers: AnswerMemory, first_seconds: float) -> None:
        """Register the current task as the call. The first message must arrive within ``first_seconds``."""
        self.client = client
        self.used = 0
        """How much of the memory for messages this call uses, in bytes."""
        self.answer_bytes = 0
        """How much of the memory for answers this call uses, in bytes."""
        self.active = asyncio.get_running_loop().time()
        """When it received or sent its latest message."""
        self._memory = memory
        self._answers = answers
        self._first_seconds: float | None = first_seconds
        self._kept = 0
        self._task = asyncio.current_task()
        self._error: Exception | None = None

    async def receive(self, read: Callable[[], Awaitable[Any]]) -> bytes | None:
        """Return the next message, or None at the end of the requests.

        Waits until there is memory for a message. The previous message must not be in use any more, except for the
        bytes that were reported with :meth:`keep`.
        """
        memory = self._memory
        memory.set(self, self._kept)
        await memory.reserve(self)
        data: bytes | None = None
        try:
            async with asyncio.timeout(self._first_seconds):
                data = await read()
        except TimeoutError:
            raise OverloadedError(
                f"no complete message arrived within {self._first_seconds:g} seconds; send the first message at once"
            ) from None
        finally:
            if data is grpc.aio.EOF:
                data = None
            memory.set(self, self._kept + len(data or b""))
        self._first_seconds = None
        self.touch()
        return data

    def keep(self, size: int) -> None:
        """Report how many bytes of received messages are in use, besides the latest message."""
        self._memory.set(self, self.used + size - self._kept)
        self._kept = size

    def forget_message(self) -> None:
        """Report that the latest message is not in use any more."""
        self._memory.set(self, self._kept)

    async def reserve_answer(self, size: int) -> None:
        """Wait until there is memory for an answer of up to this size, and reserve it until the call ends."""
        await self._answers.reserve(self, size)

    def touch(self) -> None:
        """Note that the call has received or sent a message."""
        self.active = asyncio.get_running_loop().time()

    def end(self, error: Exception) -> None:
        """Make the call end with an error."""
        if self._error is None and self._task is not None:
            self._error = error
            self._task.cancel()

    @property
    def is_ending(self) -> bool:
        """Whether :meth:`end` was called."""
        return self._error is not None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Raise the error of :meth:`end` inside a ``with`` block. At the end of the block, free the call's memory."""
        try:
            yield
        except asyncio.CancelledError:
            if self._error is None:
                raise
            if self._task is not None:
                self._task.uncancel()
            raise self._error from None
        finally:
            self._task = None  # it may refer to an error, whose traceback refers to this call
            self._kept = 0  # a task of the call that ends later must not set it again
            self._memory.set(self, 0)
            self._answers.free(self)


class Clients:
    """All clients with running calls. Refuses calls above a limit, and all calls during shutdown."""

    def __init__(self, max_calls: int, max_client_calls: int, memory: MessageMemory, first_seconds: float) -> None:
        """Allow ``max_calls`` running calls in total, and ``max_client_calls`` of one client."""
        self._max_calls = max_calls
        self._max_client_calls = max_client_calls
        self._memory = memory
        self._first_seconds = first_seconds
        self._clients: dict[str, Client] = {}
        self.count = 0
        """Number of running calls, without health checks and reflection."""
        self.peak = 0
        """The highest count since it was last reset."""
        self.closed = False
        self._answers = AnswerMemory()

    @contextlib.contextmanager
    def call(self, context: Any) -> Iterator[ClientCall]:
        """Admit a call for the duration of a ``with`` block, or refuse it."""
        if self.closed:
            raise UnavailableError("the server is shutting down; try again later")
        if self.count >= self._max_calls:
            raise OverloadedError(f"{self.count} calls are running, the maximum is {self._max_calls}; try again later")
        self.count += 1
        self.peak = max(self.peak, self.count)
        try:
            with self.system_call(context) as call:
                yield call
        finally:
            self.count -= 1

    @contextlib.contextmanager
    def system_call(self, context: Any) -> Iterator[ClientCall]:
        """Admit a health check or reflection: it counts for its client only, and shutdown does not wait for it."""
        name = name_of(context)
        client = self._clients.get(name) or Client(name)
        if len(client.calls) >= self._max_client_calls:
            raise OverloadedError(
                f"{len(client.calls)} calls of this client are running, the maximum is {self._max_client_calls}; wait "
                "for some to end, or open another connection"
            )
        self._clients[name] = client
        CURRENT.set(name)
        call = ClientCall(client, self._memory, self._answers, self._first_seconds)
        client.calls.add(call)
        try:
            with call.running():
                yield call
        finally:
            client.calls.discard(call)
            if not client.calls:
                del self._clients[name]
