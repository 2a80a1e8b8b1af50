"""Convert the statistics of queries to and from columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from whamming.native import Stats
from whamming.native.display import counted
from whamming.v1 import search_pb2
from whamming.wire.enums import PLANS

NO_STATS = Stats("auto", False, 0, 0, 0, 0, 0, 0, 0, 0.0)
"""The statistics of a query that ended before it started."""

_PLAN_NUMBERS = {word: PLANS.number("plan", word) for word in PLANS.words}


def add_statistics(columns: search_pb2.StatisticsColumns, stats: Sequence[Stats], elapsed: Sequence[float]) -> None:
    """Append one entry per query to each column."""
    if not stats:
        return
    plans, switched, rounds, buckets, nonempty, candidates, verified, blocks, planes, seconds = zip(*stats, strict=True)
    columns.plans.extend([_PLAN_NUMBERS[plan] for plan in plans])
    columns.switched.extend(switched)
    columns.rounds.extend(rounds)
    columns.buckets.extend(buckets)
    columns.buckets_nonempty.extend(nonempty)
    columns.candidates.extend(candidates)
    columns.verified.extend(verified)
    columns.blocks.extend(blocks)
    columns.planes.extend(planes)
    columns.engine_seconds.extend(seconds)
    columns.elapsed_seconds.extend(elapsed)


def stats_at(columns: search_pb2.StatisticsColumns, row: int) -> Stats:
    """Return the statistics in one row. They are zero if the server sent none."""
    if not columns.plans:
        return NO_STATS
    return Stats(
        PLANS.word("plans", columns.plans[row]) or "auto",
        columns.switched[row],
        columns.rounds[row],
        columns.buckets[row],
        columns.buckets_nonempty[row],
        columns.candidates[row],
        columns.verified[row],
        columns.blocks[row],
        columns.planes[row],
        columns.engine_seconds[row],
    )


class RemoteStats(Sequence[Stats]):
    """The statistics of the queries of a batch, read from messages on access."""

    def __init__(self, places: Sequence[tuple[search_pb2.StatisticsColumns, int] | None]) -> None:
        """Give the columns and row of each query's statistics, or None if it has none."""
        self._places = places

    def __repr__(self) -> str:
        return f"RemoteStats({counted(len(self), 'query', 'queries')})"

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, query: int) -> Stats: ...
    @overload
    def __getitem__(self, query: slice) -> RemoteStats: ...
    def __getitem__(self, query: int | slice) -> Any:
        if isinstance(query, slice):
            return RemoteStats(self._places[query])
        place = self._places[query]
        return NO_STATS if place is None else stats_at(*place)

    def __iter__(self) -> Iterator[Stats]:
        return (self[query] for query in range(len(self)))
