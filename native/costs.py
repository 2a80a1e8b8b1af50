"""A query's costs: what each stored bit value adds to the distance."""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native._engine import ffi, lib
from whamming.native.errors import InvalidArgumentError, check

MAX_BITS: Final[int] = lib.WH_MAX_BITS


def check_bits(bits: int) -> int:
    """Return ``bits`` if a code may have that many."""
    if not 1 <= bits <= MAX_BITS:
        raise InvalidArgumentError(f"bits = {bits}; a code has 1 to {MAX_BITS} bits")
    return bits


def as_array(values: ArrayLike, what: str, dtype: Any = None) -> NDArray[Any]:
    """Return what a user gave as an array, or say that it cannot be one."""
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the {what} are no array of numbers: {error}") from error


def as_codes(codes: ArrayLike, bits: int, what: str = "codes") -> NDArray[np.uint8]:
    """Return packed codes as a contiguous ``uint8 [n, ceil(bits / 8)]``, or say what is wrong with them."""
    array = as_array(codes, what)
    width = (bits + 7) // 8
    if array.dtype != np.uint8:
        raise InvalidArgumentError(
            f"{what} have dtype {array.dtype}, not uint8; pack booleans with np.packbits(x, axis=-1, bitorder='little')"
        )
    if array.ndim != 2 or array.shape[1] != width:
        raise InvalidArgumentError(
            f"{what} have shape {array.shape}; {bits} bits need [n, {width}] bytes (8 bits per byte, lowest first)"
        )
    return np.ascontiguousarray(array)


class Costs:
    """The costs of one query or of a batch, rounded once to integers.

    Make one with :meth:`table`, :meth:`weights` or :meth:`hamming`. The distance of a code ``g`` to query ``i`` is
    ``(floors[i] + sum of deltas[i, j] over the bits j where g differs from optimum[i]) / 2**exponents[i]``, and that
    division is exact: distances are doubles without rounding error of their own.

    Attributes
    ----------
    bits : length of the codes.
    single : made from one query, so that results have no batch dimension.
    optimum : ``uint8 [q, ceil(bits / 8)]``, the cheapest code of each query.
    deltas : ``uint64 [q, bits]``, what it costs to differ from the cheapest code.
    floors : ``int64 [q]``, what the cheapest code costs.
    exponents : ``int32 [q]``, the power of two that costs were multiplied by.
    """

    __slots__ = ("bits", "deltas", "exponents", "floors", "optimum", "single")

    bits: int
    single: bool
    optimum: NDArray[np.uint8]
    deltas: NDArray[np.uint64]
    floors: NDArray[np.int64]
    exponents: NDArray[np.int32]

    def __init__(self, tables: NDArray[np.float64], *, single: bool) -> None:
        """Round cost tables ``float64 [q, bits, 2]``; prefer the class methods."""
        count, bits, _ = tables.shape
        tables = np.ascontiguousarray(tables)
        self.bits = check_bits(bits)
        self.single = single
        self.optimum = np.zeros((count, (bits + 7) // 8), dtype=np.uint8)
        self.deltas = np.zeros((count, bits), dtype=np.uint64)
        self.floors = np.zeros(count, dtype=np.int64)
        self.exponents = np.zeros(count, dtype=np.int32)
        failed = ffi.new("size_t *")
        status = lib.wh_costs_round_all(
            ffi.from_buffer("double[]", tables),
            bits,
            count,
            ffi.from_buffer("uint8_t[]", self.optimum),
            ffi.from_buffer("uint64_t[]", self.deltas),
            ffi.from_buffer("int64_t[]", self.floors),
            ffi.from_buffer("int32_t[]", self.exponents),
            failed,
        )
        if status == lib.WH_NOT_FINITE:
            query, bit, value = (int(x) for x in np.argwhere(~np.isfinite(tables))[0])
            raise InvalidArgumentError(
                f"the cost of bit {bit} = {value} of query {query} is {tables[query, bit, value]}; "
                "costs must be finite numbers"
            )
        check(status, f"rounding the costs of query {failed[0]}")

    @classmethod
    def table(cls, table: ArrayLike) -> Self:
        """Costs from a table ``[bits, 2]``, or ``[q, bits, 2]`` for a batch: of a stored 0, and of a stored 1.

        Any finite values, negative ones too.
        """
        array = as_array(table, "costs", np.float64)
        if array.ndim not in (2, 3) or array.shape[-1] != 2:
            raise InvalidArgumentError(f"the cost table has shape {array.shape}; it must be [bits, 2] or [q, bits, 2]")
        single = array.ndim == 2
        return cls(array[None] if single else array, single=single)

    @classmethod
    def weights(cls, code: ArrayLike, weights: ArrayLike) -> Self:
        """Costs from a query code and what a mismatch of each bit costs.

        ``code``: packed ``uint8 [ceil(bits / 8)]`` or ``[q, ...]``; ``weights``: ``[bits]``, shared by all queries, or
        ``[q, bits]``. A negative weight makes differing cheaper than agreeing.
        """
        mismatch = as_array(weights, "weights", np.float64)
        if mismatch.ndim not in (1, 2) or mismatch.shape[-1] == 0:
            raise InvalidArgumentError(f"the weights have shape {mismatch.shape}; they must be [bits] or [q, bits]")
        bits = check_bits(mismatch.shape[-1])
        array = as_array(code, "query codes")
        single = array.ndim == 1 and mismatch.ndim == 1
        codes = as_codes(array[None] if array.ndim == 1 else array, bits, "query codes")
        if mismatch.ndim == 2 and len(codes) not in (1, len(mismatch)):
            raise InvalidArgumentError(
                f"{len(codes)} query codes but {len(mismatch)} rows of weights; give one row of weights per code, "
                "or one for all"
            )
        ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little").astype(bool)
        ones, mismatch = np.broadcast_arrays(ones, mismatch)
        return cls(np.stack([np.where(ones, mismatch, 0.0), np.where(ones, 0.0, mismatch)], axis=-1), single=single)

    @classmethod
    def hamming(cls, code: ArrayLike, bits: int | None = None) -> Self:
        """Plain Hamming distance to a packed code ``[ceil(bits / 8)]`` or ``[q, ...]``; by default 8 bits a byte."""
        array = as_array(code, "query codes")
        width = array.shape[-1] if array.ndim else 0
        return cls.weights(code, np.ones(8 * width if bits is None else check_bits(bits)))

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.floors)

    def __getitem__(self, query: int | slice) -> Costs:
        """Return one query of a batch, or a smaller batch."""
        single = not isinstance(query, slice)
        if not isinstance(query, slice):
            i = range(len(self))[query]
            query = slice(i, i + 1)
        some = object.__new__(Costs)
        some.bits, some.single = self.bits, single
        some.optimum = np.ascontiguousarray(self.optimum[query])
        some.deltas = np.ascontiguousarray(self.deltas[query])
        some.floors, some.exponents = self.floors[query], self.exponents[query]
        return some

    def __repr__(self) -> str:
        """Say how many queries of how many bits these are."""
        return f"Costs({len(self)} x {self.bits} bits)"
