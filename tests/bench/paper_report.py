"""What ``paper.py`` has measured, laid out like the paper's tables: Markdown and plots."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import published
from published import KS, Row
from whamming.native import available_simd

HERE = Path(__file__).parent
PAPERS_OWN = "gist-itq32"
EXACT = ("Linear Scan", "PQTable", "FSWBC_single", "FSWBC")
"""The paper's systems whose answers are right."""
OURS = ("Whamming, compact", "Whamming, fast")


@dataclass(frozen=True)
class Measured:
    """One system at K = 1, 10 and 100: what it cost, and the share of its hits that are true ones."""

    row: Row
    precision: tuple[float, ...]
    """pre@K, 0 to 1."""


@dataclass(frozen=True)
class Sheet:
    """All that was measured on one data set."""

    name: str
    bits: int
    m: int
    queries: int
    systems: dict[str, Measured]
    criteria: dict[str, Measured]
    storage: dict[str, tuple[float, ...]]
    usage: float
    """|T_one| / |T_all|."""

    @property
    def encoder(self) -> str:
        return "itq" if "itq" in self.name else "lsh"


def report(sheets: Sequence[Sheet], absent: Sequence[str]) -> str:
    """Return the report as Markdown."""
    lines = [
        "# The paper's tables, next to ours",
        "",
        'Z. Weng, Y. Zhu, R. Liu, "Fast Search on Binary Codes by Weighted Hamming Distance" (2021). `make paper`',
        "writes this file; `paper.py` says what is measured, `native/lab/` has every system of the paper.",
        "",
        f"Measured on {platform.machine()} with {available_simd()[-1]}, one thread; compare within a table, as the",
        f"machine is shared. Queries: {queries(sheets)}. A million codes each.",
        "*Paper* is what it prints for GIST1M, on the authors' machine.",
    ]
    own = [sheet for sheet in sheets if sheet.name == PAPERS_OWN]
    for sheet in own:
        lines += ["", "## The paper's own codes: GIST1M by ITQ, 32 bits (its Tables III, VI and VIII)", ""]
        lines += analysis([sheet], deviations=True)
        lines += ["", *accuracy([sheet], "itq")]
    for encoder, named in (("itq", "ITQ"), ("lsh", "LSH")):
        mine = [sheet for sheet in sheets if sheet.encoder == encoder and sheet.name.startswith("sift")]
        if mine:
            lines += ["", f"## {named}, on a million SIFT descriptors", ""]
            accuracy_table, efficiency_table = ("III", "VI") if encoder == "itq" else ("II", "V")
            lines += [f"Accuracy: pre@1 / pre@10 / pre@100, % (the paper's Table {accuracy_table}: pre@1)", ""]
            lines += accuracy(mine, encoder)
            lines += ["", f"Efficiency: ms at K = 1, times faster than the linear scan (Table {efficiency_table})", ""]
            lines += efficiency(mine, encoder)
            lines += ["", f"![time and accuracy by length of code](paper-{encoder}.svg)", ""]
            lines += ["Search performance (Table VIII)", ""]
            lines += analysis(mine)
    rest = [sheet for sheet in sheets if not sheet.name.startswith(("sift", "gist"))]
    if rest:
        lines += ["", "## Other codes", "", *analysis(rest)]
    lines += ["", "## Decision criteria (Table X)", "", *criteria(sheets)]
    lines += ["", "## Storage, bytes per code (the paper prints MB for a million codes)", "", *storage(sheets)]
    lines += ["", "## Usage of the bucket indices, % (Table I, whose codes are LSH)", "", *usage(sheets)]
    lines += ["", "## Is ours exact, and the fastest exact one, in every row?", "", *verdict(sheets)]
    lines += [
        "",
        "Not measured: the paper's SIFT1B rows (a billion codes), and GIST1M codes of lengths other than 32 bits,",
        "which are not public.",
        *absent,
        "",
    ]
    return "\n".join(lines)


def queries(sheets: Sequence[Sheet]) -> str:
    """Say how many there were, by length of code."""
    counts = dict.fromkeys((sheet.bits, sheet.queries) for sheet in sorted(sheets, key=lambda sheet: sheet.bits))
    return ", ".join(f"{count:,} at {bits} bits" for bits, count in counts)


