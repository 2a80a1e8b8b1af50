"""Fuzz a server: ``python -m tests.server.fuzz``; see ``--help``.

The server and many clients share this process and its event loop. A failure is printed with its seed, its number and
what was sent; ``--seed S --first N --cases 1`` makes that case again, ``--replay FILE`` runs one that was written down.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from tests.server.fuzz_cases import (
    CONTROLS,
    ENCODED,
    MAX_BATCH,
    MAX_MESSAGE,
    METHODS,
    VICTIMS,
    Case,
    fitted_encoder,
    make_case,
)
from tests.server.fuzz_checks import MOST_RESPONSES, Answer, Checks, Control, UnsoundError, expect
from whamming.server import Config, Server
from whamming.server.search.queries import BatchedQueries, StreamedQuery
from whamming.server.search.searching import Arrival, SearchStream
from whamming.storage import IndexSettings
from whamming.v1 import index_pb2, item_pb2, search_pb2

CALL_SECONDS: Final = 60.0
"""A call that takes longer hangs."""
CONTROL_EVERY: Final = 250
"""Cases between two looks at whether the server still answers right."""
CONTROL_ITEMS: Final = 300
MOST_INDEXES: Final = 40
"""Damaged names make new indexes; where there are more than so many, they are dropped."""
CHANNELS: Final = 4
GROWTH: Final = 96 << 20
"""Bytes that the process, server and clients together, may grow by after the first tenth of the cases."""
SHOWN: Final = 4000
"""Hexadecimal digits of a message that are printed."""

_INDEX: Final = "/whamming.v1.IndexService/"
_ITEM: Final = "/whamming.v1.ItemService/"
_SEARCH: Final = "/whamming.v1.SearchService/"


def config(data: str) -> Config:
    """Return a server's settings with limits that cases can reach."""
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


class FoundError(AssertionError):
    """The fuzz has found something; says what, and how to see it again."""


@dataclass
class Report:
    """What a run came to."""

    seed: int
    cases: int = 0
    seconds: float = 0.0
    work: float = 0.0
    """Seconds of processor time, of the server and its clients."""
    compared: int = 0
    controls: int = 0
    grown: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        """Say it in a line."""
        return (
            f"seed {self.seed}: {self.cases:,} cases in {self.seconds:.0f} s ({self.work:.0f} s of processor time), "
            f"{self.cases / self.seconds:.0f} per second; "
            f"{self.compared:,} searches and {self.controls} controls compared with the oracle; "
            f"grown by {self.grown / 2**20:.0f} MiB"
        )


class Complaints(logging.Handler):
    """Keeps what is logged as an error."""

    def __init__(self) -> None:
        """Start with none."""
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record, unless it is gRPC's and not of a method of ours."""
        text = logging.Formatter("%(name)s: %(message)s").format(record)
        if not record.name.startswith("grpc") or "/whamming." in text:
            self.texts.append(text)


@contextlib.contextmanager
def listening() -> Iterator[Complaints]:
    """Hear all errors that are logged."""
    complaints, root = Complaints(), logging.getLogger()
    root.addHandler(complaints)
    try:
        yield complaints
    finally:
        root.removeHandler(complaints)


