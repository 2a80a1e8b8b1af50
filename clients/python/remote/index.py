"""The asyncio client's index."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from whamming.native import Answer, Budget, InvalidArgumentError, Plan
from whamming.native.arguments import check_k, check_wanted
from whamming.remote.async_verbs import AsyncIndexVerbs
from whamming.remote.batch import BatchSearch
from whamming.remote.queries import Queries, check_shapes, options_message, query_request
from whamming.remote.requests import UpsertRequests, delete_requests, get_request, scan_request
from whamming.remote.retries import once, responses, responses_of
from whamming.remote.search import Search
from whamming.remote.status import local_only
from whamming.storage import (
    ClosedError,
    Durability,
    Encoder,
    Form,
    IndexSettings,
    Items,
    Payloads,
    Rerank,
    Rows,
    Snapshot,
    StoreStats,
    VerifyReport,
    WriteBatch,
)
from whamming.storage.items.rows import as_ids
from whamming.storage.store.protocol import Progress
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.verbs import verb
from whamming.v1 import index_pb2
from whamming.wire.columns import payload_list_of
from whamming.wire.descriptions import stats_of
from whamming.wire.items import items_of
from whamming.wire.service_errors import AnswerTooLargeError, OverloadedError, UnavailableError

if TYPE_CHECKING:
    from whamming.remote.database import Database

GET_BYTES: Final = 2 << 20
"""Size of the ids and codes that one ``Get`` may return. The server's limit, with payloads, is 3 MiB."""


