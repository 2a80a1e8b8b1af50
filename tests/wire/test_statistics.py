"""Statistics survive a round trip through columns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming.native import Stats
from whamming.v1.search_pb2 import StatisticsColumns
from whamming.wire.statistics import NO_STATS, RemoteStats, add_statistics, stats_at

counts = st.integers(0, 2**64 - 1)
some_stats = st.builds(
    Stats,
    st.sampled_from(["auto", "probe", "sweep"]),
    st.booleans(),
    st.integers(0, 2**32 - 1),
    counts,
    counts,
    counts,
    counts,
    counts,
    counts,
    st.floats(0, 1e9),
)


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


def test_every_statistic_has_a_column() -> None:
    names = [field.name for field in StatisticsColumns.DESCRIPTOR.fields]
    assert names == ["plans", *Stats._fields[1:-1], "engine_seconds", "elapsed_seconds"]
    assert Stats._fields[-1] == "seconds"


def test_remote_statistics_are_read_on_access() -> None:
    columns = StatisticsColumns()
    stats = [Stats("sweep", True, row, 2, 3, 4, 5, 6, 7, 0.5) for row in range(3)]
    add_statistics(columns, stats, [0.0] * 3)
    remote = RemoteStats([(columns, 2), None, (columns, 0)])
    assert len(remote) == 3
    assert list(remote) == [stats[2], NO_STATS, stats[0]]
    assert remote[-1] == stats[0]
    assert list(remote[1:]) == [NO_STATS, stats[0]]
    with pytest.raises(IndexError):
        remote[3]
