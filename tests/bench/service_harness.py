"""What every part of ``make bench-service`` uses: a server on a core of its own, its index, and a bare client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray

import datasets
import whamming
from whamming.remote.portal import shared_portal
from whamming.v1 import search_pb2
from whamming.v1.search_pb2_grpc import SearchServiceStub
from whamming.wire.columns import matrix

OUT = datasets.ROOT / "build" / "bench"
INDEX = "codes"
K = 10
BATCH = 256
SERVE = """
import os, sys
if sys.argv[2]: os.sched_setaffinity(0, {int(sys.argv[2])})
from whamming.cli import main
main(["serve", "--listen", "127.0.0.1:0", "--data", sys.argv[1], "--log-level", "warning", *sys.argv[3:]])
"""
STALL_BYTES = (256 << 10) + (2 << 20)
"""The most memory that the server may use for a stalled reader: waiting hits, and what the cursor holds."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    codes: int
    rounds: int
    queries: int
    cancels: int
    stalled: int
    seconds: float
    """Of each turn of the fairness part."""


WHOLE = Scale(codes=1_000_000, rounds=10, queries=200, cancels=500, stalled=200, seconds=4.0)
QUICK = Scale(codes=100_000, rounds=3, queries=50, cancels=50, stalled=50, seconds=1.0)


@dataclass
class Row:
    """A line of the report."""

    part: str
    what: str
    result: str
    target: str = ""
    met: bool | None = None


class Service:
    """A server process: with one thread, on a core of its own, unless the options say otherwise."""

    def __init__(self, directory: Path, core: int | None, *options: str) -> None:
        where = "" if core is None else str(core)
        self._command = [sys.executable, "-c", SERVE, str(directory), where, *(options or ("--threads", "1"))]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().rpartition(" ")[2].strip()
        if not self.address:
            raise RuntimeError("the server did not start; see its messages above")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def cpu_seconds(self) -> float:
        """Return the time that all its threads have run."""
        return time.clock_gettime((~self._process.pid << 3) | 2)  # what clock_getcpuclockid(pid) gives

    def threads(self) -> dict[str, float]:
        """Return the seconds that each thread has run, by its id; exact for those that are not running."""
        tasks = Path(f"/proc/{self._process.pid}/task").iterdir()
        return {task.name: int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}

    def busiest(self, before: dict[str, float]) -> Path:
        """Return the file with the CPU time of the thread that has run most since ``before``."""
        now = self.threads()
        thread = max(now, key=lambda name: now[name] - before.get(name, 0.0))
        return Path(f"/proc/{self._process.pid}/task/{thread}/schedstat")

    def memory(self) -> int:
        """Return the bytes that it has allocated: not the index, which is mapped from its file."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        return next(int(row.split()[1]) for row in status.splitlines() if row.startswith("RssAnon")) * 1024


class Bench:
    """What all parts need: the index in a directory, a server of it, and the index opened here as well."""

    def __init__(self, directory: Path, scale: Scale, cores: Sequence[int]) -> None:
        self.directory = directory
        self.scale = scale
        self.cores = cores
        self.rows: list[Row] = []
        self.figures: dict[str, Any] = {}

    @property
    def server_core(self) -> int | None:
        return self.cores[0] if len(self.cores) > 1 else None

    def add(self, part: str, what: str, result: str, target: str = "", met: bool | None = None) -> None:
        self.rows.append(Row(part, what, result, target, met))
        verdict = "" if met is None else " met" if met else " MISSED"
        say(f"{part}: {what}: {result}{f' (target {target}:{verdict})' if target else ''}")

    def index(self, name: str) -> Path:
        """Return a database with the index of a data set, sealed; made at the first call."""
        path = self.directory / name
        if not path.exists():
            os.sched_setaffinity(0, self.cores)
            say(f"indexing {name}")
            codes = load(name).codes[: self.scale.codes]
            with whamming.open(path) as db:
                index = db.create_index(INDEX, codes.shape[1] * 8)
                for first in range(0, len(codes), 100_000):
                    index.upsert(np.arange(first, min(first + 100_000, len(codes))), codes[first : first + 100_000])
                index.compact()
        os.sched_setaffinity(0, self.cores[-1:])
        return path

    def serve(self, name: str = "sift-itq64") -> Service:
        return Service(self.index(name), self.server_core)


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def load(name: str) -> datasets.Dataset:
    """Return a data set, or a generated one if its files are missing."""
    reason = datasets.missing(name)
    if reason is None:
        return datasets.load(name)
    made = "clusters64" if name.endswith("64") else "clusters128"
    say(f"{reason}; using {made} instead")
    return datasets.load(made)


def run(call: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in the event loop of the blocking client: gRPC works best with one loop per process."""
    return shared_portal().run(call)


def request_of(tables: Floats, first_id: int = 0, k: int | None = K, **options: Any) -> search_pb2.SearchRequest:
    """Pack queries as the clients do."""
    batch = search_pb2.QueryBatch(
        index=INDEX,
        query_ids=range(first_id, first_id + len(tables)),
        tables=matrix(tables.reshape(len(tables), -1)),
        options=search_pb2.QueryOptions(k=k, **options),
    )
    return search_pb2.SearchRequest(queries=batch)


class Stream:
    """One Search call by a bare stub."""

    def __init__(self, address: str) -> None:
        """Prepare a connection of its own."""
        self._address = address
        self.call: Any = None

    async def __aenter__(self) -> Self:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        self.channel = grpc.aio.insecure_channel(self._address, options=options)
        await self.channel.channel_ready()
        self.call = SearchServiceStub(self.channel).Search()  # type: ignore[no-untyped-call]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.cancel()
        await self.channel.close()

    async def send(self, request: search_pb2.SearchRequest) -> None:
        await self.call.write(request)

    async def receive(self) -> search_pb2.SearchResponse:
        response: search_pb2.SearchResponse = await self.call.read()
        if response is grpc.aio.EOF:
            raise RuntimeError(f"the stream ended: {await self.call.code()}, {await self.call.details()}")
        return response

    async def ask(self, request: search_pb2.SearchRequest) -> None:
        """Send queries and wait for all their hits."""
        await self.send(request)
        left = len(request.queries.query_ids)
        while left:
            left -= len((await self.receive()).ends.query_ids)
