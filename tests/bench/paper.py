"""``make paper``: the paper's tables next to ours, as one Markdown report with plots, ``tests/bench/PAPER.md``.

    python tests/bench/paper.py                           the paper's own codes; SIFT by LSH and ITQ, 8 to 128 bits
    python tests/bench/paper.py --datasets gist-itq32     some data sets only; the report is printed, not kept
    python tests/bench/paper.py --queries 10              fewer queries, faster; likewise

The paper's figures are from the authors' machine; all others are measured here, on one thread. The paper's own codes
are ``gist-itq32``. The others come from a million SIFT descriptors of Flickr8k photos. Next to them are the paper's
GIST1M figures for codes of the same length, to show the scale; they are not comparable. The Hamming systems get the
cheapest code as their query code. It is the query's own code unless a mismatch is cheaper than a match.
``native/lab/lab.h`` says how buckets and candidates are counted. For Whamming, candidates are codes whose exact
distance was computed.

Times are CPU time, so other programs do not count: the median of three passes over all queries. Whamming is timed query
by query, by the engine's own clock or by CPU time, whichever is less: the clock includes other programs, and CPU time
includes the call from Python. Its figure is the mean over all queries of the median of three passes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import datasets
import paper_report
from paper_report import Measured, Sheet
from published import KS, Cell, Row
from whamming.native import Costs, Index
from whamming.native.index import Buckets, Tables
from whamming.native.lab import Answers, Criterion, Laboratory

LAYOUTS: tuple[Tables, ...] = ("multi", "single")
BUCKETS: tuple[Buckets, ...] = ("compact", "fast")
CRITERIA: dict[Criterion, str] = {
    "eqn10": "Eqn. 10",
    "eqn11": "Eqn. 11 (FSWBC)",
    "eqn15": "Eqn. 15 (FSWBC_sort)",
    "eqn16": "Eqn. 16",
    "pqtable": "PQTable's (FSWBC_PQ)",
}
PASSES = 3
DEFAULT = [name for name in datasets.RECIPES if name.startswith(("gist", "sift"))]


@dataclass
class Bench:
    """One data set, ready to be searched by every system."""

    data: datasets.Dataset
    costs: Costs
    multi: Laboratory
    single: Laboratory
    shown: tqdm[None]
    truth: NDArray[np.float64] = field(init=False)
    """The K-th true distance of each query, at each K."""

    def __post_init__(self) -> None:
        deepest = self.multi.scan(self.costs, max(KS)).distances
        self.truth = np.stack([deepest[:, k - 1] for k in KS])

    def measure(self, name: str, megabytes: float | None, search: Callable[[int], Answers]) -> Measured:
        """Run one system at every K. A hit is true if it is no farther, by weighted distance, than the true K-th."""
        cells, precision = [], []
        for k, farthest in zip(KS, self.truth, strict=True):
            self.show(f"{name}, K = {k}")
            seconds = []
            for _ in range(PASSES):
                start = time.thread_time()
                answers = search(k)
                seconds.append(time.thread_time() - start)
            ms = 1e3 * float(np.median(seconds)) / len(self.costs)
            cells.append(Cell(ms, float(answers.buckets.mean()), float(answers.candidates.mean())))
            weighed = self.multi.distances(self.costs, answers.ids)
            precision.append(float((weighed <= farthest[:, None]).mean()))
        one, ten, hundred = cells
        return Measured(Row((one, ten, hundred), megabytes), tuple(precision))

    def measure_ours(self, buckets: Buckets) -> Measured:
        """Run the product, query by query, timed by the engine's own clock."""
        self.show(f"building Whamming's index, {buckets} buckets")
        index = Index.build(self.data.codes, bits=self.data.bits, tables="single", buckets=buckets)
        cells, precision = [], []
        for k, farthest in zip(KS, self.truth, strict=True):
            self.show(f"Whamming, {buckets}, K = {k}")
            singles = [self.costs[i] for i in range(len(self.costs))]
            seconds = np.zeros((PASSES, len(singles)))
            for turn in range(PASSES):
                answers = []
                for query, costs in enumerate(singles):
                    start = time.thread_time()
                    answers.append(index.search(costs, k=k, threads=1))
                    seconds[turn, query] = min(time.thread_time() - start, answers[-1].stats[0].seconds)
            stats = [answer.stats[0] for answer in answers]
            cells.append(
                Cell(
                    1e3 * float(np.median(seconds, axis=0).mean()),
                    float(np.mean([s.buckets for s in stats])),
                    float(np.mean([s.verified for s in stats])),
                )
            )
            true = [np.mean(answer.distances <= far) for answer, far in zip(answers, farthest, strict=True)]
            precision.append(float(np.mean(true)))
        one, ten, hundred = cells
        return Measured(Row((one, ten, hundred), sum(index.storage.values()) / 1e6), tuple(precision))

    def show(self, text: str) -> None:
        self.shown.set_description(f"{self.data.name}: {text}")

    # -- the tables ---------------------------------------------------------------------------------------------------

    def systems(self) -> dict[str, Measured]:
        """Every system that the paper compares, and ours."""
        costs, multi, single = self.costs, self.multi, self.single
        codes = costs.optimum
        tables = {lab.layout: lab.storage_bytes / 1e6 for lab in (multi, single)}
        return {
            "Linear Scan": self.measure("Linear Scan", multi.storage.codes / 1e6, lambda k: multi.scan(costs, k)),
            "MIH_binary": self.measure("MIH_binary", tables["multi"], lambda k: multi.mih_binary(codes, k)),
            "MIH_weight": self.measure("MIH_weight", tables["multi"], lambda k: multi.mih_weight(codes, costs, k)),
            "PQTable": self.measure("PQTable", tables["multi"], lambda k: multi.pqtable(costs, k)),
            "FSWBC_single": self.measure("FSWBC_single", tables["single"], lambda k: single.fswbc(costs, k)),
            "FSWBC": self.measure("FSWBC", tables["multi"], lambda k: multi.fswbc(costs, k)),
            **{f"Whamming, {buckets}": self.measure_ours(buckets) for buckets in BUCKETS},
        }

    def criteria(self) -> dict[str, Measured]:
        """The decision criteria; with one table they are all the same."""
        if self.multi.m == 1:
            return {}
        return {
            name: self.measure(name, None, partial(self.multi.fswbc, self.costs, criterion=criterion))
            for criterion, name in CRITERIA.items()
        }

    def storage(self) -> dict[str, tuple[float, ...]]:
        """Bytes per code of each layout: codes, tables, ids, all that probing needs, and the sweep's blocks."""
        rows: dict[str, tuple[float, ...]] = {}
        for layout, lab in zip(LAYOUTS, (self.multi, self.single), strict=True):
            size = lab.storage
            rows[f"laboratory, {layout}"] = tuple(
                part / lab.n for part in (size.codes, size.directory + size.postings, 0, size.total, 0)
            )
        for buckets in BUCKETS:
            for layout in LAYOUTS:
                self.show(f"storage of {buckets} buckets, {layout}")
                index = Index.build(self.data.codes, bits=self.data.bits, tables=layout, buckets=buckets)
                sizes = index.storage
                blocks, everything = sizes["blocks"], sum(sizes.values())
                tables = sizes["directory"] + sizes["postings"] + sizes["entries"]
                ids = everything - blocks - tables - sizes["codes"]
                parts = (sizes["codes"], tables, ids, everything - blocks, blocks)
                rows[f"Whamming {buckets}, {layout}"] = tuple(part / index.n for part in parts)
        return rows


