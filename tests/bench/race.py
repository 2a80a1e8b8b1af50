"""``make bench``: this engine against a linear scan and faiss, in one run, interleaved, one thread.

Every contestant gets the same queries on the same codes: the exact linear scan with byte tables, faiss's PQFastScan
(sub-quantisers of 4 bits whose 16 centroids are the corners of the cube, so that its distance is the weighted Hamming
distance up to its 8-bit look-ups) re-ranked by its exact PQ distances, and ours: each plan on compact and on fast
buckets. A round gives each contestant all queries once; rounds are repeated, and a cell is the median of the rounds'
mean times. Ours are times inside the engine; the others' include a few microseconds of the call from Python.

*Floor* is the physical limit of a sweep, a bare pass over the same codes (``floor.c``). *Control* is ours once more,
to show the noise of a run. ``--simd avx2`` runs everything without AVX-512.

Writes a table, a JSON file and a plot to ``build/bench``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from floor import Floor
from numpy.typing import NDArray

import datasets
from whamming.native import Costs, Index, available_simd
from whamming.native.index import Simd
from whamming.native.lab import Laboratory

OUT = datasets.ROOT / "build" / "bench"
KS = (1, 10, 100, 1000)
RERANK = 2
"""faiss re-ranks this many times k candidates."""

SCANS = 2
"""Rounds of the linear scan, which is slow."""

WARM_UP = 10
"""Queries that a contestant runs unmeasured at the start of its turn."""

OURS = [f"{buckets} {plan}" for buckets in ("fast", "compact") for plan in ("auto", "probe", "sweep")]
RIVALS = ["linear scan", "faiss"]
LIMITS = ["control", "floor"]


@dataclass
class Cell:
    """The times of one contestant on one data set at one k."""

    dataset: str
    k: int
    contestant: str
    rounds: list[list[float]] = field(default_factory=list)
    """Milliseconds, [round][query]."""
    recall: float = 1.0

    @property
    def mean(self) -> float:
        return float(np.median([np.mean(times) for times in self.rounds]))

    @property
    def median(self) -> float:
        return float(np.median(np.median(self.rounds, axis=0)))

    @property
    def p99(self) -> float:
        return float(np.percentile(np.median(self.rounds, axis=0), 99))


Runner = Callable[[int, int], tuple[float, NDArray[np.float64]]]
"""(query, k) -> seconds, distances."""


class Faiss:
    """faiss's fast scan, given the job of a weighted Hamming distance."""

    def __init__(self, data: datasets.Dataset) -> None:
        faiss: Any = importlib.import_module("faiss")
        faiss.omp_set_num_threads(1)
        bits = data.bits
        corners = np.array([[v >> j & 1 for j in range(4)] for v in range(16)], dtype=np.float32)
        self.exact = faiss.IndexPQ(bits, bits // 4, 4)
        faiss.copy_array_to_vector(np.tile(corners, (bits // 4, 1)).ravel(), self.exact.pq.centroids)
        self.exact.is_trained = True
        self.exact.ntotal = len(data)
        faiss.copy_array_to_vector(data.codes.ravel(), self.exact.codes)
        self.scan = faiss.IndexPQFastScan(self.exact)
        self.index = faiss.IndexRefine(self.scan, self.exact)
        self.index.k_factor = RERANK
        # |q - g|^2 = sum of (q_i^2 + (1 - 2 q_i) g_i), and 1 - 2 q_i must be the difference of the two costs.
        delta = data.costs[:, :, 1] - data.costs[:, :, 0]
        scale = np.abs(delta).max(axis=1, keepdims=True)
        self.queries = ((1 - delta / scale) / 2).astype(np.float32)
        self.faiss = faiss

    def run(self, query: int, k: int) -> tuple[float, NDArray[np.int64]]:
        start = time.perf_counter()
        _, ids = self.index.search(self.queries[query : query + 1], k)
        return time.perf_counter() - start, ids[0]

    def batch(self, queries: int, k: int, threads: int) -> float:
        self.faiss.omp_set_num_threads(threads)
        start = time.perf_counter()
        self.index.search(self.queries[:queries], k)
        seconds = time.perf_counter() - start
        self.faiss.omp_set_num_threads(1)
        return seconds


def distances_of(data: datasets.Dataset, query: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the exact costs of some rows, in floating point."""
    bits = datasets.unpack(data.codes[ids], data.bits).astype(np.int64)
    columns = np.arange(data.bits)
    return np.asarray(data.costs[query][columns, bits].sum(axis=1))


def race(
    data: datasets.Dataset, queries: int, rounds: int, ks: tuple[int, ...], cores: list[int], simd: Simd
) -> tuple[list[Cell], dict[str, Any]]:
    """Run every contestant on one data set."""
    costs = Costs.table(data.costs[:queries])
    singles = [costs[i] for i in range(queries)]
    facts: dict[str, Any] = {"bits": data.bits, "n": len(data)}
    runners: dict[str, Runner] = {}
    for buckets in ("fast", "compact"):
        start = time.perf_counter()
        index = Index.build(data.codes, data.bits, buckets=buckets)
        facts[buckets] = {
            "build_seconds": time.perf_counter() - start,
            "bytes_per_code": sum(index.storage.values()) / len(index),
            "tables": index.table_count,
        }
        for plan in ("auto", "probe", "sweep"):
            if plan == "probe" and data.bits > 128:
                continue  # minutes per query: the buckets of sparse long codes hold most of the data

            runners[f"{buckets} {plan}"] = _ours(index, plan, simd, singles)
        if buckets == "fast":
            runners["control"] = _ours(index, "auto", simd, singles)
            limit = Floor(data, index, simd)
    lab = Laboratory(data.codes, data.bits, substring_bits=16)
    rival = Faiss(data)

    def linear(query: int, k: int) -> tuple[float, NDArray[np.float64]]:
        start = time.perf_counter()
        answers = lab.scan(singles[query], k)
        return time.perf_counter() - start, answers.distances[0]

    def faiss_run(query: int, k: int) -> tuple[float, NDArray[np.float64]]:
        seconds, ids = rival.run(query, k)
        return seconds, np.sort(distances_of(data, query, ids))

    truth: list[NDArray[np.float64]] = []

    def floor(query: int, k: int) -> tuple[float, NDArray[np.float64]]:
        return limit.run(query, truth[query][-1]), truth[query]

    runners["linear scan"] = linear
    runners["faiss"] = faiss_run
    runners["floor"] = floor

    cells = {(k, name): Cell(data.name, k, name) for k in ks for name in runners}
    for k in ks:
        truth[:] = [linear(query, k)[1] for query in range(queries)]
        for name, run in runners.items():  # warm up, and check against the scan
            found = [run(query, k)[1] for query in range(queries)]
            if name in OURS or name == "control":
                assert all(np.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(found, truth, strict=True)), name
            elif name == "faiss":
                hits = [np.sum(a <= b[-1] * (1 + 1e-9) + 1e-9) for a, b in zip(found, truth, strict=True)]
                cells[k, name].recall = float(np.sum(hits)) / (queries * k)
        for done in range(rounds):
            for name, run in shuffled(runners, done):
                if name == "linear scan" and done >= SCANS:
                    continue
                for query in range(min(WARM_UP, queries)):  # the caches hold the data of whoever came before
                    run(queries - 1 - query, k)
                cells[k, name].rounds.append([run(query, k)[0] * 1e3 for query in range(queries)])
            print(f"\r  {data.name}: k = {k}, round {done + 1} of {rounds}   ", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    if data.name in BATCHES:
        facts["batch"] = race_batches(data, rival, rounds, cores, simd)
    return list(cells.values()), facts


def _ours(index: Index, plan: Any, simd: Simd, singles: list[Costs]) -> Runner:
    own = Index.from_arrays(index.arrays, owner=index)  # the planner learns from its own searches only
    own.use_simd(simd)

    def run(query: int, k: int) -> tuple[float, NDArray[np.float64]]:
        answer = own.search(singles[query], k, plan=plan, threads=1)
        return answer.stats[0].seconds, answer.distances

    return run


def shuffled(runners: dict[str, Runner], seed: int) -> list[tuple[str, Runner]]:
    """Return the contestants in another order each round: who comes after whom decides whose data are in the caches."""
    items = list(runners.items())
    return [items[i] for i in np.random.default_rng(seed).permutation(len(items))]


BATCHES = ("sift-itq128", "morgan256", "clusters64")


def race_batches(data: datasets.Dataset, rival: Faiss, rounds: int, cores: list[int], simd: Simd) -> dict[str, float]:
    """Compare batches on two threads, and the sweep alone with itself, one query at a time on one thread."""
    batch, k = 64, 10
    costs = Costs.table(data.costs[:batch])
    singles = [costs[i] for i in range(batch)]
    index = Index.build(data.codes, data.bits, buckets="fast")
    index.use_simd(simd)
    times: dict[str, list[float]] = {"faiss": [], "auto": [], "sweep": [], "single sweep": []}
    for _ in range(rounds + 1):
        os.sched_setaffinity(0, cores)
        times["faiss"].append(rival.batch(batch, k, 2))
        for plan in ("auto", "sweep"):
            start = time.perf_counter()
            index.search(costs, k, plan=plan, threads=2)
            times[plan].append(time.perf_counter() - start)
        os.sched_setaffinity(0, cores[-1:])
        start = time.perf_counter()
        for one in singles:
            index.search(one, k, plan="sweep", threads=1)
        times["single sweep"].append(time.perf_counter() - start)
    return {name: batch / float(np.median(seconds[1:])) for name, seconds in times.items()}


def report(cells: list[Cell], facts: dict[str, Any], simd: Simd) -> str:
    """Lay the results out as Markdown tables, then list the targets that were missed."""
    lines = [
        f"{platform.machine()}, {simd}; ms per query, one thread, median of rounds; (p99) in brackets",
        "",
    ]
    names = [name for name in OURS + RIVALS + LIMITS if any(c.contestant == name for c in cells)]
    lines.append("| codes | k | " + " | ".join(names) + " | auto: x faiss | x floor | x scan | faiss recall |")
    lines.append("|---" * (len(names) + 6) + "|")
    by = {(c.dataset, c.k, c.contestant): c for c in cells}
    missed = []
    for dataset, k in dict.fromkeys((c.dataset, c.k) for c in cells):
        row = [by.get((dataset, k, name)) for name in names]
        auto, faiss, scan, floor = (by[dataset, k, name] for name in ("fast auto", "faiss", "linear scan", "floor"))
        shown = " | ".join("-" if c is None else f"{c.mean:.3g} ({c.p99:.3g})" for c in row)
        lines.append(
            f"| {dataset} | {k} | {shown} | {faiss.mean / auto.mean:.1f} | {auto.mean / floor.mean:.2f} | "
            f"{scan.mean / auto.mean:.1f} "
            f"| {faiss.recall:.3f} |"
        )
        missed += misses(by, dataset, k)
    lines += ["", "| codes | buckets | bytes per code | tables | build s |", "|---|---|---|---|---|"]
    for dataset, fact in facts.items():
        for buckets in ("compact", "fast"):
            f = fact[buckets]
            lines.append(
                f"| {dataset} | {buckets} | {f['bytes_per_code']:.1f} | {f['tables']} | {f['build_seconds']:.2f} |"
            )
    batches = {dataset: fact["batch"] for dataset, fact in facts.items() if "batch" in fact}
    if batches:
        lines += ["", "Batches of 64, k = 10, two threads, queries per second:", ""]
        lines += ["| codes | faiss | auto | sweep | sweep, single, one thread | auto / faiss | sweep / single |"]
        lines += ["|---|---|---|---|---|---|---|"]
        for dataset, b in batches.items():
            lines.append(
                f"| {dataset} | {b['faiss']:.0f} | {b['auto']:.0f} | {b['sweep']:.0f} | {b['single sweep']:.0f} | "
                f"{b['auto'] / b['faiss']:.1f} | {b['sweep'] / b['single sweep']:.1f} |"
            )
            if b["auto"] < 2 * b["faiss"]:
                missed.append(f"{dataset}: batch {b['auto'] / b['faiss']:.2f}x faiss, target 2")
            if b["sweep"] < 3 * b["single sweep"]:
                missed.append(f"{dataset}: batch sweep {b['sweep'] / b['single sweep']:.2f}x its single rate, target 3")
    lines += ["", f"Targets missed: {len(missed)}", *(f"- {m}" for m in missed)]
    return "\n".join(lines)


TARGETS = {"fast": (2.0, 1.25, 1.8), "compact": (1.7, 1.3, 1.8)}
"""Either this many times faster than faiss, or within this multiple of the floor: up to k = 100, and above."""


def misses(by: dict[tuple[str, int, str], Cell], dataset: str, k: int) -> list[str]:
    """Compare a cell with what it should reach."""
    out = []
    faiss, floor = by[dataset, k, "faiss"].mean, by[dataset, k, "floor"].mean
    for buckets, (faster, near, near_1000) in TARGETS.items():
        auto, sweep = by[dataset, k, f"{buckets} auto"], by[dataset, k, f"{buckets} sweep"]
        best = min(c.mean for plan in ("probe", "sweep") if (c := by.get((dataset, k, f"{buckets} {plan}"))))
        cell = f"{dataset}, k = {k}, {buckets}"
        most = near if k <= 100 else near_1000
        if faiss < faster * auto.mean and auto.mean > most * floor:
            ratios = f"{faiss / auto.mean:.2f}x faiss and {auto.mean / floor:.2f}x the floor"
            out.append(f"{cell}: {ratios}, target {faster:g} or {most:g}")
        if auto.mean > faiss:
            out.append(f"{cell}: slower than faiss")
        if auto.mean > 1.15 * best:
            out.append(f"{cell}: auto is {auto.mean / best:.2f}x the better plan, target 1.15")
        if auto.p99 > 2 * sweep.median:
            out.append(f"{cell}: p99 {auto.p99:.3f} ms, target {2 * sweep.median:.3f}")
    return out


def plot(cells: list[Cell], path: Path) -> None:
    """Draw the time of every cell, logarithmic."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = [name for name in OURS + RIVALS + LIMITS if any(c.contestant == name for c in cells)]
    rows = list(dict.fromkeys((c.dataset, c.k) for c in cells))
    figure, axes = plt.subplots(figsize=(12, 0.32 * len(rows) + 1.5))
    marks = dict(zip(names, "o^sov<PX+|", strict=False))
    for name in names:
        points = [(c.mean, rows.index((c.dataset, c.k))) for c in cells if c.contestant == name]
        x, y = zip(*points, strict=True)
        axes.plot(x, y, marks[name], label=name, markersize=7, alpha=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(rows)), [f"{dataset}  k={k}" for dataset, k in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms per query, one thread")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(loc="upper center", ncols=len(names), fontsize=8, bbox_to_anchor=(0.5, 1.08))
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Parse the command line, race, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "datasets",
        nargs="*",
        default=datasets.RACED,
        help="which data sets (default: all of 64 bits and more, and GIST)",
    )
    parser.add_argument("--rounds", type=int, default=7, help="rounds per cell (default 7)")
    parser.add_argument("--queries", type=int, default=100, help="queries per round (default 100; 10M codes: a third)")
    parser.add_argument("--k", type=int, nargs="*", default=list(KS), choices=KS, help="which k (default: all)")
    vector_sets = [simd for simd in available_simd() if simd in ("avx2", "avx512")]
    parser.add_argument("--simd", choices=vector_sets, default=vector_sets[-1], help="instruction set (default: best)")
    options = parser.parse_args()
    if options.simd == "avx2":
        os.environ["FAISS_SIMD_LEVEL"] = "AVX2"  # faiss reads this when it is imported
    cores = sorted(os.sched_getaffinity(0))
    cells: list[Cell] = []
    facts: dict[str, Any] = {}
    for name in options.datasets:
        reason = datasets.missing(name)
        if reason:
            print(f"skipping {name}: {reason}", file=sys.stderr)
            continue
        os.sched_setaffinity(0, cores)
        data = datasets.load(name)
        os.sched_setaffinity(0, cores[-1:])
        queries = min(options.queries if len(data) < 5_000_000 else -(-options.queries // 3), len(data.costs))
        more, facts[name] = race(data, queries, options.rounds, tuple(options.k), cores, options.simd)
        cells += more
    if not cells:
        sys.exit("no data set is present: nothing to race")
    OUT.mkdir(parents=True, exist_ok=True)
    text = report(cells, facts, options.simd)
    stem = f"race-{options.simd}"
    (OUT / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    (OUT / f"{stem}.json").write_text(
        json.dumps({"cells": [asdict(c) for c in cells], "facts": facts}), encoding="utf-8"
    )
    plot(cells, OUT / f"{stem}.png")
    print(text)
    print(f"\nwritten to {OUT.relative_to(datasets.ROOT)}: {stem}.md, {stem}.json, {stem}.png")


if __name__ == "__main__":
    main()
