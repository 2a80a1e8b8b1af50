"""What can be done with a database, an index and a search: each verb is declared here, once.

::

    DatabaseVerbs ──► IndexVerbs ──► SearchVerbs
         │
         ├── in this process    Database, StoredIndex, Search                   (whamming.storage)
         ├── for asyncio        aio.Database, aio.Index, aio.Search             (whamming.aio; the verbs are awaited)
         └── blocking           RemoteDatabase, RemoteIndex, RemoteSearch       (whamming.blocking)

The classes inherit names, parameters, defaults and documentation from here, and mypy checks that they keep to them.
``make verbs`` writes the asyncio form of these declarations and the blocking client; run it after a change here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Answer, Buckets, Budget, Hit, Plan, Stats, Tables
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.reranking import Rerank
from whamming.storage.settings import BitOrder, Durability, IndexSettings, KeptVectors, Metric
from whamming.storage.store.protocol import Progress, StoreStats, VerifyReport
from whamming.storage.store.snapshot import Items, Snapshot
from whamming.storage.vectors.encoders import Encoder, Form, Kind

MethodT = TypeVar("MethodT")


def verb(method: MethodT) -> MethodT:
    """Mark a method that is declared, and documented, in this module."""
    return method


class DatabaseVerbs(Protocol):
    """Named indexes. Use it in a ``with`` block, or call :meth:`close`. Any number of threads may use it at once."""

    def __enter__(self) -> Self:
        """Return the database itself."""

    def __exit__(self, *exc: object) -> None:
        """Close the database."""

    def create_index(
        self,
        name: str,
        bits: int | None = None,
        *,
        bit_order: BitOrder = "little",
        tables: Tables = "single",
        buckets: Buckets = "compact",
        durability: Durability = "fsync",
        encoder: Kind | Encoder | None = None,
        dim: int | None = None,
        train: ArrayLike | None = None,
        seed: int = 0,
        centre: bool | None = None,
        keep_vectors: KeptVectors | None = None,
        metric: Metric = "l2",
        exist_ok: bool = False,
    ) -> IndexVerbs:
        """Make an index.

        Parameters
        ----------
        name : 1 to 128 letters, digits, ``.``, ``_`` and ``-``; the first is a letter or a digit.
        bits : length of the codes, 1 to 4096. May be left out with an encoder.
        bit_order : of codes going in and out. ``"little"``: bit i is byte ``i >> 3``, mask ``1 << (i & 7)``;
            ``"big"``: mask ``128 >> (i & 7)``, as ``np.packbits`` writes by default.
        tables : hash tables of sealed segments: ``"single"``, ``"multi"`` or ``"none"``.
        buckets : ``"compact"``, or ``"fast"``: larger, and faster to probe.
        durability : of writes that do not say. ``"fsync"``: on disk when the write returns; ``"async"``: soon after.
        encoder : makes codes from vectors: ``"sign"``, ``"lsh"`` or ``"itq"``, fitted now, or one that
            :func:`whamming.fit_encoder` or :func:`whamming.load_encoder` returned.
        dim : components of a vector; may be left out with ``train``.
        train : the sample of vectors that an encoder is fitted to. A server is sent at most 12 MiB of it.
        seed : of the random choices that fitting makes.
        centre : subtract the sample's mean from vectors; by default as suits the kind of encoder.
        keep_vectors : keep vectors with their items, as ``"float16"`` or ``"int8"``, so that a search can re-rank.
        metric : of re-ranking: ``"l2"``, ``"cosine"`` or ``"inner"``.
        exist_ok : return the index of that name if it has the same settings and encoder. An encoder that would have to
            be fitted first is the same if kind, bits and dim are.

        Raises
        ------
        AlreadyExistsError : there is an index of that name.
        InvalidArgumentError : a value is out of range, or two of them contradict each other.
        """

    def index(self, name: str) -> IndexVerbs:
        """Return an index.

        Raises
        ------
        NotFoundError : there is no index of that name.
        """

    def list_indexes(self) -> list[str]:
        """Return the names of all indexes, sorted."""

    def drop_index(self, name: str) -> None:
        """Remove an index with all its items. Searches that are under way finish.

        Raises
        ------
        NotFoundError : there is no index of that name.
        """

    def verify(self, progress: Progress | None = None) -> dict[str, VerifyReport]:
        """Check every byte of every index against its checksum. Not available over the network yet.

        Parameters
        ----------
        progress : called now and then with the share done, 0.0 to 1.0.

        Returns
        -------
        A report per index. An index that cannot even be opened has a report that says why.
        """

    def backup(self, path: str | Path) -> None:
        """Write a copy of all indexes to a new directory. Not available over the network yet.

        The copy is a database of its own. Writing goes on meanwhile; each index is copied as it is at one moment.

        Parameters
        ----------
        path : a directory that does not exist yet, neither inside of this database nor around it.

        Raises
        ------
        AlreadyExistsError : there is something at that path.
        """

    def close(self) -> None:
        """Close the database with all its indexes. Closing twice is fine."""


class IndexVerbs(Protocol):
    """One index of a database. Any number of threads may use it at once."""

    name: str

    @property
    def settings(self) -> IndexSettings:
        """What the index is; fixed when it is created."""

    @property
    def encoder(self) -> Encoder | None:
        """What makes codes and costs from vectors; None: the index takes codes only."""

    def __enter__(self) -> Self:
        """Return the index itself."""

    def __exit__(self, *exc: object) -> None:
        """Close the index."""

    def __len__(self) -> int:
        """Return the number of items."""

    def count(self) -> int:
        """Return the number of items; the same as ``len(index)``, which asyncio cannot have."""

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists: all of them or, if one is refused, none.

        A server is sent at most 4 MiB per message, and each message is written whole or not at all. After a dropped
        connection the messages that were not acknowledged are sent again.

        Parameters
        ----------
        ids : ``uint64 [n]``. If an id repeats, its last item counts.
        codes : ``uint8 [n, ceil(bits / 8)]`` in the index's bit order.
        payloads : opaque bytes to keep with each item, at most 64 KiB; None or b"" for none. A list, or the column
            that :meth:`scan` gives.
        vectors : instead of codes, vectors for the index's encoder: ``[n, dim]``, float32, float16, float64, int8 or
            uint8.
        durability : ``"fsync"``: on disk when this returns; ``"async"``: soon after; by default as the index says.
        """

    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        """Remove items. Ids that do not exist are ignored.

        Parameters
        ----------
        ids : ``uint64 [n]``. A server is sent at most 500,000 per message.
        durability : as in :meth:`upsert`.

        Returns
        -------
        How many of the ids existed. They are counted just before the write: if others write the same ids at the same
        moment, the number may differ from what this delete removed.
        """

    def batch(
        self,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        vectors: ArrayLike | None = None,
    ) -> WriteBatch:
        """Return a batch of changes for :meth:`write`. Not available over the network yet.

        Parameters
        ----------
        ids, codes, payloads, vectors : items to add or replace, as in :meth:`upsert`.
        deletes : ids to remove before that.
        """

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Apply upserts and deletes together, all of them or none. Not available over the network yet.

        Parameters
        ----------
        batch : what :meth:`batch` returned.
        durability : as in :meth:`upsert`.
        """

    def get(self, ids: ArrayLike) -> Items:
        """Look items up by id.

        Parameters
        ----------
        ids : ``uint64 [n]``; they may repeat.

        Returns
        -------
        One row per id, in the order of ``ids``; ``found`` says which of them exist. ``vectors`` has the kept vectors,
        if the index keeps any; not over the network yet, where it is None.
        """

    def snapshot(self) -> Snapshot:
        """Return an immutable view of the index as it is now. Not available over the network yet."""

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items as they are now, in no particular order.

        Parameters
        ----------
        size : most items in a piece.

        Returns
        -------
        An iterator of pieces. Their codes are in the index's bit order. ``vectors`` has the kept vectors as they are
        stored, if the index keeps any; not over the network yet, where it is None.
        """

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
    ) -> SearchVerbs:
        """Search one query. Hits come in order of (distance, id), each as soon as it is proven.

        Over the network, a search resumes automatically after a dropped connection.

        Parameters
        ----------
        code : the query's packed code, in the index's bit order.
        weights : what a mismatch of each bit costs, ``[bits]``; by default 1: plain Hamming distance.
        table : instead of code and weights, the cost of a stored 0 and of a stored 1 of each bit, ``[bits, 2]``.
        vector : instead, a vector ``[dim]`` from which the index's encoder makes the costs.
        costs : how: ``"asymmetric"``, ``"inner"`` or ``"symmetric"``, which takes weights; see
            :data:`whamming.storage.Form`. By default asymmetric if the encoder has learned from a sample.
        k : most hits; by default all.
        radius : only hits of at most this distance.
        plan : ``"auto"``, ``"probe"`` or ``"sweep"``; all give the same hits.
        payloads : bring the items' payloads along.
        after : only hits after this (distance, id), to continue a search that broke off.
        rerank : rank hits by the vectors that the index keeps, and give their distances by its metric. A number: rank
            the ``k * rerank`` items that are nearest by their codes. This is approximate: an item that is not among
            these is missed however near its vector is, and no lower bound is known. ``"exact"``: look at as many items
            as it takes until none can be missed, in the worst case all; for the metric ``l2`` only. Both rank by the
            vectors *as they are kept*, rounded to float16 or int8.

        Returns
        -------
        An iterator of hits. The search runs as its hits are asked for.
        """

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
        threads: int | None = None,
        rerank: Rerank | None = None,
    ) -> Answer:
        """Search many queries at once.

        Parameters
        ----------
        codes : the queries' packed codes, ``[q, ceil(bits / 8)]``.
        weights : ``[bits]`` for all queries, or ``[q, bits]``.
        table : instead of codes and weights, ``[q, bits, 2]``.
        vectors : instead, ``[q, dim]``.
        k : most hits per query, 0 to 2**31 - 1.
        costs, radius, plan, rerank : as in :meth:`search`.
        budget : what each query may cost; the answer then says how many of its hits are proven. Together with
            ``rerank`` not over the network yet.
        threads : by default one per core. A server has threads of its own and refuses this.

        Returns
        -------
        An answer that unpacks to ``ids, distances``, numpy arrays ``[q, k]``. Rows with fewer hits are padded with
        id 2**64 - 1 and distance infinity. ``exact`` says for which queries no item can have been missed. A single
        query, given without the first dimension, gets arrays ``[k]``, cut to what was found.
        """

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. Raises what kept one from getting there."""

    def seal(self, progress: Progress | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many.

        Parameters
        ----------
        progress : called now and then with the share done, 0.0 to 1.0.
        """

    def compact(self, progress: Progress | None = None) -> None:
        """Merge everything into one segment, without the items that are gone.

        Parameters
        ----------
        progress : called now and then with the share done, 0.0 to 1.0.
        """

    def stats(self) -> StoreStats:
        """Return what the index holds, and what it has done since it was opened."""

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum. Not available over the network yet.

        Parameters
        ----------
        progress : called now and then with the share done, 0.0 to 1.0.
        """

    def backup(self, path: Path) -> None:
        """Write a consistent copy of the index. Writing goes on meanwhile. Not available over the network yet.

        Parameters
        ----------
        path : a directory that does not exist yet. It is not a database; :meth:`Database.backup` makes one.
        """

    def close(self) -> None:
        """Close the index; :meth:`Database.index` opens it again. Closing twice is fine.

        Closing an index of a ``:memory:`` database removes it, as :meth:`Database.drop_index` does. On a server,
        only this object is closed.
        """


class SearchVerbs(Protocol):
    """A search under way: an iterator of hits. Use it in a ``with`` block, or let it go."""

    def __enter__(self) -> Self:
        """Return the search itself."""

    def __exit__(self, *exc: object) -> None:
        """Close the search."""

    def __iter__(self) -> Iterator[Hit]:
        """Return the search itself."""

    def __next__(self) -> Hit:
        """Return the next hit, as soon as it is proven."""

    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits.

        Parameters
        ----------
        n : most hits.
        budget : what this call may cost. Not available over the network yet.

        Returns
        -------
        Two arrays; shorter than ``n`` if no more hits exist or the budget ran out.
        """

    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all hits that are left; give ``search`` a k or a radius first."""

    @property
    def lower_bound(self) -> float:
        """No item that was not handed out is nearer than this; infinity once all were. Minus infinity if the search is
        re-ranked by a factor: nothing is known about the other items."""

    @property
    def stats(self) -> Stats:
        """What the search has cost so far; from a server, known when the search has ended."""

    def close(self) -> None:
        """Stop the search and free what it holds. Closing twice is fine."""
