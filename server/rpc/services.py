"""The three services: check, call, translate. What they call is synchronous and runs in threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import numpy as np

from whamming.native import wire
from whamming.native.costs import check_bits
from whamming.server.config import Config
from whamming.server.rpc.methods import Context
from whamming.server.rpc.status import AnswerTooLargeError, OverloadedError, ShuttingDownError
from whamming.server.search import messages
from whamming.server.search.scheduler import Scheduler
from whamming.server.search.searching import SearchStream, search_once
from whamming.storage import ClosedError, Database, NotFoundError, Rows, StoredIndex
from whamming.storage.settings import check_name
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.wire.values import (
    FieldError,
    blaming,
    choices_of,
    durability_of,
    ids_of,
    items_message,
    items_of,
    vectors_of,
)

T = TypeVar("T")

PAGE: Final = 100
MOST_PAGE: Final = 1000
SCAN_ROWS: Final = 10_000
MOST_SCAN_ROWS: Final = 100_000
GET_ROWS: Final = 256
"""Items are looked up so many at a time: 16 MiB of payloads at most."""
MESSAGE_BYTES: Final = 1 << 21
"""What messages to clients stay below, about: half of what gRPC's clients take by default."""
ANSWER_BYTES: Final = 3 << 20
"""Of hits in the one message of SearchOnce, and of items in that of Get."""
BLOCKING_THREADS: Final = 16
"""Calls that read or write storage at once; a group of writes shares a commit."""
SLOW_THREADS: Final = 2
"""Seals and compactions at once."""
PROGRESS_SECONDS: Final = 0.2
ITEM_BYTES: Final = 10
"""What an item with a payload takes in a message, at least: an id, the payload's tag and its length."""


class Admission:
    """Counts the calls under way and refuses more than a limit, or any while the server shuts down."""

    def __init__(self, limit: int) -> None:
        """Start with none."""
        self._limit = limit
        self.count = 0
        self.most = 0
        """At once, since somebody set it back."""
        self.closed = False

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Serve one call."""
        if self.closed:
            raise ShuttingDownError("the server shuts down; try again, it may be coming back")
        if self.count >= self._limit:
            raise OverloadedError(f"{self.count} calls are under way, at most {self._limit}; try again later")
        self.count += 1
        self.most = max(self.most, self.count)
        try:
            yield
        finally:
            self.count -= 1


class Storage:
    """The database, reached from the event loop: each call runs in a thread."""

    def __init__(self, database: Database) -> None:
        """Start the threads when they are needed."""
        self.database = database
        self._threads = ThreadPoolExecutor(BLOCKING_THREADS, thread_name_prefix="whamming-storage")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="whamming-maintain")

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)

    async def run_slowly(self, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may take minutes in a thread that nobody else waits for."""
        return await asyncio.get_running_loop().run_in_executor(self._slow_threads, call, *args)

    async def index(self, name: str, field: str = "index") -> StoredIndex:
        """Return an index."""
        if not name:
            raise FieldError(field, f"{field} is empty; give the name of an index")
        with blaming(field):
            return await self.run(self.database.index, name)

    def close(self) -> None:
        """Wait for what is under way."""
        self._threads.shutdown()
        self._slow_threads.shutdown(cancel_futures=True)


