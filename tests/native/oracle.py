"""The oracle: exact answers in integer arithmetic, with which every search of the engine is compared.

Costs are rounded with Python integers, by the rule in ``whamming.h``. The magnitude of every distance is an integer up
to 2^53. So int64 sums are exact, and so is the conversion to a double and its division by a power of two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ids = NDArray[np.uint64]
Integers = NDArray[np.int64]


def round_costs(table: Floats) -> tuple[Integers, int]:
    """Round costs ``[bits, 2]`` to integers. Returns them and the exponent: they were multiplied by 2**exponent."""
    largest = max(abs(cost) for cost in table.flat)
    if largest == 0:
        return np.zeros(table.shape, dtype=np.int64), 0
    _, x = math.frexp(largest)  # every |cost| < 2^x
    exponent = 53 - x - (len(table) - 1).bit_length()
    return np.array([[_times_power(float(c), exponent) for c in row] for row in table], dtype=np.int64), exponent


def _times_power(cost: float, exponent: int) -> int:
    """Round ``cost * 2**exponent`` to the nearest integer, ties to even."""
    top, bottom = cost.as_integer_ratio()
    top, bottom = (top << exponent, bottom) if exponent >= 0 else (top, bottom << -exponent)
    down, rest = divmod(top, bottom)
    return down + (2 * rest > bottom or (2 * rest == bottom and down % 2 == 1))


@dataclass(frozen=True)
class Truth:
    """A complete answer, or a part of one: hits in total order by (distance, id)."""

    ids: Ids
    distances: Floats

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Truth:
        return Truth(self.ids[part], self.distances[part])

    def within(self, radius: float | None) -> Truth:
        return self if radius is None else self[: int(np.searchsorted(self.distances, radius, side="right"))]

    def after(self, distance: float, last_id: int) -> Truth:
        later = (self.distances > distance) | ((self.distances == distance) & (self.ids > np.uint64(last_id)))
        return Truth(self.ids[later], self.distances[later])

    def bytes(self) -> tuple[bytes, bytes]:
        return self.ids.tobytes(), self.distances.tobytes()


def truth(codes: Codes, table: Floats, ids: Ids | None = None) -> Truth:
    """Return all items in order of (distance, id), for a cost table ``[bits, 2]``."""
    costs, exponent = round_costs(table)
    ones = np.unpackbits(codes, axis=1, count=len(table), bitorder="little")
    sums = costs[:, 0].sum() + ones @ (costs[:, 1] - costs[:, 0])
    names = np.arange(len(codes), dtype=np.uint64) if ids is None else ids
    order = np.lexsort((names, sums))
    return Truth(names[order], np.ldexp(sums[order].astype(np.float64), -exponent))