class Fuzz:
    """A server, its clients, and what has been found."""

    def __init__(self, server: Server, complaints: Complaints) -> None:
        """Connect to a running server."""
        self.server = server
        self.complaints = complaints
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
        """Disconnect."""
        for channel in self.channels:
            await channel.close()

    # -- cases ------------------------------------------------------------------------------------------------------

    async def run(self, case: Case, number: int = 0) -> None:
        """Run a case; raises :class:`UnsoundError`."""
        try:
            async with asyncio.timeout(2 * CALL_SECONDS):
                answer = await self.call(case, self.channels[number % CHANNELS])
        except TimeoutError:
            raise UnsoundError(f"the call has not ended after {2 * CALL_SECONDS:.0f} s") from None
        self.checks.check(case, answer)
        expect(not self.complaints.texts, "\n".join(["an error was logged:", *self.complaints.texts]))

    async def call(self, case: Case, channel: Any) -> Answer:
        """Do what a case says; returns what came of it."""
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
            pass  # the call has ended before all was said
        return await _ended(call, await reader.rest())

    # -- the state of the server ------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Connect; make the indexes."""
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
        items = item_pb2.ItemBatch(ids=ids, codes=codes, payloads=payloads)
        request = item_pb2.UpsertRequest(index=name, items=items)
        call = self.channels[0].stream_stream(_ITEM + "Upsert")()
        await call.write(request.SerializeToString())
        await call.done_writing()
        expect(item_pb2.UpsertResponse.FromString(await call.read()).count == len(ids), "items were not written")

    async def control(self, rng: random.Random) -> None:
        """Expect an exact answer to a plain search of each kind; make a victim anew, and room for new names."""
        name = rng.choice(list(self.controls))
        control = self.controls[name]
        query = search_pb2.Query(id=1, code=rng.randbytes(control.settings.code_bytes))
        query.weights.extend(rng.uniform(0, 1) for _ in range(control.settings.bits))
        query.options.k = rng.choice((1, 10, CONTROL_ITEMS, 1000))
        wanted = control.truth(query, query.options)
        assert wanted is not None
        for search in (self._search_once, self._search):
            found = await search(name, query)
            expect(found == list(zip(wanted.ids.tolist(), wanted.distances.tolist(), strict=True)), f"control: {found}")
        listed = await self.indexes()
        expect(set(self.controls) <= set(listed), f"a control index is gone: {listed}")
        if len(listed) > MOST_INDEXES:
            await self.drop([name for name in listed if name not in self.controls and name not in VICTIMS])
        victim = rng.choice(list(VICTIMS))
        await self.drop([victim])
        with contextlib.suppress(grpc.aio.AioRpcError):  # a case has been faster
            await self._make_victim(victim)

    async def _search_once(self, name: str, query: search_pb2.Query) -> list[tuple[int, float]]:
        request = search_pb2.SearchOnceRequest(index=name, query=query)
        data = await self.channels[0].unary_unary(_SEARCH + "SearchOnce")(request.SerializeToString())
        return await self._rest(self._search_once, name, query, [search_pb2.SearchOnceResponse.FromString(data).result])

    async def _search(self, name: str, query: search_pb2.Query) -> list[tuple[int, float]]:
        request = search_pb2.SearchRequest(batch=search_pb2.QueryBatch(index=name, queries=[query]))
        call = self.channels[0].stream_stream(_SEARCH + "Search")()
        await call.write(request.SerializeToString())
        await call.done_writing()
        chunks: list[search_pb2.Chunk] = []
        while (data := await call.read()) is not grpc.aio.EOF:
            chunks += search_pb2.SearchResponse.FromString(data).chunks
        return await self._rest(self._search, name, query, chunks)

    async def _rest(
        self,
        search: Callable[[str, search_pb2.Query], Awaitable[list[tuple[int, float]]]],
        name: str,
        query: search_pb2.Query,
        chunks: Sequence[search_pb2.Chunk],
    ) -> list[tuple[int, float]]:
        """Return the hits of some chunks and, where the snapshot has become too old on a slow machine, the others."""
        hits = [hit for chunk in chunks for hit in zip(chunk.ids, chunk.distances, strict=True)]
        end = chunks[-1].end
        if end.reason == search_pb2.END_REASON_SNAPSHOT_EXPIRED:
            rest = search_pb2.Query.FromString(query.SerializeToString())
            rest.options.k -= len(hits)
            if end.HasField("resume"):
                rest.after.CopyFrom(end.resume)
            return hits + await search(name, rest)
        expect(end.exact, f"control: {end}")
        return hits

    async def indexes(self) -> list[str]:
        """Return the names of all indexes."""
        request = index_pb2.ListIndexesRequest(page_size=1000)
        data = await self.channels[0].unary_unary(_INDEX + "ListIndexes")(request.SerializeToString())
        return [index.name for index in index_pb2.ListIndexesResponse.FromString(data).indexes]

    async def drop(self, names: Sequence[str]) -> None:
        """Remove indexes."""
        for name in names:
            with contextlib.suppress(grpc.aio.AioRpcError):  # a case has dropped it already
                request = index_pb2.DeleteIndexRequest(name=name)
                await self.channels[0].unary_unary(_INDEX + "DeleteIndex")(request.SerializeToString())

    async def check_quiet(self) -> None:
        """Expect that nothing is under way any more."""
        end = time.monotonic() + 10
        while left := self._under_way():
            expect(time.monotonic() < end, f"still under way: {left}")
            await asyncio.sleep(0.01)

    def _under_way(self) -> dict[str, int]:
        server = self.server
        left = {
            "calls": server._admission.count,
            "streams": len(server._search.streams),
            "flows": len(server._scheduler._heap),
        }
        if not any(left.values()):
            gc.collect()
            kinds = Counter(type(thing).__name__ for thing in gc.get_objects() if type(thing) in _TRANSIENT)
            left |= dict(kinds)
        return {what: count for what, count in left.items() if count}


_TRANSIENT: Final = (SearchStream, Arrival, StreamedQuery, BatchedQueries)


class _Reader:
    """Reads responses, as many as it is allowed to."""

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
        """Return all responses, when there are no more."""
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
                if len(self._responses) == MOST_RESPONSES:
                    self._call.cancel()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        except asyncio.CancelledError:
            if not self._call.cancelled():
                raise


async def _write(call: Any, data: bytes) -> None:
    """Send a message. As ``call.write``, which puts INTERNAL in the place of the server's status where the server has
    ended the call meanwhile (https://github.com/grpc/grpc/issues/36066)."""
    await call.wait_for_connection()
    await call._cython_call.send_serialized_message(data)


async def _ended(call: Any, responses: list[bytes]) -> Answer:
    code = await call.code()
    return Answer(code, await call.details() or "", tuple(await call.trailing_metadata() or ()), responses)


