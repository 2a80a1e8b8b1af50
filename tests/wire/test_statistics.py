"""Statistics survive a round trip through columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming.native import BatchStats, Stats
from whamming.v1.search_pb2 import QueryStatistics, StatisticsColumns
from whamming.wire.statistics import NO_STATS, RemoteStats, add_statistics, query_statistics, stats_at

counts = st.integers(0, 2**64 - 1)
special = {
    "plan": st.sampled_from(["auto", "probe", "sweep"]),
    "switched": st.booleans(),
    "rounds": st.integers(0, 2**32 - 1),
    "seconds": st.floats(0, 1e9),
}
some_stats = st.builds(Stats, *(special.get(name, counts) for name in Stats._fields))


@given(st.lists(st.lists(some_stats, max_size=4), max_size=4))
@generated(60)
def test_statistics_are_appended_and_read(parts: list[list[Stats]]) -> None:
    columns = StatisticsColumns()
    for part in parts:
        add_statistics(columns, part, [0.5] * len(part))
    columns = StatisticsColumns.FromString(columns.SerializeToString())
    whole = [stats for part in parts for stats in part]
    lengths = {len(getattr(columns, field.name)) for field in columns.DESCRIPTOR.fields}
    assert lengths == {len(whole)}, "every column has one entry per query"
    assert [stats_at(columns, row) for row in range(len(whole))] == whole
    assert list(columns.elapsed_seconds) == [0.5] * len(whole)


def test_the_declarations_of_the_statistics_agree() -> None:
    """A statistic is declared in ``struct wh_stats``, ``Stats``, ``StatisticsColumns`` and ``QueryStatistics``."""
    struct = [name for name in BatchStats.allocate(0).raw.dtype.names or () if name != "reserved"]
    assert [*Stats._fields] == [*struct[:-1], "seconds"]
    assert struct[-1] == "nanoseconds"
    columns = {field.name: field.number for field in StatisticsColumns.DESCRIPTOR.fields}
    assert columns.keys() == {"plans", *Stats._fields[1:-1], "engine_seconds", "elapsed_seconds"}
    one = {field.name: field.number for field in QueryStatistics.DESCRIPTOR.fields}
    assert {"plan": columns.pop("plans"), **columns} == one


def test_columns_that_an_older_server_does_not_send_are_zero() -> None:
    columns = StatisticsColumns()
    add_statistics(columns, [Stats("sweep", candidates=5, planes=7)], [0.0])
    columns.ClearField("planes")
    assert stats_at(columns, 0) == Stats("sweep", candidates=5)


@given(some_stats)
@generated(30)
def test_the_statistics_of_one_query(stats: Stats) -> None:
    columns = StatisticsColumns()
    add_statistics(columns, [stats], [0.5])
    one = query_statistics(columns)
    for field in StatisticsColumns.DESCRIPTOR.fields:
        name = "plan" if field.name == "plans" else field.name
        assert [getattr(one, name)] == list(getattr(columns, field.name))


def test_remote_statistics_are_read_on_access() -> None:
    columns = StatisticsColumns()
    stats = [Stats("sweep", True, row, verified=5, seconds=0.5) for row in range(3)]
    add_statistics(columns, stats, [0.0] * 3)
    remote = RemoteStats([(columns, 2), None, (columns, 0)])
    assert len(remote) == 3
    assert list(remote) == [stats[2], NO_STATS, stats[0]]
    assert remote[-1] == stats[0]
    assert list(remote[1:]) == [NO_STATS, stats[0]]
    with pytest.raises(IndexError):
        remote[3]
