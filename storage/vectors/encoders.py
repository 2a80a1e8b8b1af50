"""Encoders: what turns vectors into codes, and a query's vector into costs.

An encoder projects a vector x to ``p(x) = x M - t``, and bit i of its code says whether ``p_i(x) > 0``:

========  ============================================================================================================
``sign``  M picks the first ``bits`` components: the code is the vector's signs, around the sample's mean or zero
``lsh``   M has random directions of length 1, made from a seed, whatever the data
``itq``   M has the sample's principal directions, rotated so that its projections lie close to the corners of a cube
========  ============================================================================================================

``t`` puts the sample's mean at zero, or is zero. A query keeps its projections and pays, for each bit value v of a
stored code, what the asymmetric distances of Gordo et al. (2014), or an inner product, make of them: see :data:`Form`.

**Codes and costs depend on the vector alone**, not on the batch that it comes in, the number of threads or the machine:
projections are defined as sums of doubles, in the order of the components. :meth:`Encoder.encode` computes them in
single precision, many at once, and as defined where the error of that could change a sign, one bit in some 10,000.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Costs, InvalidArgumentError
from whamming.native.costs import as_array, check_bits
from whamming.storage.files.locks import replacing
from whamming.storage.files.records import checked, with_checksum
from whamming.storage.settings import check_choice
from whamming.storage.storage_errors import CorruptStoreError, FormatError, from_system
from whamming.storage.vectors.arrays import as_vectors, blocks, check_dim

Kind = Literal["sign", "lsh", "itq"]
Form = Literal["asymmetric", "inner", "symmetric"]
"""How a query's projections become costs.

