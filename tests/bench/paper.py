"""Print the paper's tables next to ours.

    python tests/bench/paper.py                             every data set that is present
    python tests/bench/paper.py --datasets gist-itq32       the paper's own data only
    python tests/bench/paper.py --queries 100               fewer queries, sooner done

"paper" rows are printed figures, from the authors' machine; the other rows are measured here, on one thread. The
paper's own codes are ``gist-itq32``; on every other data set its GIST1M (or SIFT1B) rows of the same code length are
shown for scale, not for comparison. The Hamming systems get the cheapest code as their query code, which on
``gist-itq32`` is the query's own. How buckets and candidates are counted is said in ``native/lab/lab.h``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

import datasets
import published
from published import KS, Cell, Row
from whamming.native import Costs, Index
from whamming.native.index import Buckets, Tables
from whamming.native.lab import Answers, Criterion, Laboratory

PAPERS_OWN = "gist-itq32"
LAYOUTS: tuple[Tables, ...] = ("multi", "single")
BUCKETS: tuple[Buckets, ...] = ("compact", "fast")
CRITERIA: dict[Criterion, str] = {
    "eqn10": "Eqn. 10",
    "eqn11": "Eqn. 11 (FSWBC)",
    "eqn15": "Eqn. 15 (FSWBC_sort)",
    "eqn16": "Eqn. 16",
    "pqtable": "PQTable's (FSWBC_PQ)",
}


# -- printing ---------------------------------------------------------------------------------------------------------


def progress(text: str) -> None:
    print(f"  ... {text}", file=sys.stderr, flush=True)


def print_table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows of text under a title, the first column to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    print(f"\n{title}")
    for number, line in enumerate(lines):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))
    sys.stdout.flush()


def figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:,.{digits}f}"


def row_text(name: str, row: Row, storage: bool = True) -> list[str]:
    text = [name]
    for cell in row.cells:
        text += [figure(cell.ms, 3), figure(cell.buckets), figure(cell.candidates)]
    return [*text, figure(row.megabytes, 1)] if storage else text


def deviation_text(ours: Row, paper: Row) -> list[str]:
    """By how many percent our counts deviate from the paper's, which are whole numbers."""
    text = ["  deviation, %"]
    for mine, theirs in zip(ours.cells, paper.cells, strict=True):
        buckets = round(mine.buckets) / theirs.buckets - 1
        candidates = round(mine.candidates) / theirs.candidates - 1
        text += ["", f"{100 * buckets:+.1f}", f"{100 * candidates:+.2f}"]
    return [*text, ""]


def analysis_header(storage: bool = True) -> list[str]:
    header = ["system"]
    for k in KS:
        header += [f"K={k}: ms", "buckets", "candidates"]
    return [*header, "MB"] if storage else header


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """One system at K = 1, 10 and 100: what it cost, and the share of its hits that are true ones."""

    row: Row
    precision: tuple[float, ...]  # pre@K, 0 to 1


@dataclass(frozen=True)
class Bench:
    """One data set, ready to be searched."""

    data: datasets.Dataset
    costs: Costs
    multi: Laboratory
    single: Laboratory

    @property
    def truth(self) -> NDArray[np.float64]:
        """The K-th true distance of each query, at each K."""
        deepest = self.multi.scan(self.costs, max(KS)).distances
        return np.stack([deepest[:, k - 1] for k in KS])

    def measure(
        self, name: str, truth: NDArray[np.float64], megabytes: float | None, search: Callable[[int], Answers]
    ) -> Measured:
        """Run one system at every K. A hit is true if it is no farther, by weighted distance, than the true K-th."""
        cells, precision = [], []
        for k, farthest in zip(KS, truth, strict=True):
            progress(f"{self.data.name}: {name}, K = {k}")
            start = time.perf_counter()
            answers = search(k)
            ms = 1e3 * (time.perf_counter() - start) / len(self.costs)
            cells.append(Cell(ms, float(answers.buckets.mean()), float(answers.candidates.mean())))
            weighed = self.multi.distances(self.costs, answers.ids)
            precision.append(float((weighed <= farthest[:, None]).mean()))
        one, ten, hundred = cells
        return Measured(Row((one, ten, hundred), megabytes), tuple(precision))

    def measure_ours(self, buckets: Buckets, truth: NDArray[np.float64]) -> Measured:
        """Run the product, query by query, timed by the engine's own clock."""
        progress(f"{self.data.name}: building whamming's index, {buckets} buckets")
        index = Index.build(self.data.codes, bits=self.data.bits, tables="single", buckets=buckets)
        cells, precision = [], []
        for k, farthest in zip(KS, truth, strict=True):
            progress(f"{self.data.name}: whamming auto, {buckets}, K = {k}")
            answers = [index.search(self.costs[i], k=k, plan="auto") for i in range(len(self.costs))]
            stats = [answer.stats[0] for answer in answers]
            cells.append(
                Cell(
                    1e3 * float(np.mean([s.seconds for s in stats])),
                    float(np.mean([s.buckets for s in stats])),
                    float(np.mean([s.verified for s in stats])),
                )
            )
            true = [np.mean(answer.distances <= far) for answer, far in zip(answers, farthest, strict=True)]
            precision.append(float(np.mean(true)))
        one, ten, hundred = cells
        return Measured(Row((one, ten, hundred), sum(index.storage.values()) / 1e6), tuple(precision))


