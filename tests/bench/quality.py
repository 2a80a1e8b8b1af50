"""``make quality``: how many true neighbours of a vector its code finds, by plain and by weighted Hamming distance.

The data are a million SIFT descriptors of Flickr8k photos (true neighbours by L2) and 59,440 MiniLM vectors of texts
(by cosine). For every encoder and length of code, this measures recall@10, the share of the 10 true neighbours that are
among the 10 nearest codes, and the share that are among the 100 nearest. The encoders learn from 100,000 vectors, or
from all if there are fewer. The 1,000 queries are not part of the data. Weighted costs are ``asymmetric`` and ``inner``
(see ``storage/vectors/encoders.py``).

Writes ``tests/bench/QUALITY.md`` and ``quality.svg``. The report also compares the time of encoding with that of the
matrix product alone. With ``--quick``, there are 100 queries and nothing is written.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

import datasets
from whamming.native import Index
from whamming.storage import Encoder, Form, Kind, fit

HERE = Path(__file__).parent
FORMS: tuple[Form, ...] = ("symmetric", "inner", "asymmetric")
LENGTHS: dict[Kind, tuple[int, ...]] = {"lsh": (64, 128, 256, 384), "itq": (64, 128, 256, 384), "sign": ()}
"""In bits; ``sign`` has as many as the vectors have components."""
NAMES: dict[Kind, str] = {"lsh": "LSH", "itq": "ITQ", "sign": "sign(x - mean)"}


@dataclass(frozen=True)
class Vectors:
    """Vectors to find, queries, and their true neighbours by row number."""

    name: str
    base: NDArray[Any]
    queries: NDArray[Any]
    truth: NDArray[np.int64]

    @classmethod
    def read(cls, name: str, stem: str, truth: str, queries: int) -> Vectors:
        """Read a set of the data folder."""
        return cls(
            name,
            datasets.read(f"{stem}.base.npy.gz"),
            datasets.read(f"{stem}.query.npy.gz")[:queries],
            np.asarray(datasets.read(f"{stem}.{truth}.npy.gz")[:queries, :10], dtype=np.int64),
        )

    @property
    def sample(self) -> NDArray[Any]:
        """What encoders learn from."""
        return self.base[np.random.default_rng(0).permutation(len(self.base))[: datasets.SAMPLE]]


SETS = (
    ("SIFT, 1M", "flickr_sift1m", "gt_l2"),
    ("MiniLM, 59k", "text_minilm384", "gt_cos"),
)


@dataclass(frozen=True)
class Result:
    """What one encoder finds on one set, by each form of costs."""

    data: str
    kind: Kind
    bits: int
    recall: dict[Form, tuple[float, float]]
    """Of the 10 true neighbours: the share among the first 10, and among the first 100."""
    fit_seconds: float
    """Of the processor."""
    rounds: int


def measure(data: Vectors, kind: Kind, bits: int) -> Result:
    """Fit, encode, search, count."""
    start = time.process_time()
    encoder = fit(kind, data.sample, bits=bits)
    seconds = time.process_time() - start
    index = Index.build(encoder.encode(data.base), bits)
    recall = {}
    for form in FORMS:
        found = index.search(encoder.costs(data.queries, form), k=100).ids.astype(np.int64)
        recall[form] = share(found[:, :10], data.truth), share(found, data.truth)
    return Result(data.name, kind, bits, recall, seconds, encoder.training.rounds)


def share(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Return how many of the true neighbours are among those found."""
    return float((found[:, :, None] == truth[:, None, :]).any(axis=1).mean())


def jobs(sets: Iterable[Vectors]) -> list[tuple[Vectors, Kind, int]]:
    """Return what there is to measure: ``itq`` has no more bits than vectors have components."""
    todo = []
    for data in sets:
        dim = data.base.shape[1]
        longest = 256 if dim < 256 else dim
        for kind, lengths in LENGTHS.items():
            fitting = [bits for bits in lengths if bits <= (dim if kind == "itq" else longest)]
            todo += [(data, kind, bits) for bits in fitting or [dim]]
    return todo


def encoding_ratio(rows: int = 1_000_000, dim: int = 128, bits: int = 128, turns: int = 5) -> tuple[float, ...]:
    """Return the CPU seconds of the matrix product alone, of the product into an existing array, and of encoding: for
    each, the minimum of ``turns``."""
    vectors = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)
    encoder: Encoder = fit("itq", vectors[:5000], bits=bits)
    assert encoder.matrix is not None
    product = np.zeros((rows, bits), dtype=np.float32)
    times = []
    for _ in range(turns):
        start = time.process_time()
        vectors @ encoder.matrix
        bare = time.process_time()
        np.matmul(vectors, encoder.matrix, out=product)
        again = time.process_time()
        encoder.encode(vectors)
        times.append((bare - start, again - bare, time.process_time() - again))
    return tuple(np.min(times, axis=0).tolist())