``asymmetric``: ``(p_i(q) - E[p_i | bit = v])²``, the expectations learned from the sample.
``inner``: ``|p_i(q)|`` where v is not the query's own bit. The order is exactly that of the inner product of p(q) with
the signs (+1, -1) of a stored code: ``<p(q), s> = sum |p_i(q)| - 2 distance``.
``symmetric``: 1 where v is not the query's own bit, which is Hamming distance; or a weight per bit.
"""

FORMAT: Final = 1
"""The version of the bytes of an encoder that this code writes, and the newest that it reads."""

_header = struct.Struct("<4sIII")
_UNIT: Final = 2.0**-24
_LARGEST: Final = 2.0**126


@dataclass(frozen=True)
class Training:
    """What an encoder was fitted on, and how that went."""

    samples: int = 0
    """Rows of the sample; 0: there was none."""
    errors: tuple[float, ...] = ()
    """Of ``itq``, before the first round and after each: the mean squared distance of the rotated projections, scaled
    to a mean square of 1, to the nearer one of +1 and -1. It falls from round to round."""
    converged: bool = True
    """The last round has improved the error by next to nothing; else the rounds ran out."""

    @property
    def rounds(self) -> int:
        """How often the rotation was improved."""
        return max(0, len(self.errors) - 1)


@dataclass(frozen=True, eq=False, repr=False)
class Encoder:
    """A fitted encoder; make one with :func:`whamming.storage.fit`. Immutable, for any number of threads."""

    kind: Kind
    dim: int
    """Components of a vector."""
    bits: int
    """Of a code."""
    centred: bool
    """Zero is the sample's mean."""
    matrix: NDArray[np.float32] | None
    """``[dim, bits]``; None: the first ``bits`` components as they are."""
    offsets: NDArray[np.float32]
    """``[bits]``: what is subtracted from the products."""
    expected: NDArray[np.float64] | None
    """``[bits, 2]``: the mean projection of the sample's vectors whose bit is 0, and of those whose bit is 1; zero
    where there are none. None without a sample."""
    training: Training = Training()

    def __post_init__(self) -> None:
        """Let nobody write to the arrays."""
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        """Describe the encoder in a line."""
        return f"Encoder({self.kind!r}, dim={self.dim}, bits={self.bits}, centred={self.centred})"

    @property
    def default_form(self) -> Form:
        """``asymmetric`` where the encoder has learned from a sample, else ``inner``."""
        return "inner" if self.expected is None else "asymmetric"

    # -- codes ---------------------------------------------------------------------------------------------------------

    def encode(self, vectors: ArrayLike) -> NDArray[np.uint8]:
        """Return the packed codes of vectors ``[n, dim]`` as ``uint8 [n, ceil(bits / 8)]``, or of one vector ``[dim]``.

        Bit i is byte ``i >> 3``, mask ``1 << (i & 7)``. A projection of exactly zero gives a 0; where nothing is
        centred, the code of a zero vector is therefore all zeros.
        """
        rows, single = as_vectors(vectors, self.dim)
        codes = np.zeros((len(rows), (self.bits + 7) // 8), dtype=np.uint8)
        for first, block in blocks(rows, self.bits):
            out = codes[first : first + len(block)]
            if self.matrix is None:
                out[:] = _pack(block[:, : self.bits] > self.offsets)
            else:
                self._encode_block(block, self.matrix, out)
        return codes[0] if single else codes

    def _encode_block(self, block: NDArray[np.float32], matrix: NDArray[np.float32], out: NDArray[np.uint8]) -> None:
        """Write the codes of some rows.

        A sum of d products in single precision, in any order, is wrong by at most d u / (1 - d u), u = 2^-24, times the
        lengths of the row and of the column; a difference has the right sign. A few u more are for the lengths, the
        margin itself and the sum in double precision. The least length covers what may have been lost to underflow.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", block, block)
            lengths = np.sqrt(squares + np.float32(2.0**-100)) * np.float32(1.01 * self._longest)
            margins = lengths * np.float32((self.dim + 8) * _UNIT)
            projected = block @ matrix
            projected -= self.offsets
        zero = squares == 0
        if zero.any():
            zero[zero] = ~block[zero].any(axis=1)
            margins[zero] = 0
        wild = ~(lengths < _LARGEST)  # these may have overflowed
        if wild.any():
            projected[wild] = 0
            margins[wild] = np.inf
        surely = _pack(projected > margins[:, None])
        maybe = _pack(projected > -margins[:, None])
        out[:] = surely
        rows, places = np.nonzero(surely != maybe)
        if len(rows):
            doubtful = np.unpackbits((surely ^ maybe)[rows, places][:, None], axis=1, bitorder="little")
            which, bit = np.nonzero(doubtful)
            self._settle(block, matrix, rows[which], 8 * places[which] + bit, out)

    def _settle(
        self,
        block: NDArray[np.float32],
        matrix: NDArray[np.float32],
        rows: NDArray[np.int64],
        bits: NDArray[np.int64],
        out: NDArray[np.uint8],
    ) -> None:
        """Set the given bits of the given rows that are 1, by the projections as they are defined."""
        size = max(1, (1 << 20) // self.dim)
        for first in range(0, len(rows), size):
            row, bit = rows[first : first + size], bits[first : first + size]
            ones = _sum_in_order(block[row].astype(np.float64).T * matrix[:, bit]) - self.offsets[bit] > 0
            np.bitwise_or.at(out, (row[ones], bit[ones] >> 3), np.uint8(1) << (bit[ones] & 7).astype(np.uint8))

    @cached_property
    def _longest(self) -> float:
        """The length of the longest column."""
        assert self.matrix is not None
        return float(np.sqrt(np.square(self.matrix, dtype=np.float64).sum(axis=0).max()))

    @cached_property
    def stretch(self) -> float:
        """The largest factor by which two vectors' projections are farther apart than the vectors are."""
        return 1.0 if self.matrix is None else float(np.linalg.norm(self.matrix.astype(np.float64), 2))

    # -- costs ---------------------------------------------------------------------------------------------------------

    def project(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Return p(x) of vectors ``[n, dim]`` as ``[n, bits]``, or of one, as it is defined."""
        rows, single = as_vectors(vectors, self.dim)
        values = np.empty((len(rows), self.bits))
        matrix = None if self.matrix is None else self.matrix.astype(np.float64)
        for first, block in blocks(rows, self.bits):
            for row, vector in enumerate(block.astype(np.float64), first):
                if matrix is None:
                    values[row] = vector[: self.bits]
                else:
                    values[row] = _sum_in_order(vector[:, None] * matrix)
        values -= self.offsets
        return values[0] if single else values

    def cost_table(
        self, vectors: ArrayLike, form: Form | None = None, *, weights: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the costs ``[bits, 2]`` of one query's vector, or ``[q, bits, 2]`` of several.

        Parameters
        ----------
        vectors : ``[dim]`` or ``[q, dim]``. A zero vector is a query like any other; with ``inner``, where nothing is
            centred, all codes are equally far from it.
        form : see :data:`Form`; by default :attr:`default_form`.
        weights : with ``symmetric``, what each bit weighs, ``[bits]``.
        """
        chosen = self.default_form if form is None else form
        check_choice("costs", chosen, get_args(Form))
        if weights is not None and chosen != "symmetric":
            raise InvalidArgumentError(f"costs = {chosen!r} with weights; weights per bit go with costs='symmetric'")
        if chosen == "asymmetric":
            if self.expected is None:
                raise InvalidArgumentError(
                    f"costs = 'asymmetric', but {self!r} was fitted without a sample; give it one, or use 'inner'"
                )
            return np.asarray((self.project(vectors)[..., None] - self.expected) ** 2)
        projected = self.project(vectors)
        if chosen == "inner":
            return np.stack([np.maximum(projected, 0.0), np.maximum(-projected, 0.0)], axis=-1)
        each = np.ones(self.bits) if weights is None else as_array(weights, "weights", np.float64)
        if each.shape != (self.bits,):
            raise InvalidArgumentError(f"the weights have shape {each.shape}; give one per bit, [{self.bits}]")
        ones = projected > 0
        return np.stack([np.where(ones, each, 0.0), np.where(ones, 0.0, each)], axis=-1)

    def costs(self, vectors: ArrayLike, form: Form | None = None, *, weights: ArrayLike | None = None) -> Costs:
        """Return what :meth:`cost_table` gives, ready for a search."""
        return Costs.table(self.cost_table(vectors, form, weights=weights))

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the encoder as bytes, for :meth:`from_bytes`: the same for the same encoder.

        ``WHAe``, a CRC-32 of all other bytes, the version and the length of what follows, all uint32: JSON that ends in
        spaces, so that the arrays that it names, which come next, start at a multiple of 8. All little-endian.
        """
        arrays = {name: array for name in _ARRAYS if (array := getattr(self, name)) is not None}
        values = {
            "kind": self.kind,
            "dim": self.dim,
            "bits": self.bits,
            "centred": self.centred,
            "samples": self.training.samples,
            "errors": self.training.errors,
            "converged": self.training.converged,
            "arrays": list(arrays),
        }
        text = json.dumps(values, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        parts = [np.ascontiguousarray(array, dtype=_ARRAYS[name]).tobytes() for name, array in arrays.items()]
        return bytes(with_checksum(bytearray(b"".join([_header.pack(b"WHAe", 0, FORMAT, len(text)), text, *parts]))))

    @classmethod
    def from_bytes(cls, data: bytes) -> Encoder:
        """Read what :meth:`to_bytes` gave, after checking all of it.

        Raises :class:`FormatError` for what is no encoder, or one of a newer version, and :class:`CorruptStoreError`.
        """
        if len(data) < _header.size or data[:4] != b"WHAe":
            raise FormatError("these bytes are no encoder: they do not begin with 'WHAe'")
        _, _, version, size = _header.unpack_from(data)
        if version > FORMAT:
            raise FormatError(f"the encoder has format {version}; this version reads up to {FORMAT}: upgrade whamming")
        checked(data, "the encoder", b"WHAe", _header.size)
        try:
            return cls._parse(data, size)
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStoreError(f"the encoder contradicts itself: {error!r}; restore a backup") from error

    @classmethod
    def _parse(cls, data: bytes, size: int) -> Encoder:
        values: dict[str, Any] = json.loads(data[_header.size : _header.size + size])
        kind, dim, bits = values["kind"], check_dim(values["dim"]), check_bits(values["bits"])
        check_choice("kind", kind, get_args(Kind))
        shapes = {"matrix": (dim, bits), "offsets": (bits,), "expected": (bits, 2)}
        arrays: dict[str, NDArray[Any]] = {}
        at = _header.size + size
        for name in values["arrays"]:
            arrays[name] = np.frombuffer(data, _ARRAYS[name], math.prod(shapes[name]), at).reshape(shapes[name])
            at += arrays[name].nbytes
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} has values that are not finite")
        if at != len(data) or (kind == "sign") == ("matrix" in arrays) or (kind == "sign" and bits > dim):
            raise ValueError(f"{len(data)} bytes with {', '.join(arrays)} for {kind}, dim = {dim}, bits = {bits}")
        training = Training(int(values["samples"]), tuple(map(float, values["errors"])), bool(values["converged"]))
        centred, matrix, expected = bool(values["centred"]), arrays.get("matrix"), arrays.get("expected")
        return cls(kind, dim, bits, centred, matrix, arrays["offsets"], expected, training)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits, the same for two encoders only if they are the same."""
        return hashlib.blake2b(self.to_bytes(), digest_size=8).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the encoder to a file, for :func:`load_encoder`; one that exists is replaced when all is written."""
        target = Path(path)
        try:
            with replacing(target) as (file,):
                file.write(self.to_bytes())
        except OSError as error:
            raise from_system(error, target) from error


_ARRAYS: Final = {"matrix": "<f4", "offsets": "<f4", "expected": "<f8"}


def load_encoder(path: str | Path) -> Encoder:
    """Read an encoder from a file that :meth:`Encoder.save` wrote."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise from_system(error, Path(path)) from error
    try:
        return Encoder.from_bytes(data)
    except (FormatError, CorruptStoreError) as error:
        raise type(error)(f"{path}: {error}") from error


def _sum_in_order(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sums over the first axis, added up one after the other."""
    if terms.shape[1] == 1:  # numpy adds a lone column up in pairs
        return np.asarray(np.add.accumulate(terms, axis=0)[-1])
    return np.asarray(np.add.reduce(terms, axis=0))


def _pack(ones: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(ones, axis=1, bitorder="little")
