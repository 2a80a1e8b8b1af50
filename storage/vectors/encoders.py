"""Encoders turn vectors into codes, and query vectors into costs.

An encoder projects a vector x to ``p(x) = x M - t``. Bit i of its code is 1 if ``p_i(x) > 0``.

========  ============================================================================================================
``sign``  M selects the first ``bits`` components: the code is the signs of the vector, relative to ``t``
``lsh``   M has random directions of length 1, which depend on the seed and not on the data
``itq``   M has the sample's principal directions, rotated so that the projections lie close to the corners of a cube
========  ============================================================================================================

``t`` moves the sample's mean to zero, or is zero. By default, a query vector is not reduced to a code. Instead, its
projections determine what each value of each stored bit costs: by the asymmetric distances of Gordo et al. (2014), or
by an inner product. See :data:`Form`.

**Codes and costs depend on the vector alone**, not on its batch, the number of threads or the machine: projections are
defined as sums of doubles, in the order of the components. :meth:`Encoder.encode` computes them in single precision,
many at once. If the rounding error could change the sign of a projection, it computes that projection again, as the
defined sum of doubles. This happens for about one bit in 10,000 if vectors have 128 components, and one in 1,000 if
they have 768.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
import threading
import weakref
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Costs, InvalidArgumentError
from whamming.native.costs import as_numbers, check_bits, shortened
from whamming.storage.files.records import checked, with_checksum
from whamming.storage.files.regular import read_small
from whamming.storage.files.temporary import replacing
from whamming.storage.settings import check_choice
from whamming.storage.storage_errors import CorruptStoreError, FormatError, from_system
from whamming.storage.vectors.arrays import as_vectors, blocks, check_dim, sum_in_order
from whamming.storage.vectors.steps import Steps, Stepwise, finish
from whamming.storage.vectors.stretch import stretch_of

Kind = Literal["sign", "lsh", "itq"]
Form = Literal["asymmetric", "inner", "symmetric"]
"""How a query's projections become the cost of value v in bit i.

``asymmetric``: ``(p_i(q) - E[p_i | bit = v])²``, with expectations learned from the sample.
``inner``: ``|p_i(q)|`` if v differs from the query's own bit. Up to rounding (below), this gives the order of the inner
product of p(q) with the signs (+1, -1) of a stored code: ``<p(q), s> = sum |p_i(q)| - 2 distance``.
``symmetric``: 1, or a weight per bit, if v differs from the query's own bit. This is the (weighted) Hamming distance.

Costs of the first two forms are rounded down to multiples of about 2^-40 of the query's largest cost.
"""

FORMAT: Final = 1
"""The version of an encoder's bytes that this code writes, and the newest that it reads."""

LARGEST_NUMBER: Final = 1e30
"""The largest magnitude of a number in the encoder of a new index. Larger numbers come from damaged files, or from
samples whose sums and products overflow."""

STEP_CELLS: Final = 1 << 16
"""Approximate number of products in a step of a projection. They take a fraction of a millisecond and a megabyte."""

PIECE_PRODUCTS: Final = 1 << 30
"""About how many products of single precision one step of encoding computes: some 40 milliseconds."""

MAX_ROUNDS: Final = 1000
"""The largest number of rounds in the training of an encoder. Descriptions of indexes list the errors of all rounds."""

JSON_BYTES: Final = 64 << 10
"""Maximum size of the JSON in an encoder's bytes. With the errors of all rounds it has about 22 KiB."""

_KEYS: Final = frozenset(("kind", "dim", "bits", "centred", "samples", "errors", "converged", "arrays"))
"""The keys of the JSON."""
_header = struct.Struct("<4sIII")
_UNIT: Final = 2.0**-24
_LARGEST: Final = 2.0**126
_stretching: Final = threading.Lock()
"""Held for a moment to look up or replace the computation of a stretch."""


