"""Fitting encoders to a sample of vectors.

``itq`` is the method of Y. Gong et al., "Iterative Quantization" (2013). It finds the sample's principal directions and
then improves a rotation of them in rounds. Each round computes the codes for the rotation, and then the best rotation
for these codes. So each round brings the projections closer to the corners of a cube.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.arguments import as_whole
from whamming.native.costs import check_bits
from whamming.storage.settings import check_choice
from whamming.storage.vectors.arrays import as_vectors, blocks, check_dim
from whamming.storage.vectors.encoders import Encoder, Kind, Training
from whamming.storage.vectors.fit_limits import FitLimits, FitSize

ROUNDS: Final = 50
"""The default for the maximum number of ``itq`` rounds."""

ENOUGH: Final = 1e-3
"""``itq`` has converged when a round improves its error by less than this fraction."""

MAX_MATRIX: Final = 1 << 24
"""Maximum number of elements in the matrix of ``lsh`` or ``itq``, which then takes 64 MiB. The encoder stays in memory
while its index is open, so no fit may exceed this, whatever its limits are."""

MAX_ROTATED: Final = 100_000
"""``itq`` uses at most this many rows of the sample to find its rotation. If there are more, it chooses some at random,
depending on the seed. Everything else uses all rows."""

ROTATED_PRODUCTS: Final = 1 << 33
"""For long codes, ``itq`` uses fewer rows to find its rotation: this number divided by bits^2, but at least
ROTATED_PER_BIT times bits. So a round takes about the same time for every length from 300 to 950 bits."""

ROTATED_PER_BIT: Final = 10

LARGE_CELLS: Final = 1 << 22
"""How many numbers a block has in the matrix products of ``itq``. With large blocks, numpy's threads wait for each
other less often."""

DEFAULT_LIMITS: Final = FitLimits()


def fit(
    kind: Kind,
    sample: ArrayLike | None = None,
    *,
    bits: int | None = None,
    dim: int | None = None,
    seed: int = 0,
    centre: bool | None = None,
    rounds: int = ROUNDS,
    limits: FitLimits | None = DEFAULT_LIMITS,
) -> Encoder:
    """Fit an encoder.

    Parameters
    ----------
    kind : ``"sign"``, ``"lsh"`` or ``"itq"``; see :mod:`whamming.storage.vectors.encoders`.
    sample : some 10,000 to 100,000 vectors ``[n, dim]``, chosen at random from those to be encoded. The encoder does
        not keep them. ``itq`` requires a sample with more vectors than bits. Without a sample, ``sign`` and ``lsh`` are
        not centred and have no ``asymmetric`` costs.
    bits : length of a code, at most ``dim`` for ``sign`` and ``itq``. For ``sign`` the default is ``dim``; with fewer
        bits, only the first components are used.
    dim : number of components of a vector; required if there is no sample.
    seed : determines the random directions of ``lsh``, or the rotation from which ``itq`` starts and the rows that it
        uses if the sample has more than MAX_ROTATED.
    centre : subtract the sample's mean; the default is True if there is a sample. ``itq`` always subtracts it.
    rounds : maximum number of ``itq`` rounds.
    limits : how much memory and time the fit may take; see :mod:`whamming.storage.vectors.fit_limits`. They are
        checked before the work. None: no limits.

    A component that is constant in the sample usually has no effect. ``itq`` ignores such a component if the sample
    varies in at least ``bits`` directions. If ``sign`` is centred, both values of the component's bit have the same
    ``asymmetric`` cost.
    """
    request = check_fit(kind, sample, bits=bits, dim=dim, seed=seed, centre=centre, rounds=rounds)
    if limits is not None:
        request.size.check(limits)
    return fit_checked(request)


@dataclass(frozen=True, eq=False)
class FitRequest:
    """The arguments of a fit, after they were checked."""

    size: FitSize
    rows: NDArray[Any] | None
    """The sample. Its values have not been checked yet."""
    seed: int
    centred: bool


def check_fit(
    kind: Kind,
    sample: ArrayLike | None,
    *,
    bits: int | None,
    dim: int | None,
    seed: int,
    centre: bool | None,
    rounds: int = ROUNDS,
) -> FitRequest:
    """Check the arguments of :func:`fit`, except for the values in the sample and the limits."""
    check_choice("encoder", kind, get_args(Kind))
    seed = check_seed(seed)
    bits = bits if bits is None else as_whole("bits", bits)
    rounds = as_whole("rounds", rounds)
    if rounds < 0:
        raise InvalidArgumentError(f"rounds = {rounds}; it must be at least 0")
    rows = None if sample is None else _as_sample(sample, dim)
    if rows is None:
        _check_without_sample(kind, dim, centre)
    width = rows.shape[1] if rows is not None else check_dim(dim or 0)
    count = _check_width(kind, width if bits is None and kind == "sign" else bits, width)
    centred = kind == "itq" or (rows is not None if centre is None else centre)
    vectors = 0 if rows is None else len(rows)
    if kind != "itq":
        return FitRequest(FitSize(kind, vectors, width, count), rows, seed, centred)
    if vectors <= count:
        raise InvalidArgumentError(
            f"a sample of {vectors} vectors for the encoder itq with {count} bits; it needs at least {count + 1}, and "
            "works better with some 10,000"
        )
    rotated = min(vectors, MAX_ROTATED, max(ROTATED_PER_BIT * count, ROTATED_PRODUCTS // count**2))
    return FitRequest(FitSize(kind, vectors, width, count, rotated, rounds), rows, seed, centred)


def check_seed(seed: int) -> int:
    """Return the seed if it is valid. Raises InvalidArgumentError."""
    whole = as_whole("seed", seed)
    if not 0 <= whole < 2**64:
        raise InvalidArgumentError(f"seed = {whole}; it must be 0 to {2**64 - 1}")
    return whole


def fit_checked(request: FitRequest) -> Encoder:
    """Fit an encoder to a request from :func:`check_fit`. The limits are not checked."""
    size, rows = request.size, request.rows
    rng = np.random.default_rng(request.seed)
    training = Training(size.rows)
    mean = _mean(rows) if rows is not None and request.centred else np.zeros(size.dim, dtype=np.float32)
    matrix: NDArray[np.float32] | None = None
    if size.kind == "lsh":
        directions = rng.standard_normal((size.dim, size.bits))
        matrix = (directions / np.sqrt((directions**2).sum(axis=0))).astype(np.float32)
    elif size.kind == "itq":
        assert rows is not None
        matrix, training = _itq(rows, mean, size, rng)
    with np.errstate(over="ignore", invalid="ignore"):  # checked below
        offsets = mean[: size.bits] if matrix is None else (mean.astype(np.float64) @ matrix).astype(np.float32)
        expected = None if rows is None else _expectations(rows, matrix, offsets)
    if rows is not None and not all(np.isfinite(array).all() for array in (offsets, expected) if array is not None):
        raise InvalidArgumentError(
            f"the sample has numbers up to {_largest(rows):.3g}, and their sums overflow; scale the vectors"
        )
    return Encoder(size.kind, size.dim, size.bits, request.centred, matrix, offsets, expected, training)


# -- checks ------------------------------------------------------------------------------------------------------------


def _as_sample(sample: ArrayLike, dim: int | None) -> NDArray[Any]:
    rows, single = as_vectors(sample, what="the sample's vectors")
    if single or len(rows) == 0:
        raise InvalidArgumentError(f"the sample has shape {np.shape(sample)}; give at least one vector, [n, dim]")
    if dim not in (None, rows.shape[1]):
        raise InvalidArgumentError(f"dim = {dim}, but the sample's vectors have {rows.shape[1]} components")
    return rows


def _check_without_sample(kind: Kind, dim: int | None, centre: bool | None) -> None:
    if kind == "itq":
        raise InvalidArgumentError("encoder = 'itq' without a sample; give one with more vectors than bits")
    if centre:
        raise InvalidArgumentError("centre = True without a sample; give a sample, whose mean is to be subtracted")
    if dim is None:
        raise InvalidArgumentError(f"encoder = {kind!r} without a sample and without dim; give one of them")


def _check_width(kind: Kind, bits: int | None, dim: int) -> int:
    if bits is None:
        raise InvalidArgumentError(f"encoder = {kind!r} without bits; give the length of the codes")
    check_bits(bits)
    if kind != "sign" and bits * dim > MAX_MATRIX:
        raise InvalidArgumentError(
            f"bits = {bits} for vectors of {dim} components; {kind} allows bits times dim up to {MAX_MATRIX}: use at "
            f"most {MAX_MATRIX // dim} bits, or encoder = 'sign'"
        )
    if kind != "lsh" and bits > dim:
        raise InvalidArgumentError(
            f"bits = {bits} with encoder = {kind!r} for vectors of {dim} components; use at most {dim}, or use 'lsh'"
        )
    return bits


# -- learning ----------------------------------------------------------------------------------------------------------


def _mean(rows: NDArray[Any]) -> NDArray[np.float32]:
    """Return the mean; it is exact for a constant component."""
    total = np.zeros(rows.shape[1])
    for _, block in blocks(rows, what="the sample"):
        total += block.sum(axis=0, dtype=np.float64)
    return (total / len(rows)).astype(np.float32)


def _expectations(
    rows: NDArray[Any], matrix: NDArray[np.float32] | None, offsets: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return, for each bit and each of its values 0 and 1, the mean projection of the rows that have this value.

    The result is ``[bits, 2]``. It is zero where no row has the value.
    """
    sums, counts = np.zeros((len(offsets), 2)), np.zeros((len(offsets), 2))
    for _, block in blocks(rows, len(offsets), "the sample"):
        projected = (block[:, : len(offsets)] if matrix is None else block @ matrix) - offsets
        ones = projected > 0
        above = np.where(ones, projected, 0).sum(axis=0, dtype=np.float64)
        sums += np.stack([projected.sum(axis=0, dtype=np.float64) - above, above], axis=1)
        counts[:, 1] += ones.sum(axis=0)
    counts[:, 0] = len(rows) - counts[:, 1]
    return np.where(counts > 0, sums / np.maximum(counts, 1), 0.0)


