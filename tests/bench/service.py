"""``make bench-service``: what it costs to search over the wire, in one run.

A real server runs in its own process, pinned to the first core, with one search thread and an LMDB index of a million
real 64-bit codes. The client, and the same searches in this process, take turns on the second core. k = 10.

- latency: one query at a time, by the blocking client, the asyncio client and a bare stub: how much each adds to the
  in-process time of the same query;
- batches: 256 queries per message, against ``search_batch`` in this process;
- fairness: 64 streams of short queries, each on its own connection, with and without a concurrent unlimited query;
- streaming: hits per second of an unlimited query;
- cancelling: the time from a cancel to the end of the work;
- stalled: memory of the server for 200 unlimited queries that nobody reads;
- first hit: the time to the first of 1,000 hits against the time to the last, 64 and 128 bits;
- ingest: a million codes of 128 bits, 10,000 per batch, each on disk before it is acknowledged;
- mixed: searches during a steady load of upserts, in this process and over the wire (``mixed.py``);
- neighbour: searches while another client keeps other indexes busy (``neighbour.py``).

Writes a Markdown report and a JSON file to ``build/bench``. Times are wall-clock and
depend on how busy the machine is, so compare within a part. The server's CPU time shows what it could do on an idle
core. If the host gives a virtual machine's processors to others, the report says so: one percent already affects a p99.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import mixed
import neighbour
import numpy as np
from service_harness import (
    BATCH,
    INDEX,
    OUT,
    QUICK,
    STALL_BYTES,
    WHOLE,
    Bench,
    Floats,
    K,
    Row,
    Scale,
    Service,
    Stream,
    load,
    request_of,
    run,
    say,
)

import whamming
from whamming import aio
from whamming.storage import StoredIndex
from whamming.v1 import item_pb2, search_pb2
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.wire.columns import id_column

# -- parts ------------------------------------------------------------------------------------------------------------


def latency(bench: Bench) -> None:
    """One query at a time."""
    tables = load("sift-itq64").costs[: bench.scale.queries]
    with (
        bench.serve() as server,
        whamming.connect(server.address) as db,
        whamming.open(bench.index("sift-itq64"), mode="r") as here,
    ):
        local, remote = here.index(INDEX), db.index(INDEX)
        connection = run(aio.connect(server.address).open())
        awaited = run(connection.index(INDEX))
        bare = run(Stream(server.address).__aenter__())
        requests = [request_of(table[None], i) for i, table in enumerate(tables)]
        for table in tables[:5]:
            found, expected = (index.search(table=table, k=K).next(K) for index in (remote, local))
            assert (found[0] == expected[0]).all()
            assert (found[1] == expected[1]).all()

        def blocking(index: Any, places: Sequence[int]) -> list[float]:
            times = []
            for place in places:
                start = time.perf_counter()
                index.search(table=tables[place], k=K).next(K)
                times.append(time.perf_counter() - start)
            return times

        async def asyncio_client(places: Sequence[int]) -> list[float]:
            times = []
            for place in places:
                start = time.perf_counter()
                await awaited.search(table=tables[place], k=K).next(K)
                times.append(time.perf_counter() - start)
            return times

        async def stub(places: Sequence[int]) -> list[float]:
            times = []
            for place in places:
                start = time.perf_counter()
                await bare.ask(requests[place])
                times.append(time.perf_counter() - start)
            return times

        contestants: dict[str, Callable[[Sequence[int]], list[float]]] = {
            "in this process": lambda places: blocking(local, places),
            "blocking client": lambda places: blocking(remote, places),
            "asyncio client": lambda places: run(asyncio_client(places)),
            "bare stub": lambda places: run(stub(places)),
        }
        times = turns(contestants, len(tables), bench.scale.rounds, 25)
        run(bare.__aexit__(None, None, None))
        run(connection.close())
    base = np.median(times["in this process"], axis=0)
    figures = {}
    for name, samples in times.items():
        p50, p99 = np.percentile(samples * 1e3, [50, 99])
        figures[name] = {"p50 ms": p50, "p99 ms": p99}
        if name == "in this process":
            bench.add("latency", name, f"p50 {p50:.2f} ms, p99 {p99:.2f} ms")
            continue
        added50, added99 = np.percentile((samples - base) * 1e3, [50, 99])
        figures[name] |= {"added p50 ms": added50, "added p99 ms": added99}
        result = f"adds p50 {added50:.2f} ms, p99 {added99:.2f} ms (in all {p50:.2f}, {p99:.2f})"
        most = 0.5 if name == "bare stub" else 1.0
        bench.add("latency", name, result, f"added p50 <= {most} ms", bool(added50 <= most))
    bench.figures["latency"] = figures


def turns(
    contestants: dict[str, Callable[[Sequence[int]], list[float]]], count: int, rounds: int, block: int
) -> dict[str, Floats]:
    """Return the times of each contestant, ``[round, query]``: block by block they take turns, in random order."""
    rng = np.random.default_rng(0)
    times = {name: np.zeros((rounds + 1, count)) for name in contestants}
    names = list(contestants)
    for turn in range(rounds + 1):
        for first in range(0, count, block):
            places = range(first, min(first + block, count))
            for name in rng.permutation(names).tolist():
                times[name][turn, places.start : places.stop] = contestants[name](places)
    return {name: samples[1:] for name, samples in times.items()}


def batches(bench: Bench) -> None:
    """Batches of 256 in a stream."""
    costs = load("sift-itq64").costs
    count = 8 * BATCH if bench.scale is WHOLE else 2 * BATCH
    tables = np.concatenate([costs] * (count // len(costs) + 1))[:count]
    with (
        bench.serve() as server,
        whamming.connect(server.address) as db,
        whamming.open(bench.index("sift-itq64"), mode="r") as here,
    ):
        local, remote = here.index(INDEX), db.index(INDEX)
        requests = [request_of(tables[i : i + BATCH], i) for i in range(0, count, BATCH)]
        expected, found = local.search_batch(table=tables, k=K), remote.search_batch(table=tables, k=K)
        assert (expected.ids == found.ids).all()
        assert (expected.distances == found.distances).all()

        def in_process() -> None:
            for first in range(0, count, BATCH):
                local.search_batch(table=tables[first : first + BATCH], k=K, threads=1)

        async def streamed() -> None:
            async with Stream(server.address) as stream:

                async def send() -> None:
                    for request in requests:
                        await stream.send(request)

                sending = asyncio.create_task(send())
                ended = 0
                while ended < count:
                    ended += len((await stream.receive()).ends.query_ids)
                await sending

        contestants: dict[str, Callable[[], Any]] = {
            "in this process": in_process,
            "blocking client": lambda: remote.search_batch(table=tables, k=K),
            "bare stub": lambda: run(streamed()),
        }
        seconds = rates(contestants, server, bench.scale.rounds)
    here_seconds = seconds.pop("in this process")
    rate = count / float(np.median(here_seconds[0]))
    bench.figures["batches"] = {"in this process": {"queries/s": rate}}
    bench.add("batches", "in this process, one thread", f"{rate:,.0f} queries/s")
    for name, times in seconds.items():
        rate = count / float(np.median(times[0]))
        share, cpu_share = np.median(here_seconds / times, axis=1).tolist()
        bench.figures["batches"][name] = {"queries/s": rate, "share": share, "share by CPU time": cpu_share}
        result = f"{rate:,.0f} queries/s, {share:.0%} of it; {cpu_share:.0%} by CPU time"
        least = 0.85 if name == "bare stub" else 0.7
        bench.add("batches", name, result, f">= {least:.0%}", share >= least)


def rates(contestants: dict[str, Callable[[], Any]], server: Service, rounds: int) -> dict[str, Floats]:
    """Return the seconds and the CPU seconds of each contestant in each round: ``[2, round]``. They take turns.

    CPU seconds are those of the server, and for the first contestant those of this process.
    """
    rng = np.random.default_rng(0)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in contestants}
    for _ in range(rounds + 1):
        for name in rng.permutation(list(contestants)).tolist():
            clock = time.process_time if name == next(iter(contestants)) else server.cpu_seconds
            start, used = time.perf_counter(), clock()
            contestants[name]()
            seconds[name].append((time.perf_counter() - start, clock() - used))
    return {name: np.array(times[1:]).T for name, times in seconds.items()}


def fairness(bench: Bench) -> None:
    """Short queries beside a long one."""
    tables = load("sift-itq64").costs
    with bench.serve() as server:
        figures = run(_fairness(server.address, tables, bench.scale))
    bench.figures["fairness"] = figures
    for load_name, found in figures.items():
        alone, beside = found["p99 ms without"], found["p99 ms with"]
        result = (
            f"p99 {beside:.1f} ms beside it ({found['long hits/s']:,.0f} hits/s), {alone:.1f} ms without: "
            f"{beside / alone:.2f}x; p50 {found['p50 ms with']:.1f} and {found['p50 ms without']:.1f} ms; "
            f"{found['queries/s with']:,.0f} and {found['queries/s without']:,.0f} queries/s"
        )
        bench.add("fairness", f"64 streams, {load_name}", result, "p99 <= 3x", beside / alone <= 3)


async def _fairness(address: str, tables: Floats, scale: Scale, streams: int = 64) -> dict[str, dict[str, float]]:
    requests = [request_of(table[None], i) for i, table in enumerate(tables)]
    short = [await Stream(address).__aenter__() for _ in range(streams)]
    figures: dict[str, dict[str, float]] = {}
    rng = np.random.default_rng(0)

    async def ask_on(stream: Stream, offset: int, until: float, pause: float, times: list[float]) -> None:
        await asyncio.sleep(rng.random() * pause)
        for request in itertools.islice(itertools.cycle(requests), offset, None):
            start = time.perf_counter()
            if start >= until:
                return
            await stream.ask(request)
            took = time.perf_counter() - start
            times.append(took)
            await asyncio.sleep(max(0.0, pause * (0.5 + rng.random()) - took))

    async def read_all(hits: list[int]) -> None:
        """Read an unlimited query to its end, and begin again."""
        async with Stream(address) as stream:
            for turn in itertools.count():
                await stream.send(request_of(tables[turn % len(tables)][None], k=None))
                ended = False
                while not ended:
                    response = await stream.receive()
                    hits[0] += sum(response.counts)
                    ended = bool(response.ends.query_ids)

    async def turn(pause: float, beside: bool) -> tuple[list[float], int]:
        times: list[float] = []
        hits = [0]
        long = asyncio.create_task(read_all(hits)) if beside else None
        until = time.perf_counter() + scale.seconds
        await asyncio.gather(*(ask_on(s, 13 * i, until, pause, times) for i, s in enumerate(short)))
        if long is not None:
            long.cancel()
            await asyncio.wait([long])
        return times, hits[0]

    async def measure(name: str, pause: float) -> None:
        samples: dict[bool, list[float]] = {False: [], True: []}
        worst: dict[bool, list[float]] = {False: [], True: []}
        hits = 0
        await turn(pause, False)
        for round_ in range(max(2, scale.rounds // 3)):
            for beside in (False, True) if round_ % 2 else (True, False):
                times, more = await turn(pause, beside)
                samples[beside] += times
                worst[beside].append(float(np.percentile(times, 99)) * 1e3)
                hits += more
        spent = scale.seconds * len(worst[True])
        figures[name] = {"long hits/s": hits / spent}
        for beside, word in ((False, "without"), (True, "with")):
            figures[name] |= {
                f"p50 ms {word}": float(np.percentile(samples[beside], 50)) * 1e3,
                f"p99 ms {word}": float(np.median(worst[beside])),
                f"queries/s {word}": len(samples[beside]) / spent,
            }

    await measure("each asking again at once", 0.0)
    rate = figures["each asking again at once"]["queries/s without"]
    await measure("at a third of that rate", streams / (rate / 3))
    for stream in short:
        await stream.__aexit__(None, None, None)
    return figures


def streaming(bench: Bench) -> None:
    """Hits per second of an unlimited query."""
    tables = load("sift-itq64").costs
    count = bench.scale.codes
    with (
        bench.serve() as server,
        whamming.connect(server.address) as db,
        whamming.open(bench.index("sift-itq64"), mode="r") as here,
    ):
        local, remote = here.index(INDEX), db.index(INDEX)
        turn = itertools.count()

        def pieces(index: Any) -> None:
            with index.search(table=tables[next(turn) // 4]) as search:
                got = 0
                while len(ids := search.next(4096)[0]):
                    got += len(ids)
            assert got == count

        def one_by_one(index: Any) -> None:
            with index.search(table=tables[next(turn) // 4]) as search:
                assert sum(1 for _ in search) == count

        async def streamed() -> None:
            async with Stream(server.address) as stream:
                await stream.send(request_of(tables[next(turn) // 4][None], k=None))
                got = 0
                while got < count:
                    got += sum((await stream.receive()).counts)

        contestants: dict[str, Callable[[], Any]] = {
            "in this process, 4,096 at a time": lambda: pieces(local),
            "bare stub": lambda: run(streamed()),
            "blocking client, 4,096 at a time": lambda: pieces(remote),
            "blocking client, hit by hit": lambda: one_by_one(remote),
        }
        seconds = rates(contestants, server, max(3, bench.scale.rounds // 2))
    bench.figures["streaming"] = {}
    for name, times in seconds.items():
        rate, cpu_rate = (count / np.median(times, axis=1)).tolist()
        bench.figures["streaming"][name] = {"hits/s": rate, "hits per second of CPU time": cpu_rate}
        target = "" if "process" in name else ">= 1,000,000"
        result = f"{rate:,.0f} hits/s; {cpu_rate:,.0f} per second of CPU time"
        bench.add("streaming", name, result, target, rate >= 1_000_000 if target else None)


def cancelling(bench: Bench) -> None:
    """From a cancel to the end of the work."""
    name = "sift-itq128"
    tables = load(name).costs
    with bench.serve(name) as server:
        figures = run(_cancelling(server, tables, bench.scale.cancels, max(2, bench.scale.rounds // 2)))
    bench.figures["cancelling"] = figures
    for what, rounds in figures.items():
        worst = np.percentile(rounds, 99, axis=1)
        p50, p99, most = float(np.median(rounds)), float(np.median(worst)), float(np.max(rounds))
        each = " ".join(f"{x:.2f}" for x in worst)
        result = f"p50 {p50:.2f} ms, p99 of {len(rounds[0])} {p99:.2f} ms (median of {each}), max {most:.2f} ms"
        bench.add("cancelling", what, result, "p99 <= 10 ms", p99 <= 10)


async def _cancelling(server: Service, tables: Floats, count: int, rounds: int) -> dict[str, list[list[float]]]:
    rng = np.random.default_rng(0)

    async def work_a_while(stream: Stream, query_id: int) -> asyncio.Task[float]:
        """Begin a long query and let it work for a random time. Returns a task that returns the time of its end."""
        await stream.send(request_of(tables[query_id % len(tables)][None], query_id, k=None))

        async def end() -> float:
            while True:
                ends = (await stream.receive()).ends
                if ends.query_ids:
                    assert ends.reasons == [search_pb2.END_REASON_CANCELLED]
                    return time.perf_counter()

        ending = asyncio.create_task(end())
        await asyncio.sleep(0.002 + 0.03 * rng.random())
        return ending

    async def query(turn: int) -> float:
        ending = await work_a_while(shared, turn)
        start = time.perf_counter()
        await shared.send(search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=[turn])))
        return await ending - start

    async def call(turn: int) -> float:
        async with Stream(server.address) as stream:
            ending = await work_a_while(stream, turn)
            start = last = time.perf_counter()
            stream.call.cancel()
            used = clock.read_text()
            while time.perf_counter() - last < 0.02:  # if it has not run for this long, it has stopped
                await asyncio.sleep(0.001)  # with less, the loop would not pause to send the cancel
                now_used, now = clock.read_text(), time.perf_counter()
                if now_used != used:
                    used, last = now_used, now
            await asyncio.wait([ending])
            return last - start

    async with Stream(server.address) as shared:
        before = server.threads()
        await shared.ask(request_of(tables[:200], plan=search_pb2.PLAN_SWEEP))
        clock = server.busiest(before)  # of the thread that searches
        ways = {
            "a query on its stream, until its last chunk is here": query,
            "a call, until the thread that searches has stopped": call,
        }
        times: dict[str, list[list[float]]] = {what: [] for what in ways}
        for _ in range(rounds):
            for what, cancel in ways.items():
                times[what].append([await cancel(turn) * 1e3 for turn in range(count)])
    return times


def stalled(bench: Bench) -> None:
    """Readers that do not read."""
    tables = load("sift-itq64").costs
    count = bench.scale.stalled
    with bench.serve() as server:

        async def stall() -> list[Stream]:
            streams = []
            for i in range(count):
                stream = await Stream(server.address).__aenter__()
                await stream.send(request_of(tables[i % len(tables)][None], i, k=None))
                streams.append(stream)
            return streams

        async def let_go(streams: Sequence[Stream]) -> None:
            for stream in streams:
                await stream.__aexit__(None, None, None)

        async def warm_up() -> None:
            async with Stream(server.address) as stream:
                await stream.ask(request_of(tables[:1]))

        run(warm_up())
        before = server.memory()
        streams = run(stall())
        during = settle(server)
        run(let_go(streams))
        settle(server)
        after = server.memory()
    each = (during - before) / count
    bench.figures["stalled"] = {"streams": count, "before": before, "during": during, "after": after}
    result = (
        f"{count} streams: {(during - before) / 1e6:.0f} MB more, {each / 1e6:.2f} MB each; "
        f"{(after - before) / 1e6:.0f} MB after they left"
    )
    bench.add("stalled", "memory of the server", result, f"<= {STALL_BYTES / 1e6:.1f} MB each", each <= STALL_BYTES)


def settle(server: Service) -> int:
    """Wait until the server has next to nothing to do; returns the most memory that it had meanwhile."""
    quiet, most = 0, 0
    while quiet < 3:
        used = server.cpu_seconds()
        time.sleep(0.3)
        most = max(most, server.memory())
        quiet = quiet + 1 if server.cpu_seconds() - used < 0.01 else 0
    return most


def first_hit(bench: Bench) -> None:
    """The first of many hits against the last."""
    for name in ("sift-itq64", "sift-itq128"):
        tables = load(name).costs[: bench.scale.queries]
        with (
            bench.serve(name) as server,
            whamming.connect(server.address) as db,
            whamming.open(bench.index(name), mode="r") as here,
        ):
            times: dict[str, list[tuple[float, float]]] = {"in this process": [], "blocking client": []}
            for table in np.concatenate([tables[:10], tables]):
                for where, index in (("in this process", here.index(INDEX)), ("blocking client", db.index(INDEX))):
                    start = time.perf_counter()
                    search = index.search(table=table, k=1000)
                    next(search)
                    first = time.perf_counter()
                    assert sum(1 for _ in search) == 999
                    times[where].append((first - start, time.perf_counter() - start))
        for where, pairs in times.items():
            to_first, to_last = (np.median(np.array(pairs[10:]), axis=0) * 1e3).tolist()
            bench.figures.setdefault("first hit", {})[f"{name}, {where}"] = {"first ms": to_first, "last ms": to_last}
            bench.add("first hit", f"{name}, {where}", f"first {to_first:.2f} ms, last of 1,000 {to_last:.2f} ms")


def ingest(bench: Bench) -> None:
    """A million codes, durable batch by batch."""
    codes = load("sift-itq128").codes[: bench.scale.codes]
    count, size, bits = len(codes), 10_000, codes.shape[1] * 8
    ids = np.arange(count, dtype=np.uint64)
    cuts = [slice(first, first + size) for first in range(0, count, size)]
    figures: dict[str, dict[str, float]] = {}

    def note(name: str, started: float, written: float) -> None:
        sealed = time.perf_counter()
        figures.setdefault(name, {"codes/s": 0.0, "codes/s until sealed": 0.0})
        best = figures[name]
        best["codes/s"] = max(best["codes/s"], count / (written - started))
        best["codes/s until sealed"] = max(best["codes/s until sealed"], count / (sealed - started))

    def upsert(index: StoredIndex | whamming.RemoteIndex, name: str) -> None:
        start = time.perf_counter()
        for cut in cuts:
            index.upsert(ids[cut], codes[cut])
        written = time.perf_counter()
        index.seal()
        note(name, start, written)
        assert len(index) == count

    async def pipelined(address: str, index: whamming.RemoteIndex) -> tuple[float, float]:
        options = [("grpc.max_receive_message_length", -1)]
        async with grpc.aio.insecure_channel(address, options=options) as channel:
            await channel.channel_ready()

            async def messages() -> Any:
                for sequence, cut in enumerate(cuts):
                    items = item_pb2.ItemBatch(ids=id_column(ids[cut]), codes=codes[cut].tobytes())
                    yield item_pb2.UpsertRequest(index=index.name, sequence=sequence, items=items)

            start = time.perf_counter()
            acknowledged = 0
            async for done in ItemServiceStub(channel).Upsert(messages()):  # type: ignore[no-untyped-call]
                acknowledged += done.count
            assert acknowledged == count
            return start, time.perf_counter()

    os.sched_setaffinity(0, bench.cores[-1:])
    directory = bench.directory / "ingest"
    for turn in range(3 if bench.scale is WHOLE else 1):
        with whamming.open(directory / f"here-{turn}") as db:
            upsert(db.create_index(INDEX, bits), "in this process")
        with Service(directory / f"there-{turn}", bench.server_core) as server, whamming.connect(server.address) as far:
            upsert(far.create_index(INDEX, bits), "blocking client, batch by batch")
            far.drop_index(INDEX)
            index = far.create_index("other", bits)
            start, written = run(pipelined(server.address, index))
            index.seal()
            note("bare stub, batches sent ahead", start, written)
            assert len(index) == count
        shutil.rmtree(directory)
    bench.figures["ingest"] = figures
    for name, found in figures.items():
        rate = found["codes/s"]
        result = f"{rate:,.0f} codes/s, {found['codes/s until sealed']:,.0f} with sealing everything afterwards"
        target = "" if "process" in name else ">= 200,000"
        bench.add("ingest", name, result, target, rate >= 200_000 if target else None)


def processor_ticks() -> tuple[int, int]:
    """Return the CPU time that the host has given to others, and the total, so far. It explains odd figures."""
    ticks = [int(word) for word in Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()[1:9]]
    return ticks[7], sum(ticks)


PARTS: dict[str, Callable[[Bench], None]] = {
    "latency": latency,
    "batches": batches,
    "fairness": fairness,
    "streaming": streaming,
    "cancelling": cancelling,
    "stalled": stalled,
    "first hit": first_hit,
    "ingest": ingest,
    "mixed": mixed.part,
    "neighbour": neighbour.part,
}


def report(rows: Sequence[Row]) -> str:
    """Lay the results out as a Markdown table."""
    lines = ["| part | what | result | target | verdict |", "|---|---|---|---|---|"]
    verdicts = {None: "", True: "met", False: "missed"}
    lines += [f"| {r.part} | {r.what} | {r.result} | {r.target} | {verdicts[r.met]} |" for r in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is asked for and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of: {', '.join(PARTS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the codes and fewer rounds, to see it work")
    parser.add_argument("--directory", type=Path, help="where to keep the files meanwhile (default: build/bench)")
    arguments = parser.parse_args()
    for part in arguments.parts:
        if part not in PARTS:
            parser.error(f"there is no part {part!r}; choose from: {', '.join(PARTS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="service-", dir=arguments.directory or OUT))
    try:
        bench = Bench(directory, QUICK if arguments.quick else WHOLE, sorted(os.sched_getaffinity(0)))
        for part in arguments.parts:
            say(f"-- {part}, load {os.getloadavg()[0]:.1f}")
            before = processor_ticks()
            PARTS[part](bench)
            stolen, there = (now - then for now, then in zip(processor_ticks(), before, strict=True))
            bench.figures[part]["stolen"] = stolen / there
            if stolen > 0.01 * there:
                say(f"-- {part}: {stolen / there:.0%} of the processors' time went to other machines on this host")
        text = report(bench.rows)
        figures = {"parts": bench.figures, "load": os.getloadavg(), "quick": arguments.quick}
        (OUT / "service.json").write_text(json.dumps(figures, indent=1))
        (OUT / "service.md").write_text(text)
        print(text)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
