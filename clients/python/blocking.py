"""A database on a server: ``whamming.connect("host:port")``, with the verbs of one in this process.

What talks to the server is :mod:`whamming.aio`, in a thread of its own; what is here waits for it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np
import uvloop
from numpy.typing import ArrayLike, NDArray

from whamming import aio
from whamming.native import Answer, Buckets, Budget, Hit, Plan, Stats, Tables
from whamming.remote.search import Search
from whamming.remote.tls import Tls
from whamming.storage import BitOrder, Durability, IndexSettings, Items, Rows, StoreStats
from whamming.storage.reranking import Rerank
from whamming.storage.settings import KeptVectors, Metric
from whamming.storage.vectors.encoders import Encoder, Form, Kind

T = TypeVar("T")


def connect(
    address: str, *, tls: Tls | bool = False, timeout: float = 10.0, retry_seconds: float = aio.RETRY_SECONDS
) -> RemoteDatabase:
    """Connect to a server; see :func:`whamming.aio.connect`."""
    portal = shared_portal()
    call = aio.connect(address, tls=tls, timeout=timeout, retry_seconds=retry_seconds)
    return RemoteDatabase(portal, portal.run(call))


class Portal:
    """An event loop in a thread, and the way in."""

    def __init__(self) -> None:
        """Start the thread."""
        self.process = os.getpid()
        self.loop = uvloop.new_event_loop()
        self.loop.set_exception_handler(_ignore_false_alarms)
        self._thread = threading.Thread(target=self._serve, name="whamming-client", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def _end(self) -> None:
        """Stop the loop before gRPC, which is used in it, is taken down with the process."""
        if self.process == os.getpid():
            self.run(_cancel_others())
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. Interrupting the wait cancels it."""
        tasks: list[asyncio.Task[T]] = []
        done = threading.Lock()  # by itself it is much cheaper than a concurrent future
        done.acquire()

        def start() -> None:
            tasks.append(self.loop.create_task(call))
            tasks[0].add_done_callback(lambda _: done.release())

        self.loop.call_soon_threadsafe(start)
        try:
            done.acquire()
        except BaseException:
            self.loop.call_soon_threadsafe(lambda: tasks[0].cancel())
            raise
        return tasks[0].result()

    def each(self, pieces: AsyncGenerator[T, None]) -> Iterator[T]:
        """Wait for one piece after the other; what is done with them is done here, not in the loop."""
        try:
            while (piece := self.run(_next(pieces))) is not None:
                yield piece
        finally:
            self.run(pieces.aclose())

    def soon(self, call: Callable[[], None]) -> None:
        """Have something done in the loop, without waiting for it."""
        self.loop.call_soon_threadsafe(call)


_portal: Portal | None = None
_portal_lock = threading.Lock()


def shared_portal() -> Portal:
    """Return the one portal of this process: gRPC's asyncio side works best with a single event loop."""
    global _portal
    with _portal_lock:
        if _portal is None or _portal.process != os.getpid():
            _portal = Portal()
        return _portal