class IndexService:
    """Implements ``whamming.v1.IndexService``."""

    def __init__(self, storage: Storage) -> None:
        """Serve a database."""
        self._storage = storage

    async def CreateIndex(  # noqa: N802 - the name in the proto
        self, request: index_pb2.CreateIndexRequest, context: Context
    ) -> index_pb2.CreateIndexResponse:
        """Make an index."""
        described = choices_of(request.settings) | messages.encoder_of(request)
        bits = request.settings.bits or None
        with blaming("name"):
            check_name(request.name)
        with blaming("settings.bits"):
            if bits is not None or "encoder" not in described:
                check_bits(request.settings.bits)

        def create() -> index_pb2.Index:
            with blaming("encoder" if "encoder" in described else "settings"):
                index = self._storage.database.create_index(request.name, bits, exist_ok=request.exist_ok, **described)
            return messages.index_message(index)

        # Fitting an encoder takes its time.
        run = self._storage.run_slowly if "encoder" in described else self._storage.run
        return index_pb2.CreateIndexResponse(index=await run(create))

    async def GetEncoder(  # noqa: N802
        self, request: index_pb2.GetEncoderRequest, context: Context
    ) -> index_pb2.GetEncoderResponse:
        """Export an encoder."""
        index = await self._storage.index(request.name, "name")
        encoder = messages.need_encoder(index.encoder)
        return index_pb2.GetEncoderResponse(fitted_encoder=await self._storage.run(encoder.to_bytes))

    async def GetIndex(  # noqa: N802
        self, request: index_pb2.GetIndexRequest, context: Context
    ) -> index_pb2.GetIndexResponse:
        """Describe an index."""
        index = await self._storage.index(request.name, "name")
        return index_pb2.GetIndexResponse(index=await self._storage.run(messages.index_message, index))

    async def ListIndexes(  # noqa: N802
        self, request: index_pb2.ListIndexesRequest, context: Context
    ) -> index_pb2.ListIndexesResponse:
        """List a page of indexes."""
        size = request.page_size or PAGE
        if size > MOST_PAGE:
            raise FieldError("page_size", f"page_size = {size}; at most {MOST_PAGE}, or 0 for {PAGE}")

        def page() -> index_pb2.ListIndexesResponse:
            database = self._storage.database
            names = [name for name in database.list_indexes() if name > request.page_token]
            shown = names[:size]
            indexes = []
            for name in shown:
                with contextlib.suppress(NotFoundError, ClosedError):  # it has been dropped meanwhile
                    indexes.append(messages.index_message(database.index(name)))
            more = shown[-1] if len(names) > size else ""
            return index_pb2.ListIndexesResponse(indexes=indexes, next_page_token=more)

        return await self._storage.run(page)

    async def DeleteIndex(  # noqa: N802
        self, request: index_pb2.DeleteIndexRequest, context: Context
    ) -> index_pb2.DeleteIndexResponse:
        """Remove an index."""
        if not request.name:
            raise FieldError("name", "name is empty; give the name of an index")
        await self._storage.run(self._storage.database.drop_index, request.name)
        return index_pb2.DeleteIndexResponse()

    async def FlushIndex(  # noqa: N802
        self, request: index_pb2.FlushIndexRequest, context: Context
    ) -> index_pb2.FlushIndexResponse:
        """Wait until all writes are on disk."""
        index = await self._storage.index(request.name, "name")
        await self._storage.run(index.flush)
        return index_pb2.FlushIndexResponse()

    async def SealIndex(  # noqa: N802
        self, request: index_pb2.SealIndexRequest, context: Context
    ) -> AsyncIterator[index_pb2.SealIndexResponse]:
        """Seal an index."""
        index = await self._storage.index(request.name, "name")
        async for share in self._progress(index.seal):
            yield index_pb2.SealIndexResponse(progress=share)
        yield index_pb2.SealIndexResponse(progress=1.0, index=await self._storage.run(messages.index_message, index))

    async def CompactIndex(  # noqa: N802
        self, request: index_pb2.CompactIndexRequest, context: Context
    ) -> AsyncIterator[index_pb2.CompactIndexResponse]:
        """Compact an index."""
        index = await self._storage.index(request.name, "name")
        async for share in self._progress(index.compact):
            yield index_pb2.CompactIndexResponse(progress=share)
        yield index_pb2.CompactIndexResponse(progress=1.0, index=await self._storage.run(messages.index_message, index))

    async def _progress(self, work: Callable[[Callable[[float], None]], None]) -> AsyncIterator[float]:
        """Do work in a thread; yields the share done now and then."""
        latest = 0.0

        def report(share: float) -> None:
            nonlocal latest
            latest = share

        working = asyncio.ensure_future(self._storage.run_slowly(work, report))
        working.add_done_callback(lambda done: done.cancelled() or done.exception())  # where nobody asks any more
        while not (await asyncio.wait([working], timeout=PROGRESS_SECONDS))[0]:
            yield min(latest, 0.999)
        await working


