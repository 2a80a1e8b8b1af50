"""``make bench-peer``: Whamming's server against vector databases that people use today, each over its own wire.

All systems get the same codes and queries on one machine, in one run. Every server is pinned to one core and the client
to another. A query is timed from (code, weights) in the client to ids in the client, including all conversions. Only
Whamming takes per-query weights on binary codes, so the others are used in the two ways that people use them:

- *the weights as a float query*: a weighted Hamming distance is linear in the bits, (sum w - <w * q', g'>) / 2, where
  q' and g' have the components -1 and +1. So an engine for float vectors finds the same order by inner product, with
  vectors that take 32 times the bytes;
- *plain Hamming and re-scoring*: fetch several times k neighbours by plain Hamming distance, and sort them by the
  weighted one.

In each round, every contestant answers all queries one at a time, and then in batches; their order changes from round
to round. Latencies are percentiles over the queries, each represented by its median over the rounds. Throughput is that
of the median round. Recall is measured against the exact answer in integers, once by ids (among equally near codes, the
smaller id is right) and once by distance (every hit that is no farther than the k-th true one is right).

On one core, each of the two HNSW graphs of a million codes takes about ten minutes to build. To leave them out, name
the contestants to run. Prints a Markdown report, and writes it with a JSON file to ``build/bench``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from peer_job import Ids, Job, Peer, Recall
from peer_process import lacking, megabytes, wait_until_quiet
from peer_systems import Milvus, MilvusServer, PgVector, Whamming

import datasets

OUT = datasets.ROOT / "build" / "bench"


@dataclass
class Row:
    """One contestant at one setting, and what was measured of it."""

    peer: Peer
    setting: int
    version: str
    load_seconds: float
    megabytes: float | None = None
    shared: bool = False
    """Whether the same server holds the data of other rows too."""
    times: list[dict[int, float]] = field(default_factory=list)
    """Seconds of each query that was asked alone, per round."""
    rates: list[float] = field(default_factory=list)
    """Queries per second in batches, per round."""
    answers: list[tuple[int, Ids]] = field(default_factory=list)
    """Query numbers and what the last round answered, alone and in batches."""
    recall: Recall | None = None

    @property
    def label(self) -> str:
        return (
            f"{self.peer.way.name}, {self.peer.way.knob} {self.setting}" if self.peer.way.knob else self.peer.way.name
        )

    def milliseconds(self, percent: float) -> float:
        """A percentile of the queries, each by its median over the rounds."""
        queries = {query for times in self.times for query in times}
        medians = [np.median([times[query] for times in self.times if query in times]) for query in queries]
        return float(np.percentile(medians, percent)) * 1e3

    @property
    def rate(self) -> float:
        return float(np.median(self.rates))


def take_turn(row: Row, job: Job, batch: int, seconds: float) -> None:
    """Ask a contestant all queries one at a time, and then in batches, for at most about ``seconds`` each."""
    queries, peer = len(job.codes), row.peer
    peer.search_one(job.codes[0], job.weights[0], job.k, row.setting)  # wakes what slept in the other turns
    times: dict[int, float] = {}
    answers: list[tuple[int, Ids]] = []
    deadline = time.perf_counter() + seconds
    for query in range(queries):
        start = time.perf_counter()
        ids = peer.search_one(job.codes[query], job.weights[query], job.k, row.setting)
        now = time.perf_counter()
        times[query] = now - start
        answers.append((query, ids))
        if now > deadline:
            break
    size = int(np.clip(seconds / np.median(list(times.values())), 1, min(batch, queries)))
    done, spent = 0, 0.0
    while done + size <= queries and spent < seconds:
        part = slice(done, done + size)
        start = time.perf_counter()
        found = peer.search_batch(job.codes[part], job.weights[part], job.k, row.setting)
        spent += time.perf_counter() - start
        answers += enumerate(found, done)
        done += size
    row.times.append(times)
    row.rates.append(done / spent)
    row.answers = answers


def prepare(peer: Peer, job: Job, home: Path) -> list[Row]:
    """Start and load a peer, and return its rows."""
    home.mkdir(mode=0o755)
    say(f"{peer.way.name}: starting")
    peer.start(home)
    version = peer.version()
    say(f"{version}: loading")
    start = time.perf_counter()
    peer.load(job.data.codes, job.data.bits)
    seconds = time.perf_counter() - start
    say(f"loaded in {seconds:.1f} s")
    if peer.server is not None:
        wait_until_quiet(peer.server.pid)
    return [Row(peer, setting, version, seconds) for setting in peer.way.settings]


def race(
    peers: list[Peer], job: Job, rounds: int, batch: int, seconds: float, directory: Path
) -> tuple[list[Row], list[str]]:
    """Start and load every peer, and let them take turns; returns what was measured, and what failed.

    A contestant that fails loses its turn, and the others go on.
    """
    rows: list[Row] = []
    failures: list[str] = []

    @contextlib.contextmanager
    def reported(what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failures.append(f"{what} failed: {type(error).__name__}: {str(error)[:300]}")
            say(failures[-1])

    with contextlib.ExitStack() as running:
        for number, peer in enumerate(peers):
            running.callback(peer.stop)
            with reported(peer.way.name):
                rows += prepare(peer, job, directory / str(number))
        order = np.random.default_rng(0)
        for turn in range(rounds + 1):
            for row in [rows[number] for number in order.permutation(len(rows))]:
                with reported(f"{row.label}, round {turn}"):
                    take_turn(row, job, batch, seconds if turn else min(seconds, 1))
                if turn == 0:  # the first round warms up
                    row.times, row.rates = [], []
            say(f"round {turn} of {rounds}")
        rows = [row for row in rows if row.times]
        for row in rows:
            row.recall = job.score(row.answers)
            if row.peer.server is not None:
                row.megabytes = megabytes(row.peer.server.pid)
                row.shared = len({id(other.peer) for other in rows if other.peer.server is row.peer.server}) > 1
    return rows, failures


def say(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


# -- the report -------------------------------------------------------------------------------------------------------

LACKS = """What the peers can't do, whatever the setting:

