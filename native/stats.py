"""Statistics of searches, as the engine counts them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi, lib
from whamming.native.arguments import PLAN_NAMES, Plan
from whamming.native.display import counted, table

_BLOCK_CODES: Final[int] = lib.WH_BLOCK_CODES
_RAW_STATS: Final = ffi.typeof("struct wh_stats[]")


class Stats(NamedTuple):
    """Statistics of a search so far.

    The fields are those of ``struct wh_stats``, in the same order, except that ``reserved`` is left out and
    ``nanoseconds`` is converted to ``seconds``.
    """

    plan: Plan = "auto"
    """``"probe"`` or ``"sweep"``: the current or last plan on the first part, which is the largest."""
    switched: bool = False
    """Whether the search changed from probe to sweep."""
    rounds: int = 0
    """Largest number of rounds in a part. Above 1 only if k is unlimited or exceeds 65,536."""
    buckets: int = 0
    """Buckets probed, empty ones included."""
    buckets_nonempty: int = 0
    candidates: int = 0
    """Codes found in buckets, and codes that the sweep has listed."""
    verified: int = 0
    """Codes that passed the filters, so that their distance was computed."""
    blocks: int = 0
    """Blocks of 64 codes swept."""
    planes: int = 0
    """Planes read in those blocks. A plane is 4 bits of each code."""
    seconds: float = 0.0
    """Time spent in the engine."""

    @property
    def compared(self) -> int:
        """Comparisons with codes, by a filter or exact. A :class:`Budget` limits this number."""
        return self.candidates + _BLOCK_CODES * self.blocks

    def _repr_html_(self) -> str:
        return table(("statistic", "value"), self._asdict().items())


def _dtype(struct: str) -> np.dtype[np.void]:
    """Return the numpy dtype of a C struct, so that numpy can read an array of such structs."""
    kinds = {4: {"uint32_t": "u4", "int32_t": "i4"}, 8: {"int64_t": "i8", "double": "f8"}}
    fields = ffi.typeof(struct).fields
    return np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [kinds[ffi.sizeof(f.type)].get(f.type.cname, "u8") for _, f in fields],
            "offsets": [f.offset for _, f in fields],
            "itemsize": ffi.sizeof(struct),
        }
    )


_STATS: Final = _dtype("struct wh_stats")


class BatchStats(Sequence[Stats]):
    """The :class:`Stats` of each query of a batch."""

    def __init__(self, raw: NDArray[np.void]) -> None:
        """Wrap the engine's structs. Each is converted on access."""
        self.raw = raw

    @classmethod
    def allocate(cls, count: int) -> Self:
        """Return zeroed statistics of ``count`` queries, for the engine to fill."""
        return cls(np.zeros(count, dtype=_STATS))

    @property
    def pointer(self) -> Any:
        """C pointer to the structs."""
        return ffi.from_buffer(_RAW_STATS, self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __repr__(self) -> str:
        return f"BatchStats({counted(len(self), 'query', 'queries')})"

    @overload
    def __getitem__(self, query: int) -> Stats: ...
    @overload
    def __getitem__(self, query: slice) -> BatchStats: ...
    def __getitem__(self, query: int | slice) -> Stats | BatchStats:
        if isinstance(query, slice):
            return BatchStats(self.raw[query])
        return _stats_of(self.raw[query].item())

    def __iter__(self) -> Iterator[Stats]:
        return map(_stats_of, self.raw.tolist())


def _stats_of(row: tuple[int, ...]) -> Stats:
    """Convert the fields of ``struct wh_stats``."""
    plan, switched, rounds, _, *counts, spent = row
    return Stats._make((PLAN_NAMES[plan], bool(switched), rounds, *counts, spent / 1e9))
