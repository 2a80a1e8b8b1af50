"""The laboratory: every system that the paper compares. Each counts what the paper counts.

The laboratory is a baseline for measurements and tests. Whamming itself searches with ``whamming.native.Index``.
``lab/lab.h`` describes the systems and what exactly is counted.

    lab = Laboratory(codes, bits=32, m=2)
    answers = lab.fswbc(Costs.table(t), k=10)
    answers.ids, answers.distances, answers.buckets, answers.candidates

A ``Laboratory`` is immutable and may be used from many threads; every call releases the interpreter lock.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from whamming.native._lab import ffi, lib
from whamming.native.arguments import as_whole
from whamming.native.costs import Costs, as_codes, check_bits
from whamming.native.errors import InvalidArgumentError, OutOfMemoryError

Layout = Literal["multi", "single"]
Criterion = Literal["eqn10", "eqn11", "eqn15", "eqn16", "pqtable"]
Pool = Literal["kept", "met"]
Generator = Literal["flips", "multi-sequence"]

Bytes = NDArray[np.uint8]

_LAYOUTS: dict[str, int] = {"multi": lib.LAB_MULTI, "single": lib.LAB_SINGLE}
_CRITERIA: dict[str, int] = {
    "eqn10": lib.LAB_EQN10,
    "eqn11": lib.LAB_EQN11,
    "eqn15": lib.LAB_EQN15,
    "eqn16": lib.LAB_EQN16,
    "pqtable": lib.LAB_APPEARANCES,
}
_POOLS: dict[str, int] = {"kept": lib.LAB_KEPT, "met": lib.LAB_MET}
_GENERATORS: dict[str, int] = {"flips": lib.LAB_FLIPS, "multi-sequence": lib.LAB_MULTI_SEQUENCE}

_SUBSTRING_BITS = 16  # as in the paper, for one million codes
_MAX_K = 1 << 31


@dataclass(frozen=True)
class Answers:
    """The hits of a batch of q queries, and the work that they took."""

    ids: NDArray[np.int64]  # [q, k], row numbers; -1 past the last code if k > n
    distances: NDArray[np.float64]  # [q, k], ascending; infinite if the id is -1
    buckets: NDArray[np.int64]  # [q], look-ups, empty buckets included
    candidates: NDArray[np.int64]  # [q], distinct codes compared


@dataclass(frozen=True)
class Storage:
    """Size of an index in bytes."""

    codes: int
    directory: int
    postings: int

    @property
    def total(self) -> int:
        return self.codes + self.directory + self.postings


@dataclass(frozen=True)
class Usage:
    """How many bucket indices the m tables share (the paper's Table I)."""

    all: int  # |T_all|: indices that are non-empty in some table
    one: int  # |T_one|: indices that are non-empty in exactly one

    @property
    def share(self) -> float:
        """|T_one| / |T_all|; 0 if there are no codes."""
        return self.one / self.all if self.all else 0.0


class Laboratory:
    """Hash tables over a set of codes, and the paper's systems on top of them."""

    def __init__(
        self,
        codes: Bytes,
        bits: int,
        *,
        m: int | None = None,
        substring_bits: int | None = None,
        layout: Layout = "multi",
    ) -> None:
        """Build the tables over packed codes, uint8 [n, ceil(bits / 8)], which must not change afterwards.

        Give either ``m``, the number of substrings, or ``substring_bits``, their maximum length (by default 16).
        """
        bits = check_bits(bits)
        if m is not None and substring_bits is not None:
            raise InvalidArgumentError(
                f"m = {m} and substring_bits = {substring_bits} exclude each other; give one of them"
            )
        if m is None:
            longest = _SUBSTRING_BITS if substring_bits is None else substring_bits
            if longest < 1:
                raise InvalidArgumentError(f"substring_bits = {longest}; it must be at least 1")
            m = -(-bits // longest)
        if not 1 <= m <= bits:
            raise InvalidArgumentError(f"m = {m}; a code of {bits} bits has 1 to {bits} substrings")
        if -(-bits // m) > lib.LAB_MAX_SUBSTRING_BITS:
            raise InvalidArgumentError(
                f"m = {m} cuts {bits} bits into substrings of {-(-bits // m)} bits; the limit is "
                f"{lib.LAB_MAX_SUBSTRING_BITS}, so use m >= {-(-bits // lib.LAB_MAX_SUBSTRING_BITS)}"
            )
        self._codes = as_codes(codes, bits)
        self.n = len(self._codes)
        self.bits = bits
        self.m = m
        self.layout = layout
        out = ffi.new("lab_index **")
        status = lib.lab_index_new(
            _pointer("uint8_t[]", self._codes), self.n, bits, m, _constant(_LAYOUTS, layout, "layout"), out
        )
        _check(status, f"n = {self.n}, bits = {bits}, m = {m}")
        self._index = ffi.gc(out[0], lib.lab_index_free)

    def __repr__(self) -> str:
        return f"Laboratory(n={self.n}, bits={self.bits}, m={self.m}, layout={self.layout!r})"

    # -- size and usage of the tables ----------------------------------------------------------------------------------

    @property
    def storage(self) -> Storage:
        """Size of the codes and tables."""
        out = ffi.new("struct lab_storage *")
        lib.lab_index_storage(self._index, out)
        return Storage(out.codes, out.directory, out.postings)

    @property
    def storage_bytes(self) -> int:
        """Total size of the codes and tables."""
        return self.storage.total

    def usage(self) -> Usage:
        """|T_one| and |T_all| of the m tables. Both layouts give the same numbers."""
        out = ffi.new("struct lab_usage *")
        _check(lib.lab_index_usage(self._index, out), repr(self))
        return Usage(out.all, out.one)

    # -- the systems ---------------------------------------------------------------------------------------------------

    def scan(self, costs: Costs, k: int) -> Answers:
        """Linear Scan with one look-up table per byte. Exact."""
        return self._weighted(costs, k, lambda c, answers: lib.lab_scan(self._index, c, k, answers))

    def fswbc(self, costs: Costs, k: int, criterion: Criterion = "eqn11") -> Answers:
        """FSWBC, or FSWBC_single over the "single" layout. Exact under every criterion."""
        rule = _constant(_CRITERIA, criterion, "criterion")
        return self._weighted(costs, k, lambda c, answers: lib.lab_fswbc(self._index, c, k, rule, answers))

    def pqtable(self, costs: Costs, k: int) -> Answers:
        """PQTable with parts of 8 bits. Exact."""
        return self._weighted(costs, k, lambda c, answers: lib.lab_pqtable(self._index, c, k, answers))

    def mih_binary(self, queries: Bytes, k: int) -> Answers:
        """MIH_binary: the exact k nearest codes by plain Hamming distance. ``queries`` are packed codes."""
        packed = as_codes(queries, self.bits, "query codes")
        pointer = _pointer("uint8_t[]", packed)
        sums, answers = self._answer(
            len(packed), k, lambda a: lib.lab_mih_binary(self._index, pointer, len(packed), k, a)
        )
        return _with_distances(answers, sums.astype(np.float64))

    def mih_weight(self, queries: Bytes, costs: Costs, k: int, pool: Pool = "kept") -> Answers:
        """MIH_weight: find a pool of codes by Hamming distance, and rank it by weighted distance. Not exact.

        ``pool``: ``"kept"`` ranks the codes that multi-index hashing keeps, at most k per Hamming distance, as in the
        paper. ``"met"`` ranks all codes that it has found.
        """
        packed = as_codes(queries, self.bits, "query codes")
        if len(packed) != len(costs):
            raise InvalidArgumentError(f"{len(packed)} query codes but {len(costs)} costs; give one per query")
        pointer = _pointer("uint8_t[]", packed)
        chosen = _constant(_POOLS, pool, "pool")
        return self._weighted(
            costs, k, lambda c, answers: lib.lab_mih_weight(self._index, pointer, c, k, chosen, answers)
        )

    def distances(self, costs: Costs, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the weighted distances of rows ``ids`` [q, k] to the q queries; infinite if an id is -1."""
        self._check_costs(costs)
        sums = np.zeros(ids.shape, dtype=np.uint64)
        for q in range(len(costs)):
            differing = self._codes[np.maximum(ids[q], 0)] ^ costs.optimum[q] if self.n else np.empty((0, 0), np.uint8)
            bits = np.unpackbits(differing, axis=1, count=self.bits, bitorder="little")
            sums[q] = (bits * costs.deltas[q]).sum(axis=1, dtype=np.uint64)
        distances = _scaled(costs, sums)
        distances[ids < 0] = np.inf
        return distances

    # -- calling C -----------------------------------------------------------------------------------------------------

    def _check_costs(self, costs: Costs) -> None:
        if costs.bits != self.bits:
            raise InvalidArgumentError(
                f"the costs are for {costs.bits} bits, the codes have {self.bits}; they must be equal"
            )

    def _weighted(self, costs: Costs, k: int, call: Callable[[Any, Any], int]) -> Answers:
        self._check_costs(costs)
        optimum = np.ascontiguousarray(costs.optimum, dtype=np.uint8)
        deltas = np.ascontiguousarray(costs.deltas, dtype=np.uint64)
        c = ffi.new("struct lab_costs *")
        c.count = len(costs)
        c.optimum = optimum_pointer = _pointer("uint8_t[]", optimum)
        c.deltas = deltas_pointer = _pointer("uint64_t[]", deltas)
        sums, answers = self._answer(len(costs), k, lambda a: call(c, a))
        del optimum_pointer, deltas_pointer  # until here, they kept the arrays pinned
        return _with_distances(answers, _scaled(costs, sums))

    def _answer(self, count: int, k: int, call: Callable[[Any], int]) -> tuple[NDArray[np.uint64], Answers]:
        """Allocate the answers of a batch and let ``call`` fill them. Also returns the unscaled integer distances."""
        k = as_whole("k", k)
        if not 0 <= k < _MAX_K:
            raise InvalidArgumentError(f"k = {k}; it must be at least 0 and below {_MAX_K}")
        ids = np.zeros((count, k), dtype=np.uint32)
        sums = np.zeros((count, k), dtype=np.uint64)
        counters = np.zeros((3, count), dtype=np.uint64)
        found, buckets, candidates = counters
        answers = ffi.new("struct lab_answers *")
        pins = {
            "ids": _pointer("uint32_t[]", ids),
            "distances": _pointer("uint64_t[]", sums),
            "found": _pointer("uint64_t[]", found),
            "buckets": _pointer("uint64_t[]", buckets),
            "candidates": _pointer("uint64_t[]", candidates),
        }
        for name, pin in pins.items():
            setattr(answers, name, pin)
        _check(call(answers), f"{self!r}, {count} queries, k = {k}")
        hit = np.arange(k) < found[:, None]
        return sums, Answers(
            ids=np.where(hit, ids.astype(np.int64), -1),
            distances=np.where(hit, 0.0, np.inf),
            buckets=buckets.astype(np.int64),
            candidates=candidates.astype(np.int64),
        )


def successors(changed: int, bits: int) -> list[int]:
    """Apply Operations 1 and 2 to a code. Bit r of a code is set if the r-th cheapest bit is changed."""
    out = ffi.new("uint32_t[2]")
    count = lib.lab_successors(changed, bits, out)
    return list(out[0:count])


def probing_order(
    optimum: int, deltas: NDArray[np.uint64], count: int, generator: Generator = "flips"
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Return the first ``count`` codes around ``optimum`` in probing order, and their costs."""
    weights = np.ascontiguousarray(deltas, dtype=np.uint64)
    size = min(count, 1 << len(weights))
    keys = np.zeros(size, dtype=np.uint32)
    key_costs = np.zeros(size, dtype=np.uint64)
    status = lib.lab_probing_order(
        optimum,
        _pointer("uint64_t[]", weights),
        len(weights),
        _constant(_GENERATORS, generator, "generator"),
        size,
        _pointer("uint32_t[]", keys),
        _pointer("uint64_t[]", key_costs),
    )
    _check(status, f"{len(weights)} bits; a substring has 1 to {lib.LAB_MAX_SUBSTRING_BITS}")
    return keys, key_costs


def _pointer(ctype: str, array: NDArray[Any]) -> Any:
    return ffi.from_buffer(ctype, array)


def _constant(names: dict[str, int], name: str, what: str) -> int:
    if name not in names:
        raise InvalidArgumentError(f"{what} = {name!r}; choose one of {', '.join(map(repr, names))}")
    return names[name]


def _scaled(costs: Costs, sums: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Convert sums of steps to distances. They are exact, unless the query's distances are rounded."""
    exponents = costs.scales["exponent"].astype(np.int64)
    floors = np.array(
        [math.ldexp(floor, int(exponent)) for floor, exponent in zip(costs.floors, exponents, strict=True)]
    )
    steps = np.ldexp(sums.astype(np.float64), (exponents + costs.scales["shift"])[:, None])
    return np.asarray(floors[:, None] + steps)


def _with_distances(answers: Answers, distances: NDArray[np.float64]) -> Answers:
    padded = np.where(answers.ids < 0, np.inf, distances)
    return Answers(answers.ids, padded, answers.buckets, answers.candidates)


def _check(status: int, what: str) -> None:
    if status == lib.LAB_OK:
        return
    text = ffi.string(lib.lab_status_text(status)).decode()
    if status == lib.LAB_MEMORY:
        raise OutOfMemoryError(f"{text} ({what})")
    raise InvalidArgumentError(f"{text} ({what})")