# -- the tables -------------------------------------------------------------------------------------------------------


def search_tables(bench: Bench) -> None:
    """Performance analysis, accuracy and criteria: everything that is searched."""
    data, costs, multi, single = bench.data, bench.costs, bench.multi, bench.single
    queries = costs.optimum  # the query's own code wherever a mismatch costs more than a match
    progress(f"{data.name}: the true neighbours, by linear scan")
    truth = bench.truth
    megabytes = {lab.layout: lab.storage_bytes / 1e6 for lab in (multi, single)}
    codes_only = multi.storage.codes / 1e6

    measured = {
        "Linear Scan": bench.measure("Linear Scan", truth, codes_only, lambda k: multi.scan(costs, k)),
        "MIH_binary": bench.measure("MIH_binary", truth, megabytes["multi"], lambda k: multi.mih_binary(queries, k)),
        "PQTable": bench.measure("PQTable", truth, megabytes["multi"], lambda k: multi.pqtable(costs, k)),
        "FSWBC_single": bench.measure("FSWBC_single", truth, megabytes["single"], lambda k: single.fswbc(costs, k)),
        "FSWBC": bench.measure("FSWBC", truth, megabytes["multi"], lambda k: multi.fswbc(costs, k)),
    }
    ours = {
        "whamming auto, compact": bench.measure_ours("compact", truth),
        "whamming auto, fast": bench.measure_ours("fast", truth),
    }
    same_data = data.name == PAPERS_OWN
    paper_rows = published.ANALYSIS_GIST1M_ITQ.get(data.bits, {})
    where = "paper" if same_data else "paper, GIST1M"
    rows = []
    for name, system in measured.items():
        if name == "Linear Scan" and data.bits in published.SCAN_MS_GIST1M_ITQ:
            blank = Cell(float("nan"), float("nan"), float("nan"))
            scan = Cell(published.SCAN_MS_GIST1M_ITQ[data.bits], float("nan"), float("nan"))
            rows.append(row_text(f"{name} ({where})", Row((scan, blank, blank))))
        if name in paper_rows:
            rows.append(row_text(f"{name} ({where})", paper_rows[name]))
        rows.append(row_text(name, system.row))
        if same_data and name in paper_rows:
            rows.append(deviation_text(system.row, paper_rows[name]))
    rows += [row_text(name, system.row) for name, system in ours.items()]
    print_table("Search performance analysis (the paper's Table VIII)", analysis_header(), rows)
    print(
        "  whamming: candidates are codes whose exact distance was computed; MB include the sweep's copy of the codes"
    )

    weight = {
        "MIH_weight": bench.measure("MIH_weight", truth, None, lambda k: multi.mih_weight(queries, costs, k)),
        "MIH_weight, all candidates": bench.measure(
            "MIH_weight over all candidates", truth, None, lambda k: multi.mih_weight(queries, costs, k, "met")
        ),
    }
    paper_accuracy: dict[str, float] = {}
    for encoder, by_bits in published.PRE_AT_1_GIST1M.items():
        if encoder in data.name:
            paper_accuracy = by_bits.get(data.bits, {})
    rows = []
    for name, system in {**measured, **weight, **ours}.items():
        printed = paper_accuracy.get(name)
        rows.append([name, figure(printed, 1), *(figure(100 * share, 1) for share in system.precision)])
    print_table(
        "Accuracy, % (the paper's Tables II and III)", ["system", f"pre@1 ({where})", *(f"pre@{k}" for k in KS)], rows
    )

    rows = []
    for name, row in published.CRITERIA_SIFT1B.get(data.bits, {}).items():
        rows.append(row_text(f"{name} (paper, SIFT1B)", row, storage=False))
    for criterion, name in CRITERIA.items():
        system = bench.measure(name, truth, None, partial(multi.fswbc, costs, criterion=criterion))
        rows.append(row_text(name, system.row, storage=False))
    print_table("Decision criteria (the paper's Table X)", analysis_header(storage=False), rows)


