"""The costs of a query: how much each stored bit value adds to the distance."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native._engine import ffi, lib
from whamming.native.arguments import SUM_BYTES, as_whole
from whamming.native.doubles import LARGEST_WHOLE, as_doubles
from whamming.native.errors import InvalidArgumentError, check

MAX_BITS: Final[int] = lib.WH_MAX_BITS
_FLOAT, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_NUMBERS: Final = {_FLOAT: lib.WH_FLOAT, _DOUBLE: lib.WH_DOUBLE}
_BYTES, _WORDS = ffi.typeof("uint8_t[]"), ffi.typeof("uint64_t[]")
_SCALES = ffi.typeof("struct wh_scale[]")
_SCALE: Final = np.dtype(
    [("low", "u8"), ("high", "i8"), ("exponent", "i4"), ("shift", "u4"), ("rounded", "u4"), ("reserved", "u4")]
)
"""``struct wh_scale``. ``low`` and ``high`` are the two halves of the floor."""
_BYTES_AND_BITS: Final = "convert bytes with np.uint8(x), and bits with np.packbits(x, axis=-1, bitorder='little')"
_REMEDIES: Final = {
    "i": _BYTES_AND_BITS,
    "u": _BYTES_AND_BITS,
    "b": "pack booleans with np.packbits(x, axis=-1, bitorder='little')",
    "f": "give vectors as vectors= or vector= (the index needs an encoder), or make codes of their signs with "
    "np.packbits(x > 0, axis=-1, bitorder='little')",
    "S": "convert bytes with np.frombuffer(x, dtype=np.uint8)",
    "U": "convert hexadecimal text with np.frombuffer(bytes.fromhex(x), dtype=np.uint8)",
}
"""How to make packed codes, by the kind of the given array's dtype."""
_SAFE_SPAN: Final = 2.0**60
"""Costs whose magnitudes differ by at most this factor can always be added up exactly."""


def check_bits(bits: int) -> int:
    """Return ``bits`` as an integer. Raises :class:`InvalidArgumentError` unless it is 1 to ``MAX_BITS``."""
    whole = as_whole("bits", bits)
    if not 1 <= whole <= MAX_BITS:
        raise InvalidArgumentError(f"bits = {bits}; a code has 1 to {MAX_BITS} bits")
    return whole


