"""Helpers for tests of queries that are searched together, in groups."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.native.oracle import Floats
from tests.server.calls import Bench, batch, random_table
from tests.server.stepped_queries import BITS
from whamming.server.search.scheduler import MAX_TOGETHER
from whamming.v1.search_pb2 import QueryOptions


def tables(count: int, first: int = 0) -> Floats:
    return np.stack([random_table(BITS, seed) for seed in range(first, first + count)])


def options(k: int = 3, **others: Any) -> QueryOptions:
    return QueryOptions(k=k, **others)


def learn_speed(bench: Bench) -> None:
    """Teach the scheduler that queries are fast, so that it forms the largest possible groups."""
    for estimate in bench.searcher._scheduler._estimates.values():
        estimate.add(1e-6 * MAX_TOGETHER, MAX_TOGETHER)


async def together(bench: Bench, options: QueryOptions, **columns: Any) -> None:
    """Search one query of a kind, so that later queries of this kind are searched together."""
    call = bench.call()
    call.ask(batch("docs", [0], options, **columns))
    await call.finish()
    learn_speed(bench)
