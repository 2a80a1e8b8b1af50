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
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc
import numpy as np
from numpy.typing import ArrayLike

from whamming.native import Answer, Buckets, Budget, InvalidArgumentError, Plan, Tables
from whamming.native.arguments import as_whole, check_wanted, checked_place
from whamming.remote.batch import Batch
from whamming.remote.messages import Queries, encoder_messages, item_messages, options_message
from whamming.remote.retries import Retries, once, responses, responses_of
from whamming.remote.search import Connection, Search
from whamming.remote.session import Session
from whamming.remote.tls import Tls
from whamming.storage import (
    BitOrder,
    Durability,
    Encoder,
    Form,
    IndexSettings,
    Items,
    KeptVectors,
    Kind,
    Metric,
    Rerank,
    Rows,
    StoreStats,
)
from whamming.storage.items.rows import as_ids
from whamming.v1 import index_pb2, item_pb2
from whamming.v1.index_pb2_grpc import IndexServiceStub
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.v1.search_pb2_grpc import SearchServiceStub
from whamming.wire.columns import id_column, payload_list_of
from whamming.wire.descriptions import settings_message, settings_of, stats_of
from whamming.wire.enums import DURABILITIES
from whamming.wire.items import items_of
from whamming.wire.service_errors import AnswerTooLargeError, OverloadedError, UnavailableError

RETRY_SECONDS: Final = 30.0
"""For how long a call that may be repeated is tried again while the server is away."""
RECEIVE_BYTES: Final = 64 << 20
MOST_IDS: Final = 500_000
"""Of items to delete, in one message."""
ANSWER_BYTES: Final = 2 << 20
"""Of ids and codes that are asked for in one message; a server sends 3 MiB with their payloads."""
MOST_SCAN_ROWS: Final = 100_000
"""What a server sends in one message, at most."""


