"""Hits that wait to be proven, in order of (distance, id).

They are kept in sorted runs, each at least twice as long as the next one, so adding n hits takes O(n log n). A hit
takes 16 bytes, against about 105 in a heap of tuples, and only the nearest ones are kept.
"""

from __future__ import annotations

import heapq
import math

import numpy as np
from numpy.typing import NDArray


class RankedHits:
    """A priority queue of hits. One thread at a time may use it."""

    def __init__(self, limit: int) -> None:
        """Keep the nearest ``limit`` hits. Each :meth:`pop` lowers the limit by one."""
        self._left = limit
        self._runs: list[tuple[NDArray[np.float64], NDArray[np.uint64]]] = []
        self._heads: list[tuple[float, int, int, int]] = []
        """A heap of the first remaining hit of each run: its distance, its id, the number of the run, its position."""
        self.nearest_dropped = math.inf
        """The distance of the nearest hit that was not kept, because it is not among the nearest ``limit``."""

    def add(self, distances: NDArray[np.float64], ids: NDArray[np.uint64]) -> None:
        """Add hits."""
        runs = self._rest()
        runs.append(self._sorted(distances, ids))
        while len(runs) > 1 and len(runs[-2][1]) < 2 * len(runs[-1][1]):
            last, previous = runs.pop(), runs.pop()
            runs.append(self._sorted(np.concatenate([previous[0], last[0]]), np.concatenate([previous[1], last[1]])))
        self._runs = [run for run in runs if len(run[1])]
        self._heads = [(float(run[0][0]), int(run[1][0]), number, 0) for number, run in enumerate(self._runs)]
        heapq.heapify(self._heads)

    @property
    def memory(self) -> int:
        """The size of the hits in bytes."""
        return sum(16 * len(ids) for _, ids in self._runs)

    @property
    def nearest(self) -> float:
        """The distance of the nearest hit; infinity if there is none."""
        return self._heads[0][0] if self._heads else math.inf

    def __bool__(self) -> bool:
        """Whether there are hits."""
        return bool(self._heads)

    def pop(self) -> tuple[float, int]:
        """Remove the nearest hit. Returns its distance and id."""
        distance, id_, number, place = self._heads[0]
        distances, ids = self._runs[number]
        self._left -= 1
        if place + 1 < len(ids):
            heapq.heapreplace(self._heads, (float(distances[place + 1]), int(ids[place + 1]), number, place + 1))
        else:
            heapq.heappop(self._heads)
        return distance, id_

    def first(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the nearest ``n`` hits, without removing them."""
        parts = [(distances[:n], ids[:n]) for distances, ids in self._rest()]
        if not parts:
            return np.empty(0, dtype=np.uint64), np.empty(0)
        distances, ids = self._sorted(np.concatenate([d for d, _ in parts]), np.concatenate([i for _, i in parts]))
        return ids[:n], distances[:n]

    def _rest(self) -> list[tuple[NDArray[np.float64], NDArray[np.uint64]]]:
        """Return the remaining hits of each run, longest run first."""
        heads = sorted(self._heads, key=lambda head: head[2])
        return [(self._runs[number][0][place:], self._runs[number][1][place:]) for _, _, number, place in heads]

    def _sorted(
        self, distances: NDArray[np.float64], ids: NDArray[np.uint64]
    ) -> tuple[NDArray[np.float64], NDArray[np.uint64]]:
        order = np.lexsort((ids, distances))
        if len(order) > self._left:
            self.nearest_dropped = min(self.nearest_dropped, float(distances[order[self._left]]))
            order = order[: self._left]
        return distances[order], ids[order]
