"""The floor of a sweep: the time of a bare pass over the same codes. ``floor.c`` is compiled at its first use."""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

import datasets
from whamming.native import Index

MAX_LOOK_UP: Final = 63
LIBRARY: Final = datasets.ROOT / "build" / "bench" / "floor.so"
SOURCE: Final = Path(__file__).with_name("floor.c")


def _planes_of(index: Index, planes: int) -> NDArray[np.uint8]:
    """Lay the codes of an index out as the bare pass reads them.

    A plane is 4 bits of 128 codes, in 64 bytes. The low nibble of byte j belongs to code j, the high nibble to code
    64 + j.
    """
    blocks = -(-index.rows // 128)
    cells = np.frombuffer(index.arrays["codes"], dtype=np.uint8).reshape(-(-index.rows // 64), -1, 4, 4, 16)
    laid = np.zeros((blocks, planes, 64), dtype=np.uint8)
    for first in range(0, blocks, 4096):  # in pieces, to save memory
        piece = cells[2 * first : 2 * (first + 4096)]
        codes = piece.transpose(0, 2, 4, 1, 3).reshape(len(piece) * 64, -1)
        nibbles = np.stack([codes & 15, codes >> 4], axis=2).reshape(len(codes), -1)[:, :planes]
        whole = np.zeros((-(-len(piece) // 2), 2, 64, planes), dtype=np.uint8)
        whole.reshape(-1, planes)[: len(nibbles)] = nibbles
        laid[first : first + 4096] = (whole[:, 0] | whole[:, 1] << 4).transpose(0, 2, 1)
    return laid.ravel()


class Floor:
    """Bare passes over the codes of an index."""

    def __init__(self, data: datasets.Dataset, index: Index, simd: str) -> None:
        """``simd``: ``"avx512"`` or ``"avx2"``; for others there is no floor."""
        LIBRARY.parent.mkdir(parents=True, exist_ok=True)
        if not LIBRARY.exists() or LIBRARY.stat().st_mtime < SOURCE.stat().st_mtime:
            subprocess.run(["cc", "-O3", "-shared", "-fPIC", "-o", LIBRARY, SOURCE], check=True)
        self._pass = getattr(ctypes.CDLL(str(LIBRARY)), f"floor_{simd}")
        self._pass.restype = ctypes.c_size_t
        self._data = data
        self._planes = -(-data.bits // 4)
        self._blocks = _planes_of(index, self._planes)

    def run(self, query: int, farthest: float) -> float:
        """Return the seconds of a pass for one query. ``farthest``: the distance of its k-th hit."""
        bits = self._data.bits
        costs = np.zeros((self._planes * 4, 2))
        costs[:bits] = self._data.costs[query]
        least = costs.min(axis=1)
        extra = (costs - least[:, None]).reshape(-1, 4, 2)
        look_up: NDArray[np.float64] = sum(extra[:, j, np.arange(16) >> j & 1] for j in range(4))
        scale = MAX_LOOK_UP / look_up.max()
        lut = np.ascontiguousarray(look_up * scale, dtype=np.uint8)
        limit = int(min(65535, (farthest - least.sum()) * scale + 1))
        arguments = (
            ctypes.c_void_p(self._blocks.ctypes.data),
            ctypes.c_size_t(len(self._blocks) // (64 * self._planes)),
            ctypes.c_size_t(self._planes),
            ctypes.c_void_p(lut.ctypes.data),
            ctypes.c_uint16(limit),
        )
        start = time.perf_counter()
        found = self._pass(*arguments)
        seconds = time.perf_counter() - start
        assert found, "the limit is wrong: at least the k-th hit itself is within it"
        return seconds