def cell(result: Result | None) -> str:
    """Lay out plain → inner → asymmetric."""
    if result is None:
        return "-"
    first = " → ".join(dotted(result.recall[form][0]) for form in FORMS)
    second = " → ".join(dotted(result.recall[form][1]) for form in FORMS)
    return f"{first} ({second})"


def dotted(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def report(results: Sequence[Result], seconds: tuple[float, ...]) -> str:
    """Lay the results out as Markdown."""
    names = list(dict.fromkeys(r.data for r in results))
    lines = [
        "# How many true neighbours do codes find?",
        "",
        "Recall@10 of the true float neighbours (in brackets, the share of the true 10 within the top 100): plain",
        "Hamming distance → weights |p(q)| (`inner`) → costs (p(q) - E[p | bit])² (`asymmetric`). `make quality`",
        "writes this file; `quality.py` says exactly what is measured.",
        "",
        "| code | bits | " + " | ".join(names) + " |",
        "|---" * (2 + len(names)) + "|",
    ]
    by = {(r.data, r.kind, "d" if r.kind == "sign" else str(r.bits)): r for r in results}
    order = [(kind, bits) for kind, lengths in LENGTHS.items() for bits in (*map(str, lengths), "d")]
    for kind, bits in (key for key in order if any((name, *key) in by for name in names)):
        cells = [cell(by.get((name, kind, bits))) for name in names]
        lines.append(f"| {NAMES[kind]} | {bits} | " + " | ".join(cells) + " |")
    itq = [r for r in results if r.kind == "itq"]
    lines += [
        "",
        "![recall@10 by length of code](quality.svg)",
        "",
        f"ITQ learned in {min(r.rounds for r in itq)} to {max(r.rounds for r in itq)} rounds, which took "
        f"{min(r.fit_seconds for r in itq):.0f} to {max(r.fit_seconds for r in itq):.0f} s of CPU time.",
        f"Encoding 1,000,000 x 128 float32 to 128 bits took {seconds[2]:.2f} s. In the same run, numpy's product",
        f"`X @ M` alone took {seconds[0]:.2f} s, or {seconds[1]:.2f} s into an existing array. So encoding takes "
        f"{seconds[2] / seconds[0]:.2f} or {seconds[2] / seconds[1]:.2f} times as long.",
        "",
    ]
    return "\n".join(lines)


def plot(results: Sequence[Result], path: Path) -> None:
    """Draw recall@10 by length of code: plain dashed, weighted solid."""
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "quality"  # the same bytes for the same figures
    mpl.rcParams["svg.fonttype"] = "none"
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(r.data for r in results))
    figure, axes = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.6), squeeze=False)
    for panel, name in zip(axes[0], names, strict=True):
        styles: tuple[tuple[Form, str], ...] = (("symmetric", "x--"), ("asymmetric", "o-"))
        for colour, kind in zip(("tab:blue", "tab:orange", "tab:green"), LENGTHS, strict=True):
            mine = sorted((r for r in results if r.data == name and r.kind == kind), key=lambda r: r.bits)
            for form, style in styles:
                label = f"{NAMES[kind]}, {'plain' if form == 'symmetric' else 'weighted'}"
                recall = [r.recall[form][0] for r in mine]
                panel.plot([r.bits for r in mine], recall, style, color=colour, label=label, markersize=5)
        panel.set_title(name, fontsize=10)
        panel.set_xlabel("bits")
        panel.set_ylabel("recall@10")
        panel.set_ylim(0)
        panel.grid(visible=True, alpha=0.3)
    axes[0][0].legend(fontsize=7, handlelength=3)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Measure, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 queries; print, and write nothing")
    options = parser.parse_args()
    try:
        sets = [Vectors.read(*names, 100 if options.quick else 1000) for names in SETS]
    except datasets.MissingDataError as error:
        sys.exit(str(error))
    results = []
    with tqdm(jobs(sets), unit="code") as shown:
        for data, kind, bits in shown:
            shown.set_description(f"{data.name}: {kind}, {bits} bits")
            results.append(measure(data, kind, bits))
    text = report(results, encoding_ratio())
    print(text)
    if not options.quick:
        (HERE / "QUALITY.md").write_text(text, encoding="utf-8")
        plot(results, HERE / "quality.svg")


if __name__ == "__main__":
    main()
