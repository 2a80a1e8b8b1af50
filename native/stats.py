"""What searches have cost, as the engine counts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self, overload

import numpy as np
from numpy.typing import NDArray

from whamming.native._engine import ffi
from whamming.native.arguments import PLAN_NAMES, Plan
from whamming.native.display import counted, table

_RAW_STATS: Final = ffi.typeof("struct wh_stats[]")


class Stats(NamedTuple):
    """What a search has cost so far."""

    plan: Plan
    """The plan that finished, or is at work."""
    switched: bool
    """It began by probing and went over to the sweep."""
    rounds: int
    """Passes over the index: more than one only past 65,536 hits or in unlimited iteration."""
    buckets: int
    buckets_nonempty: int
    candidates: int
    """Codes met in buckets, or left over by the sweep's filter."""
    verified: int
    """Codes whose exact distance was computed."""
    blocks: int
    """Blocks of 128 codes swept."""
    planes: int
    """Planes of those blocks read, 64 bytes each."""
    seconds: float
    """Time inside the engine."""

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return table(("statistic", "value"), self._asdict().items())


def _dtype(struct: str) -> np.dtype[np.void]:
    """Return the numpy dtype of one of the engine's structs, so that arrays of them are read at once."""
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
        """Wrap the engine's structs; each is read when it is asked for."""
        self.raw = raw

    @classmethod
    def room(cls, count: int) -> Self:
        """Return room for so many, for the engine to fill."""
        return cls(np.zeros(count, dtype=_STATS))

    @property
    def pointer(self) -> Any:
        """What the engine writes to."""
        return ffi.from_buffer(_RAW_STATS, self.raw)

    def __len__(self) -> int:
        """Return the number of queries."""
        return len(self.raw)

    def __repr__(self) -> str:
        """Describe the statistics in a line."""
        return f"BatchStats({counted(len(self), 'query', 'queries')})"

    @overload
    def __getitem__(self, query: int) -> Stats: ...
    @overload
    def __getitem__(self, query: slice) -> BatchStats: ...
    def __getitem__(self, query: int | slice) -> Stats | BatchStats:
        """Return the statistics of one query, or of several."""
        if isinstance(query, slice):
            return BatchStats(self.raw[query])
        return _stats_of(self.raw[query].item())

    def __iter__(self) -> Iterator[Stats]:
        """Yield the statistics of each query."""
        return map(_stats_of, self.raw.tolist())


def _stats_of(row: tuple[int, ...]) -> Stats:
    """Return what the engine has written, in the order of its struct."""
    plan, switched, rounds, _, buckets, nonempty, candidates, verified, blocks, planes, spent = row
    name = PLAN_NAMES[plan]
    return Stats(name, bool(switched), rounds, buckets, nonempty, candidates, verified, blocks, planes, spent / 1e9)
