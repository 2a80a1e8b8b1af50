"""A server in this process, and the clients that run fuzz cases on it and inspect its state."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
import numpy as np

from tests.server.answers import SNAPSHOT_EXPIRED, Chunk, chunks_of
from tests.server.columns import pack_ids, pack_payloads
from tests.server.fuzz_cases import METHODS, Case
from tests.server.fuzz_checks import MAX_RESPONSES, Checks
from tests.server.fuzz_oracle import Control
from tests.server.fuzz_statuses import Answer, UnsoundError, expect
from tests.server.fuzz_values import CONTROLS, ENCODED, MAX_BATCH, MAX_MESSAGE, VICTIMS, fitted_encoder
from tests.server.questions import Options, Question, batch_of, once_of
from whamming.server import Config, Server
from whamming.server.search.call import SearchCall
from whamming.server.search.query import Query
from whamming.server.search.request import QueryRequest
from whamming.storage import IndexSettings
from whamming.v1 import index_pb2, item_pb2, search_pb2

CALL_SECONDS: Final = 60.0
"""A call that takes longer counts as hung."""
CONTROL_ITEMS: Final = 300
MAX_INDEXES: Final = 40
"""Cases with damaged names create new indexes. If there are more than this, they are dropped."""
CHANNELS: Final = 4

_INDEX: Final = "/whamming.v1.IndexService/"
_ITEM: Final = "/whamming.v1.ItemService/"
_SEARCH: Final = "/whamming.v1.SearchService/"

Hits = list[tuple[int, float]]


def config(data: str) -> Config:
    """Return a server configuration with limits that cases can reach."""
    return Config(
        listen="127.0.0.1:0",
        data=data,
        threads=2,
        max_message_mb=MAX_MESSAGE >> 20,
        max_batch=MAX_BATCH,
        buffer_kb=16,
        snapshot_seconds=0.5,
        grace_seconds=2.0,
        log_level="warning",
    )


class LoggedErrors(logging.Handler):
    """Collects logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, unless gRPC logged it for a method that is not ours."""
        text = logging.Formatter("%(name)s: %(message)s").format(record)
        if not record.name.startswith("grpc") or "/whamming." in text:
            self.texts.append(text)


@contextlib.contextmanager
def collect_logged_errors() -> Iterator[LoggedErrors]:
    """Collect all errors that are logged in the block."""
    logged, root = LoggedErrors(), logging.getLogger()
    root.addHandler(logged)
    try:
        yield logged
    finally:
        root.removeHandler(logged)


class Fuzz:
    """A running server, its clients, and the checks of their answers."""

    def __init__(self, server: Server, logged: LoggedErrors) -> None:
        self.server = server
        self.logged = logged
        self.controls = {
            "control": Control.make(IndexSettings(CONTROLS["control"]), CONTROL_ITEMS),
            "control-big": Control.make(
                IndexSettings(CONTROLS["control-big"], bit_order="big", tables="none"), CONTROL_ITEMS
            ),
        }
        self.checks = Checks(self.controls)
        self.channels = [
            grpc.aio.insecure_channel(server.address, options=[("grpc.use_local_subchannel_pool", 1)])
            for _ in range(CHANNELS)
        ]

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()

    # -- cases ------------------------------------------------------------------------------------------------------

    async def run(self, case: Case, number: int = 0) -> None:
        """Run a case. Raises :class:`UnsoundError` if its answer is wrong."""
        try:
            async with asyncio.timeout(2 * CALL_SECONDS):
                answer = await self.call(case, self.channels[number % CHANNELS])
        except TimeoutError:
            raise UnsoundError(f"the call has not ended after {2 * CALL_SECONDS:.0f} s") from None
        self.checks.check(case, answer)
        expect(not self.logged.texts, "\n".join(["an error was logged:", *self.logged.texts]))

    async def call(self, case: Case, channel: Any) -> Answer:
        """Run the steps of a case and return the answer."""
        timeout = CALL_SECONDS if case.timeout is None else case.timeout
        method = METHODS.get(case.method)
        if method is not None and not method.client_streaming and [verb for verb, _ in case.steps] == ["send"]:
            if method.server_streaming:
                call = channel.unary_stream(case.method)(case.steps[0][1], timeout=timeout)
                return await _ended(call, await _Reader(call).rest())
            call = channel.unary_unary(case.method)(case.steps[0][1], timeout=timeout)
            with contextlib.suppress(grpc.aio.AioRpcError):
                return Answer(grpc.StatusCode.OK, responses=[await call])
            return await _ended(call, [])
        call = channel.stream_stream(case.method)(timeout=timeout)
        reader = _Reader(call)
        try:
            for verb, value in case.steps:
                if verb == "send":
                    await _write(call, value)
                elif verb == "close":
                    await call.done_writing()
                elif verb == "cancel":
                    call.cancel()
                    break
                elif verb == "read":
                    reader.allow(value)
                else:
                    for _ in range(value):
                        await asyncio.sleep(0)
            if not call.cancelled():
                await call.done_writing()
        except (grpc.aio.AioRpcError, grpc.aio.InternalError, asyncio.InvalidStateError):
            pass  # the server ended the call early
        return await _ended(call, await reader.rest())

    # -- the state of the server ------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Connect, and create the indexes."""
        for channel in self.channels:
            await channel.channel_ready()
        for name, control in self.controls.items():
            await self._create(name, control.settings)
            await self._upsert(name, control.ids.tolist(), control.codes.tobytes(), control.payloads)
        for name in VICTIMS:
            await self._make_victim(name)

    async def _make_victim(self, name: str) -> None:
        bits = VICTIMS[name]
        await self._create(name, IndexSettings(bits), fitted_encoder() if name == ENCODED else b"")
        codes = np.random.default_rng(0).bytes(50 * ((bits + 7) // 8))
        await self._upsert(name, list(range(50)), codes, ())

    async def _create(self, name: str, settings: IndexSettings, encoder: bytes = b"") -> None:
        message = index_pb2.IndexSettings(
            bits=settings.bits,
            bit_order=index_pb2.BIT_ORDER_BIG if settings.bit_order == "big" else index_pb2.BIT_ORDER_LITTLE,
            tables=index_pb2.TABLES_NONE if settings.tables == "none" else index_pb2.TABLES_SINGLE,
        )
        request = index_pb2.CreateIndexRequest(name=name, settings=message, fitted_encoder=encoder)
        await self.channels[0].unary_unary(_INDEX + "CreateIndex")(request.SerializeToString())

    async def _upsert(self, name: str, ids: Sequence[int], codes: bytes, payloads: Sequence[bytes]) -> None:
        items = item_pb2.ItemBatch(
            ids=pack_ids(ids), codes=codes, payloads=pack_payloads(payloads) if payloads else None
        )
        request = item_pb2.UpsertRequest(index=name, items=items)
        call = self.channels[0].stream_stream(_ITEM + "Upsert")()
        await call.write(request.SerializeToString())
        await call.done_writing()
        expect(item_pb2.UpsertResponse.FromString(await call.read()).count == len(ids), "items were not written")

    async def control(self, rng: random.Random) -> None:
        """Check control searches of each kind. Then recreate one victim index, and drop surplus indexes."""
        name = rng.choice(list(self.controls))
        control = self.controls[name]
        weights = np.array([rng.uniform(0, 1) for _ in range(control.settings.bits)])
        question = Question(1, rng.randbytes(control.settings.code_bytes), weights)
        k = rng.choice((1, 10, CONTROL_ITEMS, 1000))
        [expected] = control.expected(batch_of(name, [question], Options(k=k)))
        assert expected.whole is not None
        wanted = list(zip(expected.whole.ids.tolist(), expected.whole.distances.tolist(), strict=True))
        for search in (self._search_once, self._search):
            found = await search(name, question, k)
            expect(found == wanted, f"control: {found}")
        listed = await self.indexes()
        expect(set(self.controls) <= set(listed), f"a control index is gone: {listed}")
        if len(listed) > MAX_INDEXES:
            await self.drop([name for name in listed if name not in self.controls and name not in VICTIMS])
        victim = rng.choice(list(VICTIMS))
        await self.drop([victim])
        with contextlib.suppress(grpc.aio.AioRpcError):  # a case has created it already
            await self._make_victim(victim)

    async def _search_once(self, name: str, question: Question, k: int) -> Hits:
        request = once_of(name, question, Options(k=k))
        data = await self.channels[0].unary_unary(_SEARCH + "SearchOnce")(request.SerializeToString())
        answer = search_pb2.SearchOnceResponse.FromString(data)
        hits = [(hit.id, hit.distance) for hit in answer.hits]
        place = (answer.resume.distance, answer.resume.id) if answer.HasField("resume") else None
        return await self._rest(self._search_once, name, replace(question, after=place), k, hits, answer)

    async def _search(self, name: str, question: Question, k: int) -> Hits:
        request = search_pb2.SearchRequest(queries=batch_of(name, [question], Options(k=k)))
        call = self.channels[0].stream_stream(_SEARCH + "Search")()
        await call.write(request.SerializeToString())
        await call.done_writing()
        chunks: list[Chunk] = []
        while (data := await call.read()) is not grpc.aio.EOF:
            chunks += chunks_of(search_pb2.SearchResponse.FromString(data))
        hits = [hit for chunk in chunks for hit in zip(chunk.ids, chunk.distances, strict=True)]
        end = chunks[-1].end
        assert end is not None
        return await self._rest(self._search, name, replace(question, after=end.resume), k, hits, end)

    async def _rest(
        self,
        search: Callable[[str, Question, int], Awaitable[Hits]],
        name: str,
        question: Question,
        k: int,
        hits: Hits,
        end: Any,
    ) -> Hits:
        """Return the hits and, if the snapshot expired on a slow machine, the remaining ones."""
        if end.reason == SNAPSHOT_EXPIRED:
            return hits + await search(name, question, k - len(hits))
        expect(end.exact, f"control: {end}")
        return hits

    async def indexes(self) -> list[str]:
        """Return the names of all indexes."""
        request = index_pb2.ListIndexesRequest(page_size=1000)
        data = await self.channels[0].unary_unary(_INDEX + "ListIndexes")(request.SerializeToString())
        return [index.name for index in index_pb2.ListIndexesResponse.FromString(data).indexes]

    async def drop(self, names: Sequence[str]) -> None:
        for name in names:
            with contextlib.suppress(grpc.aio.AioRpcError):  # a case has dropped it already
                request = index_pb2.DeleteIndexRequest(name=name)
                await self.channels[0].unary_unary(_INDEX + "DeleteIndex")(request.SerializeToString())

    async def check_idle(self) -> None:
        """Wait until no call is running and everything is freed."""
        end = time.monotonic() + 10
        while left := self._running():
            expect(time.monotonic() < end, f"still running: {left}")
            await asyncio.sleep(0.01)

    def _running(self) -> dict[str, int]:
        server = self.server
        left = {
            "calls": server._clients.count,
            "searches": len(server._search._calls),
            "flows": len(server._searcher._scheduler._heap),
        }
        if not any(left.values()):
            gc.collect()
            kinds = Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in _TRANSIENT)
            left |= dict(kinds)
        return {what: count for what, count in left.items() if count}


_TRANSIENT: Final = (SearchCall, Query, QueryRequest)


class _Reader:
    """Reads as many responses as it is allowed to."""

    def __init__(self, call: Any) -> None:
        self._call = call
        self._allowed = 0
        self._more = asyncio.Event()
        self._responses: list[bytes] = []
        self._task = asyncio.create_task(self._read())

    def allow(self, count: int) -> None:
        self._allowed += count
        self._more.set()

    async def rest(self) -> list[bytes]:
        """Read until the end of the call, and return all responses."""
        self.allow(10**9)
        await self._task
        return self._responses

    async def _read(self) -> None:
        try:
            while True:
                while not self._allowed:
                    self._more.clear()
                    await self._more.wait()
                self._allowed -= 1
                data = await self._call.read()
                if data is grpc.aio.EOF:
                    return
                self._responses.append(data)
                if len(self._responses) == MAX_RESPONSES:
                    self._call.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise


async def _write(call: Any, data: bytes) -> None:
    """Send a message.

    ``call.write`` would replace the server's status by INTERNAL if the server ends the call meanwhile
    (https://github.com/grpc/grpc/issues/36066).
    """
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(data)


async def _ended(call: Any, responses: list[bytes]) -> Answer:
    code = await call.code()
    return Answer(code, await call.details() or "", tuple(await call.trailing_metadata() or ()), responses)


@contextlib.asynccontextmanager
async def fuzzing(data: str) -> AsyncIterator[Fuzz]:
    """Run a server, and check at the end that nothing has leaked."""
    with collect_logged_errors() as logged:
        before = set(threading.enumerate())
        server = Server(config(data))
        await server.start()
        try:
            fuzz = Fuzz(server, logged)
            try:
                await fuzz.prepare()
                yield fuzz
                await fuzz.check_idle()
            finally:
                await fuzz.close()
        finally:
            await server.stop()
        names = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("whamming")]
        expect(not names, f"threads that are still running: {names}")
        expect(not logged.texts, "\n".join(["an error was logged:", *logged.texts]))