def default_queries(data: datasets.Dataset) -> int:
    """All of the paper's queries on its own codes; fewer where one query takes tens of milliseconds."""
    if data.bits <= 32:
        return 1000
    affordable = 200 if data.bits <= 64 else 50 if data.bits <= 128 else 5
    return max(5, affordable * 1_000_000 // len(data))


def run(data: datasets.Dataset, queries: int | None, shown: tqdm[None]) -> Sheet:
    """Measure everything on one data set."""
    count = min(default_queries(data) if queries is None else queries, len(data.costs))
    shown.set_description(f"{data.name}: building the laboratory's tables")
    multi = Laboratory(data.codes, data.bits)
    single = Laboratory(data.codes, data.bits, layout="single")
    bench = Bench(data, Costs.table(data.costs[:count]), multi, single, shown)
    return Sheet(
        data.name, data.bits, multi.m, count, bench.systems(), bench.criteria(), bench.storage(), multi.usage().share
    )


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", choices=list(datasets.RECIPES), default=DEFAULT)
    parser.add_argument("--queries", type=int, help="by default 1000 up to 32 bits, 200 at 64, 50 at 128")
    options = parser.parse_args()
    if options.queries is not None and options.queries < 1:
        parser.error(f"--queries is {options.queries}; it must be at least 1")
    cores = sorted(os.sched_getaffinity(0))
    sheets, absent = [], []
    with tqdm(options.datasets, unit="set") as shown:
        for name in shown:
            try:
                os.sched_setaffinity(0, cores)
                shown.set_description(f"{name}: reading or making the codes")
                data = datasets.load(name)
                os.sched_setaffinity(0, cores[-1:])
                sheets.append(run(data, options.queries, shown))
            except datasets.MissingDataError as error:
                absent.append(f"{name} is missing: {error}")
    if not sheets:
        sys.exit("\n".join(absent))
    text = paper_report.report(sheets, absent)
    print(text)
    if options.datasets == DEFAULT and options.queries is None and not absent:
        paper_report.keep(text, sheets)


if __name__ == "__main__":
    main()
