"""Searching while others write: how a steady load of upserts affects the latency of searches, and vice versa.

The index has 500,000 real 64-bit codes, sealed. One thread upserts a batch of 5,000 rows every 10 ms; another one
searches without a pause, k = 10. Searches alone are measured for comparison. Ids are drawn from 750,000, so batches mix
new and replaced items, and the index does not become much larger than it was during the searches alone. Over
the wire, an empty call is measured beside the same writes: it shows how long any call waits for a core.

:func:`measure` takes any index with the verbs ``upsert`` and ``search``: one in this process, or one on a server.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray
from service_harness import WHOLE, Bench, Service, load

import datasets
import whamming

ITEMS = 500_000
ROWS = 5_000
EVERY = 0.010
K = 10
MAX_SEARCH_MS = 50.0
MAX_WRITE_MS = 50.0
MAX_RATIO = 3.0


@dataclass(frozen=True)
class Mixed:
    """What was measured; all times in ms."""

    idle_p50: float
    idle_p99: float
    idle_max: float
    search_p50: float
    search_p99: float
    search_max: float
    write_p50: float
    write_p99: float
    write_max: float
    searches: int
    writes: int
    rows_per_second: float

    @property
    def ratio(self) -> float:
        """Search p99 under load, against idle."""
        return self.search_p99 / self.idle_p99

    def verdicts(self) -> list[tuple[str, str, str, bool]]:
        """Return what was measured, its value, its target, and whether it was met."""
        return [
            (
                "search p99, against idle",
                f"{self.idle_p99:.2f} -> {self.search_p99:.2f} ms, {self.ratio:.1f} x",
                f"at most {MAX_RATIO:.0f} x",
                self.ratio <= MAX_RATIO,
            ),
            (
                "slowest search, against idle",
                f"{self.idle_max:.1f} -> {self.search_max:.1f} ms of {self.searches} searches, "
                f"p50 {self.idle_p50:.2f} -> {self.search_p50:.2f} ms",
                f"at most {MAX_SEARCH_MS:.0f} ms",
                self.search_max <= MAX_SEARCH_MS,
            ),
            (
                "write p99",
                f"{self.write_p99:.1f} ms of {self.writes} writes, p50 {self.write_p50:.1f}, max {self.write_max:.1f} "
                f"ms, {self.rows_per_second:,.0f} rows/s",
                f"at most {MAX_WRITE_MS:.0f} ms",
                self.write_p99 <= MAX_WRITE_MS,
            ),
        ]


def search_times(index: Any, tables: NDArray[np.float64], seconds: float, stop: threading.Event) -> list[float]:
    """Search one query after the other for ``seconds``, or until ``stop`` is set; returns the seconds of each."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end and not stop.is_set():
        index.search(table=tables[len(times) % len(tables)], k=K).next(K)
        times.append(time.perf_counter() - start)
    return times