@contextlib.asynccontextmanager
async def fuzzing(data: str) -> AsyncIterator[Fuzz]:
    """Serve, and expect at the end that nothing is left behind."""
    with listening() as complaints:
        before = set(threading.enumerate())
        server = Server(config(data))
        await server.start()
        try:
            fuzz = Fuzz(server, complaints)
            try:
                await fuzz.prepare()
                yield fuzz
                await fuzz.check_quiet()
            finally:
                await fuzz.close()
        finally:
            await server.stop()
        names = [thread.name for thread in set(threading.enumerate()) - before if thread.name.startswith("whamming")]
        expect(not names, f"threads that live on: {names}")
        expect(not complaints.texts, "\n".join(["an error was logged:", *complaints.texts]))


async def fuzz_service(
    seed: int,
    cases: int,
    data: str,
    *,
    first: int = 0,
    workers: int = 48,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Run cases, many at a time; raises :class:`FoundError` at the first that shows something wrong."""
    report = Report(seed)
    numbers = iter(range(first, first + cases))
    rng = random.Random(seed)
    start, worked = time.perf_counter(), time.process_time()
    settled = 0

    async with fuzzing(data) as fuzz:
        files = open_files()

        async def work() -> None:
            nonlocal settled
            for number in numbers:
                case = make_case(seed, number)
                try:
                    await fuzz.run(case, number)
                    report.cases += 1
                    if report.cases % CONTROL_EVERY == 0:
                        await fuzz.control(rng)
                        report.controls += 1
                        progress(report.cases)
                except UnsoundError as error:
                    raise FoundError(describe(seed, number, case, error)) from error
                if not settled and report.cases >= cases // 10:
                    settled = resident()

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        report.seconds, report.work = time.perf_counter() - start, time.process_time() - worked
        await fuzz.check_quiet()
        for _ in range(4):
            await fuzz.control(rng)
            report.controls += 1
        await fuzz.drop([name for name in await fuzz.indexes() if name not in fuzz.controls])
        await fuzz.check_quiet()
        expect(open_files() <= files, f"{open_files()} open files, {files} at first")
        report.grown = resident() - settled
        report.compared, report.statuses, report.ends = fuzz.checks.compared, fuzz.checks.statuses, fuzz.checks.ends
        if settled:
            expect(report.grown <= GROWTH, f"grown by {report.grown / 2**20:.0f} MiB, at most {GROWTH / 2**20:.0f}")
    return report


def describe(seed: int, number: int, case: Case, error: Exception) -> str:
    """Say what went wrong, and how to see it again."""
    lines = [
        f"{error}",
        f"seed {seed}, case {number}: {case.method}, timeout {case.timeout}",
        *(f"  {verb} {_shown(value) if verb == 'send' else value}" for verb, value in case.steps),
        f"again: python -m tests.server.fuzz --seed {seed} --first {number} --cases 1",
        f"after the ones before it: python -m tests.server.fuzz --seed {seed} --cases {number + 1}",
    ]
    return "\n".join(lines)


def _shown(data: bytes) -> str:
    text = data.hex()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(data)} bytes)"


def resident() -> int:
    """Return the bytes that this process has in memory, without those of files."""
    return int(re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10


def open_files() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.fuzz", description="Fuzz a server with odd calls.")
    parser.add_argument("--seed", type=int, default=None, help="of the cases; by default another each time")
    parser.add_argument("--cases", type=int, default=20_000, help="how many (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--store", choices=("ram", "lmdb"), default="ram", help="(default: %(default)s)")
    parser.add_argument("--workers", type=int, default=48, help="calls at a time (default: %(default)s)")
    parser.add_argument("--replay", type=Path, help="run the one case in a file, as --write writes it")
    parser.add_argument("--write", type=Path, help="write the first case to a file rather than run any")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    if given.write is not None:
        given.write.write_text(make_case(seed, given.first).to_json())
        return 0
    with tempfile.TemporaryDirectory() as directory:
        data = ":memory:" if given.store == "ram" else directory
        try:
            if given.replay is not None:
                asyncio.run(_replay(Case.from_json(given.replay.read_text()), data))
                return 0
            print(f"seed {seed}", flush=True)
            report = asyncio.run(
                fuzz_service(
                    seed,
                    given.cases,
                    data,
                    first=given.first,
                    workers=given.workers,
                    progress=lambda done: print(f"\r{done:,} cases", end="", file=sys.stderr, flush=True),
                )
            )
        except AssertionError as error:
            print(f"\n{error}", flush=True)
            return 1
    print(f"\n{report}")
    for what in (report.statuses, report.ends):
        print("\n".join(f"{count:8,} {name}" for name, count in sorted(what.items())))
    return 0


async def _replay(case: Case, data: str) -> None:
    async with fuzzing(data) as fuzz:
        answer = await fuzz.call(case, fuzz.channels[0])
        print(answer.code, answer.details)
        for response in answer.responses:
            print(response.hex())
        fuzz.checks.check(case, answer)


if __name__ == "__main__":
    sys.exit(main())
