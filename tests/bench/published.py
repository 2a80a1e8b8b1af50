"""The figures that the paper prints, so that ours can stand beside them.

Source: "Fast Search on Binary Codes by Weighted Hamming Distance", Sec. IV.B and V. Times are in milliseconds on the
authors' machine, storage in megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass

KS = (1, 10, 100)


@dataclass(frozen=True)
class Cell:
    """One system at one K: mean time, buckets looked up and candidates compared per query."""

    ms: float
    buckets: float
    candidates: float


@dataclass(frozen=True)
class Row:
    """One system at K = 1, 10 and 100."""

    cells: tuple[Cell, Cell, Cell]
    megabytes: float | None = None


def _row(figures: str, megabytes: float | None = None) -> Row:
    """Read nine figures, ms / buckets / candidates at each K, as the paper's tables print them."""
    one, ten, hundred = (Cell(*map(float, cell.split())) for cell in figures.split("|"))
    return Row((one, ten, hundred), megabytes)


ANALYSIS_GIST1M_ITQ: dict[int, dict[str, Row]] = {
    32: {
        "MIH_binary": _row("0.13 20 4469 | 0.19 68 6327 | 0.38 217 11637", 15.9),
        "PQTable": _row("1.66 26 5045 | 2.08 60 6900 | 3.16 161 11366", 15.9),
        "FSWBC_single": _row("0.09 12 4480 | 0.22 41 6458 | 0.63 138 12280", 13.7),
        "FSWBC": _row("0.08 12 4380 | 0.19 41 5935 | 0.55 138 10478", 15.9),
    },
    64: {
        "MIH_binary": _row("0.69 288 14165 | 1.28 690 26549 | 2.44 1523 48289", 27.6),
        "PQTable": _row("13.44 956 39404 | 18.15 1415 52291 | 26.90 2297 73728", 27.6),
        "FSWBC_single": _row("2.11 250 25360 | 4.84 607 52365 | 10.42 1378 102915", 25.6),
        "FSWBC": _row("1.33 250 14727 | 3.02 607 27037 | 6.39 1378 48869", 27.6),
    },
    128: {
        "MIH_binary": _row("6.47 2230 67395 | 10.56 4163 106668 | 16.25 7302 159670", 54.1),
        "PQTable": _row("130.20 12623 226645 | 154.70 15585 263330 | 187.49 19783 305136", 54.1),
        "FSWBC_single": _row("35.91 2172 231884 | 59.70 4140 361761 | 89.09 7405 498446", 49.5),
        "FSWBC": _row("13.78 2172 70597 | 23.37 4140 112344 | 38.91 7405 166520", 54.1),
    },
}
"""Table VIII, "search performance analysis on GIST1M with ITQ", by code length."""


def _times(figures: str) -> dict[int, dict[str, float]]:
    """Read a time per system, at 8 to 128 bits."""
    systems = ("Linear Scan", "MIH_binary", "MIH_weight", "FSWBC")
    columns = (column.split() for column in figures.split("|"))
    return {
        bits: dict(zip(systems, map(float, column), strict=True))
        for bits, column in zip((8, 16, 32, 64, 128), columns, strict=True)
    }


MS_GIST1M: dict[str, dict[int, dict[str, float]]] = {
    "lsh": _times(
        "10.01 .02 .02 .02 | 15.33 .03 .03 .03 | 25.4 .08 .08 .11 | 44.52 .84 .84 2.11 | 89.04 7.94 7.94 18.37"
    ),
    "itq": _times(
        "9.56 .02 .02 .02 | 15.21 .03 .03 .03 | 25.35 .13 .13 .08 | 44.47 .69 .69 1.33 | 89.04 6.47 6.47 13.78"
    ),
}
"""Tables V and VI, "search efficiency comparison on GIST1M": ms at K = 1, by encoder and code length."""

CRITERIA_SIFT1B: dict[int, dict[str, Row]] = {
    64: {
        "FSWBC": _row("10.2 434 6074 | 15.63 1670 14681 | 37.64 6500 47383"),
        "FSWBC_sort": _row("10.49 434 5715 | 15.95 1670 16089 | 38.05 6500 48988"),
        "FSWBC_PQ": _row("19.67 1047 11982 | 32.42 2538 23744 | 71.12 7625 57155"),
    },
    128: {
        "FSWBC": _row("67.8 10136 106672 | 187.89 30762 255151 | 555.18 91726 589718"),
        "FSWBC_sort": _row("68.46 10137.24 106099.4 | 189.17 30763 254849 | 558.07 91726 589635"),
        "FSWBC_PQ": _row("551.29 62290.81 428009 | 676.01 99390 623251 | 1218.58 185957 1007101"),
    },
}
"""Table X, "decision criterion comparison on SIFT1B" (one billion codes), by code length."""

PRE_AT_1_GIST1M: dict[str, dict[int, dict[str, float]]] = {
    "itq": {
        8: {"Linear Scan": 100.0, "MIH_binary": 100.0, "MIH_weight": 100.0, "FSWBC": 100.0},
        16: {"Linear Scan": 100.0, "MIH_binary": 99.0, "MIH_weight": 99.0, "FSWBC": 100.0},
        32: {"MIH_binary": 45.0, "MIH_weight": 47.2, "FSWBC": 100.0},
        64: {"MIH_binary": 32.2, "MIH_weight": 38.1, "FSWBC": 100.0},
        128: {"MIH_binary": 36.0, "MIH_weight": 49.0, "FSWBC": 100.0},
    },
    "lsh": {
        8: {"Linear Scan": 100.0, "MIH_binary": 100.0, "MIH_weight": 100.0, "FSWBC": 100.0},
        16: {"Linear Scan": 100.0, "MIH_binary": 99.6, "MIH_weight": 99.6, "FSWBC": 100.0},
        32: {"MIH_binary": 35.6, "MIH_weight": 38.7, "FSWBC": 100.0},
        64: {"MIH_binary": 30.3, "MIH_weight": 37.8, "FSWBC": 100.0},
        128: {"MIH_binary": 30.5, "MIH_weight": 44.7, "FSWBC": 100.0},
    },
}
"""Tables II and III: pre@1 in percent, by encoder and code length."""

USAGE_GIST1M_LSH: dict[int, float] = {32: 6.0, 64: 0.0, 128: 0.0}
"""Table I: |T_one| / |T_all| in percent."""