def write_times(index: Any, codes: NDArray[np.uint8], items: int, seconds: float, stop: threading.Event) -> list[float]:
    """Upsert a batch every EVERY seconds, or at once if the last one took longer; returns the seconds of each."""
    rng = np.random.default_rng(1)
    times: list[float] = []
    begin = due = time.perf_counter()
    while due - begin < seconds and not stop.is_set():
        ids = rng.integers(0, items * 3 // 2, ROWS, dtype=np.uint64)
        begin_at = int(rng.integers(0, len(codes) - ROWS))
        batch = codes[begin_at : begin_at + ROWS]
        time.sleep(max(0.0, due - time.perf_counter()))
        start = time.perf_counter()
        index.upsert(ids, batch)
        done = time.perf_counter()
        times.append(done - start)
        due = max(due + EVERY, done)
    return times


def beside_writes(
    read: Callable[[threading.Event], list[float]], index: Any, codes: NDArray[np.uint8], items: int, seconds: float
) -> tuple[list[float], list[float]]:
    """Write for ``seconds`` in another thread, and read until it ends. Returns the times of both."""
    writes: list[float] = []
    over = threading.Event()

    def write() -> None:
        try:
            writes.extend(write_times(index, codes, items, seconds, threading.Event()))
        finally:
            over.set()

    writer = threading.Thread(target=write)
    writer.start()
    reads = read(over)
    writer.join()
    return reads, writes


def health_check_times(address: str, seconds: float, stop: threading.Event) -> list[float]:
    """Call the server's health check in a loop, which reads no data; returns the seconds of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while (start := time.perf_counter()) < end and not stop.is_set():
            stub.Check(health_pb2.HealthCheckRequest())
            times.append(time.perf_counter() - start)
    return times


def measure(
    index: Any, codes: NDArray[np.uint8], tables: NDArray[np.float64], seconds: float, items: int = ITEMS
) -> Mixed:
    """Fill an empty index, then search it without and with a writer, for ``seconds`` each."""
    for first in range(0, items, 50_000):
        index.upsert(np.arange(first, min(first + 50_000, items), dtype=np.uint64), codes[first : first + 50_000])
    index.seal()
    search_times(index, tables, seconds / 4, threading.Event())
    idle = search_times(index, tables, seconds, threading.Event())
    start = time.perf_counter()
    searches, writes = beside_writes(lambda over: search_times(index, tables, 1e9, over), index, codes, items, seconds)
    lasted = time.perf_counter() - start
    ms = {name: np.array(times) * 1e3 for name, times in (("idle", idle), ("search", searches), ("write", writes))}
    return Mixed(
        idle_p50=float(np.percentile(ms["idle"], 50)),
        idle_p99=float(np.percentile(ms["idle"], 99)),
        idle_max=float(ms["idle"].max()),
        search_p50=float(np.percentile(ms["search"], 50)),
        search_p99=float(np.percentile(ms["search"], 99)),
        search_max=float(ms["search"].max()),
        write_p50=float(np.percentile(ms["write"], 50)),
        write_p99=float(np.percentile(ms["write"], 99)),
        write_max=float(ms["write"].max()),
        searches=len(searches),
        writes=len(writes),
        rows_per_second=len(writes) * ROWS / lasted,
    )


def table(found: Mixed) -> str:
    """Lay the verdicts out as a Markdown table."""
    lines = ["| what | measured | target | met |", "|---|---|---|---|"]
    lines += [
        f"| {what} | {value} | {target} | {'yes' if met else 'NO'} |" for what, value, target, met in found.verdicts()
    ]
    return "\n".join(lines)


def part(bench: Bench) -> None:
    """Measure an index in this process, and one on a server that has all cores, as a part of ``make bench-service``."""
    data = load("sift-itq64")
    seconds = 20.0 if bench.scale is WHOLE else 3.0
    items = min(ITEMS, bench.scale.codes)
    os.sched_setaffinity(0, bench.cores)
    bench.figures["mixed"] = {}

    def measure_in(name: str, database: Any) -> Any:
        index = database.create_index("codes", data.bits)
        found = measure(index, data.codes, data.costs[:200], seconds, items)
        bench.figures["mixed"][name] = asdict(found)
        for what, value, target, met in found.verdicts():
            bench.add("mixed", f"{name}: {what}", value, target, met)
        return index

    with whamming.open(bench.directory / "mixed-here") as here:
        measure_in("in this process", here)
    threads = str(len(bench.cores))
    with (
        Service(bench.directory / "mixed-there", None, "--threads", threads) as server,
        whamming.connect(server.address) as there,
    ):
        index = measure_in("over the wire", there)
        idle = health_check_times(server.address, seconds / 2, threading.Event())
        busy, _ = beside_writes(
            lambda over: health_check_times(server.address, 1e9, over), index, data.codes, items, seconds / 2
        )
        before, after = (float(np.percentile(times, 99)) * 1e3 for times in (idle, busy))
        result = f"{before:.2f} -> {after:.2f} ms, {after / before:.1f} x"
        bench.add("mixed", "over the wire: p99 of an empty call, against idle", result)


def main() -> int:
    """Measure an index in this process and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="5 seconds rather than 20")
    parser.add_argument("--seconds", type=float, help="of searching alone, and of both")
    parser.add_argument("--directory", type=Path, help="where to keep the files meanwhile (default: build/bench)")
    arguments = parser.parse_args()
    out = datasets.ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="mixed-", dir=arguments.directory or out))
    try:
        data = datasets.load("sift-itq64")
        with whamming.open(directory / "db") as database:
            index = database.create_index("codes", data.bits)
            seconds = arguments.seconds or (5.0 if arguments.quick else 20.0)
            found = measure(index, data.codes, data.costs[:200], seconds)
        print(table(found))
        return 0 if all(met for *_, met in found.verdicts()) else 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
