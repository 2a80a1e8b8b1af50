"""The oracle: exact answers in integer arithmetic, with which every search of the engine is compared.

Costs become Python integers without rounding. Sums are exact, whatever the costs are. A distance is the double nearest
to a sum: Python rounds an integer to a double like that, and its product with a power of two is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.uint8]
Floats = NDArray[np.float64]
Ids = NDArray[np.uint64]

LIMB_BITS = 40
"""Sums are computed in pieces of this many bits. 4096 of them fit an int64."""


def exact_costs(table: Floats) -> tuple[list[list[int]], int]:
    """Return costs ``[bits, 2]`` in units of 2**exponent, and the exponent: the largest for which all are integers."""
    ratios = [[float(cost).as_integer_ratio() for cost in row] for row in table]
    parts = [(top, bottom.bit_length() - 1) for row in ratios for top, bottom in row if top]
    exponent = min([(top & -top).bit_length() - 1 - scale for top, scale in parts], default=0)
    up, down = 1 << max(0, -exponent), 1 << max(0, exponent)
    return [[top * up // (bottom * down) for top, bottom in row] for row in ratios], exponent


def is_accepted(table: Floats) -> bool:
    """Whether all sums of the costs have at most 126 digits, by the rule in ``whamming.h``."""
    costs, _ = exact_costs(table)
    return max(abs(cost).bit_length() for row in costs for cost in row) + 1 + (len(costs) - 1).bit_length() <= 126


@dataclass(frozen=True)
class Truth:
    """A complete answer, or a part of one: hits in total order by (exact distance, id)."""

    ids: Ids
    distances: Floats
    rounded: bool = field(default=False, compare=False)
    """Whether some distances of the query have more than 53 digits."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Truth:
        return Truth(self.ids[part], self.distances[part], self.rounded)

    def within(self, radius: float | None) -> Truth:
        return self if radius is None else self[: int(np.searchsorted(self.distances, radius, side="right"))]

    def after(self, distance: float, last_id: int) -> Truth:
        """Return what follows the position (distance, id). If distances are rounded, other equal ones come again."""
        if self.rounded:
            rest = self[int(np.searchsorted(self.distances, distance, side="left")) :]
            others = (rest.distances != distance) | (rest.ids != np.uint64(last_id))
            return Truth(rest.ids[others], rest.distances[others], self.rounded)
        later = (self.distances > distance) | ((self.distances == distance) & (self.ids > np.uint64(last_id)))
        return Truth(self.ids[later], self.distances[later])

    def after_item(self, distance: float, item: int) -> Truth:
        """Return what follows an item that has this distance. If there is none, the same as :meth:`after`."""
        found = np.flatnonzero((self.ids == np.uint64(item)) & (self.distances == distance))
        return self[int(found[0]) + 1 :] if len(found) else self.after(distance, item)

    def bytes(self) -> tuple[bytes, bytes]:
        return self.ids.tobytes(), self.distances.tobytes()


def truth(codes: Codes, table: Floats, ids: Ids | None = None) -> Truth:
    """Return all items in order of (exact distance, id), for a cost table ``[bits, 2]``."""
    costs, exponent = exact_costs(table)
    floor = sum(min(row) for row in costs)
    differing = np.unpackbits(codes, axis=1, count=len(table), bitorder="little")
    differing ^= np.array([one < zero for zero, one in costs], dtype=np.uint8)
    deltas = [abs(one - zero) for zero, one in costs]
    names = np.arange(len(codes), dtype=np.uint64) if ids is None else ids
    if max(abs(floor), abs(floor + sum(deltas))) < 2**53:
        sums = floor + differing @ np.array(deltas, dtype=np.int64)
        order = np.lexsort((names, sums))
        return Truth(names[order], np.ldexp(sums[order].astype(np.float64), exponent))
    limbs = range(-(-max(deltas).bit_length() // LIMB_BITS))
    pieces = [np.array([delta >> LIMB_BITS * i & (1 << LIMB_BITS) - 1 for delta in deltas]) for i in limbs]
    columns = [(differing @ piece).tolist() for piece in pieces]
    exact = [floor + sum(part << LIMB_BITS * i for i, part in enumerate(row)) for row in zip(*columns, strict=True)]
    ranked = sorted(zip(exact or [floor] * len(codes), names.tolist(), strict=True))
    distances = [math.ldexp(total, exponent) for total, _ in ranked]
    rounded = max(abs(floor), abs(floor + sum(deltas))).bit_length() > 53
    return Truth(np.array([name for _, name in ranked], dtype=np.uint64), np.array(distances), rounded)