- take weights on binary codes: their binary indexes support only plain Hamming and Jaccard distance. The weights must
  become a float query over vectors of 32 times the bytes, or a re-scoring that loses neighbours;
- guarantee the answer: an HNSW index may miss neighbours without saying so, and the exact scans compare sums rounded to
  float32. Milvus does not define the order of equally near codes, or which of them are in the answer;
- return each neighbour as soon as it is proven, with a lower bound on the others: an answer comes as a whole. Both can
  be asked for more (Milvus' search iterator, pgvector's iterative scan), in the order in which their index finds them;
- store ids beyond 2^63 - 1."""


def number(value: float) -> str:
    """Write three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def report(rows: list[Row], job: Job, args: argparse.Namespace, remarks: list[str]) -> str:
    """Write the table and what belongs to it."""
    data = job.data
    lines = [
        f"{data.name}: {len(data):,} codes of {data.bits} bits, {len(job.codes)} queries, k = {job.k}, batches of up "
        f"to {args.batch}, medians of {args.rounds} rounds; {processor()}, servers on core {args.cores[0]}, client on "
        f"core {args.cores[-1]}; load average {os.getloadavg()[0]:.1f} at the end.",
        "",
        f"| system and way | recall@{job.k} by id | by distance | right to the last tie | p50 ms | p99 ms "
        "| one at a time, q/s | in batches, q/s | load s | server MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        assert row.recall is not None
        alone = 1 / np.median([np.mean(list(times.values())) for times in row.times])
        cells = [
            row.label,
            f"{row.recall.by_id:.4f}",
            f"{row.recall.by_distance:.4f}",
            f"{row.recall.whole:.1%}",
            number(row.milliseconds(50)),
            number(row.milliseconds(99)),
            number(float(alone)),
            number(row.rate),
            number(row.load_seconds),
            ("?" if row.megabytes is None else number(row.megabytes)) + " (shared)" * row.shared,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    peers = {row.peer.way.name: row for row in rows}.values()
    lines += [f"- *{row.peer.way.name}* ({row.version}): {'; '.join(row.peer.way.notes)}." for row in peers]
    lines += [f"- {line}." for line in remarks]
    return "\n".join([*lines, "", LACKS])


def processor() -> str:
    """Name the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def choose(args: argparse.Namespace) -> tuple[list[Peer], list[str]]:
    """Return the peers that were asked for and are installed, and a line for each that is not."""
    core = args.cores[0]
    milvus = MilvusServer(core)
    every: dict[str, Peer] = {
        "whamming": Whamming("compact", core, args.whamming),
        "whamming-fast": Whamming("fast", core, args.whamming),
        "milvus-flat": Milvus("FLAT", milvus),
        "milvus-hnsw": Milvus("HNSW", milvus),
        "milvus-binary": Milvus("BIN_FLAT", milvus),
        "pgvector-scan": PgVector("scan", core),
        "pgvector-hnsw": PgVector("hnsw", core),
    }
    wanted = args.peers or list(every)
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; choose from {', '.join(every)}")
    peers, absent = [], []
    for name in wanted:
        packages = lacking(every[name].requires)
        if packages:
            remedy = " ".join(f"'{package}'" for package in packages)
            absent.append(f"{name}, since it is not installed: pip install {remedy}")
        else:
            peers.append(every[name])
    return peers, absent


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", help="which to measure (default: all that are installed)")
    parser.add_argument("--whamming", metavar="HOST:PORT", help="a server that is running (default: start one)")
    parser.add_argument("--dataset", default="sift-itq64", choices=list(datasets.RECIPES))
    parser.add_argument("--limit", type=int, help="use only this many codes")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100, help="queries per batch")
    parser.add_argument(
        "--seconds", type=float, default=5, help="the longest turn of a slow contestant, per way of asking"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the servers keep their data (default: the temporary folder)"
    )
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    args.cores = [cores[0], cores[-1]]
    missing = datasets.missing(args.dataset)
    if missing:
        print(missing, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    peers, absent = choose(args)
    for line in absent:
        print(f"not measured: {line}", file=sys.stderr)
    if not peers:
        return 1
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # servers are started while clients have threads
    os.sched_setaffinity(0, {args.cores[-1]})  # before any client starts its threads
    data = datasets.load(args.dataset)
    if args.limit:
        data = datasets.Dataset(data.name, data.bits, data.codes[: args.limit], data.costs, data.real)
    job = Job.make(data, min(args.queries, len(data.costs)), args.k)
    with tempfile.TemporaryDirectory(prefix="whamming-peers-", dir=args.directory) as name:
        directory = Path(name)
        directory.chmod(0o755)  # for a server that does not run as root
        rows, failures = race(peers, job, args.rounds, args.batch, args.seconds, directory)
    text = report(rows, job, args, [f"not measured: {line}" for line in absent] + failures)
    print(text)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "peer.md").write_text(text + "\n", encoding="utf-8")
    (OUT / "peer.json").write_text(json.dumps([as_json(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


def as_json(row: Row) -> dict[str, Any]:
    """Return everything that was measured of a contestant."""
    return {
        "label": row.label,
        "version": row.version,
        "recall": None if row.recall is None else asdict(row.recall),
        "milliseconds": [[seconds * 1e3 for seconds in times.values()] for times in row.times],
        "batch_queries_per_second": row.rates,
        "load_seconds": row.load_seconds,
        "server_megabytes": row.megabytes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
