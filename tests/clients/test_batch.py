"""Batches of queries on a server: what is refused, what is sent again, and that nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

import whamming
from tests.clients.scripted import Scripted, serving
from tests.serving import PATIENCE, ServerProcess
from whamming import InvalidArgumentError
from whamming.remote.batch import Batch
from whamming.remote.queries import Queries
from whamming.v1 import search_pb2

BITS, N = 16, 500
CODES = np.random.default_rng(0).integers(0, 256, (N, BITS // 8), dtype=np.uint8)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with whamming.connect(server.address) as database:
            database.create_index("docs", BITS).upsert(np.arange(N), CODES)
        yield server
        server.check_log()


@pytest.mark.parametrize("dtype", [np.bool_, np.int64, np.float32])
def test_codes_of_another_type_are_refused(server: ServerProcess, dtype: type) -> None:
    async def ask() -> None:
        async with whamming.aio.connect(server.address) as database:
            index = await database.index("docs")
            with pytest.raises(InvalidArgumentError, match=f"{np.dtype(dtype)}, not uint8"):
                await asyncio.wait_for(index.search_batch(CODES[:3].astype(dtype)), PATIENCE)
            with pytest.raises(InvalidArgumentError, match=f"{np.dtype(dtype)}, not uint8"):
                index.search(CODES[0].astype(dtype))

    asyncio.run(ask())


class Unpackable(Queries):
    """Queries of which all but the first message cannot be packed."""

    def message(self, index: str, rows: NDArray[np.int64], options: search_pb2.QueryOptions) -> search_pb2.QueryBatch:
        if 0 in rows:
            return super().message(index, rows, options)
        raise ZeroDivisionError


def test_an_error_while_sending_is_raised() -> None:
    async def ask() -> None:
        async with serving(Scripted(lambda request: ()), PATIENCE) as connection:
            queries = Unpackable(CODES, None, None, None, None)
            batch = Batch(connection, "docs", queries, search_pb2.QueryOptions(k=1), 1)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(batch.run(), PATIENCE)

    asyncio.run(ask())
