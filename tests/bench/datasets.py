"""The codes and costs that the benchmarks run on: real data if present, otherwise generated clusters.

Every data set is ``(codes, bits, costs)``: packed codes ``uint8 [n, ceil(bits / 8)]`` and, per query, the b x 2
table of costs. Derived codes (ITQ, LSH, folded fingerprints, clusters) are computed once and kept in a cache folder.
"""

from __future__ import annotations

import gzip
import lzma
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from whamming.storage import Kind, fit

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("WHAMMING_DATA", ROOT.parent / "shared" / "data"))
CACHE = Path(os.environ.get("WHAMMING_BENCH_CACHE", ROOT / "build" / "bench-data"))
QUERIES = 1000
SAMPLE = 100_000
"""Vectors that encoders learn from."""
ENCODERS: tuple[Kind, ...] = ("itq", "lsh")
"""The paper's."""

_SIFT = "flickr_sift1m.base.npy.gz"
_ZINC = "zinc_morgan1024.base.npy.xz"

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Dataset:
    """Codes to search, and one b x 2 cost table per query."""

    name: str
    bits: int
    codes: Bytes
    costs: Floats
    real: bool

    def __len__(self) -> int:
        return len(self.codes)


class MissingDataError(Exception):
    """The files that a data set is derived from are not on this machine."""


def load(name: str) -> Dataset:
    """Return the named data set, deriving and caching it at its first use."""
    if name not in RECIPES:
        raise ValueError(f"data set {name!r} is unknown; choose one of {', '.join(RECIPES)}")
    recipe = RECIPES[name]
    stem = CACHE / name
    if not stem.with_suffix(".costs.npy").exists():
        codes, costs = recipe.make()
        CACHE.mkdir(parents=True, exist_ok=True)
        np.save(stem.with_suffix(".codes.npy"), codes)
        np.save(stem.with_suffix(".costs.npy"), costs)
    return Dataset(
        name,
        recipe.bits,
        np.load(stem.with_suffix(".codes.npy")),
        np.load(stem.with_suffix(".costs.npy")),
        recipe.real,
    )


def missing(name: str) -> str | None:
    """Return which missing file prevents the data set from being derived, or None if nothing is missing."""
    source = RECIPES[name].source
    if source is None or (DATA / source).exists():
        return None
    return f"{source} is not in {DATA} (set WHAMMING_DATA to the folder that holds it)"


def read(source: str) -> NDArray[np.generic]:
    path = DATA / source
    if not path.exists():
        raise MissingDataError(f"{path} does not exist; set WHAMMING_DATA to the folder that holds it")
    if path.suffix == ".gz":
        with gzip.open(path) as file:
            return np.asarray(np.load(file))
    if path.suffix == ".xz":
        with lzma.open(path) as file:
            return np.asarray(np.load(file))
    return np.asarray(np.load(path))


def pack(bits: NDArray[np.bool_]) -> Bytes:
    """Pack rows of booleans, bit i to byte i >> 3 under the mask 1 << (i & 7)."""
    return np.packbits(bits, axis=1, bitorder="little")


def unpack(codes: Bytes, bits: int) -> Bytes:
    """Undo pack(): one uint8 0 or 1 per bit."""
    return np.unpackbits(codes, axis=1, bitorder="little", count=bits)


# -- recipes ----------------------------------------------------------------------------------------------------------


