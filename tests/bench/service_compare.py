"""``make bench-before BEFORE=DIR``: this checkout's server against an earlier checkout's, in turns, in one run.

DIR is a clone of the project at the commit to compare with, set up by ``make build/benched-with`` there. Each side is
measured by its own benchmark harness and its own bare stub, in a process of its own: a server pinned to the first core,
the client to the second, an LMDB index of a million real 64-bit codes, k = 10.

- lone: one query at a time, on one stream and on each of 64 streams. Queries per second, and per second of the
  server's CPU time;
- added: the p50 of one lone query by the bare stub, minus the p50 of the same queries in process;
- batches: 256 queries a message on two streams, against ``search_batch`` in process;
- echo: a bare stream of the same gRPC stack that sends back what it gets: the cost if the server does nothing.

The two sides take turns. The table shows the medians of their ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
ECHO = """
import os, sys, asyncio, grpc, uvloop
os.sched_setaffinity(0, {int(sys.argv[1])})
async def main():
    async def echo(requests, context):
        async for data in requests:
            await context.write(data)
    server = grpc.aio.server()
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo.Echo", {"Echo": handler}),))
    print(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", flush=True)
    await server.start()
    await server.wait_for_termination()
uvloop.run(main())
"""
BATCH = 256
STREAMS = 64


# -- one side, in its own environment ---------------------------------------------------------------------------------


def measure(directory: Path, seconds: float) -> dict[str, float]:
    """Measure the version that this process has imported."""
    import service_harness as harness

    cores = sorted(os.sched_getaffinity(0))
    bench = harness.Bench(directory, harness.WHOLE, cores)
    tables = harness.load("sift-itq64").costs[:512]
    with bench.serve() as server:
        figures: dict[str, float] = harness.run(_over_the_wire(harness, server, tables, seconds))
    import whamming

    with whamming.open(bench.index("sift-itq64"), mode="r") as database:
        index = database.index(harness.INDEX)
        times = []
        for table in tables[:200]:
            start = time.perf_counter()
            index.search(table=table, k=harness.K).next(harness.K)
            times.append(time.perf_counter() - start)
        figures["in process p50 ms"] = float(np.median(times)) * 1e3
        start = time.perf_counter()
        for first in (0, BATCH):
            index.search_batch(table=tables[first : first + BATCH], k=harness.K, threads=1)
        figures["in process batches q/s"] = 2 * BATCH / (time.perf_counter() - start)
    return figures


async def _over_the_wire(harness: Any, server: Any, tables: Any, seconds: float) -> dict[str, float]:
    requests = [harness.request_of(table[None], i) for i, table in enumerate(tables)]
    batches = [harness.request_of(tables[first : first + BATCH], first) for first in (0, BATCH)]
    figures: dict[str, float] = {}
    for count in (1, STREAMS):
        streams = [await harness.Stream(server.address).__aenter__() for _ in range(count)]
        await _ask(streams, requests, 0.5)
        used, times = server.cpu_seconds(), await _ask(streams, requests, seconds)
        spent = server.cpu_seconds() - used
        figures[f"{count} streams q/s"] = len(times) / seconds
        figures[f"{count} streams q/CPU s"] = len(times) / spent
        figures[f"{count} streams p50 ms"] = float(np.median(times)) * 1e3
        for stream in streams:
            await stream.__aexit__(None, None, None)
    async with harness.Stream(server.address) as one, harness.Stream(server.address) as other:
        await _ask([one, other], batches, 0.5)
        start, times = time.perf_counter(), await _ask([one, other], batches, seconds)
        figures["batches q/s"] = len(times) * BATCH / (time.perf_counter() - start)
    return figures


async def _ask(streams: Sequence[Any], requests: Sequence[Any], seconds: float) -> list[float]:
    """Send requests on all streams for ``seconds``; returns the time that each took."""
    times: list[float] = []
    until = time.perf_counter() + seconds

    async def ask(stream: Any, offset: int) -> None:
        for request in itertools.islice(itertools.cycle(requests), offset, None):
            start = time.perf_counter()
            if start >= until:
                return
            await stream.ask(request)
            times.append(time.perf_counter() - start)

    await asyncio.gather(*(ask(stream, 13 * i) for i, stream in enumerate(streams)))
    return times


def echo(seconds: float) -> dict[str, float]:
    """Measure a server that only sends back what it gets."""
    import grpc
    import uvloop

    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[-1:])
    process = subprocess.Popen([sys.executable, "-c", ECHO, str(cores[0])], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    address = process.stdout.readline().strip()

    async def run() -> dict[str, float]:
        figures = {}
        for count in (1, STREAMS):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(count)]
            calls = [channel.stream_stream("/echo.Echo/Echo")() for channel in channels]

            class Stream:
                def __init__(self, call: Any) -> None:
                    self._call = call

                async def ask(self, data: bytes) -> None:
                    await self._call.write(data)
                    await self._call.read()

            streams = [Stream(call) for call in calls]
            await _ask(streams, [bytes(1100)], 0.5)
            used = time.clock_gettime((~process.pid << 3) | 2)
            times = await _ask(streams, [bytes(1100)], seconds)
            spent = time.clock_gettime((~process.pid << 3) | 2) - used
            figures[f"{count} streams q/CPU s"] = len(times) / spent
            figures[f"{count} streams p50 ms"] = float(np.median(times)) * 1e3
            for call, channel in zip(calls, channels, strict=True):
                call.cancel()
                await channel.close()
        return figures

    try:
        return uvloop.run(run())
    finally:
        process.kill()


# -- both sides -------------------------------------------------------------------------------------------------------


def run_side(root: Path, directory: Path, seconds: float, what: str) -> dict[str, float]:
    """Measure a checkout in a process of its own."""
    # -P: the harness is found beside the side's own benchmarks, not beside this file
    command = [str(root / "build/venv/bin/python"), "-P", str(HERE), "--side", what, "--seconds", str(seconds)]
    environment = {**os.environ, "PYTHONPATH": str(root / "tests/bench")}
    done = subprocess.run(
        [*command, "--directory", str(directory)], cwd=directory, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{root}: {done.stderr}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(before: Path, rounds: int, seconds: float) -> None:
    """Measure both sides in turns and print a table."""
    sides = {"before": before, "now": ROOT}
    samples: dict[str, list[dict[str, float]]] = {"before": [], "now": [], "echo": []}
    with tempfile.TemporaryDirectory(prefix="compare-", dir=ROOT / "build") as directory:
        for side in sides:
            Path(directory, side).mkdir()
        for turn in range(rounds):
            for side in ("before", "now") if turn % 2 else ("now", "before"):
                samples[side].append(run_side(sides[side], Path(directory, side), seconds, "server"))
            samples["echo"].append(run_side(ROOT, Path(directory), seconds, "echo"))
            print(f"round {turn + 1} of {rounds} done, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
    print("| figure | before | now | now / before | bare echo |")
    print("|---|---|---|---|---|")
    for name in samples["now"][0]:
        old, new = (np.array([sample[name] for sample in samples[side]]) for side in ("before", "now"))
        bare = [sample[name] for sample in samples["echo"] if name in sample]
        echoed = f"{np.median(bare):,.2f}" if bare else ""
        print(f"| {name} | {np.median(old):,.2f} | {np.median(new):,.2f} | {np.median(new / old):.2f} | {echoed} |")
    added = {side: np.median([s["1 streams p50 ms"] - s["in process p50 ms"] for s in samples[side]]) for side in sides}
    share = {side: np.median([s["batches q/s"] / s["in process batches q/s"] for s in samples[side]]) for side in sides}
    print(f"| added p50 of a lone query, ms | {added['before']:.2f} | {added['now']:.2f} | | |")
    print(f"| batches, share of in process | {share['before']:.0%} | {share['now']:.0%} | | |")


def main() -> None:
    """Compare, or be one side."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", nargs="?", type=Path, help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--side", choices=("server", "echo"), help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side == "server":
        print(json.dumps(measure(arguments.directory, arguments.seconds)))
    elif arguments.side == "echo":
        print(json.dumps(echo(arguments.seconds)))
    elif arguments.before is None:
        parser.error("give the checkout to compare with")
    else:
        compare(arguments.before.resolve(), arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
