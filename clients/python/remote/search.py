"""The asyncio client's search: an iterator of hits that resumes after a dropped connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from whamming.native import Budget, Hit, InvalidArgumentError, Stats
from whamming.native.arguments import as_whole
from whamming.remote.answers import FINISHED, NO_DISTANCES, NO_IDS, RESUMABLE, Chunk, QueryEnd
from whamming.remote.async_verbs import AsyncSearchVerbs
from whamming.remote.message_size import MessageSize
from whamming.remote.queries import MAX_K
from whamming.remote.retries import Retries
from whamming.remote.session import Inbox, Session
from whamming.remote.status import local_only
from whamming.storage import ClosedError
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.verbs import verb
from whamming.v1 import search_pb2
from whamming.wire.columns import id_column
from whamming.wire.service_errors import OverloadedError, UnavailableError
from whamming.wire.statistics import NO_STATS

CREDIT: Final = 65_536
"""Number of hits that the server may send ahead of what the client has read."""
CREDIT_WITH_PAYLOADS: Final = 256
"""The corresponding number for a search with payloads."""


@dataclass(frozen=True)
class Connection:
    """The parts of a database's connection that a search needs."""

    search: Any
    """The stub of SearchService."""
    session: Session
    retries: Retries
    message_size: MessageSize = field(default_factory=MessageSize)