@dataclass(frozen=True)
class Training:
    """What an encoder was fitted to, and how the fit went."""

    samples: int = 0
    """Number of vectors in the sample; 0 if there was none."""
    errors: tuple[float, ...] = ()
    """For ``itq``: the error before the first round and after each round. Projections are scaled to a mean square of 1;
    the error is their mean squared distance to the nearer of +1 and -1. It decreases from round to round."""
    converged: bool = True
    """Whether the last round hardly improved the error. False if the maximum number of rounds was reached first."""

    @property
    def rounds(self) -> int:
        """How many times the rotation was improved."""
        return max(0, len(self.errors) - 1)


@dataclass(frozen=True, eq=False, repr=False)
class Encoder:
    """A fitted encoder, made by :func:`whamming.storage.fit`. Immutable; any number of threads may use it."""

    kind: Kind
    dim: int
    """Number of components of a vector."""
    bits: int
    """Length of a code."""
    centred: bool
    """Whether the sample's mean is projected to zero."""
    matrix: NDArray[np.float32] | None
    """``[dim, bits]``; None if the projections are the first ``bits`` components."""
    offsets: NDArray[np.float32]
    """``[bits]``, subtracted from the products."""
    expected: NDArray[np.float64] | None
    """``[bits, 2]``: the mean projection of the sample's vectors whose bit is 0, and of those whose bit is 1; zero if
    there are none. None if there was no sample."""
    training: Training = Training()

    def __post_init__(self) -> None:
        """Make the arrays read-only."""
        for name in _ARRAYS:
            array = getattr(self, name)
            if array is not None:
                array.flags.writeable = False

    def __repr__(self) -> str:
        return f"Encoder({self.kind!r}, dim={self.dim}, bits={self.bits}, centred={self.centred})"

    @property
    def default_form(self) -> Form:
        """``asymmetric`` if the encoder was fitted to a sample, otherwise ``inner``."""
        return "inner" if self.expected is None else "asymmetric"

    # -- codes ---------------------------------------------------------------------------------------------------------

    def encode(self, vectors: ArrayLike) -> NDArray[np.uint8]:
        """Return the packed codes of vectors ``[n, dim]`` as ``uint8 [n, ceil(bits / 8)]``, or of one vector ``[dim]``.

        Bit i is byte ``i >> 3``, mask ``1 << (i & 7)``. A projection of exactly zero gives a 0, so the code of a zero
        vector is all zeros if the encoder is not centred.
        """
        return finish(self.encoding(vectors))

    def encoding(self, vectors: ArrayLike) -> Steps[NDArray[np.uint8]]:
        """Compute the same as :meth:`encode` in short steps."""
        rows, single = as_vectors(vectors, self.dim)
        codes = np.zeros((len(rows), (self.bits + 7) // 8), dtype=np.uint8)
        height = max(1, PIECE_PRODUCTS // (self.dim * self.bits))
        for first, block in blocks(rows, self.bits):
            out = codes[first : first + len(block)]
            if self.matrix is None:
                out[:] = _pack(block[:, : self.bits] > self.offsets)
                yield
                continue
            for top in range(0, len(block), height):
                piece = slice(top, top + height)
                yield from self._encode_block(block[piece], self.matrix, out[piece])
        return codes[0] if single else codes

    def _encode_block(
        self, block: NDArray[np.float32], matrix: NDArray[np.float32], out: NDArray[np.uint8]
    ) -> Steps[None]:
        """Write the codes of some rows.

        Let u = 2^-24. A sum of d products in single precision, added in any order, has an error of at most
        d u / (1 - d u) times the product of the lengths of the row and of the column. Subtracting the offset rounds,
        but never changes the sign of the difference. The margin is a few u larger, for the errors of the lengths, of
        the margin itself and of the sum in double precision. Adding 2^-100 to the squares covers underflow.
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
        overflow = ~(lengths < _LARGEST)  # the products of these rows may have overflowed
        if overflow.any():
            projected[overflow] = 0
            margins[overflow] = np.inf
        surely = _pack(projected > margins[:, None])
        maybe = _pack(projected > -margins[:, None])
        out[:] = surely
        yield
        rows, places = np.nonzero(surely != maybe)
        if len(rows):
            doubtful = np.unpackbits((surely ^ maybe)[rows, places][:, None], axis=1, bitorder="little")
            which, bit = np.nonzero(doubtful)
            yield from self._set_exactly(block, matrix, rows[which], 8 * places[which] + bit, out)

    def _set_exactly(
        self,
        block: NDArray[np.float32],
        matrix: NDArray[np.float32],
        rows: NDArray[np.int64],
        bits: NDArray[np.int64],
        out: NDArray[np.uint8],
    ) -> Steps[None]:
        """Compute the given bits from the defined sums of doubles, and set those that are 1."""
        size = max(1, (1 << 20) // self.dim)
        for first in range(0, len(rows), size):
            row, bit = rows[first : first + size], bits[first : first + size]
            ones = sum_in_order(block[row].astype(np.float64).T * matrix[:, bit]) - self.offsets[bit] > 0
            np.bitwise_or.at(out, (row[ones], bit[ones] >> 3), np.uint8(1) << (bit[ones] & 7).astype(np.uint8))
            yield

    @cached_property
    def _longest(self) -> float:
        """The length of the longest column of the matrix."""
        assert self.matrix is not None
        return float(np.sqrt(np.square(self.matrix, dtype=np.float64).sum(axis=0).max()))

    @property
    def stretch(self) -> Stepwise[float]:
        """The computation of an upper bound on the factor by which projecting increases the distance of two vectors.

        All searches that need the bound at the same time share one computation. The encoder itself keeps only the
        result. So if all of these searches are abandoned, the memory of the computation is freed.
        """
        with _stretching:
            found: Stepwise[float] | None = self.__dict__.get("_stretch", lambda: None)()
            if found is None:
                found = Stepwise(self._find_stretch())
                self.__dict__["_stretch"] = weakref.ref(found)
            return found

    def _find_stretch(self) -> Steps[float]:
        if self.matrix is None:
            return 1.0
        if "_known_stretch" not in self.__dict__:
            self.__dict__["_known_stretch"] = yield from stretch_of(self.matrix)
        return float(self.__dict__["_known_stretch"])

    # -- costs ---------------------------------------------------------------------------------------------------------

    def project(self, vectors: ArrayLike) -> NDArray[np.float64]:
        """Return the projections, as defined, of vectors ``[n, dim]`` as ``[n, bits]``, or of one vector ``[dim]``."""
        return finish(self.projecting(vectors))

    def projecting(self, vectors: ArrayLike) -> Steps[NDArray[np.float64]]:
        """Compute the same as :meth:`project` in short steps."""
        rows, single = as_vectors(vectors, self.dim)
        values = np.zeros((len(rows), self.bits))
        for first, block in blocks(rows, self.bits, single=single):
            out = values[first : first + len(block)]
            if self.matrix is None:
                out[:] = block[:, : self.bits]
            else:
                yield from _add_products(block, self.matrix, out)
        values -= self.offsets
        return values[0] if single else values

    def cost_table(
        self, vectors: ArrayLike, form: Form | None = None, *, weights: ArrayLike | None = None
    ) -> NDArray[np.float64]:
        """Return the costs ``[bits, 2]`` of one query vector, or ``[q, bits, 2]`` of several.

        Parameters
        ----------
        vectors : ``[dim]`` or ``[q, dim]``. A zero vector is allowed; with ``inner`` and an encoder that is not
            centred, all codes have the same distance to it.
        form : see :data:`Form`; the default is :attr:`default_form`.
        weights : the weight of each bit, ``[bits]``; only with ``symmetric``.
        """
        return finish(self.costing(vectors, form, weights=weights))

    def costing(
        self, vectors: ArrayLike, form: Form | None = None, *, weights: ArrayLike | None = None
    ) -> Steps[NDArray[np.float64]]:
        """Compute the same as :meth:`cost_table` in short steps."""
        chosen = self.default_form if form is None else form
        check_choice("costs", chosen, get_args(Form))
        if weights is not None and chosen != "symmetric":
            raise InvalidArgumentError(f"costs = {chosen!r} with weights; weights need costs='symmetric'")
        expected = self.expected
        if chosen == "asymmetric" and expected is None:
            raise InvalidArgumentError(
                f"costs = 'asymmetric', but {self!r} was fitted without a sample; fit it to one, or use 'inner'"
            )
        projected = yield from self.projecting(vectors)
        if chosen == "asymmetric" and expected is not None:
            return shortened((projected[..., None] - expected) ** 2)
        if chosen == "inner":
            return shortened(np.stack([np.maximum(projected, 0.0), np.maximum(-projected, 0.0)], axis=-1))
        each = np.ones(self.bits) if weights is None else as_numbers(weights, "weights").astype(np.float64)
        if each.shape != (self.bits,):
            raise InvalidArgumentError(f"weights have shape {each.shape}; give one per bit, [{self.bits}]")
        ones = projected > 0
        return np.stack([np.where(ones, each, 0.0), np.where(ones, 0.0, each)], axis=-1)

    def costs(self, vectors: ArrayLike, form: Form | None = None, *, weights: ArrayLike | None = None) -> Costs:
        """Return the same as :meth:`cost_table`, ready for a search."""
        return Costs.table(self.cost_table(vectors, form, weights=weights))

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def to_bytes(self) -> bytes:
        """Return the encoder as bytes, for :meth:`from_bytes`. Equal encoders give equal bytes.

        The bytes are ``WHAe``, a CRC-32, the version, and the length of the JSON that follows. The CRC-32 covers all
        bytes, with its own four bytes taken as 0. The JSON names the arrays after it. It is padded with spaces, so that
        they start at a multiple of 8. Integers are uint32, and everything is little-endian.
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
        """Read the result of :meth:`to_bytes`, after checking all of it.

        Raises :class:`FormatError` if it is not an encoder or a newer version wrote it, and :class:`CorruptStoreError`
        if it is damaged.
        """
        if len(data) < _header.size or data[:4] != b"WHAe":
            raise FormatError("not an encoder: it does not begin with 'WHAe'")
        _, _, version, size = _header.unpack_from(data)
        if version > FORMAT:
            raise FormatError(f"the encoder has format {version}; this version reads up to {FORMAT}: upgrade whamming")
        checked(data, "the encoder", b"WHAe", _header.size)
        try:
            return cls._parse(data, size)
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise CorruptStoreError(f"the encoder contradicts itself: {error!r}; restore a backup") from error

    @classmethod
    def _parse(cls, data: bytes, size: int) -> Encoder:
        if size > JSON_BYTES:
            raise ValueError(f"its JSON has {size} bytes; at most {JSON_BYTES} are allowed")
        values: dict[str, Any] = json.loads(data[_header.size : _header.size + size])
        if set(values) != _KEYS:
            raise ValueError(f"its JSON has the keys {', '.join(sorted(values))[:200]}")
        names, errors = values["arrays"], values["errors"]
        if len(names) > len(_ARRAYS) or len(set(names)) < len(names):
            raise ValueError(f"it has {len(names)} arrays; at most one of each kind is allowed")
        if len(errors) > MAX_ROUNDS + 1:
            raise ValueError(f"{len(errors) - 1} rounds; at most {MAX_ROUNDS} are possible")
        kind, dim, bits = values["kind"], check_dim(values["dim"]), check_bits(values["bits"])
        check_choice("kind", kind, get_args(Kind))
        shapes = {"matrix": (dim, bits), "offsets": (bits,), "expected": (bits, 2)}
        arrays: dict[str, NDArray[Any]] = {}
        at = _header.size + size
        for name in names:
            arrays[name] = np.frombuffer(data, _ARRAYS[name], math.prod(shapes[name]), at).reshape(shapes[name])
            at += arrays[name].nbytes
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} has values that are not finite")
        if at != len(data) or (kind == "sign") == ("matrix" in arrays) or (kind == "sign" and bits > dim):
            raise ValueError(f"{len(data)} bytes with {', '.join(arrays)} for {kind}, dim = {dim}, bits = {bits}")
        training = Training(int(values["samples"]), tuple(map(float, errors)), bool(values["converged"]))
        if not 0 <= training.samples < 2**64 or not all(map(math.isfinite, training.errors)):
            raise ValueError(f"samples = {training.samples}, errors = {training.errors[:3]}")
        centred, matrix, expected = bool(values["centred"]), arrays.get("matrix"), arrays.get("expected")
        return cls(kind, dim, bits, centred, matrix, arrays["offsets"], expected, training)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that identify the encoder."""
        return hashlib.blake2b(self.to_bytes(), digest_size=8).hexdigest()

    def save(self, path: str | Path) -> None:
        """Write the encoder to a file, for :func:`load_encoder`. An existing file is replaced atomically."""
        target = Path(path)
        try:
            with replacing(target) as (file,):
                file.write(self.to_bytes())
        except OSError as error:
            raise from_system(error, target) from error


FILE_BYTES: Final = 128 << 20
"""Maximum size of an encoder's file. The largest matrix has 64 MiB."""
_ARRAYS: Final = {"matrix": "<f4", "offsets": "<f4", "expected": "<f8"}


def load_encoder(path: str | Path) -> Encoder:
    """Read an encoder from a file that :meth:`Encoder.save` wrote."""
    try:
        data = read_small(Path(path), FILE_BYTES)
    except OSError as error:
        raise from_system(error, Path(path)) from error
    try:
        return Encoder.from_bytes(data)
    except (FormatError, CorruptStoreError) as error:
        raise type(error)(f"{path}: {error}") from error


def check_encoder(encoder: Encoder) -> None:
    """Raise InvalidArgumentError if the encoder cannot be stored and read back, or has numbers that are too large."""
    try:
        same = Encoder.from_bytes(encoder.to_bytes()).fingerprint == encoder.fingerprint
    except (CorruptStoreError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"the encoder cannot be stored: {error}; fit a new one") from error
    if not same:
        raise InvalidArgumentError("the encoder changes when it is stored; fit a new one")
    for name in _ARRAYS:
        array = getattr(encoder, name)
        largest = 0.0 if array is None else float(np.abs(array).max())
        if largest > LARGEST_NUMBER:
            raise InvalidArgumentError(
                f"the encoder has numbers up to {largest:.3g} ({name}); at most {LARGEST_NUMBER:g} is allowed: scale "
                "the vectors, and fit a new one"
            )


def _add_products(block: NDArray[np.float32], matrix: NDArray[np.float32], sums: NDArray[np.float64]) -> Steps[None]:
    """Add the products of the rows of a block with a matrix to ``sums``, in order of the components."""
    height = max(1, STEP_CELLS // matrix.shape[1])
    terms = np.empty((min(height, len(matrix)) + 1, matrix.shape[1]))
    for top in range(0, len(matrix), height):
        part = matrix[top : top + height].astype(np.float64)
        for row, vector in enumerate(block[:, top : top + height]):
            terms[0] = sums[row]
            np.multiply(part, vector.astype(np.float64)[:, None], out=terms[1 : len(part) + 1])
            sums[row] = sum_in_order(terms[: len(part) + 1])
            yield


def _pack(ones: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.packbits(ones, axis=1, bitorder="little")
