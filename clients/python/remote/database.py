"""The asyncio client's database."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import grpc
from numpy.typing import ArrayLike

from whamming.native import Buckets, Tables
from whamming.remote.async_verbs import AsyncDatabaseVerbs
from whamming.remote.index import Index
from whamming.remote.message_size import MessageSize
from whamming.remote.requests import as_text, create_index_request
from whamming.remote.retries import Retries, once
from whamming.remote.search import Connection
from whamming.remote.session import Session
from whamming.remote.status import local_only
from whamming.storage import BitOrder, Durability, Encoder, IndexInfo, KeptVectors, Kind, Metric, VerifyReport
from whamming.storage.store.protocol import Progress
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.verbs import verb
from whamming.v1 import index_pb2
from whamming.v1.index_pb2_grpc import IndexServiceStub
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.v1.search_pb2_grpc import SearchServiceStub
from whamming.wire.descriptions import info_of, settings_of


class Database(Unpicklable, AsyncDatabaseVerbs):
    """Named indexes on a server. Use it in an ``async with`` block, or call :meth:`close`.

    Only one event loop may use it.
    """

    def __init__(self, channel: grpc.aio.Channel, address: str, retry_seconds: float) -> None:
        """Wrap a channel. Users call :func:`whamming.aio.connect`."""
        self.address = address
        self._closed = False
        self._channel = channel
        self._indexes: Any = IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self._items: Any = ItemServiceStub(channel)  # type: ignore[no-untyped-call]
        search: Any = SearchServiceStub(channel)  # type: ignore[no-untyped-call]
        self._message_size = MessageSize()
        self._connection = Connection(search, Session(search), Retries(retry_seconds), self._message_size)
        self._retries = self._connection.retries

    def __repr__(self) -> str:
        return f"Database({self.address!r}{', closed' if self._closed else ''})"

    @verb
    async def __aenter__(self) -> Self:
        return self

    @verb
    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @verb
    async def create_index(
        self,
        name: str,
        bits: int | None = None,
        *,
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        encoder: Kind | Encoder | None = None,
        dim: int | None = None,
        train: ArrayLike | None = None,
        seed: int = 0,
        centre: bool | None = None,
        keep_vectors: KeptVectors | None = None,
        metric: Metric = "l2",
        exist_ok: bool = False,
    ) -> Index:
        choices = {"bit_order": bit_order, "tables": tables, "buckets": buckets}
        if (train is not None or isinstance(encoder, Encoder)) and not self._message_size.is_known:
            await once(lambda: self._list(index_pb2.ListIndexesRequest(page_size=1, names_only=True)))
        request = create_index_request(
            self._message_size,
            name,
            bits,
            encoder,
            dim,
            train,
            seed,
            centre,
            keep_vectors,
            exist_ok,
            durability=durability,
            metric=metric,
            **choices,
        )
        return self._index(await once(lambda: self._indexes.CreateIndex(request)))

    @verb
    async def index(self, name: str) -> Index:
        return self._index(await self._describe(name))

    @verb
    async def list_indexes(self) -> list[str]:
        return [index.name for index in await self._listed(names_only=True)]

    @verb
    async def describe_indexes(self) -> list[IndexInfo]:
        return [info_of(index) for index in await self._listed(names_only=False)]

    async def _listed(self, *, names_only: bool) -> list[index_pb2.Index]:
        indexes: list[index_pb2.Index] = []
        token = ""
        while True:
            request = index_pb2.ListIndexesRequest(page_size=1000, page_token=token, names_only=names_only)
            page = await self._retries.run(lambda request=request: self._list(request))  # type: ignore[misc]
            indexes += page.indexes
            token = page.next_page_token
            if not token:
                return indexes

    async def _list(self, request: index_pb2.ListIndexesRequest) -> index_pb2.ListIndexesResponse:
        page: index_pb2.ListIndexesResponse = await self._indexes.ListIndexes(request)
        self._message_size.learn(page.max_message_bytes)
        return page

    @verb
    async def drop_index(self, name: str) -> None:
        request = index_pb2.DeleteIndexRequest(name=as_text(name))
        await once(lambda: self._indexes.DeleteIndex(request))

    @verb
    async def verify(self, progress: Progress | None = None) -> dict[str, VerifyReport]:
        raise local_only("verify", "run it on the server's machine: whamming verify --data DIR")

    @verb
    async def backup(self, path: str | Path) -> None:
        raise local_only("backup", "run it on the server's machine: whamming backup --data DIR TO")

    @verb
    async def close(self) -> None:
        self._closed = True
        await self._connection.session.close()
        await self._channel.close()

    async def _describe(self, name: str) -> index_pb2.GetIndexResponse:
        request = index_pb2.GetIndexRequest(name=as_text(name))
        response: index_pb2.GetIndexResponse = await self._retries.run(lambda: self._indexes.GetIndex(request))
        self._message_size.learn(response.max_message_bytes)
        return response

    def _index(self, response: index_pb2.CreateIndexResponse | index_pb2.GetIndexResponse) -> Index:
        self._message_size.learn(response.max_message_bytes)
        return Index(self, response.index.name, settings_of(response.index))