class Search(Unpicklable, AsyncSearchVerbs):
    """A running search: an asynchronous iterator of hits. Closing or garbage-collecting it stops it on the server."""

    _inbox: Inbox | None = None
    """Queue of the query's chunks, or None if no query is running."""

    def __init__(self, connection: Connection, request: search_pb2.SearchRequest, k: int | None) -> None:
        """Take one query, to be sent when the first hit is requested. Users call :meth:`Index.search`."""
        self._connection = connection
        self._request = request
        self._query = request.queries
        self._left = k
        options = self._query.options
        window = CREDIT_WITH_PAYLOADS if options.payloads else CREDIT
        self._window = window if k is None or k > window else None
        if self._window is not None:
            options.credit = self._window
        self._reranked = bool(options.rerank or options.rerank_exactly)  # reranked searches cannot be resumed
        self._begun = False
        self._attempts = connection.retries.begin()
        self._query_id = 0
        self._consumed = 0
        """Hits received since the client last granted credit."""
        self._progressed = False
        """True if hits have arrived since the query was last sent."""
        self._failure: UnavailableError | OverloadedError | None = None
        """Why the client waits before it sends the query again. None: it does not wait."""
        self._pending: list[Hit] = []
        self._bound = -np.inf
        self._ended = k == 0
        self.closed = False
        """Whether :meth:`close` was called."""
        self._end: QueryEnd | None = None

    def __repr__(self) -> str:
        """Describe the search in a line."""
        state = "closed" if self.closed else f"lower bound {self.lower_bound:g}{', ended' if self._ended else ''}"
        return f"Search(of {self._query.index!r}, {state})"

    @verb
    async def __aenter__(self) -> Self:
        return self

    @verb
    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Stop the search on the server."""
        self.close()

    @verb
    def __aiter__(self) -> Self:
        return self

    @verb
    async def __anext__(self) -> Hit:
        self._check_open()
        if not self._pending:
            ids, distances, kept = await self._chunk()
            if not len(ids):
                raise StopAsyncIteration
            self._pending = _hits(ids, distances, kept)
        return self._pending.pop()

    def ready(self) -> Hit | None:
        """Return the next hit if it has already arrived, else None."""
        return self._pending.pop() if self._pending and not self.closed else None

    @verb
    async def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        if budget is not None:
            raise local_only("a budget per call", "search_batch takes one")
        self._check_open()
        if as_whole("n", n) < 0:
            raise InvalidArgumentError(f"n = {n}; it must be 0 or more")
        parts: list[tuple[NDArray[np.uint64], NDArray[np.float64]]] = []
        count = 0
        while count < n:
            if self._pending:
                early = self._pending[count - n :][::-1]
                del self._pending[len(self._pending) - len(early) :]
                ids = np.array([hit.id for hit in early], dtype=np.uint64)
                distances = np.array([hit.distance for hit in early])
            else:
                ids, distances, kept = await self._chunk()
                if not len(ids):
                    break
                spare = count + len(ids) - n
                if spare > 0:
                    self._pending = _hits(ids[-spare:], distances[-spare:], kept[-spare:])
                    ids, distances = ids[:-spare], distances[:-spare]
            parts.append((ids, distances))
            count += len(ids)
        if not parts:
            return NO_IDS, NO_DISTANCES
        if len(parts) == 1:
            return parts[0]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([far for _, far in parts])

    @verb
    async def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        return await self.next(2**63)

    @property
    @verb
    def lower_bound(self) -> float:
        self._check_open()
        return min(self._pending[-1].distance, self._bound) if self._pending else self._bound

    @property
    @verb
    def stats(self) -> Stats:
        self._check_open()
        return NO_STATS if self._end is None else self._end.stats

    @property
    def is_over(self) -> bool:
        """True if no query is running and none will be sent, so that there is nothing to stop on the server."""
        return self._ended and self._inbox is None

    @verb
    def close(self) -> None:
        self._ended = self.closed = True
        if self._inbox is not None:
            self._inbox = None
            self._connection.session.forget(self._query_id)

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError("the search is closed; start a new one")

    async def _chunk(self) -> tuple[NDArray[np.uint64], NDArray[np.float64], Sequence[bytes]]:
        """Return the next hits that arrive, or empty arrays at the end."""
        while not self._ended:
            if self._inbox is None:
                failure, self._failure = self._failure, None
                if failure is not None:
                    await self._attempts.wait(failure)
                self._consumed, self._progressed = 0, False
                self._query_id, self._inbox = self._connection.session.start(self._request)
            chunk = await self._inbox.get()
            if not isinstance(chunk, Chunk):
                self._inbox = None
                if not isinstance(chunk, UnavailableError | OverloadedError) or (self._reranked and self._begun):
                    self._ended = True
                    raise chunk
                self._failure = chunk
                continue
            if len(chunk.ids):
                self._attempts.reset()
                self._note_progress(chunk)
            if chunk.end is not None:
                self._finish(chunk.end)
            self._bound = chunk.bound
            if len(chunk.ids):
                return chunk.ids, chunk.distances, chunk.payloads
        return NO_IDS, NO_DISTANCES, ()

    def _note_progress(self, chunk: Chunk) -> None:
        """Record where to resume after a dropped connection, and grant the server more credit."""
        count = len(chunk.ids)
        if self._left is not None:
            self._left -= count
        if not self._reranked:
            self._query.after_distances[:] = [float(chunk.distances[-1])]
            self._query.after_ids.CopyFrom(id_column(chunk.ids[-1:]))
            self._query.after_sums = chunk.last_sum
            if self._left:
                self._query.options.k = min(self._left, MAX_K)
        self._begun = self._progressed = True
        self._consumed += count
        if self._window is not None and 2 * self._consumed >= self._window:
            self._connection.session.grant(self._query_id, self._consumed)
            self._consumed = 0

    def _finish(self, end: QueryEnd) -> None:
        """Record how the query ended. The search then continues with a new query, or ends too."""
        self._inbox = None
        self._end = end
        self._failure = self._reason_to_wait(end)
        more = end.reason == search_pb2.END_REASON_COMPLETE and self._query.options.k == MAX_K
        resumes = more or end.reason in RESUMABLE or self._failure is not None
        if resumes and self._left != 0 and not (self._reranked and self._begun):
            return
        self._ended = True
        if end.reason not in FINISHED:
            raise end.error

    def _reason_to_wait(self, end: QueryEnd) -> UnavailableError | OverloadedError | None:
        """Return an error if the query, resent at once, would end in the same way again. Otherwise return None."""
        if end.reason == search_pb2.END_REASON_SHUTDOWN:
            return UnavailableError("the server is shutting down; connect again when it is back")
        if end.reason == search_pb2.END_REASON_SNAPSHOT_EXPIRED and not self._progressed:
            return UnavailableError(
                "the search's snapshot expired on the server before the next hit was found; "
                "increase whamming serve --snapshot-seconds"
            )
        if end.reason == search_pb2.END_REASON_FAILED and isinstance(error := end.error, OverloadedError):
            return error
        return None


def _hits(ids: NDArray[np.uint64], distances: NDArray[np.float64], kept: Sequence[bytes]) -> list[Hit]:
    """Return hits in reverse order, so that ``pop`` gives the next one."""
    payloads = kept or [b""] * len(ids)
    return [Hit(*hit) for hit in zip(ids.tolist(), distances.tolist(), payloads, strict=True)][::-1]
