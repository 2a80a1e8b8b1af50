"""Generated test data: codes, ids, index layouts and queries, with many edge cases.

Hypothesis draws kinds, sizes and a seed. Kinds and sizes shrink well; the seed determines the values.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.conftest import DEFAULT_CASES
from tests.native.oracle import Codes, Floats, Ids
from whamming.native import Buckets, Index, Plan, Tables, choose_substring_bits

LAYOUTS: tuple[tuple[Tables, Buckets], ...] = (
    ("single", "compact"),
    ("single", "fast"),
    ("multi", "compact"),
    ("multi", "fast"),
    ("none", "compact"),
)

CodeKind = Literal["uniform", "clustered", "duplicated", "equal", "sparse"]
IdKind = Literal["rows", "shuffled", "scattered"]
WeightKind = Literal[
    "random",
    "zero",
    "equal",
    "negative",
    "huge",
    "denormal",
    "integers",
    "dominated",
    "both",
    "farthest",
    "fractions",
    "spread",
    "near",
    "cancelling",
]
CODE_KINDS: tuple[CodeKind, ...] = ("uniform", "clustered", "duplicated", "equal", "sparse")
ID_KINDS: tuple[IdKind, ...] = ("rows", "shuffled", "scattered")
WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)
TABLE_KINDS: tuple[WeightKind, ...] = ("both", "cancelling")
"""Costs that a code and weights cannot express."""

MAX_CELLS = 1_500_000  # codes x bits of one example; keeps the oracle fast
FEW_KEYS = 1 << 15  # in all tables together; a probe of all of them takes milliseconds


def generated(base: int) -> settings:
    """Hypothesis settings: ``base`` examples by default, scaled by WHAMMING_CASES (``make test``, ``make soak``)."""
    wanted = int(os.environ.get("WHAMMING_CASES", DEFAULT_CASES))
    return settings(
        max_examples=max(1, base * wanted // DEFAULT_CASES),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        print_blob=True,
    )


@dataclass(frozen=True)
class Data:
    """Codes with their ids, and the options of the index built over them."""

    bits: int
    codes: Codes
    ids: Ids | None
    substring_bits: int | None
    reorder: bool
    threads: int
    seed: int

    @property
    def n(self) -> int:
        return len(self.codes)

    def build(self, tables: Tables, buckets: Buckets) -> Index:
        return Index.build(
            self.codes,
            self.bits,
            self.ids,
            tables,
            buckets,
            substring_bits=self.substring_bits,
            reorder=self.reorder,
            threads=self.threads,
        )

    def slow_to_probe(self, index: Index) -> bool:
        """Whether a full probe may try too many keys for a test."""
        length = choose_substring_bits(self.n, self.bits) if self.substring_bits is None else self.substring_bits
        return index.table_count << min(length, self.bits) > 8 * FEW_KEYS

    def query(self, kind: WeightKind, seed: int) -> Floats:
        """Return a cost table ``[bits, 2]`` for a query near a stored code."""
        rng = np.random.default_rng([self.seed, seed])
        base = self.codes[rng.integers(self.n)] if self.n else make_codes("uniform", 1, self.bits, rng)[0]
        flips = np.packbits(rng.random(8 * len(base)) < rng.choice([0.0, 0.03, 0.3]), bitorder="little")
        return make_table(kind, base ^ flips, self.bits, rng)


def plans(index: Index) -> tuple[Plan, ...]:
    return ("auto", "sweep") if index.tables == "none" else ("auto", "probe", "sweep")


def make_codes(kind: CodeKind, n: int, bits: int, rng: np.random.Generator) -> Codes:
    """Return packed codes. Bits past the last one are noise, which the engine must ignore."""
    width = (bits + 7) // 8
    if kind == "uniform":
        return rng.integers(0, 256, (n, width), dtype=np.uint8)
    if kind == "clustered":
        centres = rng.integers(0, 256, (max(1, n // 50), width), dtype=np.uint8)
        flips = np.packbits(rng.random((n, 8 * width)) < 0.06, axis=1, bitorder="little")
        return centres[rng.integers(0, len(centres), n)] ^ flips
    if kind == "sparse":
        return np.packbits(rng.random((n, 8 * width)) < 0.02, axis=1, bitorder="little")
    distinct = rng.integers(0, 256, (1 if kind == "equal" else max(1, n // 7), width), dtype=np.uint8)
    return distinct[rng.integers(0, len(distinct), n)]


def make_ids(kind: IdKind, n: int, rng: np.random.Generator) -> Ids | None:
    if kind == "rows":
        return None
    if kind == "shuffled":
        return rng.permutation(n).astype(np.uint64)
    extremes = np.array([0, 2**64 - 1, 2**63], dtype=np.uint64)
    between = np.cumsum(rng.integers(1, 2**50, n, dtype=np.uint64))  # distinct, and below 2^63
    return rng.permutation(np.concatenate([extremes, between])[:n])


def make_table(kind: WeightKind, code: Codes, bits: int, rng: np.random.Generator) -> Floats:
    """Return a cost table ``[bits, 2]``: the cost of a stored 0 and of a stored 1."""
    if kind == "both":
        return rng.normal(size=(bits, 2)) * float(rng.choice([1e-9, 1.0, 1e9]))
    if kind == "cancelling":  # both costs of a bit are huge, their difference is tiny
        base = np.ldexp(rng.choice([1.0, -1.5]), rng.integers(0, 60, bits))
        return np.stack([base, base + np.spacing(base) * rng.integers(-3, 4, bits)], axis=1)
    weights: Floats
    match kind:
        case "zero":
            weights = np.zeros(bits)
        case "equal":
            weights = np.full(bits, float(rng.choice([1.0, 0.1, 3.7e-5])))
        case "negative":
            weights = rng.normal(size=bits)
        case "huge":
            weights = rng.choice([1e30, 1e12, -1e30, 7e29, 0.0], size=bits)
        case "denormal":
            weights = rng.integers(0, 9, bits).astype(np.float64) * 5e-324
        case "integers":
            weights = rng.integers(0, 4, bits).astype(np.float64)
        case "dominated":
            weights = rng.random(bits)
            weights[rng.integers(bits)] = rng.choice([1e4, 1e9, 1e15])
        case "farthest":
            weights = -rng.random(bits)
        case "fractions":  # sixteenths: sums that tie without being integers
            weights = rng.integers(0, 5, bits).astype(np.float64) / 16 + 0.5
        case "spread":  # as far apart as is always accepted
            sizes = np.ldexp(1 + rng.random(bits), rng.integers(0, 60, bits) + int(rng.choice([-1074, -500, 0, 900])))
            weights = sizes * rng.choice([1.0, 1.0, -1.0], bits)
        case "near":  # sums that differ in the last of very many digits
            weights = 1.0 + np.spacing(1.0) * rng.integers(0, 3, bits)
            weights[rng.random(bits) < 0.1] *= 2.0 ** float(rng.choice([20, 40, 59]))
        case _:
            weights = rng.random(bits)
    differs = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
    return np.stack([np.where(differs, weights, 0.0), np.where(differs, 0.0, weights)], axis=1)


def bit_lengths() -> st.SearchStrategy[int]:
    """1 to 4096, often near multiples of 8 and 64, and near 288, where the sweep changes to 16-bit sums."""
    edges = [1, 2, 7, 8, 9, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 284, 285, 287, 288, 289, 292, 511, 4095, 4096]
    return st.one_of(st.sampled_from(edges), st.integers(1, 70), st.integers(1, 300), st.integers(280, 4096))


@st.composite
def datasets(draw: st.DrawFn, least: int = 0, most: int = 5000) -> Data:
    bits = draw(bit_lengths())
    room = max(least, min(most, MAX_CELLS // bits))
    n = draw(st.one_of(st.integers(least, min(room, least + 8)), st.integers(least, room)))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    codes = make_codes(draw(st.sampled_from(CODE_KINDS)), n, bits, rng)
    ids = make_ids(draw(st.sampled_from(ID_KINDS)), n, rng)
    return Data(
        bits,
        codes,
        ids,
        substring_bits=draw(substring_lengths(bits)),
        reorder=draw(st.booleans()),
        threads=draw(st.sampled_from([1, 1, 1, 3])),
        seed=seed,
    )


def substring_lengths(bits: int) -> st.SearchStrategy[int | None]:
    """Mostly so short that a full probe is fast; sometimes any length up to 32."""
    most = max(length for length in range(1, 33) if -(-min(bits, 256) // length) << length <= FEW_KEYS)
    short = st.integers(1, most)
    return st.one_of(st.none(), short, short, short, st.integers(9, 32))


def weight_kinds(most: int = 3) -> st.SearchStrategy[list[WeightKind]]:
    return st.lists(st.sampled_from(WEIGHT_KINDS), min_size=1, max_size=most)
