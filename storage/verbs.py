"""The verbs of databases, indexes and searches: names, parameters, defaults and documentation, declared once.

::

    DatabaseVerbs ──► IndexVerbs ──► SearchVerbs
         │
         ├── in this process    Database, StoredIndex, Search                   (whamming.storage)
         ├── for asyncio        aio.Database, aio.Index, aio.Search             (whamming.aio; the verbs are awaited)
         └── blocking           RemoteDatabase, RemoteIndex, RemoteSearch       (whamming.blocking)

The classes implement these protocols and inherit their documentation; mypy checks that the signatures match. After a
change here, run ``make verbs``: it writes the asyncio form of the declarations and the blocking client. The example of
a verb continues the example of its class, and ``tests/storage/test_doctests.py`` runs both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import Answer, Buckets, Budget, Hit, Plan, Stats, Tables
from whamming.storage.index_info import IndexInfo
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
    """Mark a method as an implementation of a verb, which has its docstring in this module."""
    return method


class DatabaseVerbs(Protocol):
    """A database of named indexes. Use it in a ``with`` block, or call :meth:`close`. Threads may share it.

    >>> import numpy as np, whamming
    >>> db = whamming.open(":memory:")
    >>> docs = db.create_index("docs", bits=8)
    >>> docs.upsert([7, 9], np.uint8([[0b0011], [0b0111]]), [b"seven", b"nine"])
    """

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
        """Create an index and return it.

        Parameters
        ----------
        name : 1 to 128 letters, digits, ``.``, ``_`` and ``-``, starting with a letter or digit.
        bits : length of the codes, 1 to 4096. May be left out with an encoder that determines it.
        bit_order : bit i of a code is byte ``i >> 3``, mask ``1 << (i & 7)``; with ``"big"``, ``128 >> (i & 7)``.
        tables : hash tables of sealed segments. ``"single"``: one hash table for all substrings of the codes;
            ``"multi"``: one per substring; ``"none"``: no tables, so that all searches sweep.
        buckets : ``"compact"``, or ``"fast"``, which is faster to probe but larger.
        durability : the default for writes. ``"fsync"``: on disk when a write returns; ``"async"``: shortly afterwards.
        encoder : converts vectors to codes. ``"sign"``, ``"lsh"`` or ``"itq"`` is fitted now; or pass an encoder from
            :func:`whamming.fit_encoder` or :func:`whamming.load_encoder`.
        dim : number of components of a vector, 1 to 65,536. May be left out with ``train``.
        train : sample of vectors ``[n, dim]`` to fit the encoder to. A client sends a random part of at most 12 MiB, or
            less if the server's ``--max-message-mb`` is below 13.
        seed : for the random choices of fitting.
        centre : whether to subtract the sample's mean from vectors. The default is True if there is a sample.
            ``"itq"`` always subtracts it.
        keep_vectors : keep the vectors of items, as ``"float16"`` or ``"int8"``, so that searches can re-rank.
        metric : metric of re-ranking: ``"l2"``, ``"cosine"`` or ``"inner"``.
        exist_ok : return the existing index of that name if it has the same settings and encoder. An encoder given by
            name counts as the same if kind, bits and dim match; it is not fitted again.

        Raises AlreadyExistsError if the name is taken, InvalidArgumentError if a value is out of range or two values
        contradict each other, and ReadOnlyError.

        >>> pictures = db.create_index("pictures", encoder="lsh", dim=512, bits=256, keep_vectors="float16")
        >>> pictures.settings.bits
        256
        """

    def index(self, name: str) -> IndexVerbs:
        """Return the index of that name, and open it if necessary. Raises NotFoundError if there is none.

        >>> db.index("docs")
        StoredIndex('docs', 8 bits)
        """

    def list_indexes(self) -> list[str]:
        """Return the names of all indexes, sorted. Broken ones are included, and open ones whose files are lost.

        >>> db.list_indexes()
        ['docs']
        """

    def describe_indexes(self) -> list[IndexInfo]:
        """Return settings and statistics of all indexes, sorted by name. A broken index has an ``error`` instead.

        >>> [(info.name, info.stats.items, info.error) for info in db.describe_indexes()]
        [('docs', 2, None)]
        """

    def drop_index(self, name: str) -> None:
        """Remove the index of that name, but no files of others. Running searches finish. Raises NotFoundError."""

    def verify(self, progress: Progress | None = None) -> dict[str, VerifyReport]:
        """Verify every byte of every index against its checksum. Not available over the network yet.

        Returns a report per index name; the report of a broken index says why it is. ``progress`` is called
        from time to time with the fraction done, 0.0 to 1.0.

        >>> db.verify()["docs"].ok
        True
        """

    def backup(self, path: str | Path) -> None:
        """Write a copy of all indexes to a new directory. Not available over the network yet.

        The copy is a database itself. Writes continue meanwhile. Each index is copied as it is at one moment, but not
        all at the same moment. ``path`` must be outside this database. It must not exist yet, but its parent must. If
        some indexes are broken, copies the others. Raises AlreadyExistsError, IncompleteBackupError.
        """

    def close(self) -> None:
        """Close the database and all its indexes. Closing twice is allowed."""


class IndexVerbs(Protocol):
    """An index of a database. Any number of threads may use it at once.

    >>> import numpy as np, whamming
    >>> docs = whamming.open(":memory:").create_index("docs", bits=8)
    >>> docs.upsert([7, 9], np.uint8([[0b0011], [0b0111]]), [b"seven", b"nine"])
    """

    name: str

    @property
    def settings(self) -> IndexSettings:
        """The settings of the index, which are fixed when it is created."""

    @property
    def encoder(self) -> Encoder | None:
        """The encoder that converts vectors to codes and costs; None if the index has none and takes only codes."""

    def __enter__(self) -> Self:
        """Return the index itself."""

    def __exit__(self, *exc: object) -> None:
        """Close the index."""

    def __len__(self) -> int:
        """Return the number of items."""

    def count(self) -> int:
        """Return the number of items: the same as ``len(index)``, which asyncio does not support."""

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Add items, and replace those whose id exists: either all of them or, if one is invalid, none.

        Over the network, items are sent in messages of at most 4 MiB, and each message is written completely or not at
        all. After a dropped connection, messages that were not acknowledged are sent again.

        Parameters
        ----------
        ids : ``uint64 [n]``. If an id repeats, its last item wins.
        codes : ``uint8 [n, ceil(bits / 8)]`` in the index's bit order.
        payloads : bytes to keep with each item, at most 64 KiB each; None or ``b""`` for none. A list, or a column of
            payloads that :meth:`scan` returned.
        vectors : vectors for the index's encoder, instead of codes: ``[n, dim]``, or ``[dim]`` for one item, of
            float32, float16, float64, int8 or uint8. Required if the index keeps vectors.
        durability : ``"fsync"``: on disk when this returns; ``"async"``: shortly afterwards. The default is the
            index's.

        Raises InvalidArgumentError, ReadOnlyError, or StorageFullError if the disk is full.

        >>> docs.upsert([8], np.uint8([[0b1111]]), [b"eight"])
        >>> docs.count()
        3
        """

    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        """Remove items by id, and return how many of them existed. Other ids are ignored.

        ``ids`` is ``uint64 [n]``; over the network, at most 500,000 are sent per message. ``durability`` and errors are
        as in :meth:`upsert`. Ids are counted just before the write: if another thread writes the same ids at the same
        time, the number may differ from what this delete removed.

        >>> docs.delete([7, 8])
        1
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

        ``ids``, ``codes``, ``payloads`` and ``vectors`` are as in :meth:`upsert`. ``deletes`` are ids to remove first.

        >>> docs.batch([8], np.uint8([[0b1111]]), deletes=[7, 9])
        WriteBatch(1 upsert, 2 deletes)
        """

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Apply all of a batch, or nothing. ``durability`` as in :meth:`upsert`. Not over the network yet.

        Raises InvalidArgumentError if the batch was made for an index with other settings.

        >>> docs.write(docs.batch(deletes=[7, 9]))
        """

    def get(self, ids: ArrayLike) -> Items:
        """Look up items by id. ``ids`` is ``uint64 [n]``; an id may repeat.

        Returns one row per id, in the order of ``ids``; ``found`` says which ids exist. ``vectors`` has the kept
        vectors. It is None if the index keeps no vectors, and always None over the network.

        >>> docs.get([9, 8]).payloads
        [b'nine', b'']
        """

    def snapshot(self) -> Snapshot:
        """Return an immutable view of the index as it is now. Not available over the network yet.

        >>> docs.snapshot()
        Snapshot(2 items, 8 bits, version 1)
        """

    def scan(self, size: int = 10_000, *, after: int | None = None) -> Iterator[Rows]:
        """Return an iterator over all items in order of id, in pieces of at most ``size``.

        ``after``: return only items with a larger id. Writes after this call have no effect on the scan. But on a
        server, a scan that takes longer than ``--snapshot-seconds`` sees later writes. ``vectors`` is as in
        :meth:`get`.

        >>> [piece.ids.tolist() for piece in docs.scan()]
        [[7, 9]]
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
        """Search for one query. Hits come in order of (distance, id), each as soon as it is proven.

        Parameters
        ----------
        code : the packed code of the query, ``uint8 [ceil(bits / 8)]`` in the index's bit order.
        weights : cost of a mismatch in each bit, ``[bits]``, finite. The default is 1: the plain Hamming distance.
        table : instead of a code and weights, the costs of a stored 0 and a stored 1 in each bit, ``[bits, 2]``.
        vector : instead, a vector ``[dim]``, from which the index's encoder computes the costs.
        costs : how the encoder computes the costs: ``"asymmetric"``, ``"inner"``, or ``"symmetric"``, which may have
            weights; see :data:`whamming.storage.Form`. The default is asymmetric if the encoder was fitted to a sample,
            else inner.
        k : the largest number of hits; None for all.
        radius : return only hits with at most this distance.
        plan : ``"auto"``, ``"probe"`` or ``"sweep"``. Every plan returns the same hits.
        payloads : return the items' payloads with the hits.
        after : return only hits after this (distance, id) of a hit, to continue an earlier search. If distances are
            rounded and the item of that hit was changed or deleted, others with this distance are returned again.
        rerank : rank hits by the vectors that the index keeps, and return distances by its metric. A number, 1 to
            1,000,000: rank the ``k * rerank`` nearest items by code. This is approximate: other items are missed even
            if their vectors are near. ``"exact"``: compare items until no hit can be missed, in the worst case all
            items; only for the metric ``l2``. Both use the vectors *as they are kept*, rounded to float16 or int8.

        Returns an iterator of hits. The search runs while hits are fetched. A remote search continues after a dropped
        connection. Raises InvalidArgumentError.

        >>> list(docs.search(np.uint8([0b0011]), weights=[1, 1, 0.5, 1, 1, 1, 1, 1], k=2))
        [Hit(id=7, distance=0.0), Hit(id=9, distance=0.5)]
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
        """Search for many queries at once.

        Parameters
        ----------
        codes : the packed codes of the queries, ``uint8 [q, ceil(bits / 8)]``.
        weights : ``[bits]`` for all queries, or ``[q, bits]``.
        table : instead of codes and weights, ``[q, bits, 2]``.
        vectors : instead, ``[q, dim]``.
        k : the largest number of hits per query, 0 to 2**31 - 1.
        costs, radius, plan, rerank : as in :meth:`search`.
        budget : limits of the work per query; the answer then says how many of its hits are proven. It cannot be
            combined with ``rerank="exact"``. Over the network, it cannot be combined with any ``rerank``.
        threads : number of threads; the default is one per core. A server refuses this and uses its own threads.

        Returns an answer that unpacks to ``ids, distances``, numpy arrays ``[q, k]``. Rows with fewer hits are padded
        with id 2**64 - 1 and distance infinity. ``exact`` says which queries have a complete, proven answer. For a
        single query, given without the first dimension, the arrays have one element per hit.

        >>> docs.search_batch(np.uint8([[0b0011], [0b1111]]), k=1).ids.tolist()
        [[7], [9]]
        """

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. Raises the error if one failed, such as StorageFullError."""

    def seal(self, progress: Progress | None = None) -> None:
        """Turn recent writes into a segment with tables now, instead of waiting until there are many.

        Writes and searches continue meanwhile. ``progress`` is called from time to time with the fraction done, 0.0
        to 1.0.
        """

    def compact(self, progress: Progress | None = None) -> None:
        """Merge everything into as few segments as possible, usually one, without deleted and replaced items.

        Writes and searches continue meanwhile. ``progress`` is called from time to time with the fraction done, 0.0
        to 1.0.
        """

    def stats(self) -> StoreStats:
        """Return what the index holds, and counts of its operations since it was opened.

        >>> docs.stats().items
        2
        """

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Verify every byte against its checksum. Not available over the network yet.

        ``progress`` is called from time to time with the fraction done, 0.0 to 1.0.

        >>> docs.verify().problems
        ()
        """

    def backup(self, path: Path) -> None:
        """Write a consistent copy of the index. Writes continue meanwhile. Not available over the network yet.

        ``path`` is a directory that does not exist yet. The copy is not a database; :meth:`Database.backup` makes one.
        """

    def close(self) -> None:
        """Close the index; :meth:`Database.index` opens it again. Closing twice is allowed.

        Closing an index of a ``:memory:`` database removes it, like :meth:`Database.drop_index`. Over the network, this
        closes only the object, not the index on the server.
        """


class SearchVerbs(Protocol):
    """A search: an iterator of hits. Use it in a ``with`` block, or let it go out of scope.

    >>> import numpy as np, whamming
    >>> docs = whamming.open(":memory:").create_index("docs", bits=8)
    >>> docs.upsert([7, 9], np.uint8([[0b0011], [0b0111]]))
    >>> search = docs.search(np.uint8([0b0011]))
    """

    def __enter__(self) -> Self:
        """Return the search itself."""

    def __exit__(self, *exc: object) -> None:
        """Close the search."""

    def __iter__(self) -> Iterator[Hit]:
        """Return the search itself."""

    def __next__(self) -> Hit:
        """Return the next hit as soon as it is proven."""

    def next(self, n: int, *, budget: Budget | None = None) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of the next ``n`` hits; fewer if no more exist or the call's budget ran out.

        >>> search.next(1)
        (array([7], dtype=uint64), array([0.]))
        """

    def all(self) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
        """Return the ids and distances of all remaining hits. Without k or radius, these are all items."""

    @property
    def lower_bound(self) -> float:
        """A lower bound on the distances of all items not returned yet; infinity once all were returned. It is minus
        infinity if the search is re-ranked by a factor, because nothing is known about the other items."""

    @property
    def stats(self) -> Stats:
        """Statistics of the work done so far; over the network, available when the search has ended."""

    def close(self) -> None:
        """Stop the search and free its resources. Closing twice is allowed."""
