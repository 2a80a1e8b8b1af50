"""One client among others: what a search on another index notices of a client that does the worst it can.

A server with two processors' worth of threads has an index of 500,000 real 64-bit codes. A client searches it without a
pause, k = 10. Meanwhile another client, in a process of its own, uses other indexes of the same server:

- deletes: fills an index, starts to compact it, and deletes it in the middle of that;
- opens: searches ten indexes of 100,000 codes in turn, while the server may keep only a few open;
- encodes: sends vector queries for an encoder with the largest matrix that is allowed;
- re-ranks: searches for vectors with ``rerank="exact"``;
- streams: four unlimited queries at a time, on the same threads as the searches;
- writes: upserts 5,000 items at a time.

Searches alone and beside the other client take turns, and p99 is compared. *Busy cores* is the physical limit: there,
the other client only computes, in two processes, and does not use the server. On a machine with two cores, the searches
then wait for the operating system to give them a core.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from service_harness import WHOLE, Bench, Floats, Service, load, say

import whamming

SEARCHED = "searched"
ITEMS = 500_000
OPENED = 10
OPENED_ITEMS = 100_000
FEW_FILES = 160
"""RLIMIT_NOFILE of the server, so that it keeps only five indexes open."""
DIM = 4096
"""Of the large encoder, which has DIM * DIM numbers."""
KEPT_DIM, KEPT_ITEMS = 128, 50_000
MOST = 3.0
"""The target: p99 beside the other client, divided by p99 alone."""


def deletes(db: Any) -> None:
    codes = np.random.default_rng(1).integers(0, 256, (300_000, 8), dtype=np.uint8)
    for number in itertools.count():
        index = db.create_index(f"deleted-{os.getpid()}-{number}", 64)
        for first in range(0, len(codes), 50_000):
            index.upsert(np.arange(first, first + 50_000), codes[first : first + 50_000])
        merging = threading.Thread(target=_quietly, args=(index.compact,))
        merging.start()
        time.sleep(0.1)
        db.drop_index(index.name)
        merging.join()


def opens(db: Any) -> None:
    code = np.zeros(8, dtype=np.uint8)
    for number in itertools.cycle(range(OPENED)):
        db.index(f"opened{number}").search_batch(code[None], k=1)


def encodes(db: Any) -> None:
    vectors = np.random.default_rng(1).standard_normal((64, DIM)).astype(np.float32)
    index = db.index("large-encoder")
    while True:
        index.search_batch(vectors=vectors, k=1)


def re_ranks(db: Any) -> None:
    vectors = np.random.default_rng(1).standard_normal((16, KEPT_DIM)).astype(np.float32)
    index = db.index("kept")
    while True:
        index.search_batch(vectors=vectors, k=10, rerank="exact")


def streams(db: Any) -> None:
    index = db.index("opened1")

    def stream() -> None:
        while True:
            for _ in index.search(np.zeros(8, dtype=np.uint8), weights=np.ones(64), k=None):
                pass

    for _ in range(4):
        threading.Thread(target=stream, daemon=True).start()
    threading.Event().wait()


def writes(db: Any) -> None:
    codes = np.random.default_rng(1).integers(0, 256, (5_000, 8), dtype=np.uint8)
    index = db.index("written")
    for number in itertools.count():
        index.upsert(np.arange(len(codes)) + number % 100 * len(codes), codes)


def busy_cores(db: Any) -> None:
    del db
    compute = f"import os\nwhile os.getppid() == {os.getpid()}: sum(range(100_000))"
    subprocess.Popen([sys.executable, "-c", compute])
    while True:
        pass


LIMIT = "busy cores"
JOBS: dict[str, Callable[[Any], None]] = {
    LIMIT: busy_cores,
    "deletes": deletes,
    "opens": opens,
    "encodes": encodes,
    "re-ranks": re_ranks,
    "streams": streams,
    "writes": writes,
}


def _quietly(work: Callable[[], Any]) -> None:
    with contextlib.suppress(whamming.WhammingError):  # the index has been deleted
        work()


def fill(directory: Path, items: int) -> None:
    """Make the database with everything that the jobs use."""
    rng = np.random.default_rng(0)
    codes = load("sift-itq64").codes[:items]
    with whamming.open(directory) as db:
        searched = db.create_index(SEARCHED, 64)
        searched.upsert(np.arange(len(codes)), codes)
        searched.compact()
        for number in range(OPENED):
            index = db.create_index(f"opened{number}", 64)
            index.upsert(np.arange(OPENED_ITEMS), rng.integers(0, 256, (OPENED_ITEMS, 8), dtype=np.uint8))
            if number % 2:
                index.compact()  # the others are opened with all their recent writes
        large = db.create_index("large-encoder", encoder="lsh", dim=DIM, bits=DIM)
        large.upsert([1], vectors=np.ones((1, DIM), dtype=np.float32))
        kept = db.create_index("kept", encoder="lsh", dim=KEPT_DIM, bits=64, keep_vectors="int8")
        kept.upsert(np.arange(KEPT_ITEMS), vectors=rng.standard_normal((KEPT_ITEMS, KEPT_DIM)).astype(np.float32))
        kept.compact()
        db.create_index("written", 64)


def search_ms(index: Any, tables: Floats, seconds: float) -> Floats:
    """Search one query at a time; return the milliseconds of each."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    for table in itertools.cycle(tables):
        start = time.perf_counter()
        if start > end:
            return np.array(times) * 1e3
        list(index.search(table=table, k=10))
        times.append(time.perf_counter() - start)
    raise AssertionError


