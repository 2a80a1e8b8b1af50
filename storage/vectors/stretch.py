"""How much an encoder's matrix can stretch a vector: an upper bound on its largest singular value, in short steps.

Let G be the smaller of the two products of M and its transpose. The largest singular value of M is the square root of
G's largest eigenvalue. A singular value decomposition would compute it exactly, but cannot be interrupted, and takes
half a minute for 4096 x 4096 numbers. A bound that is some percent too large is good enough. It is found like this:

1. Compute G, tile by tile.
2. Some rounds of the power method estimate its largest eigenvalue from below.
3. If t I - G has a Cholesky decomposition, all eigenvalues of G are below t. Try a t slightly above the estimate, then
   larger ones. If t exceeds the trace of G, the decomposition exists, so the search for t ends.

*Rounding.* A computed Cholesky decomposition of an n x n matrix A is the exact one of some A + E. The largest singular
value of E is at most ``(n + 1) u trace(A)``, where u = 2^-53 (Higham, *Accuracy and Stability of Numerical Algorithms*,
theorem 10.5). Here, the trace of A is at most n t. The computed G differs from G by at most ``d u trace(G)`` <=
``d u n t``, if each element sums d products. With n <= 4096 and d <= 65,536, both together are below 4e-8 t. The tiles
below the diagonal are solved for by LU decomposition, whose error is of the same order. :data:`_ROUNDING` leaves a
factor of 25 for all of this.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from whamming.storage.vectors.steps import Steps

_TILE: Final = 64
"""Rows and columns of a tile. OpenBLAS multiplies matrices of this size in the calling thread. For larger ones, its
threads would take all cores, and wait for each other if these are busy."""
_STEP: Final = 32
"""Number of products of tiles in a step."""
_ROUNDS: Final = 40
"""Rounds of the power method."""
_MARGIN: Final = 1.03
"""The first t is the estimate times this factor. Each further attempt squares the factor."""
_ROUNDING: Final = 1 + 1e-6

Tiles = dict[tuple[int, int], NDArray[np.float64]]
"""The tiles of a symmetric or lower triangular matrix, by row and column; only those with row >= column."""


def stretch_of(matrix: NDArray[np.float32]) -> Steps[float]:
    """Return an upper bound on the largest singular value, usually by a few percent too large; 1.0 if it is zero."""
    tiles = yield from _gram(matrix if matrix.shape[0] >= matrix.shape[1] else matrix.T)
    trace = sum(float(np.trace(tile)) for (row, column), tile in tiles.items() if row == column)
    if trace == 0:
        return 1.0
    estimate = yield from _largest_eigenvalue(tiles)
    margin = _MARGIN
    while (top := estimate * margin) < trace:
        if (yield from _is_below(tiles, top)):
            break
        margin *= margin
    return math.sqrt(min(top, trace) * _ROUNDING)


def _gram(matrix: NDArray[np.float32]) -> Steps[Tiles]:
    """Return the product of the transpose of a matrix with the matrix."""
    tiles: Tiles = {}
    for row in range(0, matrix.shape[1], _TILE):
        for column in range(0, row + 1, _TILE):
            total: Any = 0.0
            for number, top in enumerate(range(0, matrix.shape[0], _TILE)):
                part = matrix[top : top + _TILE]
                left = part[:, row : row + _TILE].astype(np.float64)
                total = total + left.T @ part[:, column : column + _TILE].astype(np.float64)
                if number % _STEP == 0:
                    yield
            tiles[row // _TILE, column // _TILE] = total
    return tiles


def _largest_eigenvalue(tiles: Tiles) -> Steps[float]:
    """Return a lower bound on the largest eigenvalue, found by the power method. It is usually close."""
    sizes = [len(tile) for (row, column), tile in tiles.items() if row == column]
    start = np.random.default_rng(0).standard_normal(sum(sizes))
    vector = np.split(start / np.linalg.norm(start), np.cumsum(sizes)[:-1])
    estimate = 0.0
    for _ in range(_ROUNDS):
        product = [np.zeros(size) for size in sizes]
        for (row, column), tile in tiles.items():
            product[row] += tile @ vector[column]
            if row != column:
                product[column] += tile.T @ vector[row]
            if column == 0:
                yield
        estimate = math.sqrt(sum(float(part @ part) for part in product))
        vector = [part / estimate for part in product]
    return estimate


def _is_below(tiles: Tiles, top: float) -> Steps[bool]:
    """Return whether all eigenvalues are below ``top``: whether top I - G has a Cholesky decomposition L."""
    rows: dict[int, list[NDArray[Any]]] = defaultdict(list)  # the tiles of L, by row
    for (row, column), tile in tiles.items():
        rest = -tile
        if row == column:
            rest[np.diag_indices_from(rest)] += top
        for left, right in zip(rows[row], rows[column][:column], strict=False):
            rest -= left @ right.T
        if row == column:
            try:
                rows[row].append(np.linalg.cholesky(rest))
            except np.linalg.LinAlgError:
                return False
        else:
            rows[row].append(np.linalg.solve(rows[column][column], rest.T).T)
        yield
    return True
