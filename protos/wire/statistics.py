"""Convert the statistics of queries to and from columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from whamming.native import Stats
from whamming.native.display import counted
from whamming.v1 import search_pb2
from whamming.wire.enums import PLANS

NO_STATS = Stats()
"""The statistics of a query that ended before it started."""

_PLAN_NUMBERS = {word: PLANS.number("plan", word) for word in PLANS.words}
_COLUMNS = [{"seconds": "engine_seconds"}.get(name, name) for name in Stats._fields[1:]]  # all except the plan


def add_statistics(columns: search_pb2.StatisticsColumns, stats: Sequence[Stats], elapsed: Sequence[float]) -> None:
    """Append one entry per query to each column."""
    if not stats:
        return
    plans, *others = zip(*stats, strict=True)
    columns.plans.extend([_PLAN_NUMBERS[plan] for plan in plans])
    for name, values in zip(_COLUMNS, others, strict=True):
        getattr(columns, name).extend(values)
    columns.elapsed_seconds.extend(elapsed)


def stats_at(columns: search_pb2.StatisticsColumns, row: int) -> Stats:
    """Return the statistics in one row. Those that the server did not send, because it is older, are zero."""
    if not columns.plans:
        return NO_STATS
    plan = PLANS.word("plans", columns.plans[row]) or "auto"
    others = [getattr(columns, name) for name in _COLUMNS]
    return Stats._make([plan, *(values[row] if values else 0 for values in others)])


def query_statistics(columns: search_pb2.StatisticsColumns) -> search_pb2.QueryStatistics:
    """Return the only entry of each column."""
    fields = {field.name: values[0] for field, values in columns.ListFields()}
    return search_pb2.QueryStatistics(plan=fields.pop("plans"), **fields)


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
