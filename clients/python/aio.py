"""A database on a server, for asyncio: ``async with await whamming.aio.connect("host:port") as db``.

The same verbs as :class:`whamming.Database` and :class:`whamming.StoredIndex`, to be awaited::

    async with await whamming.aio.connect("localhost:7777") as db:
        docs = await db.create_index("docs", bits=256)
        await docs.upsert(ids, codes)
        async for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

Reads go on by themselves where a connection breaks: a search resumes after its last hit. So do upserts, which have the
same effect when they are sent twice.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import grpc
import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.errors import OverloadedError, ServiceError, UnavailableError
from whamming.native import Answer, Buckets, Budget, Costs, Hit, InvalidArgumentError, Plan, Stats, Tables
from whamming.native.costs import as_codes
from whamming.native.cursor import as_whole, check_radius, check_wanted, checked_place
from whamming.session import Inbox, Session
from whamming.storage import BitOrder, ClosedError, Durability, IndexSettings, Items, Rows, StoreStats, WriteBatch
from whamming.storage.rows import as_ids
from whamming.storage.settings import check_choice
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.v1.index_pb2_grpc import IndexServiceStub
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.v1.search_pb2_grpc import SearchServiceStub
from whamming.v1.values import (
    durability_number,
    hits_of,
    items_of,
    settings_message,
    settings_of,
    statistics_of,
    store_stats_of,
)
from whamming.wire import ManyStats, batches, error_of, error_of_call, options_message, query_messages

T = TypeVar("T")

RETRY_SECONDS: Final = 30.0
"""For how long a call that may be repeated is tried again while the server is away."""
CREDIT: Final = 65_536
"""Hits of a search that the server may send ahead of what was asked for here."""
CREDIT_WITH_PAYLOADS: Final = 256
BATCH: Final = 256
"""Queries of search_batch that go into one message."""
AHEAD: Final = 4
"""Of such messages under way at once."""
RECEIVE_BYTES: Final = 64 << 20

NO_STATISTICS = search_pb2.QueryStatistics(plan=search_pb2.PLAN_AUTO)
NO_MORE = (search_pb2.END_REASON_COMPLETE, search_pb2.END_REASON_EXHAUSTED)
GO_ON = (search_pb2.END_REASON_SNAPSHOT_EXPIRED, search_pb2.END_REASON_SHUTDOWN)


async def connect(address: str, *, timeout: float = 10.0, retry_seconds: float = RETRY_SECONDS) -> Database:
    """Connect to a server.

    Parameters
    ----------
    address : HOST:PORT, as ``whamming serve`` prints it.
    timeout : seconds to wait for the server before :class:`UnavailableError` is raised.
    retry_seconds : for how long calls that may be repeated are tried again while the server is away; 0: not at all.
    """
    options = [
        ("grpc.max_receive_message_length", RECEIVE_BYTES),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]
    channel = grpc.aio.insecure_channel(address, options=options)
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout)
    except TimeoutError:
        await channel.close()
        raise UnavailableError(
            f"no server answers at {address} within {timeout} s; start one with: whamming serve --listen {address}"
        ) from None
    return Database(channel, address, retry_seconds)


class Retries:
    """Repeats calls while the server is away."""

    def __init__(self, seconds: float) -> None:
        """Repeat for at most so long without success."""
        self._seconds = seconds

    def begin(self) -> Attempts:
        """Return a new count of attempts."""
        return Attempts(self._seconds)

    async def run(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call that may be repeated."""
        attempts = self.begin()
        while True:
            try:
                return await once(call)
            except (UnavailableError, OverloadedError) as error:
                await attempts.wait(error)


class Attempts:
    """How often and for how long something has been tried in vain."""

    def __init__(self, seconds: float) -> None:
        """Start counting."""
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        """Hear of success."""
        self._until = time.monotonic() + self._seconds
        self._delay = 0.05

    async def wait(self, error: ServiceError) -> None:
        """Wait before the next attempt; raises the error where it has been long enough."""
        if time.monotonic() + self._delay > self._until:
            raise error
        await asyncio.sleep(self._delay)
        self._delay = min(2 * self._delay, 1.0)


async def once(call: Callable[[], Awaitable[T]]) -> T:
    """Make a call; its failure is raised as one of our errors."""
    try:
        return await call()
    except grpc.aio.AioRpcError as error:
        raise error_of_call(error) from error
    except grpc.aio.UsageError as error:
        raise ClosedError("the connection is closed; connect again") from error


