"""``make growth``: how the time of a search grows with the number of codes.

The codes are 64-bit clusters (``datasets.py``), 1 to 50 million of them, and the queries noisy members. Each plan is
measured on fast and on compact buckets, one thread, time inside the engine, mean of the queries, best of the rounds.
*FSWBC_single* is the paper's algorithm with one table for all substrings, from the laboratory; it is measured up to 10
million codes.

Writes ``tests/bench/growth.svg`` and a table to ``build/bench/growth.md``. 50 million codes take 10 GB of memory and a
few minutes.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from pathlib import Path

import numpy as np

import datasets
from whamming.native import Buckets, Costs, Index, Plan
from whamming.native.lab import Laboratory

KS = (1, 10, 100)
BUCKETS: tuple[Buckets, ...] = ("fast", "compact")
PLANS: tuple[Plan, ...] = ("auto", "probe", "sweep")
BITS = 64
MOST_OF_LAB = 10_000_000
PAPER = "FSWBC_single"

Times = dict[tuple[str, int, int], float]
"""Milliseconds by (contestant, k, n)."""


def measure(n: int, queries: int, rounds: int, times: Times) -> None:
    """Measure every contestant on ``n`` codes."""
    codes, table = datasets.make_clusters(n, BITS)
    costs = Costs.table(table[:queries])
    singles = [costs[i] for i in range(queries)]
    cores = sorted(os.sched_getaffinity(0))
    for buckets in BUCKETS:
        os.sched_setaffinity(0, cores)
        index = Index.build(codes, BITS, buckets=buckets)
        os.sched_setaffinity(0, cores[-1:])
        for plan in PLANS:
            own = Index.from_arrays(index.arrays, owner=index)
            for k in KS:
                seen = [
                    np.mean([own.search(one, k, plan=plan, threads=1).stats[0].seconds for one in singles])
                    for _ in range(rounds + 1)
                ]
                times[f"{buckets} {plan}", k, n] = float(min(seen[1:])) * 1e3
        os.sched_setaffinity(0, cores)
        del index, own
        gc.collect()
    if n <= MOST_OF_LAB:
        os.sched_setaffinity(0, cores[-1:])
        lab = Laboratory(codes, BITS, layout="single", substring_bits=16)
        for k in KS:
            start = time.perf_counter()
            for one in singles:
                lab.fswbc(one, k)
            times[PAPER, k, n] = (time.perf_counter() - start) / queries * 1e3
        os.sched_setaffinity(0, cores)


def report(times: Times, sizes: list[int]) -> str:
    """Lay the times out as a table."""
    lines = [
        "| ms per query | k | " + " | ".join(f"{n / 1e6:g}M" for n in sizes) + " |",
        "|---" * (2 + len(sizes)) + "|",
    ]
    for name, k in dict.fromkeys((name, k) for name, k, _ in times):
        row = (f"{times[name, k, n]:.3g}" if (name, k, n) in times else "-" for n in sizes)
        lines.append(f"| {name} | {k} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def plot(times: Times, sizes: list[int], path: Path) -> None:
    """Draw a panel per k, with logarithmic axes."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(KS), figsize=(13, 4.5), sharey=True)
    names = list(dict.fromkeys(name for name, _, _ in times))
    for k, panel in zip(KS, panels, strict=True):
        for name, mark in zip(names, "o^sov<P", strict=False):
            points = [(n, times[name, k, n]) for n in sizes if (name, k, n) in times]
            x, y = zip(*points, strict=True)
            panel.plot(x, y, f"{mark}-", label=name, alpha=0.8)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_title(f"k = {k}")
        panel.set_xlabel("codes of 64 bits")
        panel.grid(visible=True, alpha=0.3)
    panels[0].set_ylabel("ms per query, one thread")
    panels[-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Parse the command line, measure, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="*", default=[1, 2, 5, 10, 20, 50], help="how many codes")
    parser.add_argument("--queries", type=int, default=50, help="queries per round (default 50)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    options = parser.parse_args()
    sizes = [int(m * 1_000_000) for m in options.millions]
    times: Times = {}
    for n in sizes:
        print(f"{n / 1e6:g} million codes ...", file=sys.stderr, flush=True)
        measure(n, options.queries, options.rounds, times)
    out = datasets.ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    text = report(times, sizes)
    (out / "growth.md").write_text(text + "\n", encoding="utf-8")
    plot(times, sizes, Path(__file__).with_suffix(".svg"))
    print(text)


if __name__ == "__main__":
    main()