class Index(Unpicklable, AsyncIndexVerbs):
    """One index on a server. Only one event loop may use it."""

    def __init__(self, database: Database, name: str, settings: IndexSettings) -> None:
        """Refer to an index. Users call :meth:`Database.index`."""
        self.name = name
        self.closed = False
        """Whether :meth:`close` was called."""
        self._settings = settings
        self._parent = database

    @property
    @verb
    def settings(self) -> IndexSettings:
        return self._settings

    def __repr__(self) -> str:
        closed = ", closed" if self.closed else ""
        return f"Index({self.name!r}, {self.settings.bits} bits, at {self._parent.address}{closed})"

    @verb
    async def __aenter__(self) -> Self:
        return self

    @verb
    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @verb
    async def encoder(self) -> Encoder | None:
        database = self._database
        if self.settings.dim is None:
            return None
        request = index_pb2.GetEncoderRequest(name=self.name)
        response = await database._retries.run(lambda: database._indexes.GetEncoder(request))
        return Encoder.from_bytes(response.fitted_encoder)

    @verb
    async def count(self) -> int:
        return (await self.stats()).items

    @verb
    async def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        attempts = self._database._retries.begin()
        requests = UpsertRequests(
            self._database._message_size, self.name, self.settings, ids, codes, payloads, vectors, durability
        )
        for _ in requests.checking():
            await asyncio.sleep(0)  # other calls share the loop
        while requests.acknowledged < len(requests):
            before = requests.acknowledged
            try:
                await once(lambda: self._upsert(requests))
            except (UnavailableError, OverloadedError) as error:
                if requests.acknowledged > before:
                    attempts.reset()
                await attempts.wait(error)

    async def _upsert(self, requests: UpsertRequests) -> None:
        """Send all unacknowledged messages on one call."""
        call = self._database._items.Upsert(requests.unacknowledged())
        try:
            async for done in responses(call):
                assert done.sequence == requests.acknowledged
                requests.acknowledged += 1
        finally:
            call.cancel()
        if requests.acknowledged < len(requests):
            raise UnavailableError("the server ended the stream before it wrote all items")

    @verb
    async def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        database, deleted = self._database, 0
        for request in delete_requests(database._message_size, self.name, ids, durability):
            response = await database._retries.run(lambda request=request: database._items.Delete(request))  # type: ignore[misc]
            deleted += response.count
        return deleted

    @verb
    async def batch(
        self,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        vectors: ArrayLike | None = None,
    ) -> WriteBatch:
        raise local_only("batch", "use upsert and delete")

    @verb
    async def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        raise local_only("write", "use upsert and delete")

    @verb
    async def get(self, ids: ArrayLike) -> Items:
        database, wanted = self._database, as_ids(ids)
        found = np.zeros(len(wanted), dtype=np.bool_)
        codes = np.zeros((len(wanted), self.settings.code_bytes), dtype=np.uint8)
        payloads: list[bytes] = []
        size = max(1, min(GET_BYTES // (8 + self.settings.code_bytes), database._message_size.room(GET_BYTES) // 8))
        while len(payloads) < len(wanted):
            piece = slice(len(payloads), len(payloads) + size)
            request = get_request(self.name, wanted[piece])
            try:
                response = await database._retries.run(lambda request=request: database._items.Get(request))  # type: ignore[misc]
            except AnswerTooLargeError:  # because of the payloads
                if size == 1:
                    raise
                size = max(1, min(size, len(wanted)) // 4)
                continue
            codes[piece] = items_of(response.items, self.settings).codes
            found[piece] = np.frombuffer(response.found, dtype=np.bool_)
            payloads += payload_list_of(response.items.payloads, len(response.found))
        return Items(wanted, found, codes, payloads)

    @verb
    async def snapshot(self) -> Snapshot:
        raise local_only("snapshot", "each search and each scan sees the index as it was when it started")

    @verb
    async def scan(self, size: int = 10_000, *, after: int | None = None) -> AsyncGenerator[Rows, None]:
        request, database = scan_request(self.name, size, after), self._database
        attempts = database._retries.begin()
        while True:
            try:
                async with contextlib.aclosing(responses_of(lambda: database._items.Scan(request))) as responses:
                    async for response in responses:
                        rows = items_of(response.items, self.settings)
                        request.after_id = int(rows.ids[-1])
                        attempts.reset()
                        yield rows
                return
            except (UnavailableError, OverloadedError) as error:  # continue after the last item received
                await attempts.wait(error)

    @verb
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
        connection, wanted = self._database._connection, None if k is None else check_wanted(k)
        check_shapes(self.name, self.settings, code, weights, table, vector)
        options = options_message(wanted, radius, plan, payloads=payloads, rerank=rerank)
        request = query_request(self.name, Queries(code, weights, table, vector, costs), options, after)
        return Search(connection, request, wanted)

    @verb
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
        threads: int | None = None,
        rerank: Rerank | None = None,
    ) -> Answer:
        connection = self._database._connection
        if threads is not None:
            raise InvalidArgumentError(
                f"threads = {threads}; it has no effect on a server; leave it out, and set whamming serve --threads"
            )
        check_shapes(self.name, self.settings, codes, weights, table, vectors)
        k, queries = check_k(k), Queries(codes, weights, table, vectors, costs)
        batch = BatchSearch(
            connection, self.name, queries, options_message(k, radius, plan, budget=budget, rerank=rerank), k
        )
        await batch.run()
        return batch.answer(single=queries.single)

    @verb
    async def flush(self) -> None:
        database, request = self._database, index_pb2.FlushIndexRequest(name=self.name)
        await database._retries.run(lambda: database._indexes.FlushIndex(request))

    @verb
    async def seal(self, progress: Progress | None = None) -> None:
        database, request = self._database, index_pb2.SealIndexRequest(name=self.name)
        await _report(lambda: database._indexes.SealIndex(request), progress)

    @verb
    async def compact(self, progress: Progress | None = None) -> None:
        database, request = self._database, index_pb2.CompactIndexRequest(name=self.name)
        await _report(lambda: database._indexes.CompactIndex(request), progress)

    @verb
    async def stats(self) -> StoreStats:
        return stats_of((await self._database._describe(self.name)).index.statistics)

    @verb
    async def verify(self, progress: Progress | None = None) -> VerifyReport:
        raise local_only("verify", "run it on the server's machine: whamming verify --data DIR")

    @verb
    async def backup(self, path: Path) -> None:
        raise local_only("backup", "run it on the server's machine: whamming backup --data DIR TO")

    @verb
    async def close(self) -> None:
        self.closed = True

    @property
    def _database(self) -> Database:
        if self.closed:
            raise ClosedError(f"index {self.name!r} is closed; open it again with Database.index")
        return self._parent


async def _report(call: Callable[[], Any], progress: Progress | None) -> None:
    """Make a call that streams its progress, and report it."""
    async with contextlib.aclosing(responses_of(call)) as responses:
        async for response in responses:
            if progress is not None:
                progress(response.progress)