OPTIONS: Final = [
    ("grpc.max_receive_message_length", RECEIVE_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]
"""What gRPC is told."""


async def connect(
    address: str, *, tls: Tls | bool = False, timeout: float = 10.0, retry_seconds: float = RETRY_SECONDS
) -> Database:
    """Connect to a server.

    Parameters
    ----------
    address : HOST:PORT, as ``whamming serve`` prints it.
    tls : how to connect to a server with a certificate; True trusts the usual authorities.
    timeout : seconds to wait for the server before :class:`UnavailableError` is raised.
    retry_seconds : for how long calls that may be repeated are tried again while the server is away; 0: not at all.
    """
    if tls:
        credentials = (tls if isinstance(tls, Tls) else Tls()).credentials()
        channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
    else:
        channel = grpc.aio.insecure_channel(address, options=OPTIONS)
    try:
        await asyncio.wait_for(channel.channel_ready(), timeout)
    except TimeoutError:
        await channel.close()
        how, remedy = "", f"start one with: whamming serve --listen {address}; if it has a certificate, connect by TLS"
        if tls:
            how = " by TLS"
            remedy = "it needs a certificate for that name from an authority that you trust, and may ask you for yours"
        raise UnavailableError(f"no server answers at {address}{how} within {timeout} s; {remedy}") from None
    return Database(channel, address, retry_seconds)


class Database:
    """Named indexes on a server. Use it in an ``async with`` block, or call :meth:`close`."""

    def __init__(self, channel: grpc.aio.Channel, address: str, retry_seconds: float) -> None:
        """Wrap a channel; prefer :func:`connect`."""
        self.address = address
        self._channel = channel
        self._indexes: Any = IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self._items: Any = ItemServiceStub(channel)  # type: ignore[no-untyped-call]
        search: Any = SearchServiceStub(channel)  # type: ignore[no-untyped-call]
        self._connection = Connection(search, Session(search), Retries(retry_seconds))
        self._retries = self._connection.retries

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
        bits: int | None = None,
        *,
        encoder: Kind | Encoder | None = None,
        dim: int | None = None,
        train: ArrayLike | None = None,
        seed: int = 0,
        centre: bool | None = None,
        keep_vectors: KeptVectors | None = None,
        metric: Metric = "l2",
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        exist_ok: bool = False,
    ) -> Index:
        """Make an index; see :meth:`whamming.Database.create_index`. Raises :class:`AlreadyExistsError`.

        An encoder is made on the server, from at most 12 MiB of the sample ``train``.
        """
        made, fitted = encoder_messages(encoder, dim, train, seed, centre)
        if bits is None and encoder is None:
            raise InvalidArgumentError("bits is missing; say how long codes are")
        settings = settings_message(
            bits,
            keep_vectors,
            bit_order=bit_order,
            tables=tables,
            buckets=buckets,
            durability=durability,
            metric=metric,
        )
        request = index_pb2.CreateIndexRequest(
            name=name, settings=settings, exist_ok=exist_ok, encoder=made, fitted_encoder=fitted
        )
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
        await self._connection.session.close()
        await self._channel.close()

    async def _describe(self, name: str) -> index_pb2.Index:
        request = index_pb2.GetIndexRequest(name=name)
        response = await self._retries.run(lambda: self._indexes.GetIndex(request))
        described: index_pb2.Index = response.index
        return described

    def _index(self, message: index_pb2.Index) -> Index:
        return Index(self, message.name, settings_of(message))


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
        return stats_of((await self._database._describe(self.name)).statistics)

    async def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists; see :meth:`whamming.StoredIndex.upsert`.

        Everything is checked before anything is sent. What fits into a message of 4 MiB is written whole or not at all;
        more is written message by message, and where the connection breaks for good, the first ones are there.
        """
        wanted = DURABILITIES.number("durability", durability)
        unsent = [
            item_pb2.UpsertRequest(index=self.name, sequence=sequence, items=items, durability=wanted)
            for sequence, items in enumerate(item_messages(ids, codes, payloads, vectors))
        ]
        attempts = self._database._retries.begin()
        while unsent:
            before = len(unsent)
            try:
                await once(lambda: self._upsert(unsent))
            except (UnavailableError, OverloadedError) as error:
                if len(unsent) < before:
                    attempts.reset()
                await attempts.wait(error)

    async def encoder(self) -> Encoder | None:
        """Return what makes codes and costs of vectors; None: codes are made elsewhere."""
        if self.settings.dim is None:
            return None
        request = index_pb2.GetEncoderRequest(name=self.name)
        response = await self._database._retries.run(lambda: self._database._indexes.GetEncoder(request))
        return Encoder.from_bytes(response.fitted_encoder)

    async def _upsert(self, unsent: list[item_pb2.UpsertRequest]) -> None:
        """Send batches on one call, and take those that are acknowledged off the list."""
        call = self._database._items.Upsert(iter(list(unsent)))
        try:
            async for done in responses(call):
                assert done.sequence == unsent[0].sequence
                del unsent[0]
        finally:
            call.cancel()
        if unsent:
            raise UnavailableError("the server ended the stream before it had written everything")

    async def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        """Remove items; ids that do not exist are ignored. Returns how many existed.

        More than 500,000 are removed message by message.
        """
        wanted, unwanted, count = DURABILITIES.number("durability", durability), as_ids(ids), 0
        for first in range(0, len(unwanted), MOST_IDS):
            column = id_column(unwanted[first : first + MOST_IDS])
            request = item_pb2.DeleteRequest(index=self.name, ids=column, durability=wanted)
            response = await self._database._retries.run(lambda request=request: self._database._items.Delete(request))  # type: ignore[misc]
            count += response.count
        return count

    async def get(self, ids: ArrayLike) -> Items:
        """Look items up by id. What does not fit into one message is asked for piece by piece."""
        wanted = as_ids(ids)
        found = np.zeros(len(wanted), dtype=np.bool_)
        codes = np.zeros((len(wanted), self.settings.code_bytes), dtype=np.uint8)
        payloads: list[bytes] = []
        size = max(1, ANSWER_BYTES // (8 + self.settings.code_bytes))
        while len(payloads) < len(wanted):
            piece = slice(len(payloads), len(payloads) + size)
            request = item_pb2.GetRequest(index=self.name, ids=id_column(wanted[piece]))
            try:
                response = await self._database._retries.run(lambda request=request: self._database._items.Get(request))  # type: ignore[misc]
            except AnswerTooLargeError:  # for its payloads
                if size == 1:
                    raise
                size = max(1, min(size, len(wanted)) // 4)
                continue
            codes[piece] = items_of(response.items, self.settings).codes
            found[piece] = np.frombuffer(response.found, dtype=np.bool_)
            payloads += payload_list_of(response.items.payloads, len(response.found))
        return Items(wanted, found, codes, payloads)

    async def scan(self, size: int = 10_000) -> AsyncGenerator[Rows, None]:
        """Return all items of a snapshot, in no particular order, in pieces of at most ``size``."""
        if as_whole("size", size) < 1:
            raise InvalidArgumentError(f"size = {size}; it must be 1 or more items")
        request = item_pb2.ScanRequest(index=self.name, batch_size=min(size, MOST_SCAN_ROWS))
        async with contextlib.aclosing(responses_of(lambda: self._database._items.Scan(request))) as responses:
            async for response in responses:
                yield items_of(response.items, self.settings)

    def search(
        self,
        code: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        table: ArrayLike | None = None,
        vector: ArrayLike | None = None,
        costs: Form | None = None,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        payloads: bool = False,
        after: tuple[float, int] | None = None,
        rerank: Rerank | None = None,
    ) -> Search:
        """Search one query; see :meth:`whamming.StoredIndex.search`. Iterate what it returns with ``async for``."""
        wanted = None if k is None else check_wanted(k)
        queries = Queries(code, weights, table, vector, costs)
        if len(queries) != 1:
            raise InvalidArgumentError(f"search takes one query, these are {len(queries)}; use search_batch")
        options = options_message(wanted, radius, plan, payloads=payloads, rerank=rerank)
        query = queries.message(self.name, np.zeros(1, dtype=np.int64), options)
        if after is not None:
            distance, last_id = checked_place(after)
            query.after_distances.append(distance)
            query.after_ids.CopyFrom(id_column(np.array([last_id], dtype=np.uint64)))
        return Search(self._database._connection, query, wanted)

    async def search_batch(
        self,
        codes: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        table: ArrayLike | None = None,
        vectors: ArrayLike | None = None,
        costs: Form | None = None,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        budget: Budget | None = None,
        rerank: Rerank | None = None,
    ) -> Answer:
        """Search many queries at once; see :meth:`whamming.StoredIndex.search_batch`."""
        k = as_whole("k", k)
        if not 0 <= k < 2**31:
            raise InvalidArgumentError(f"k = {k}; it must be 0 to {2**31 - 1}: iterate a search for more")
        queries = Queries(codes, weights, table, vectors, costs)
        options = options_message(k, radius, plan, budget=budget, rerank=rerank)
        batch = Batch(self._database._connection, self.name, queries, options, k)
        await batch.run()
        return batch.answer(single=queries.single)

    async def seal(self, progress: Callable[[float], None] | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many."""
        async for share in self.sealing():
            if progress is not None:
                progress(share)

    def sealing(self) -> AsyncGenerator[float, None]:
        """Seal; yields the share done now and then."""
        request = index_pb2.SealIndexRequest(name=self.name)
        return _shares(lambda: self._database._indexes.SealIndex(request))

    async def compact(self, progress: Callable[[float], None] | None = None) -> None:
        """Merge everything into one segment, without the items that are gone."""
        async for share in self.compacting():
            if progress is not None:
                progress(share)

    def compacting(self) -> AsyncGenerator[float, None]:
        """Compact; yields the share done now and then."""
        request = index_pb2.CompactIndexRequest(name=self.name)
        return _shares(lambda: self._database._indexes.CompactIndex(request))


async def _shares(call: Callable[[], Any]) -> AsyncGenerator[float, None]:
    async with contextlib.aclosing(responses_of(call)) as responses:
        async for response in responses:
            yield response.progress