def _gist() -> tuple[Bytes, Floats]:
    base = read("gist1m_itq32/base.npy").view(np.uint8).reshape(-1, 4)
    query = read("gist1m_itq32/query.npy").view(np.uint8).reshape(-1, 4)
    weights = np.asarray(read("gist1m_itq32/weights.npy"), dtype=np.float64)  # by q XOR g
    q = unpack(query, 32)
    costs = np.empty_like(weights)
    for value in (0, 1):
        costs[:, :, value] = np.take_along_axis(weights, (q ^ value)[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    return base, costs


@cache
def read_sift() -> tuple[Bytes, Bytes]:
    """Return the SIFT descriptors of a million places in photos, in random order, and the queries'."""
    base = np.asarray(read(_SIFT), dtype=np.uint8)
    query = np.asarray(read("flickr_sift1m.query.npy.gz"), dtype=np.uint8)[:QUERIES]
    return base[np.random.default_rng(2024).permutation(len(base))], query  # rows come grouped by photo


def _sift(kind: Kind, bits: int) -> tuple[Bytes, Floats]:
    base, query = read_sift()
    encoder = fit(kind, base[:SAMPLE], bits=bits, seed=2024)
    return encoder.encode(base), encoder.cost_table(query, "asymmetric")


def _morgan(bits: int) -> tuple[Bytes, Floats]:
    fold = 1024 // bits
    base, query = (
        np.bitwise_or.reduce(np.asarray(read(f), dtype=np.uint8).reshape(-1, fold, bits // 8), axis=1)
        for f in ("zinc_morgan1024.base.npy.xz", "zinc_morgan1024.query.npy.gz")
    )
    query = query[:QUERIES]
    frequency = unpack(base[:200_000], bits).mean(axis=0, dtype=np.float64)
    idf = np.abs(np.log((frequency + 1e-5) / (1 - frequency + 1e-5)))
    q = unpack(query, bits).astype(np.float64)
    return base, np.stack([q * idf, (1 - q) * idf], axis=2)


def _text() -> tuple[Bytes, Floats]:
    """Signs of sentence embeddings; the query's components are the weights."""
    base, query = (
        np.asarray(read(f), dtype=np.float64) for f in ("text_minilm384.base.npy.gz", "text_minilm384.query.npy.gz")
    )
    query = query[:QUERIES]
    return pack(base > 0), np.stack([np.maximum(query, 0), np.maximum(-query, 0)], axis=2)


def make_clusters(n: int, bits: int) -> tuple[Bytes, Floats]:
    """Codes around n / 100 random centres, each bit flipped with probability 1 / 16; queries are noisy members."""
    rng = np.random.default_rng(bits)
    centres = rng.integers(0, 256, (n // 100, bits // 8), dtype=np.uint8)

    def noisy(rows: Bytes) -> Bytes:
        noise = rng.integers(0, 256, (4, *rows.shape), dtype=np.uint8)
        return np.bitwise_xor(rows, np.bitwise_and.reduce(noise, axis=0))

    codes = np.concatenate([noisy(centres[rng.integers(0, len(centres), 250_000)]) for _ in range(n // 250_000)])
    query = noisy(codes[rng.integers(0, n, QUERIES)])
    weights = np.abs(rng.standard_normal((QUERIES, bits)))
    q = unpack(query, bits)
    return codes, np.stack([weights * q, weights * (1 - q)], axis=2)


@dataclass(frozen=True)
class Recipe:
    """How to make one data set, and the file it needs."""

    bits: int
    source: str | None
    make: Callable[[], tuple[Bytes, Floats]]

    @property
    def real(self) -> bool:
        return self.source is not None


RECIPES: dict[str, Recipe] = {
    "gist-itq32": Recipe(32, "gist1m_itq32/base.npy", _gist),
    **{
        f"sift-{kind}{bits}": Recipe(bits, _SIFT, partial(_sift, kind, bits))
        for bits in (8, 16, 32, 64, 128)
        for kind in ENCODERS
    },
    "morgan256": Recipe(256, _ZINC, lambda: _morgan(256)),
    "morgan1024": Recipe(1024, _ZINC, lambda: _morgan(1024)),
    "text-sign384": Recipe(384, "text_minilm384.base.npy.gz", _text),
    "clusters64": Recipe(64, None, lambda: make_clusters(10_000_000, 64)),
    "clusters128": Recipe(128, None, lambda: make_clusters(10_000_000, 128)),
}
RACED = [name for name, recipe in RECIPES.items() if recipe.bits >= 64 or name == "gist-itq32"]
"""Where it matters how fast a search is; shorter codes are for the paper's tables."""