def keep(text: str, sheets: Sequence[Sheet]) -> None:
    """Write the report, and its plots."""
    (HERE / "PAPER.md").write_text(text, encoding="utf-8")
    for encoder in ("itq", "lsh"):
        plot([s for s in sheets if s.encoder == encoder and s.name.startswith("sift")], HERE / f"paper-{encoder}.svg")


# -- tables -----------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(line) + " |" for line in (header, *rows)]
    lines.insert(1, "|---" + "|--:" * (len(header) - 1) + "|")
    return lines


def figure(value: float | None, digits: int = 0) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:,.{digits}f}"


def time(ms: float) -> str:
    """Three significant digits, no exponents."""
    return f"{ms:.{max(0, 2 - int(np.floor(np.log10(max(ms, 1e-6)))))}f}"


def accuracy(sheets: Sequence[Sheet], encoder: str) -> list[str]:
    rows = []
    for system in sheets[0].systems:
        cells = []
        for sheet in sheets:
            printed = published.PRE_AT_1_GIST1M[encoder].get(sheet.bits, {}).get(system)
            shares = " / ".join(figure(100 * share, 1).removesuffix(".0") for share in sheet.systems[system].precision)
            cells.append(shares if printed is None else f"{shares} (paper {printed:g})")
        rows.append([system, *cells])
    return table(["system", *(f"{sheet.bits} bits" for sheet in sheets)], rows)


def efficiency(sheets: Sequence[Sheet], encoder: str) -> list[str]:
    rows = []
    for system in sheets[0].systems:
        cells = []
        for sheet in sheets:
            ms, scan = (sheet.systems[name].row.cells[0].ms for name in (system, "Linear Scan"))
            printed = published.MS_GIST1M[encoder].get(sheet.bits, {})
            text = f"{time(ms)}, {figure(scan / ms, 1 if scan / ms < 100 else 0)}x"
            if system in printed:
                text += f" (paper {printed[system]:g}, {figure(printed['Linear Scan'] / printed[system], 1)}x)"
            cells.append(text)
        rows.append([system, *cells])
    return table(["system", *(f"{sheet.bits} bits" for sheet in sheets)], rows)


def row_text(row: Row, storage: bool = True) -> list[str]:
    text = []
    for cell in row.cells:
        text += [time(cell.ms), figure(cell.buckets), figure(cell.candidates)]
    return [*text, figure(row.megabytes, 1)] if storage else text


def analysis_header(storage: bool = True) -> list[str]:
    header = ["bits", "system"]
    for k in KS:
        header += [f"K={k}: ms", "buckets", "candidates"]
    return [*header, "MB"] if storage else header


def deviation_text(ours: Row, paper: Row) -> list[str]:
    """By how many percent our counts deviate from the paper's, which are whole numbers."""
    text = []
    for mine, theirs in zip(ours.cells, paper.cells, strict=True):
        buckets = round(mine.buckets) / theirs.buckets - 1
        candidates = round(mine.candidates) / theirs.candidates - 1
        text += ["", f"{100 * buckets:+.1f} %", f"{100 * candidates:+.2f} %"]
    return [*text, ""]


def analysis(sheets: Sequence[Sheet], *, deviations: bool = False) -> list[str]:
    rows = []
    for sheet in sheets:
        printed = published.ANALYSIS_GIST1M_ITQ.get(sheet.bits, {}) if sheet.encoder == "itq" else {}
        for name, system in sheet.systems.items():
            rows.append([str(sheet.bits), name, *row_text(system.row)])
            if name in printed:
                rows.append([str(sheet.bits), f"{name}, paper", *row_text(printed[name])])
            if deviations and name in printed:
                rows.append([str(sheet.bits), "deviation", *deviation_text(system.row, printed[name])])
    return table(analysis_header(), rows)


def criteria(sheets: Sequence[Sheet]) -> list[str]:
    rows = []
    for sheet in sheets:
        for name, system in sheet.criteria.items():
            rows.append([f"{sheet.name}", name, *row_text(system.row, storage=False)])
    for bits, printed in published.CRITERIA_SIFT1B.items():
        for name, row in printed.items():
            rows.append([f"paper, SIFT1B, {bits}", name, *row_text(row, storage=False)])
    return table(["codes", "criterion", *analysis_header(storage=False)[2:]], rows)