def as_array(values: ArrayLike, what: str, dtype: Any = None) -> NDArray[Any]:
    """Convert to an array. Raises :class:`InvalidArgumentError`, naming the argument ``what``."""
    try:
        return np.asarray(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the {what} are not an array of numbers: {error}") from error


def remedy_for(dtype: np.dtype[Any]) -> str:
    """Return how to make packed codes from an array of another type."""
    return _REMEDIES.get(dtype.kind, "give packed bytes, as from np.packbits(x, axis=-1, bitorder='little')")


def as_codes(codes: ArrayLike, bits: int, what: str = "codes") -> NDArray[np.uint8]:
    """Check packed codes and return them as a contiguous ``uint8 [n, ceil(bits / 8)]``."""
    array = as_array(codes, what)
    width = (bits + 7) // 8
    if array.dtype != np.uint8:
        raise InvalidArgumentError(f"{what} have dtype {array.dtype}, not uint8; {remedy_for(array.dtype)}")
    if array.ndim != 2 or array.shape[1] != width:
        raise InvalidArgumentError(
            f"{what} have shape {array.shape}; {bits} bits need [n, {width}] bytes (8 bits per byte, lowest first)"
        )
    return np.ascontiguousarray(array)


def as_numbers(values: ArrayLike, what: str) -> NDArray[Any]:
    """Convert to a contiguous array for the engine: float32 is kept, other types become float64.

    Nothing is rounded: a number that no double represents is refused.
    """
    array = as_array(values, what)
    if array.dtype not in _NUMBERS:
        array = as_doubles(array, what)
    elif isinstance(values, list | tuple) and np.any(np.abs(array) >= LARGEST_WHOLE):  # numpy has rounded the integers
        array = as_doubles(np.asarray(values, dtype=object), what)
    return np.ascontiguousarray(array) if array.ndim else array


def shortened(costs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round computed cost tables ``[..., bits, 2]`` down to multiples of about 2^-40 of each query's largest cost.

    The difference is far below the rounding errors of float32 vectors. All distances are then exact doubles, and
    searches are fastest.
    """
    _, exponents = np.frexp(np.abs(costs).max(axis=(-2, -1), keepdims=True))
    return np.asarray(np.ldexp(np.floor(np.ldexp(costs, 40 - exponents)), exponents - 40))


class Costs:
    """The costs of one query or of a batch, as integers. Nothing is rounded.

    Create them with :meth:`table`, :meth:`weights` or :meth:`hamming`. All costs of a query are whole multiples of its
    unit, ``2**exponent``. In units, the distance of a code ``g`` to query ``i`` is ``floors[i]`` plus the sum of
    ``deltas[i, j] * 2**shift + rests[i, j]`` over the bits ``j`` where ``g`` differs from ``optimum[i]``. Distances are
    returned as the nearest doubles.

    Attributes
    ----------
    bits : length of the codes.
    single : whether this is one query; results then have no batch dimension.
    optimum : ``uint8 [q, ceil(bits / 8)]``, the cheapest code of each query.
    deltas : ``uint64 [q, bits]``, the cost of differing from the cheapest code in each bit, in steps of ``2**shift``.
    rests : ``uint64 [q, bits]``, what remains of that cost besides whole steps, in units.
    scales : ``[q]``, a structured array with the fields ``exponent``, ``shift`` and ``rounded``. ``rounded`` is 1 if
        some distances have more than 53 binary digits, so that doubles do not hold them exactly.
    pointers : C pointers to these four arrays.
    """

    __slots__ = ("bits", "deltas", "optimum", "pointers", "rests", "scales", "single")

    def __init__(
        self,
        bits: int,
        optimum: NDArray[np.uint8],
        deltas: NDArray[np.uint64],
        rests: NDArray[np.uint64],
        scales: NDArray[Any],
        *,
        single: bool,
    ) -> None:
        """Wrap contiguous arrays of converted costs. Users call the class methods."""
        self.bits = bits
        self.single = single
        self.optimum = optimum
        self.deltas = deltas
        self.rests = rests
        self.scales = scales
        self.pointers = (
            ffi.from_buffer(_BYTES, optimum),
            ffi.from_buffer(_WORDS, deltas),
            ffi.from_buffer(_WORDS, rests),
            ffi.from_buffer(_SCALES, scales),
        )

    @classmethod
    def _allocate(cls, bits: int, count: int, single: bool) -> Self:
        return cls(
            bits,
            np.empty((count, (bits + 7) // 8), dtype=np.uint8),
            np.empty((count, bits), dtype=np.uint64),
            np.empty((count, bits), dtype=np.uint64),
            np.empty(count, dtype=_SCALE),
            single=single,
        )

    @property
    def floors(self) -> list[int]:
        """The cost of each query's cheapest code, in units."""
        return [int(high) << 64 | int(low) for low, high in zip(self.scales["low"], self.scales["high"], strict=True)]

    @classmethod
    def table(cls, table: ArrayLike) -> Self:
        """Convert a cost table ``[bits, 2]``, or ``[q, bits, 2]`` for a batch: the costs of a stored 0 and a stored 1.

        Costs may be negative, but must be finite. float32 and float64 arrays are read in place.
        """
        array = as_numbers(table, "costs")
        single = array.ndim == 2
        if not (single or array.ndim == 3) or array.shape[-1] != 2:
            raise InvalidArgumentError(f"the cost table has shape {array.shape}; it must be [bits, 2] or [q, bits, 2]")
        bits = check_bits(array.shape[-2])
        count = 1 if single else len(array)
        costs = cls._allocate(bits, count, single)
        failed = ffi.new("size_t *")
        number = _NUMBERS[array.dtype]
        status = lib.wh_costs_of_tables(ffi.from_buffer(array), number, bits, count, *costs.pointers, failed)
        if status == lib.WH_NOT_FINITE:
            rows = array.reshape(count, bits, 2)
            query, bit, value = (int(x) for x in np.argwhere(~np.isfinite(rows))[0])
            raise InvalidArgumentError(
                f"the cost of bit {bit} = {value}{_of(query, single)} is {rows[query, bit, value]}; "
                "costs must be finite numbers"
            )
        _check_conversion(status, failed[0], array.reshape(count, bits, 2), single=single)
        return costs

    @classmethod
    def weights(cls, code: ArrayLike, weights: ArrayLike) -> Self:
        """Convert a query code and its weights. A weight is the cost of a mismatch in its bit.

        ``code``: packed ``uint8 [ceil(bits / 8)]``, or ``[q, ...]``. ``weights``: ``[q, bits]``, or ``[bits]`` to share
        them among all queries. A negative weight makes a mismatch cheaper than a match. float32 and float64 arrays are
        read in place.
        """
        mismatch = as_numbers(weights, "weights")
        shared_weights = mismatch.ndim == 1
        if not (shared_weights or mismatch.ndim == 2) or mismatch.shape[-1] == 0:
            raise InvalidArgumentError(f"the weights have shape {mismatch.shape}; they must be [bits] or [q, bits]")
        bits = check_bits(mismatch.shape[-1])
        array = as_array(code, "query codes")
        one_code = array.ndim == 1
        codes = as_codes(array[None] if one_code else array, bits, "query codes")
        count = len(codes) if shared_weights else len(mismatch)
        if len(codes) not in (1, count):
            raise InvalidArgumentError(
                f"weights have {len(mismatch)} rows for {len(codes)} queries; give one row per query, or one for all"
            )
        costs = cls._allocate(bits, count, single=one_code and shared_weights)
        failed = ffi.new("size_t *")
        status = lib.wh_costs_of_weights(
            ffi.from_buffer(_BYTES, codes),
            len(codes) != count,
            ffi.from_buffer(mismatch),
            shared_weights,
            _NUMBERS[mismatch.dtype],
            bits,
            count,
            *costs.pointers,
            failed,
        )
        if status == lib.WH_NOT_FINITE:
            rows = mismatch.reshape(-1, bits)
            query, bit = (int(x) for x in np.argwhere(~np.isfinite(rows))[0])
            raise InvalidArgumentError(
                f"the weight of bit {bit}{_of(query, shared_weights)} is {rows[query, bit]}; "
                "costs must be finite numbers"
            )
        _check_conversion(status, failed[0], mismatch.reshape(-1, bits, 1), single=shared_weights)
        return costs

    @classmethod
    def join(cls, several: Sequence[Costs]) -> Self:
        """Concatenate costs for the same number of bits into one batch."""
        lengths = {costs.bits for costs in several}
        if len(lengths) != 1:
            raise InvalidArgumentError(
                f"costs for {sorted(lengths)} bits; give at least one, all for the same number of bits"
            )
        return cls(
            lengths.pop(),
            np.concatenate([costs.optimum for costs in several]),
            np.concatenate([costs.deltas for costs in several]),
            np.concatenate([costs.rests for costs in several]),
            np.concatenate([costs.scales for costs in several]),
            single=False,
        )

    @classmethod
    def hamming(cls, code: ArrayLike, bits: int | None = None) -> Self:
        """Return the costs of plain Hamming distance to a packed code ``[ceil(bits / 8)]`` or ``[q, ...]``.

        ``bits``: by default 8 per byte of the code.
        """
        array = as_array(code, "query codes")
        width = array.shape[-1] if array.ndim else 0
        return cls.weights(code, np.ones(8 * width if bits is None else check_bits(bits)))

    def exact_distance(self, code: NDArray[np.uint8]) -> tuple[float, bytes]:
        """Return the distance of a packed code to the first query: rounded, and exact as in :attr:`Cursor.sums`."""
        bits = np.unpackbits(code ^ self.optimum[0], count=self.bits, bitorder="little").astype(bool)
        scale = self.scales[0]
        extra = sum(self.deltas[0, bits].tolist()) << int(scale["shift"])
        exact = self.floors[0] + extra + sum(self.rests[0, bits].tolist())
        unit = Fraction(2) ** int(scale["exponent"])
        return float(exact * unit), exact.to_bytes(SUM_BYTES, "little", signed=True)

    def __len__(self) -> int:
        return len(self.scales)

    def __getitem__(self, query: int | slice) -> Costs:
        """Return one query, or a slice as a smaller batch."""
        single = not isinstance(query, slice)
        if not isinstance(query, slice):
            i = range(len(self))[query]
            query = slice(i, i + 1)
        return Costs(
            self.bits,
            np.ascontiguousarray(self.optimum[query]),
            np.ascontiguousarray(self.deltas[query]),
            np.ascontiguousarray(self.rests[query]),
            np.ascontiguousarray(self.scales[query]),
            single=single,
        )

    def __repr__(self) -> str:
        return f"Costs({len(self)} x {self.bits} bits)"


def _of(query: int, single: bool) -> str:
    """Return the number of a query for an error. A single query has none, as its caller may count it in a batch."""
    return "" if single else f" of query {query}"


def _check_conversion(status: int, query: int, rows: NDArray[Any], *, single: bool) -> None:
    """Raise the error of converting costs, unless ``status`` is ``WH_OK``. ``rows``: numbers per query and bit."""
    of = _of(query, single)
    if status == lib.WH_SPAN:
        sizes = np.abs(rows[min(query, len(rows) - 1)].astype(np.float64))
        per_bit = sizes.max(axis=1)
        least, most, bit = float(sizes[sizes > 0].min()), float(per_bit.max()), int(per_bit.argmax())
        with np.errstate(over="ignore"):
            others = float(np.delete(per_bit, bit).sum())
        needed, remedies = most, []
        if 0 < 2 * others < most:  # the usual reason: a bit that has to match
            needed = 2 * others
            remedies = [
                f"lower the cost of bit {bit}: any cost above {others:g}, the sum of all others, gives the same order"
            ]
        if least < needed / _SAFE_SPAN:
            remedies.append(f"set costs that do not matter, below {needed / _SAFE_SPAN:g}, to 0")
        remedy = ", and ".join(remedies)
        raise InvalidArgumentError(
            f"the costs{of} range from {least:g} to {most:g} (bit {bit}); their sums cannot be exact. "
            f"Costs up to a factor of 2^60 apart always work: {remedy}"
        )
    if status == lib.WH_OVERFLOW:
        most = float(np.abs(rows[min(query, len(rows) - 1)].astype(np.float64)).max())
        raise InvalidArgumentError(
            f"the costs{of} go up to {most:g}, and a distance could be beyond the largest double, "
            f"{np.finfo(np.float64).max:g}; scale the costs down"
        )
    if status:
        check(status, f"converting the costs{of}")