class Database:
    """Named indexes on a server. Use it in an ``async with`` block, or call :meth:`close`."""

    def __init__(self, channel: grpc.aio.Channel, address: str, retry_seconds: float) -> None:
        """Wrap a channel; prefer :func:`connect`."""
        self.address = address
        self._channel = channel
        self._retries = Retries(retry_seconds)
        self._indexes: Any = IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self._items: Any = ItemServiceStub(channel)  # type: ignore[no-untyped-call]
        self._search: Any = SearchServiceStub(channel)  # type: ignore[no-untyped-call]
        self._session = Session(self._search)

    async def __aenter__(self) -> Self:
        """Return the database itself."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()

    async def create_index(
        self,
        name: str,
        bits: int,
        *,
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        exist_ok: bool = False,
    ) -> Index:
        """Make an index for codes of so many bits; see :class:`whamming.storage.IndexSettings`.

        ``exist_ok``: return the index that exists if it has the same settings. Raises :class:`AlreadyExistsError`.
        """
        settings = settings_message(IndexSettings(bits, bit_order, tables, buckets, durability))
        request = index_pb2.CreateIndexRequest(name=name, settings=settings, exist_ok=exist_ok)
        return self._index((await once(lambda: self._indexes.CreateIndex(request))).index)

    async def index(self, name: str) -> Index:
        """Return an index. Raises :class:`NotFoundError`."""
        return self._index(await self._describe(name))

    async def list_indexes(self) -> list[str]:
        """Return the names of all indexes, sorted."""
        names: list[str] = []
        token = ""
        while True:
            request = index_pb2.ListIndexesRequest(page_size=1000, page_token=token)
            page = await self._retries.run(lambda request=request: self._indexes.ListIndexes(request))  # type: ignore[misc]
            names += [index.name for index in page.indexes]
            token = page.next_page_token
            if not token:
                return names

    async def drop_index(self, name: str) -> None:
        """Remove an index with all its items."""
        await once(lambda: self._indexes.DeleteIndex(index_pb2.DeleteIndexRequest(name=name)))

    async def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        await self._session.close()
        await self._channel.close()

    async def _describe(self, name: str) -> index_pb2.Index:
        request = index_pb2.GetIndexRequest(name=name)
        response = await self._retries.run(lambda: self._indexes.GetIndex(request))
        described: index_pb2.Index = response.index
        return described

    def _index(self, message: index_pb2.Index) -> Index:
        return Index(self, message.name, settings_of(message.settings))


class Index:
    """One index on a server."""

    def __init__(self, database: Database, name: str, settings: IndexSettings) -> None:
        """Name an index; prefer :meth:`Database.index`."""
        self.name = name
        self.settings = settings
        self._database = database

    def __repr__(self) -> str:
        """Describe the index in a line."""
        return f"Index({self.name!r}, {self.settings.bits} bits, at {self._database.address})"

    async def count(self) -> int:
        """Return the number of items."""
        return (await self.stats()).items

    async def stats(self) -> StoreStats:
        """Tell what the index holds."""
        return store_stats_of((await self._database._describe(self.name)).statistics)

    async def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike,
        payloads: Sequence[bytes | None] | None = None,
        *,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists; see :meth:`whamming.StoredIndex.upsert`.

        Everything is checked before anything is sent. What fits into a message of 4 MiB is written whole or not at all;
        more is written message by message, and where the connection breaks for good, the first ones are there.
        """
        _check_durability(durability)
        checked = WriteBatch.of(self.settings, ids, codes, payloads).upserts
        rows = Rows(checked.ids, self.settings.from_engine(checked.codes), checked.payloads)
        unsent = [
            item_pb2.UpsertRequest(
                index=self.name, sequence=sequence, items=items, durability=durability_number(durability)
            )
            for sequence, items in enumerate(batches(rows))
        ]
        attempts = self._database._retries.begin()
        while unsent:
            try:
                await once(lambda: self._upsert(unsent))
            except (UnavailableError, OverloadedError) as error:
                await attempts.wait(error)

    async def _upsert(self, unsent: list[item_pb2.UpsertRequest]) -> None:
        """Send batches on one call, and take those that are acknowledged off the list."""
        call = self._database._items.Upsert(iter(list(unsent)))
        try:
            async for done in call:
                assert done.sequence == unsent[0].sequence
                del unsent[0]
        finally:
            call.cancel()
        if unsent:
            raise UnavailableError("the server ended the stream before it had written everything")

    async def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> None:
        """Remove items; ids that do not exist are ignored."""
        _check_durability(durability)
        wanted = as_ids(ids).tolist()
        request = item_pb2.DeleteRequest(index=self.name, ids=wanted, durability=durability_number(durability))
        await self._database._retries.run(lambda: self._database._items.Delete(request))

    async def get(self, ids: ArrayLike) -> Items:
        """Look items up by id."""
        wanted = as_ids(ids)
        request = item_pb2.GetRequest(index=self.name, ids=wanted.tolist())
        response = await self._database._retries.run(lambda: self._database._items.Get(request))
        rows = items_of(response.items, self.settings)
        payloads = list(response.items.payloads) or [b""] * len(wanted)
        found = np.fromiter(response.found, dtype=np.bool_, count=len(response.found))
        return Items(wanted, found, rows.codes, payloads)

    async def scan(self, size: int = 10_000) -> AsyncIterator[Rows]:
        """Return all items of a snapshot, in no particular order, in pieces of at most ``size``."""
        call = self._database._items.Scan(item_pb2.ScanRequest(index=self.name, batch_size=size))
        try:
            async for response in call:
                yield items_of(response.items, self.settings)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error
        finally:
            call.cancel()

    def search(
        self,
        code: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        table: ArrayLike | None = None,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        payloads: bool = False,
        after: tuple[float, int] | None = None,
    ) -> Search:
        """Search one query; see :meth:`whamming.StoredIndex.search`. Iterate what it returns with ``async for``."""
        query = self._queries(code, weights, table, single=True)[0]
        if after is not None:
            query.after.distance, query.after.id = checked_place(after)
        return Search(self._database, self.name, query, k, radius, plan, payloads)

    async def search_batch(
        self,
        codes: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        table: ArrayLike | None = None,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        budget: Budget | None = None,
    ) -> Answer:
        """Search many queries at once; see :meth:`whamming.StoredIndex.search_batch`."""
        k = as_whole("k", k)
        if not 0 <= k < 2**31:
            raise InvalidArgumentError(f"k = {k}; it must be 0 to {2**31 - 1}: iterate a search for more")
        check_radius(radius)
        single = _is_single(codes, table)
        queries = self._queries(codes, weights, table, single=single)
        batch = _Batch(self._database, self.name, queries, options_message(k, radius, plan, budget=budget), k)
        await batch.run()
        return batch.answer(single=single)

    def _queries(
        self, code: ArrayLike | None, weights: ArrayLike | None, table: ArrayLike | None, *, single: bool
    ) -> list[search_pb2.Query]:
        """Check queries here, so that what is wrong is told at once, and pack them."""
        bits = self.settings.bits
        if table is not None:
            if code is not None or weights is not None:
                raise InvalidArgumentError("give a cost table, or a code with or without weights, not both")
            tables = np.asarray(table, dtype=np.float64)
            tables = tables[None] if tables.ndim == 2 else tables
            if tables.ndim != 3 or tables.shape[1:] != (bits, 2):
                raise InvalidArgumentError(
                    f"the cost table has shape {np.shape(table)}; it must be [{bits}, 2], or [q, {bits}, 2]"
                )
            Costs.table(tables)
            queries = query_messages(None, None, tables)
        else:
            if code is None:
                raise InvalidArgumentError("give a query code, or a cost table")
            packed = np.asarray(code)
            codes = as_codes(packed[None] if packed.ndim == 1 else packed, bits, "query codes")
            given = None
            if weights is not None:
                given = np.asarray(weights, dtype=np.float64)
                if given.ndim not in (1, 2) or given.shape[-1] != bits:
                    raise InvalidArgumentError(
                        f"the weights have shape {given.shape}; the index has codes of {bits} bits"
                    )
                Costs.weights(codes, given)
                rows = len(given) if given.ndim == 2 else len(codes)
                given = np.broadcast_to(given, (rows, bits))
                codes = np.broadcast_to(codes, (rows, codes.shape[1]))
            queries = query_messages(codes, given, None)
        if single and len(queries) != 1:
            raise InvalidArgumentError(f"search takes one query, these are {len(queries)}; use search_batch")
        return queries

    async def seal(self, progress: Callable[[float], None] | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many."""
        await self._watch(self._database._indexes.SealIndex, index_pb2.SealIndexRequest(name=self.name), progress)

    async def compact(self, progress: Callable[[float], None] | None = None) -> None:
        """Merge everything into one segment, without the items that are gone."""
        request = index_pb2.CompactIndexRequest(name=self.name)
        await self._watch(self._database._indexes.CompactIndex, request, progress)

    async def _watch(self, rpc: Any, request: Any, progress: Callable[[float], None] | None) -> None:
        try:
            async for response in rpc(request):
                if progress is not None:
                    progress(response.progress)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error


class Search:
    """A search under way: an asynchronous iterator of hits that ends when it is closed or let go."""

    _inbox: Inbox | None = None
    """Where its chunks arrive; None: it is not under way."""

    def __init__(
        self,
        database: Database,
        index: str,
        query: search_pb2.Query,
        k: int | None,
        radius: float | None,
        plan: Plan,
        payloads: bool,
    ) -> None:
        """Prepare; prefer :meth:`Index.search`. The query is sent when the first hit is asked for."""
        self._database = database
        self._index = index
        self._query = query
        wanted = check_wanted(k)
        check_radius(radius)
        self._left = None if k is None else wanted
        self._payloads = payloads
        window = CREDIT_WITH_PAYLOADS if payloads else CREDIT
        self._window = window if k is None or k > window else None
        options = options_message(k, radius, plan, payloads=payloads, credit=self._window)
        query.options.CopyFrom(options)
        self._attempts = database._retries.begin()
        self._query_id = 0
        self._consumed = 0
        self._pending: list[Hit] = []
        self._bound = -np.inf
        self._ended = k == 0
        self._statistics = search_pb2.QueryStatistics()

    async def __aenter__(self) -> Self:
        """Return the search itself."""
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Close the search."""
        self.close()

    def __del__(self) -> None:
        """Stop the server's work for a search that nobody holds any more."""
        self.close()

    def __aiter__(self) -> Self:
        """Return the search itself."""
        return self

    async def __anext__(self) -> Hit:
        """Return the next hit, as soon as the server has proven it."""
        if not self._pending:
            ids, distances, kept = await self._chunk()
            if not len(ids):
                raise StopAsyncIteration
            self._pending = _hits(ids, distances, kept)
        return self._pending.pop()

    def ready(self) -> Hit | None:
        """Return the next hit if it has arrived already."""
        return self._pending.pop() if self._pending else None

    async def next(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer where no more exist."""
        if n < 0:
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
            return np.empty(0, dtype=np.uint64), np.empty(0)
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([far for _, far in parts])

    async def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all hits that are left; give ``search`` a k or a radius first."""
        return await self.next(2**63)

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this; infinity when all were."""
        return self._pending[-1].distance if self._pending else self._bound

    @property
    def stats(self) -> Stats:
        """What the search has cost; known when it has ended."""
        return statistics_of(self._statistics)

    def close(self) -> None:
        """Stop the search. Closing twice is fine."""
        self._ended = True
        if self._inbox is not None:
            self._inbox = None
            self._database._session.forget(self._query_id)

    async def _chunk(self) -> tuple[NDArray[np.uint64], NDArray[np.float64], Sequence[bytes]]:
        """Return the next hits that arrive; none at the end."""
        while not self._ended:
            if self._inbox is None:
                self._query_id, self._inbox = self._database._session.start(self._index, self._query)
            chunk = await self._inbox.get()
            if not isinstance(chunk, search_pb2.Chunk):
                self._inbox = None
                if not isinstance(chunk, UnavailableError | OverloadedError):
                    self._ended = True
                    raise chunk
                await self._attempts.wait(chunk)
                continue
            self._attempts.reset()
            ids, distances = hits_of(chunk.ids, chunk.distances)
            if len(ids):
                self._took(ids, distances)
            if chunk.HasField("end"):
                self._finish(chunk.end)
            self._bound = chunk.lower_bound
            if len(ids):
                return ids, distances, chunk.payloads
        return np.empty(0, dtype=np.uint64), np.empty(0), ()

    def _took(self, ids: NDArray[np.uint64], distances: NDArray[np.float64]) -> None:
        """Note where to go on, and let the server send more."""
        self._query.after.distance, self._query.after.id = float(distances[-1]), int(ids[-1])
        if self._left is not None:
            self._left -= len(ids)
            if self._left:
                self._query.options.k = self._left
        self._consumed += len(ids)
        if self._window is not None and 2 * self._consumed >= self._window:
            self._database._session.grant(self._query_id, self._consumed)
            self._consumed = 0

    def _finish(self, end: search_pb2.QueryEnd) -> None:
        self._inbox = None
        self._statistics = end.statistics
        if end.reason in GO_ON and self._left != 0:
            self._consumed = 0
            return
        self._ended = True
        if end.reason not in NO_MORE:
            raise error_of(end.error.reason, end.error.message or search_pb2.EndReason.Name(end.reason))


class _Batch:
    """The queries of one search_batch, on a call of their own; those without an answer are sent again if it breaks."""

    def __init__(
        self,
        database: Database,
        index: str,
        queries: Sequence[search_pb2.Query],
        options: search_pb2.QueryOptions,
        k: int,
    ) -> None:
        self._database = database
        self._index = index
        self._queries = queries
        self._options = options
        count = len(queries)
        self._k = k
        self._found: list[list[search_pb2.Chunk]] = [[] for _ in range(count)]
        self._left = set(range(count)) if k else set()

    async def run(self) -> None:
        attempts = self._database._retries.begin()
        while self._left:
            before = len(self._left)
            try:
                await once(self._attempt)
            except (UnavailableError, OverloadedError) as error:
                if len(self._left) < before:
                    attempts.reset()
                await attempts.wait(error)

    async def _attempt(self) -> None:
        room = asyncio.Semaphore(AHEAD * BATCH)
        call = self._database._search.Search()
        sending = asyncio.create_task(self._send(call, sorted(self._left), room))
        try:
            async for response in call:
                for chunk in response.chunks:
                    self._take(chunk)
                    if chunk.HasField("end"):
                        room.release()
        finally:
            sending.cancel()
            call.cancel()
        if self._left:
            raise UnavailableError("the server ended the stream before it had answered everything")

    async def _send(self, call: Any, places: Sequence[int], room: asyncio.Semaphore) -> None:
        for first in range(0, len(places), BATCH):
            piece = places[first : first + BATCH]
            for place in piece:
                await room.acquire()
                self._queries[place].id = place
                self._found[place] = []
            queries = [self._queries[place] for place in piece]
            batch = search_pb2.QueryBatch(index=self._index, queries=queries, options=self._options)
            try:
                await call.write(search_pb2.SearchRequest(batch=batch))
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # reading tells why
        await call.done_writing()

    def _take(self, chunk: search_pb2.Chunk) -> None:
        place = chunk.query_id
        if not chunk.HasField("end"):
            self._found[place].append(chunk)
            return
        end = chunk.end
        if end.reason == search_pb2.END_REASON_FAILED:
            raise error_of(end.error.reason, f"query {place}: {end.error.message}")
        if end.reason in GO_ON:
            return  # to be sent again as a whole
        self._found[place].append(chunk)
        self._left.discard(place)

    def answer(self, *, single: bool) -> Answer:
        """Put the answers together as :meth:`whamming.native.View.search` does."""
        count = len(self._queries)
        width = self._k if not single else max((self._hits(chunks) for chunks in self._found), default=0)
        ids = np.full((count, width), np.iinfo(np.uint64).max, dtype=np.uint64)
        distances = np.full((count, width), np.inf)
        counts = np.zeros(count, dtype=np.uint64)
        proven = np.zeros(count, dtype=np.uint64)
        exact = np.zeros(count, dtype=np.bool_)
        for row, chunks in enumerate(self._found):
            filled = 0
            for chunk in chunks:
                filled = _fill(ids[row], distances[row], filled, chunk.ids, chunk.distances)
            end = chunks[-1].end if chunks else search_pb2.QueryEnd(exact=True)
            proven[row], exact[row] = filled, end.exact
            counts[row] = _fill(ids[row], distances[row], filled, end.guess_ids, end.guess_distances)
        stats = ManyStats([chunks[-1].end.statistics if chunks else NO_STATISTICS for chunks in self._found])
        if single:
            return Answer(ids[0], distances[0], counts, proven, exact, stats)
        return Answer(ids, distances, counts, proven, exact, stats)

    @staticmethod
    def _hits(chunks: Sequence[search_pb2.Chunk]) -> int:
        return sum(len(chunk.ids) + len(chunk.end.guess_ids) for chunk in chunks)


def _fill(
    ids: NDArray[np.uint64], distances: NDArray[np.float64], first: int, more: Sequence[int], far: Sequence[float]
) -> int:
    """Write hits into a row from a place on; returns where they end."""
    last = first + len(more)
    if last > first:
        ids[first:last] = more
        distances[first:last] = far
    return last


def _hits(ids: NDArray[np.uint64], distances: NDArray[np.float64], kept: Sequence[bytes]) -> list[Hit]:
    """Return hits, the last one first."""
    payloads = kept or [b""] * len(ids)
    return [Hit(*hit) for hit in zip(ids.tolist(), distances.tolist(), payloads, strict=True)][::-1]


def _is_single(codes: ArrayLike | None, table: ArrayLike | None) -> bool:
    """Tell whether a batch is one query without a batch dimension."""
    return np.ndim(table) == 2 if table is not None else np.ndim(codes) == 1  # type: ignore[arg-type]


def _check_durability(durability: Durability | None) -> None:
    if durability is not None:
        check_choice("durability", durability, ("fsync", "async"))