def storage(sheets: Sequence[Sheet]) -> list[str]:
    rows = []
    for sheet in sheets:
        if sheet.encoder == "itq":
            for name, parts in sheet.storage.items():
                rows.append([sheet.name, name, *(figure(part, 2) for part in parts)])
            printed = published.ANALYSIS_GIST1M_ITQ.get(sheet.bits, {})
            for layout, system in (("multi", "FSWBC"), ("single", "FSWBC_single")):
                if system in printed:
                    together = figure(printed[system].megabytes, 2)
                    rows.append([sheet.name, f"paper, GIST1M, {layout}", "-", "-", "-", together, "-"])
    return table(["codes", "layout", "codes", "tables", "ids", "together", "and the sweep's blocks"], rows)


def usage(sheets: Sequence[Sheet]) -> list[str]:
    rows = []
    for sheet in sheets:
        printed = published.USAGE_GIST1M_LSH.get(sheet.bits) if sheet.encoder == "lsh" else None
        shares = [figure(100 * share, 1) for share in (sheet.usage, 1 - sheet.usage)]
        rows.append([sheet.name, str(sheet.m), figure(printed, 1), *shares])
    return table(["codes", "m", "T_one / T_all, paper", "T_one / T_all", "(T_all - T_one) / T_all"], rows)


def verdict(sheets: Sequence[Sheet]) -> list[str]:
    """Name each row in which ours misses a true neighbour, or an exact system of the paper is faster."""
    wrong, slower, rows = [], [], 0
    for sheet in sheets:
        for at, k in enumerate(KS):
            rows += 1
            shares = {name: sheet.systems[name].precision[at] for name in OURS}
            wrong += [f"{sheet.name}: {name} has pre@{k} = {share:.1%}" for name, share in shares.items() if share < 1]
            best = min(OURS, key=lambda name: sheet.systems[name].row.cells[at].ms)
            rival = min(EXACT, key=lambda name: sheet.systems[name].row.cells[at].ms)
            mine, theirs = (sheet.systems[name].row.cells[at].ms for name in (best, rival))
            if mine > theirs:
                slower.append(f"{sheet.name}, K = {k}: {rival} takes {time(theirs)} ms, {best} {time(mine)}")
    lines = [f"pre@K is 100 % in all {rows} rows." if not wrong else "Not exact:", *(f"- {text}" for text in wrong), ""]
    if not slower:
        return [*lines, f"The fastest exact system is ours in all {rows} rows."]
    return [
        *lines,
        f"The fastest exact system is ours in {rows - len(slower)} of {rows} rows. Not in:",
        "",
        *(f"- {x}" for x in slower),
        "",
        "Searches of short codes take microseconds, so overhead matters: the laboratory answers all queries in one",
        "call and returns row numbers; Whamming is called once per query and looks up the ids of its hits.",
    ]


# -- plots ------------------------------------------------------------------------------------------------------------


def plot(sheets: Sequence[Sheet], path: Path) -> None:
    """Draw time and pre@1 by length of code."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "paper"  # the same bytes for the same figures
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    drawn, axes = plt.subplots(1, 2, figsize=(9, 3.6))
    bits = [str(sheet.bits) for sheet in sheets]
    for name in sheets[0].systems:
        width = 2.2 if name in OURS else 1.2
        times = [sheet.systems[name].row.cells[0].ms for sheet in sheets]
        axes[0].plot(bits, times, marker="o", markersize=3, linewidth=width)
        axes[1].plot(
            bits, [100 * s.systems[name].precision[0] for s in sheets], marker="o", markersize=3, linewidth=width
        )
    axes[0].set_yscale("log")
    axes[0].set_ylabel("ms per query, K = 1")
    axes[1].set_ylabel("pre@1, %")
    axes[1].set_ylim(0, 105)
    for panel in axes:
        panel.set_xlabel("bits")
        panel.grid(visible=True, alpha=0.3)
    axes[1].legend(axes[0].get_lines(), list(sheets[0].systems), fontsize=7, loc="lower left")
    drawn.tight_layout()
    drawn.savefig(path, metadata={"Date": None})
    plt.close(drawn)
