"""The truth, in exact integer arithmetic: what every search of the engine is compared with.

Costs are rounded by the rule that ``whamming.h`` documents, by Python's integers; every code's distance is an integer
below 2^53 in size, so that int64 sums, and the double that the integer over a power of two is, are exact.
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
    """Costs ``[bits, 2]`` as integers, and the exponent of the power of two that they were multiplied by."""
    largest = max(abs(cost) for cost in table.flat)
    if largest == 0:
        return np.zeros(table.shape, dtype=np.int64), 0
    _, x = math.frexp(largest)  # every |cost| < 2^x
    exponent = 53 - x - (len(table) - 1).bit_length()
    return np.array([[_times_power(float(c), exponent) for c in row] for row in table], dtype=np.int64), exponent


def _times_power(cost: float, exponent: int) -> int:
    """``cost * 2**exponent`` to the nearest integer, ties to even."""
    top, bottom = cost.as_integer_ratio()
    top, bottom = (top << exponent, bottom) if exponent >= 0 else (top, bottom << -exponent)
    down, rest = divmod(top, bottom)
    return down + (2 * rest > bottom or (2 * rest == bottom and down % 2 == 1))


@dataclass(frozen=True)
class Truth:
    """A full answer, or a part of one: hits in the total order by (distance, id)."""

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
    """All codes in order of (distance, id) for a query of costs ``[bits, 2]``."""
    costs, exponent = round_costs(table)
    ones = np.unpackbits(codes, axis=1, count=len(table), bitorder="little")
    sums = costs[:, 0].sum() + ones @ (costs[:, 1] - costs[:, 0])
    names = np.arange(len(codes), dtype=np.uint64) if ids is None else ids
    order = np.lexsort((names, sums))
    return Truth(names[order], np.ldexp(sums[order].astype(np.float64), -exponent))