def storage_table(bench: Bench) -> None:
    """Bytes per code of the product's four layouts, beside the paper's and the laboratory's."""
    data = bench.data
    paper_rows = published.ANALYSIS_GIST1M_ITQ.get(data.bits, {})
    rows = []
    for layout, lab, system in zip(LAYOUTS, (bench.multi, bench.single), ("FSWBC", "FSWBC_single"), strict=True):
        if system in paper_rows:
            rows.append([f"paper, 1M codes, {layout}", "-", "-", "-", figure(paper_rows[system].megabytes, 2), "-"])
        parts = [lab.storage.codes, lab.storage.directory + lab.storage.postings, 0, lab.storage_bytes]
        rows.append([f"laboratory, {layout}", *(figure(part / lab.n, 2) for part in parts), "-"])
    for buckets in BUCKETS:
        for layout in LAYOUTS:
            progress(f"{data.name}: storage of {buckets} buckets, {layout}")
            index = Index.build(data.codes, bits=data.bits, tables=layout, buckets=buckets)
            size = index.storage
            blocks, everything = size["blocks"], sum(size.values())
            tables = size["directory"] + size["postings"] + size["entries"]
            searched = everything - blocks
            parts = [size["codes"], tables, searched - tables - size["codes"], searched, blocks]
            rows.append([f"whamming {buckets}, {layout}", *(figure(part / index.n, 2) for part in parts)])
    print_table(
        "Storage, bytes per code (the paper prints MB for a million codes)",
        ["layout", "codes", "tables", "ids", "together", "and the sweep's blocks"],
        rows,
    )


def usage_table(shares: dict[str, tuple[int, int, float]]) -> None:
    """|T_one| / |T_all| of every data set that was run."""
    rows = []
    for name, (bits, m, share) in shares.items():
        printed = published.USAGE_GIST1M_LSH.get(bits)
        rows.append([name, str(bits), str(m), figure(printed, 1), figure(100 * share, 1), figure(100 - 100 * share, 1)])
    print_table(
        "Usage of the bucket indices, % (the paper's Table I, whose codes are LSH)",
        ["data", "bits", "m", "|T_one|/|T_all| (paper, GIST1M)", "|T_one|/|T_all|", "|T_all-T_one|/|T_all|"],
        rows,
    )


def default_queries(data: datasets.Dataset) -> int:
    """All of the paper's queries on its own codes; fewer where one query takes tens of milliseconds."""
    if data.bits <= 32:
        return 1000
    affordable = 200 if data.bits <= 64 else 50 if data.bits <= 128 else 5
    return max(5, affordable * 1_000_000 // len(data))


def run(name: str, queries: int | None) -> tuple[int, int, float]:
    """Print every table of one data set; return what the usage table needs."""
    data = datasets.load(name)
    count = min(default_queries(data) if queries is None else queries, len(data.costs))
    progress(f"{name}: building the laboratory's tables")
    bench = Bench(
        data,
        Costs.table(data.costs[:count]),
        Laboratory(data.codes, data.bits),
        Laboratory(data.codes, data.bits, layout="single"),
    )
    source = "the paper's own codes" if name == PAPERS_OWN else "real codes" if data.real else "synthetic codes"
    print(f"\n=== {name}: {len(data):,} x {data.bits} bits, m = {bench.multi.m}, {count} queries, {source} ===")
    search_tables(bench)
    storage_table(bench)
    return data.bits, bench.multi.m, bench.multi.usage().share


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the paper's tables next to ours.")
    parser.add_argument("--datasets", nargs="+", choices=list(datasets.RECIPES), default=list(datasets.RECIPES))
    parser.add_argument(
        "--queries", type=int, help="per data set; by default 1000 at 32 bits, fewer for longer or more codes"
    )
    options = parser.parse_args()
    if options.queries is not None and options.queries < 1:
        parser.error(f"--queries is {options.queries}; it must be at least 1")

    shares: dict[str, tuple[int, int, float]] = {}
    absent: dict[str, str] = {}
    for name in options.datasets:
        try:
            shares[name] = run(name, options.queries)
        except datasets.MissingDataError as error:
            absent[name] = str(error)
    if shares:
        usage_table(shares)
    for name, reason in absent.items():
        print(f"\nmissing: {name}: {reason}")
    print(
        "\nmissing: the paper's SIFT1B rows (one billion codes) and its 64- and 128-bit GIST1M codes are not measured."
    )


if __name__ == "__main__":
    main()
