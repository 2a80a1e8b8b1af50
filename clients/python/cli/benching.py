"""``whamming bench``: measure the search speed of an index."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from whamming.cli.output import counted, say, say_json
from whamming.cli.parser import Commands, FailureError, add_json, positive, whole
from whamming.cli.target import AnyIndex, add_target, find_index, opened

FLIPPED = 0.05
"""Average share of bits in which a query differs from a stored code."""
BATCH = 256

TEXT = """\
Queries are stored codes with some bits flipped and with random weights. Half of the time is spent on single queries,
to measure latency, and half on batches of 256 queries, to measure throughput."""

EXAMPLE = """\
whamming bench docs -k 10 --seconds 10
whamming bench docs --data my-data --json"""


def add(commands: Commands) -> None:
    parser = commands("bench", bench, "measure the search speed of an index", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="name of the index")
    text = "number of distinct queries; they are repeated until the time is up (default 1000)"
    parser.add_argument("--queries", metavar="N", type=whole(1, 1_000_000), default=1000, help=text)
    parser.add_argument("-k", metavar="K", type=whole(1, 100_000), default=10, help="hits per query (default 10)")
    parser.add_argument("--seconds", metavar="S", type=positive, default=5.0, help="how long to measure (default 5)")
    parser.add_argument("--seed", metavar="N", type=whole(0), default=0, help="random seed for queries (default 0)")
    add_json(parser)
    add_target(parser)


@dataclass(frozen=True)
class _Queries:
    codes: NDArray[np.uint8]
    weights: NDArray[np.float64]

    @classmethod
    def from_stored(cls, index: AnyIndex, count: int, seed: int) -> _Queries:
        """Make queries from the first codes that a scan returns."""
        rng = np.random.default_rng(seed)
        pieces = index.scan()
        stored = next(iter(pieces), None)
        del pieces
        if stored is None or len(stored) == 0:
            raise FailureError(f"index {index.name} has no items to make queries from; import some first")
        settings = index.settings
        codes = stored.codes[rng.integers(0, len(stored), count)]
        flips = rng.random((count, settings.bits)) < FLIPPED
        return cls(
            codes ^ np.packbits(flips, axis=1, bitorder=settings.bit_order),
            np.abs(rng.standard_normal((count, settings.bits))),
        )


@dataclass(frozen=True)
class Report:
    queries: int
    """Number of single queries."""
    p50_ms: float
    p99_ms: float
    first_p50_ms: float
    """Time to the first hit."""
    first_p99_ms: float
    batched_queries: int
    queries_per_second: float
    """Throughput of the batches."""


def bench(args: argparse.Namespace) -> None:
    with opened(args) as database:
        index = find_index(database, args.name)
        items = len(index)
        report = measure(index, _Queries.from_stored(index, args.queries, args.seed), args.k, args.seconds)
    if args.json:
        about = {"name": args.name, "items": items, "bits": index.settings.bits, "k": args.k}
        say_json({**about, **asdict(report)})
        return
    say(f"{args.name}: {counted(items, 'item')} of {index.settings.bits} bits, k = {args.k}")
    say(f"one by one  p50 {report.p50_ms:.3f} ms, p99 {report.p99_ms:.3f} ms over {report.queries:,}")
    say(f"first hit   p50 {report.first_p50_ms:.3f} ms, p99 {report.first_p99_ms:.3f} ms")
    say(f"in batches  {report.queries_per_second:,.0f} queries per second over {report.batched_queries:,}")


def measure(index: AnyIndex, queries: _Queries, k: int, seconds: float) -> Report:
    """Send single queries for half of the time and batches for the other half."""
    count = len(queries.codes)
    firsts: list[float] = []
    wholes: list[float] = []
    index.search_batch(queries.codes[:1], queries.weights[:1], k=k)  # warm up
    end = time.perf_counter() + seconds / 2
    while not wholes or time.perf_counter() < end:
        row = len(wholes) % count
        began = time.perf_counter()
        with index.search(queries.codes[row], weights=queries.weights[row], k=k) as hits:
            next(hits, None)
            firsts.append(time.perf_counter() - began)
            for _ in hits:
                pass
            wholes.append(time.perf_counter() - began)
    asked = 0
    began = time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds / 2 or not asked:
        rows = np.arange(asked, asked + BATCH) % count
        index.search_batch(queries.codes[rows], queries.weights[rows], k=k)
        asked += BATCH
    p50, p99 = 1e3 * np.percentile(wholes, [50, 99])
    first_p50, first_p99 = 1e3 * np.percentile(firsts, [50, 99])
    return Report(len(wholes), float(p50), float(p99), float(first_p50), float(first_p99), asked, asked / spent)