class ItemService:
    """Implements ``whamming.v1.ItemService``."""

    def __init__(self, storage: Storage) -> None:
        """Serve a database."""
        self._storage = storage

    @staticmethod
    def check(request: bytes) -> None:
        """Refuse more payloads than can have ids before they are read: empty ones take twenty times as much memory."""
        count = wire.count_payloads(request)
        if count * ITEM_BYTES > len(request):
            raise FieldError("items.payloads", f"{count} payloads for fewer ids; give one each, or none at all")

    async def Upsert(  # noqa: N802
        self, requests: AsyncIterator[item_pb2.UpsertRequest], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Write batches one after the other; the next one is received while one is written."""
        index: StoredIndex | None = None
        async for request in requests:
            if index is None or (request.index and request.index != index.name):
                index = await self._storage.index(request.index)
            count = await self._storage.run(self._upsert, index, request)
            done = item_pb2.UpsertResponse(sequence=request.sequence, count=count)
            await write(done.SerializeToString())

    @staticmethod
    def _upsert(index: StoredIndex, request: item_pb2.UpsertRequest) -> int:
        items, durability = request.items, durability_of(request.durability)
        payloads = list(items.payloads) or None
        if items.HasField("vectors"):
            if items.codes:
                raise FieldError("items.vectors", "items have both codes and vectors; give one of them")
            messages.need_encoder(index.encoder)
            vectors = vectors_of(items.vectors, "items.vectors")
            with blaming("items"):
                index.upsert(ids_of(items), None, payloads, vectors=vectors, durability=durability)
        else:
            rows = items_of(items, index.settings)
            with blaming("items.payloads"):  # all else has been looked at
                index.upsert(rows.ids, rows.codes, payloads, durability=durability)
        return len(items.ids)

    async def Delete(  # noqa: N802
        self, request: item_pb2.DeleteRequest, context: Context
    ) -> item_pb2.DeleteResponse:
        """Remove items."""
        index = await self._storage.index(request.index)
        durability = durability_of(request.durability)
        ids = ids_of(request)
        count = await self._storage.run(lambda: index.delete(ids, durability=durability))
        return item_pb2.DeleteResponse(count=count)

    async def Get(self, request: item_pb2.GetRequest, context: Context) -> item_pb2.GetResponse:  # noqa: N802
        """Look items up."""
        index = await self._storage.index(request.index)

        def get() -> item_pb2.GetResponse:
            ids, snapshot = ids_of(request), index.snapshot()
            answer = item_pb2.GetResponse(items=item_pb2.ItemBatch(ids=request.ids))
            codes, payloads = [], []
            size = len(ids) * (8 + index.settings.code_bytes)
            first = 0
            while first < len(ids) and size <= ANSWER_BYTES:  # of an id that repeats, a large payload would add up
                items = snapshot.get(ids[first : first + GET_ROWS])
                size += sum(map(len, items.payloads))
                codes.append(items.codes.tobytes())
                payloads += items.payloads
                answer.found.extend(items.found.tolist())
                first += GET_ROWS
            if size > ANSWER_BYTES:
                raise AnswerTooLargeError(f"{len(ids)} items have over {ANSWER_BYTES} bytes: ask for fewer at once")
            answer.items.codes = b"".join(codes)
            if any(payloads):
                answer.items.payloads.extend(payloads)
            return answer

        return await self._storage.run(get)

    async def Scan(  # noqa: N802
        self, request: item_pb2.ScanRequest, context: Context
    ) -> AsyncIterator[item_pb2.ScanResponse]:
        """Stream all items."""
        index = await self._storage.index(request.index)
        size = request.batch_size or SCAN_ROWS
        if size > MOST_SCAN_ROWS:
            raise FieldError("batch_size", f"batch_size = {size}; at most {MOST_SCAN_ROWS}, or 0 for {SCAN_ROWS}")
        size = max(1, min(size, MESSAGE_BYTES // (8 + index.settings.code_bytes)))
        snapshot = await self._storage.run(index.snapshot)
        pieces = snapshot.scan(size)
        while (rows := await self._storage.run(next, pieces, None)) is not None:
            for part in _fitting(rows):
                yield item_pb2.ScanResponse(items=items_message(part), total=len(snapshot))


def _fitting(rows: Rows) -> Iterator[Rows]:
    """Yield rows in pieces whose payloads fit into a message."""
    first = 0
    while first < len(rows):
        last = len(rows)
        if rows.payloads is not None:
            ends = rows.payloads.ends
            start = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + MESSAGE_BYTES // 2, side="right")))
        whole = first == 0 and last == len(rows)
        yield rows if whole else rows.take(np.arange(first, min(last, len(rows))))
        first = last


class SearchService:
    """Implements ``whamming.v1.SearchService``."""

    def __init__(self, database: Database, scheduler: Scheduler, config: Config) -> None:
        """Search a database."""
        self._database = database
        self._scheduler = scheduler
        self._config = config
        self.streams: set[SearchStream] = set()

    def check(self, request: bytes) -> None:
        """Refuse a batch of too many queries before it is read: empty ones take fifty times as much memory then."""
        count, most = wire.count_queries(request), self._config.max_batch
        if count > most:
            raise FieldError("batch.queries", f"{count} queries in a batch; at most {most}: send several batches")

    async def Search(  # noqa: N802
        self, requests: AsyncIterator[search_pb2.SearchRequest], write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Serve a stream of queries."""
        stream = SearchStream(
            self._database,
            self._scheduler,
            max_k=self._config.max_k,
            max_queries=self._config.max_batch,
            buffer_bytes=self._config.buffer_kb << 10,
            snapshot_seconds=self._config.snapshot_seconds,
        )
        self.streams.add(stream)
        try:
            await stream.run(requests, write)
        finally:
            self.streams.discard(stream)

    def expire(self) -> None:
        """Make queries whose snapshot has become too old end."""
        for stream in list(self.streams):
            stream.expire()

    async def SearchOnce(  # noqa: N802
        self, request: search_pb2.SearchOnceRequest, context: Context
    ) -> search_pb2.SearchOnceResponse:
        """Search one query."""
        result = await search_once(
            request,
            self._database,
            self._scheduler,
            max_k=self._config.max_k,
            most_bytes=ANSWER_BYTES,
            snapshot_seconds=self._config.snapshot_seconds,
        )
        return search_pb2.SearchOnceResponse(result=result)