def _ignore_false_alarms(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Drop what gRPC reports where the process has another event loop that has served an event already."""
    if not isinstance(context.get("exception"), BlockingIOError):
        loop.default_exception_handler(context)


class RemoteDatabase:
    """Named indexes on a server. Use it in a ``with`` block, or call :meth:`close`. Any thread may use it."""

    def __init__(self, portal: Portal, database: aio.Database) -> None:
        """Wrap a connection; prefer :func:`connect`."""
        self.address = database.address
        self._portal = portal
        self._database = database

    def __enter__(self) -> Self:
        """Return the database itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connection."""
        self.close()

    def create_index(
        self,
        name: str,
        bits: int | None = None,
        *,
        encoder: Kind | Encoder | None = None,
        dim: int | None = None,
        train: ArrayLike | None = None,
        seed: int = 0,
        centre: bool | None = None,
        keep_vectors: KeptVectors | None = None,
        metric: Metric = "l2",
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        exist_ok: bool = False,
    ) -> RemoteIndex:
        """Make an index; see :meth:`whamming.Database.create_index` and :meth:`whamming.aio.Database.create_index`."""
        index = self._database.create_index(
            name,
            bits,
            encoder=encoder,
            dim=dim,
            train=train,
            seed=seed,
            centre=centre,
            keep_vectors=keep_vectors,
            metric=metric,
            bit_order=bit_order,
            tables=tables,
            buckets=buckets,
            durability=durability,
            exist_ok=exist_ok,
        )
        return RemoteIndex(self._portal, self._portal.run(index))

    def index(self, name: str) -> RemoteIndex:
        """Return an index. Raises :class:`NotFoundError`."""
        return RemoteIndex(self._portal, self._portal.run(self._database.index(name)))

    def list_indexes(self) -> list[str]:
        """Return the names of all indexes, sorted."""
        return self._portal.run(self._database.list_indexes())

    def drop_index(self, name: str) -> None:
        """Remove an index with all its items."""
        self._portal.run(self._database.drop_index(name))

    def close(self) -> None:
        """Close the connection. Closing twice is fine."""
        self._portal.run(self._database.close())


class RemoteIndex:
    """One index on a server. Any number of threads may use it at once."""

    def __init__(self, portal: Portal, index: aio.Index) -> None:
        """Wrap an index; prefer :meth:`RemoteDatabase.index`."""
        self.name = index.name
        self._portal = portal
        self._index = index

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""
        return self._index.settings

    @property
    def encoder(self) -> Encoder | None:
        """What makes codes and costs of vectors, fetched from the server; None: codes are made elsewhere."""
        return self._portal.run(self._index.encoder())

    def __len__(self) -> int:
        """Return the number of items."""
        return self._portal.run(self._index.count())

    def __repr__(self) -> str:
        """Describe the index in a line."""
        return f"Remote{self._index!r}"

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists; see :meth:`whamming.aio.Index.upsert`."""
        self._portal.run(self._index.upsert(ids, codes, payloads, vectors=vectors, durability=durability))

    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        """Remove items; ids that do not exist are ignored. Returns how many existed."""
        return self._portal.run(self._index.delete(ids, durability=durability))

    def get(self, ids: ArrayLike) -> Items:
        """Look items up by id."""
        return self._portal.run(self._index.get(ids))

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items of a snapshot, in no particular order, in pieces of at most ``size``."""
        return self._portal.each(self._index.scan(size))

    def search(
        self,
        code: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        table: ArrayLike | None = None,
        vector: ArrayLike | None = None,
        costs: Form | None = None,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        payloads: bool = False,
        after: tuple[float, int] | None = None,
        rerank: Rerank | None = None,
    ) -> RemoteSearch:
        """Search one query; see :meth:`whamming.StoredIndex.search`. It ends on the server when it is let go here."""
        search = self._index.search(
            code,
            weights=weights,
            table=table,
            vector=vector,
            costs=costs,
            k=k,
            radius=radius,
            plan=plan,
            payloads=payloads,
            after=after,
            rerank=rerank,
        )
        return RemoteSearch(self._portal, search)

    def search_batch(
        self,
        codes: ArrayLike | None = None,
        weights: ArrayLike | None = None,
        *,
        table: ArrayLike | None = None,
        vectors: ArrayLike | None = None,
        costs: Form | None = None,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        budget: Budget | None = None,
        rerank: Rerank | None = None,
    ) -> Answer:
        """Search many queries at once; see :meth:`whamming.StoredIndex.search_batch`."""
        answer = self._index.search_batch(
            codes,
            weights,
            table=table,
            vectors=vectors,
            costs=costs,
            k=k,
            radius=radius,
            plan=plan,
            budget=budget,
            rerank=rerank,
        )
        return self._portal.run(answer)

    def seal(self, progress: Callable[[float], None] | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many."""
        for share in self._portal.each(self._index.sealing()):
            if progress is not None:
                progress(share)

    def compact(self, progress: Callable[[float], None] | None = None) -> None:
        """Merge everything into one segment, without the items that are gone."""
        for share in self._portal.each(self._index.compacting()):
            if progress is not None:
                progress(share)

    def stats(self) -> StoreStats:
        """Tell what the index holds."""
        return self._portal.run(self._index.stats())


class RemoteSearch:
    """A search under way: an iterator of hits. Use it in a ``with`` block, or let it go: it then ends on the server."""

    def __init__(self, portal: Portal, search: Search) -> None:
        """Wrap a search; prefer :meth:`RemoteIndex.search`."""
        self._portal = portal
        self._search = search

    def __enter__(self) -> Self:
        """Return the search itself."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the search."""
        self.close()

    def __del__(self) -> None:
        """Stop the server's work for a search that nobody holds any more."""
        self.close()

    def __iter__(self) -> Iterator[Hit]:
        """Return the search itself."""
        return self

    def __next__(self) -> Hit:
        """Return the next hit, as soon as the server has proven it."""
        hit = self._search.ready()
        if hit is None:
            hit = self._portal.run(_next(self._search))
        if hit is None:
            raise StopIteration
        return hit

    def next(self, n: int) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer where no more exist."""
        return self._portal.run(self._search.next(n))

    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all hits that are left; give ``search`` a k or a radius first."""
        return self._portal.run(self._search.all())

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this; infinity when all were."""
        return self._search.lower_bound

    @property
    def stats(self) -> Stats:
        """What the search has cost; known when it has ended."""
        return self._search.stats

    def close(self) -> None:
        """Stop the search. Closing twice is fine."""
        if not self._search.is_over:  # waking the loop for nothing is dear
            self._portal.soon(self._search.close)


async def _cancel_others() -> None:
    """End all that is under way in the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _next(pieces: Any) -> Any:
    """Return the next of an asynchronous iterator; None at its end."""
    return await anext(pieces, None)