def part(bench: Bench) -> None:
    """Measure all jobs, as a part of ``make bench-service``."""
    seconds, rounds = (4.0, 3) if bench.scale is WHOLE else (1.0, 1)
    directory = bench.directory / "neighbour"
    say("filling the indexes")
    fill(directory, min(ITEMS, bench.scale.codes))
    tables = load("sift-itq64").costs[:200]
    files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FEW_FILES, most))
    try:
        server = Service(directory, None, "--threads", "2").__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
    bench.figures["neighbour"] = {}
    try:
        with whamming.connect(server.address) as db:
            index = db.index(SEARCHED)
            search_ms(index, tables, seconds)
            for job in JOBS:
                alone, beside = [], []
                for _ in range(rounds):
                    alone.append(search_ms(index, tables, seconds))
                    command = [sys.executable, __file__, job, server.address]
                    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
                        assert other.stdout is not None
                        other.stdout.readline()  # it has connected
                        time.sleep(0.5)
                        beside.append(search_ms(index, tables, seconds))
                        assert other.poll() is None, f"the job {job!r} has failed; see above"
                        other.kill()
                    time.sleep(1.0)
                _report(bench, job, np.concatenate(alone), np.concatenate(beside))
    finally:
        server.__exit__(None, None, None)


def _report(bench: Bench, job: str, alone: Floats, beside: Floats) -> None:
    (before50, before99), (after50, after99) = (np.percentile(times, (50, 99)) for times in (alone, beside))
    figures = bench.figures["neighbour"]
    figures[job] = [float(value) for value in (before50, before99, after50, after99)]
    result = f"p99 {before99:.2f} -> {after99:.2f} ms, {after99 / before99:.1f} x (p50 {before50:.2f} -> {after50:.2f})"
    if job != LIMIT:
        result += f"; {after99 / figures[LIMIT][3]:.1f} x the p99 beside {LIMIT}"
    bench.add("neighbour", f"searches beside a client: {job}", result, f"{MOST:g} x", after99 <= MOST * before99)


def main() -> None:
    """Do one job until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("address")
    arguments = parser.parse_args()
    with whamming.connect(arguments.address) as db:
        db.list_indexes()
        print("connected", flush=True)
        JOBS[arguments.job](db)


if __name__ == "__main__":
    main()
