"""The asyncio client with the verbs of the others, so that one suite runs on all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming import Hit, aio
from whamming.blocking import shared_portal
from whamming.native import Answer, Stats
from whamming.remote.querying import Search
from whamming.storage import IndexSettings, Items, Rows, StoreStats


class AioDatabase:
    """Waits for :class:`whamming.aio.Database`; its coroutines run in the event loop of the synchronous client."""

    def __init__(self, address: str, **options: Any) -> None:
        self._portal = shared_portal()
        self.database = self._portal.run(aio.connect(address, **options))

    def __enter__(self) -> Self:
        self._portal.run(self.database.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        self._portal.run(self.database.__aexit__(None, None, None))

    def create_index(self, name: str, bits: int, **options: Any) -> AioIndex:
        return AioIndex(self._portal.run(self.database.create_index(name, bits, **options)))

    def index(self, name: str) -> AioIndex:
        return AioIndex(self._portal.run(self.database.index(name)))

    def list_indexes(self) -> list[str]:
        return self._portal.run(self.database.list_indexes())

    def drop_index(self, name: str) -> None:
        self._portal.run(self.database.drop_index(name))

    def close(self) -> None:
        self._portal.run(self.database.close())


class AioIndex:
    """Waits for :class:`whamming.aio.Index`."""

    def __init__(self, index: aio.Index) -> None:
        self._portal = shared_portal()
        self.index = index
        self.name = index.name

    @property
    def settings(self) -> IndexSettings:
        return self.index.settings

    def __len__(self) -> int:
        return self._portal.run(self.index.count())

    def __repr__(self) -> str:
        return repr(self.index)

    def upsert(
        self, ids: ArrayLike, codes: ArrayLike, payloads: Sequence[bytes | None] | None = None, **options: Any
    ) -> None:
        self._portal.run(self.index.upsert(ids, codes, payloads, **options))

    def delete(self, ids: ArrayLike, **options: Any) -> None:
        self._portal.run(self.index.delete(ids, **options))

    def get(self, ids: ArrayLike) -> Items:
        return self._portal.run(self.index.get(ids))

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        async def collect() -> list[Rows]:
            return [rows async for rows in self.index.scan(size)]

        yield from self._portal.run(collect())

    def search(self, code: ArrayLike | None = None, **options: Any) -> AioSearch:
        async def start() -> Search:
            return self.index.search(code, **options)

        return AioSearch(self._portal.run(start()))

    def search_batch(self, codes: ArrayLike | None = None, weights: ArrayLike | None = None, **options: Any) -> Answer:
        return self._portal.run(self.index.search_batch(codes, weights, **options))

    def seal(self, progress: Callable[[float], None] | None = None) -> None:
        self._portal.run(self.index.seal(progress))

    def compact(self, progress: Callable[[float], None] | None = None) -> None:
        self._portal.run(self.index.compact(progress))

    def stats(self) -> StoreStats:
        return self._portal.run(self.index.stats())


class AioSearch:
    """Waits for :class:`whamming.remote.querying.Search`."""

    def __init__(self, search: Search) -> None:
        self._portal = shared_portal()
        self.search = search

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._portal.run(self.search.__aexit__())

    def __iter__(self) -> Iterator[Hit]:
        return self

    def __next__(self) -> Hit:
        async def step() -> Hit | None:
            return await anext(self.search, None)

        hit = self._portal.run(step())
        if hit is None:
            raise StopIteration
        return hit

    def next(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        return self._portal.run(self.search.next(n))

    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        return self._portal.run(self.search.all())

    @property
    def lower_bound(self) -> float:
        return self.search.lower_bound

    @property
    def stats(self) -> Stats:
        return self.search.stats

    def close(self) -> None:
        self._portal.soon(self.search.close)