def _itq(
    rows: NDArray[Any], mean: NDArray[np.float32], size: FitSize, rng: np.random.Generator
) -> tuple[NDArray[np.float32], Training]:
    """Return the rotated principal directions, ``[dim, bits]``, and the errors of the rounds."""
    bits, rounds = size.bits, size.rounds
    principal = _principal(rows, mean, bits)
    chosen = None
    if len(rows) > size.rotated:
        chosen = np.sort(rng.choice(len(rows), size.rotated, replace=False))
    projected = np.empty((size.rotated, bits), dtype=np.float32)
    step = max(256, LARGE_CELLS // size.dim)
    squares = 0.0
    for first in range(0, size.rotated, step):
        some = rows[first : first + step] if chosen is None else rows[chosen[first : first + step]]
        part = projected[first : first + step]
        for at, block in blocks(some, bits):
            np.matmul(block - mean, principal, out=part[at : at + len(block)])
        squares += float(np.square(part, dtype=np.float64).sum())
    projected /= np.float32(np.sqrt(squares / projected.size))
    rotation = np.linalg.qr(rng.standard_normal((bits, bits)))[0]
    error, correlation = _quantise(projected, rotation)
    errors = [error]
    converged = False
    while not converged and len(errors) <= rounds:
        left, _, right = np.linalg.svd(correlation)
        rotation = (left @ right).T
        error, correlation = _quantise(projected, rotation)
        converged = errors[-1] - error < ENOUGH * errors[-1]
        errors.append(error)
    return (principal @ rotation).astype(np.float32), Training(len(rows), tuple(errors), converged)


def _principal(rows: NDArray[Any], mean: NDArray[np.float32], bits: int) -> NDArray[np.float32]:
    """Return the directions in which the sample varies most, ``[dim, bits]``."""
    covariance = np.zeros((rows.shape[1], rows.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for _, block in blocks(rows, cells=LARGE_CELLS):
            centred = block - mean
            covariance += centred.T @ centred
    if not np.isfinite(covariance).all():
        raise InvalidArgumentError(
            f"the sample has numbers up to {_largest(rows):.3g}, and their squares overflow; 'itq' allows up to about "
            "1e15: scale the vectors"
        )
    if not covariance.any():
        raise InvalidArgumentError(
            f"all {len(rows)} vectors of the sample are equal; encoder = 'itq' needs vectors that differ"
        )
    _, directions = np.linalg.eigh(covariance)
    return np.ascontiguousarray(directions[:, ::-1][:, :bits], dtype=np.float32)


def _largest(rows: NDArray[Any]) -> float:
    """Return the largest magnitude in the sample."""
    return max(float(np.abs(block).max()) for _, block in blocks(rows))


def _quantise(projected: NDArray[np.float32], rotation: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return the error of a rotation, and the matrix that determines the next rotation.

    The error is the mean squared difference between a rotated projection and its sign. Projections have a mean square
    of 1, so the error is 2 - 2 E|rotated|. The matrix is the product of the transposed signs and the projections.
    """
    turn = rotation.astype(np.float32)
    correlation = np.zeros_like(rotation)
    total = 0.0
    for _, block in blocks(projected, cells=LARGE_CELLS):
        rotated = block @ turn
        total += float(np.abs(rotated).sum(dtype=np.float64))
        correlation += np.where(rotated > 0, np.float32(1), np.float32(-1)).T @ block
    return 2 - 2 * total / projected.size, correlation


def encoder_for_index(
    encoder: Kind | Encoder | None,
    bits: int | None,
    dim: int | None,
    train: ArrayLike | None,
    seed: int,
    centre: bool | None,
) -> Encoder | None:
    """Return the encoder for a new index, fitting it if necessary."""
    if encoder is None:
        if dim is not None or train is not None or centre is not None:
            raise InvalidArgumentError(
                "dim, train or centre without an encoder; choose one: encoder='sign', 'lsh' or 'itq'"
            )
        return None
    if not isinstance(encoder, Encoder):
        return fit(encoder, train, bits=bits, dim=dim, seed=seed, centre=centre)
    if train is not None or centre is not None:
        raise InvalidArgumentError(f"train or centre with {encoder!r}, which is already fitted; leave them out")
    if bits not in (None, encoder.bits) or dim not in (None, encoder.dim):
        raise InvalidArgumentError(f"bits = {bits}, dim = {dim} do not match {encoder!r}; leave them out")
    return encoder
