"""``whamming.v1.SearchService``: searches streams of queries, and single queries."""

from __future__ import annotations

import asyncio
from typing import Final

from whamming.server.config import Config
from whamming.server.rpc.clients import ClientCall
from whamming.server.rpc.methods import Receive, Send
from whamming.server.search import results
from whamming.server.search.call import SearchCall
from whamming.server.search.once import search_once
from whamming.server.search.options import OptionsReader
from whamming.server.search.searcher import Searcher
from whamming.storage.settings import MAX_PAYLOAD
from whamming.v1 import search_pb2

ONCE_ANSWER_BYTES: Final = 3 << 20
"""Maximum size of the hits in a response of SearchOnce."""
HIT_BYTES: Final = 24
"""Maximum size of a hit in a response of SearchOnce, without its payload."""


class SearchService:
    """Creates a :class:`SearchCall` per call, and stops them all on shutdown. The proto documents the rpcs."""

    def __init__(self, searcher: Searcher, config: Config) -> None:
        self._searcher = searcher
        self._config = config
        self._options_of = OptionsReader(config.max_k)
        self._calls: set[SearchCall] = set()

    async def Search(  # noqa: N802 - the name in the proto
        self, receive: Receive[search_pb2.SearchRequest], send: Send[search_pb2.SearchResponse], context: ClientCall
    ) -> None:
        call = self._call(context)
        try:
            await call.run(receive, send)
        finally:
            self._calls.discard(call)

    async def SearchOnce(  # noqa: N802
        self, request: search_pb2.SearchOnceRequest, context: ClientCall
    ) -> search_pb2.SearchOnceResponse:
        await context.reserve_answer(_most_bytes(request.options))
        call = self._call(context)
        try:
            return await search_once(request, call, ONCE_ANSWER_BYTES)
        finally:
            self._calls.discard(call)

    def _call(self, context: ClientCall) -> SearchCall:
        config = self._config
        call = SearchCall(
            self._searcher,
            self._options_of,
            context.client.queue,
            context.keep,
            context.forget_message,
            max_queries=config.max_batch,
            buffer_bytes=config.buffer_kb << 10,
        )
        self._calls.add(call)
        return call

    async def expire(self) -> None:
        """Stop queries whose snapshots are stale."""
        for call in list(self._calls):
            if call.holds_snapshots:
                await asyncio.to_thread(call.check_growth)
                call.expire()

    def drain(self) -> None:
        """Let running queries finish, and accept no more."""
        for call in list(self._calls):
            call.drain()

    def stop(self) -> None:
        """End all queries with resume tokens."""
        for call in list(self._calls):
            call.stop(results.SHUTDOWN)


def _most_bytes(options: search_pb2.QueryOptions) -> int:
    """Return the maximum size of the answer to a single query."""
    if not options.HasField("k"):
        return ONCE_ANSWER_BYTES
    return min(options.k * (HIT_BYTES + options.payloads * MAX_PAYLOAD), ONCE_ANSWER_BYTES)
