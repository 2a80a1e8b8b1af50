"""One index of a database, as users see it: writing, reading, searching."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from whamming.native import Answer, Budget, Costs, InvalidArgumentError, Plan
from whamming.native.costs import as_array, as_codes
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows, as_ids
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.reranking import Bound, Rerank, Reranked, check_k, read_queries, rerank_batch, search_exactly
from whamming.storage.search import Search
from whamming.storage.settings import Durability, IndexSettings, check_choice
from whamming.storage.storage_errors import CorruptStoreError, StorageError
from whamming.storage.store.protocol import Progress, Store, StoreStats, VerifyReport
from whamming.storage.store.snapshot import Items, Snapshot
from whamming.storage.vectors.arrays import as_vectors
from whamming.storage.vectors.encoders import Encoder, Form, load_encoder
from whamming.storage.vectors.kept import pack_vectors, unpack_vectors

ENCODER_FILE: Final = "encoder"
"""In the directory of an index."""


class StoredIndex:
    """One index of a database. Any number of threads may use it at once."""

    def __init__(self, name: str, store: Store, encoder: Encoder | None = None) -> None:
        """Wrap a store; prefer :meth:`Database.index`."""
        self.name = name
        self.store = store
        self.encoder = encoder
        """What makes codes and costs of vectors; None: codes are made elsewhere."""
        self._directory: Path | None = None
        self.closed = False
        """:meth:`close` was called."""
        self._closing = threading.Lock()

    @classmethod
    def at(cls, directory: Path, store: Store) -> StoredIndex:
        """Wrap a store that is kept in a directory, with the encoder that is kept there. Raises CorruptStoreError."""
        index = cls(directory.name, store, _read_encoder(directory, store.settings)[0])
        index._directory = directory
        return index

    @property
    def settings(self) -> IndexSettings:
        """What the index is."""
        return self.store.settings

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.store.snapshot())

    def __repr__(self) -> str:
        """Describe the index in a line."""
        return f"StoredIndex({self.name!r}, {self.settings.bits} bits)"

    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Add items, or replace those whose id exists: all of them or, where one is refused, none.

        Parameters
        ----------
        ids : ``uint64 [n]``. Of an id that repeats, the last item counts.
        codes : ``uint8 [n, ceil(bits / 8)]`` in the index's bit order.
        payloads : opaque bytes to keep with each item, at most 64 KiB; None or b"" for none. A list, or a column of
            them (:class:`whamming.storage.Payloads`).
        vectors : instead of codes, what the index's encoder makes them of: ``[n, dim]``, float32, float16, float64,
            int8 or uint8.
        durability : ``"fsync"``: on disk when this returns; ``"async"``: soon after; by default as the index says.
        """
        self.write(self.batch(ids, codes, payloads, vectors=vectors), durability)

    def batch(
        self,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        vectors: ArrayLike | None = None,
    ) -> WriteBatch:
        """Return what :meth:`write` takes: upserts, as :meth:`upsert` describes them, and ids to delete before."""
        if vectors is None:
            if codes is None and np.size(ids):
                raise InvalidArgumentError("items without codes; give codes, or vectors where the index has an encoder")
            return WriteBatch.of(self.settings, ids, codes, payloads, deletes)
        if codes is not None:
            raise InvalidArgumentError("both codes and vectors; give one of them, the encoder makes the other")
        encoder, settings = self._need_encoder(), self.settings
        rows, _ = as_vectors(vectors, encoder.dim)
        kept = None
        if settings.keep_vectors is not None:
            kept = pack_vectors(rows, settings.keep_vectors)
            rows = unpack_vectors(kept, settings.keep_vectors)
        made = settings.from_engine(encoder.encode(rows))
        return WriteBatch.of(settings, ids, made, payloads, deletes, vectors=kept)

    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        """Remove items; ids that do not exist are ignored. Returns how many of the ids existed.

        They are counted just before the write. If another thread or client writes the same ids at the same moment, the
        number may differ from what this delete removed: of two that delete the same id, both may count it.
        """
        batch = self.batch(deletes=ids)
        existing = int(self.snapshot().exists(np.unique(batch.deletes)).sum())
        self.write(batch, durability)
        return existing

    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        """Apply upserts and deletes together."""
        if durability is not None:
            check_choice("durability", durability, ("fsync", "async"))
        self.store.write(batch, durability)

    def get(self, ids: ArrayLike) -> Items:
        """Look items up by id."""
        return self.snapshot().get(as_ids(ids))

    def snapshot(self) -> Snapshot:
        """Return an immutable view of the index as it is now."""
        return self.store.snapshot()

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        """Return all items as they are now, in no particular order, in pieces of at most ``size``.

        Codes are in the index's bit order.
        """
        return self.snapshot().scan(size)

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
    ) -> Search:
        """Search one query. Hits come in order of (distance, id), each as soon as it is proven, for as long as asked.

        Parameters
        ----------
        code : the query's packed code, in the index's bit order.
        weights : what a mismatch of each bit costs, ``[bits]``; by default 1: plain Hamming distance.
        table : instead of code and weights, the cost of a stored 0 and of a stored 1 of each bit, ``[bits, 2]``.
        vector : instead, what the index's encoder makes the costs of, ``[dim]``.
        costs : how: ``"asymmetric"``, ``"inner"`` or ``"symmetric"``, which takes weights; see
            :data:`whamming.storage.Form`. By default asymmetric where the encoder has learned from a sample.
        k : at most so many hits; by default all.
        radius : only hits of at most this distance.
        payloads : bring the items' payloads along.
        after : only hits after this (distance, id), to go on with a search that broke off.
        rerank : rank hits by the vectors that the index keeps, and give their distances by its metric. A number: the
            ``k * rerank`` nearest by their codes are ranked, exactly; an item that is not among those is missed however
            near its vector is, so this is approximate, and no lower bound is known. ``"exact"``: as many are looked at
            as it takes until none is missed, in the worst case all; for the metric ``l2`` only. All of it is by the
            vectors *as they are kept*, rounded to float16 or int8.
        """
        if rerank is not None:
            return self._search_again(vector, costs, k, plan, payloads, rerank, (code, weights, table, radius, after))
        made = self._costs(code, weights, table, vector, costs)
        if not made.single:
            raise InvalidArgumentError(f"search takes one query, these are {len(made)}; use search_batch")
        snapshot = self.snapshot()
        fetch = snapshot.payloads if payloads else None
        return Search(snapshot, snapshot.view.cursor(made, k, radius, plan, after=after, payloads=fetch))

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
        """Search many queries at once; unpacks to ``ids, distances``, numpy arrays ``[q, k]``.

        Rows with fewer hits are padded with id 2**64 - 1 and distance infinity. ``weights``: ``[bits]`` for all, or
        ``[q, bits]``; ``table``: ``[q, bits, 2]``; ``vectors``: ``[q, dim]``. The rest is as in :meth:`search`; with
        ``rerank``, the answer's ``exact`` says where no item can have been missed.
        """
        if rerank is None:
            made = self._costs(codes, weights, table, vectors, costs)
            return self.snapshot().view.search(made, k, radius, plan, budget=budget, threads=threads)
        encoder = self._check_rerank(vectors, (codes, weights, table, radius))
        queries, factor = read_queries(self.settings, vectors, rerank, costs)
        snapshot, count = self.snapshot(), check_k(k)
        if factor is None:
            if budget is not None:
                raise InvalidArgumentError("a budget with rerank = 'exact'; iterate search(), which takes one per call")
            return search_exactly(snapshot, encoder, queries, count, plan)
        nearest = min(count * factor, len(snapshot))
        made = encoder.costs(queries, costs)
        found = snapshot.view.search(made, nearest, plan=plan, budget=budget, threads=threads)
        return rerank_batch(snapshot, queries, found, count)

    def _costs(
        self,
        code: ArrayLike | None,
        weights: ArrayLike | None,
        table: ArrayLike | None,
        vector: ArrayLike | None,
        form: Form | None,
    ) -> Costs:
        if vector is None:
            if form is not None:
                raise InvalidArgumentError(f"costs = {form!r} without a vector; they are what is made of one")
            return make_costs(self.settings, code, weights, table)
        if code is not None or table is not None:
            raise InvalidArgumentError("a vector beside a code or a cost table; give one of them")
        return self._need_encoder().costs(vector, form, weights=weights)

    def _search_again(
        self,
        vector: ArrayLike | None,
        form: Form | None,
        k: int | None,
        plan: Plan,
        payloads: bool,
        rerank: Rerank,
        others: tuple[object, ...],
    ) -> Search:
        encoder = self._check_rerank(vector, others)
        queries, factor = read_queries(self.settings, vector, rerank, form)
        if len(queries) != 1:
            raise InvalidArgumentError(f"search takes one query, these are {len(queries)}; use search_batch")
        query, snapshot = queries[0], self.snapshot()
        wanted = len(snapshot) if k is None else check_k(k)
        fetch = snapshot.payloads if payloads else None
        bound = None
        if factor is None:
            bound = Bound(encoder, query)
            cursor = snapshot.view.cursor(bound.costs, plan=plan)
        elif k is None:
            raise InvalidArgumentError(f"rerank = {factor} without k; k x {factor} items are ranked: say how many hits")
        else:
            cursor = snapshot.view.cursor(encoder.costs(query, form), wanted * factor, plan=plan)
        return Search(snapshot, Reranked(snapshot, query, cursor, k=wanted, bound=bound, payloads=fetch))

    def _check_rerank(self, vectors: ArrayLike | None, others: tuple[object, ...]) -> Encoder:
        if vectors is None or any(other is not None for other in others):
            raise InvalidArgumentError(
                "rerank goes with a vector, costs and k; leave code, weights, table, radius, after"
            )
        if self.settings.keep_vectors is None:
            raise InvalidArgumentError(
                f"rerank, but the index {self.name!r} keeps no vectors; create it with keep_vectors='float16' or 'int8'"
            )
        return self._need_encoder()

    def _need_encoder(self) -> Encoder:
        if self.encoder is None:
            raise InvalidArgumentError(
                f"vectors, but the index {self.name!r} has no encoder; give codes, or create it with encoder='sign', "
                "'lsh' or 'itq'"
            )
        return self.encoder

    def flush(self) -> None:
        """Wait until every ``async`` write is on disk. Raises what kept one from getting there."""
        self.store.flush()

    def seal(self, progress: Progress | None = None) -> None:
        """Turn recent writes into a segment with tables now, rather than when there are many."""
        self.store.seal(progress)

    def compact(self, progress: Progress | None = None) -> None:
        """Merge everything into one segment, without the items that are gone."""
        self.store.compact(progress)

    def stats(self) -> StoreStats:
        """Tell what the index holds."""
        return self.store.stats()

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Check every byte against its checksum."""
        report = self.store.verify(progress)
        if self._directory is None or self.encoder is None:
            return report
        try:
            _, size = _read_encoder(self._directory, self.settings)
        except StorageError as error:
            return replace(report, problems=(*report.problems, str(error)))
        return replace(report, bytes_checked=report.bytes_checked + size)

    def backup(self, path: Path) -> None:
        """Write a consistent copy to a new directory; writing goes on meanwhile."""
        self.store.backup(path)
        if self.encoder is not None:
            self.encoder.save(path / ENCODER_FILE)

    def close(self) -> None:
        """Close the index; :meth:`Database.index` opens it again. One in memory is gone. Closing twice is fine."""
        self.closed = True
        with self._closing:
            self.store.close()


def _read_encoder(directory: Path, settings: IndexSettings) -> tuple[Encoder | None, int]:
    """Return the encoder that is kept beside an index, if its settings say that it has one, and its bytes."""
    if settings.encoder is None:
        return None, 0
    path = directory / ENCODER_FILE
    if not path.exists():
        raise CorruptStoreError(f"{path} is missing, the encoder of the index; restore a backup")
    encoder = load_encoder(path)
    if encoder.fingerprint != settings.encoder:
        raise CorruptStoreError(
            f"{path} is the encoder {encoder.fingerprint}, not {settings.encoder}, which the index was made with; "
            "restore a backup"
        )
    return encoder, path.stat().st_size


def make_costs(
    settings: IndexSettings, code: ArrayLike | None, weights: ArrayLike | None, table: ArrayLike | None
) -> Costs:
    """Return a query's or a batch's costs from what the user gave."""
    if table is not None:
        if code is not None or weights is not None:
            raise InvalidArgumentError("give a cost table, or a code with or without weights, not both")
        return Costs.table(table)
    if code is None:
        raise InvalidArgumentError("give a query code, or a cost table")
    packed = as_array(code, "query codes")
    single = packed.ndim == 1
    codes = settings.to_engine(as_codes(packed[None] if single else packed, settings.bits, "query codes"))
    given = np.ones(settings.bits) if weights is None else as_array(weights, "weights", np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] != settings.bits:
        raise InvalidArgumentError(f"the weights have shape {given.shape}; the index has codes of {settings.bits} bits")
    return Costs.weights(codes[0] if single else codes, given)
