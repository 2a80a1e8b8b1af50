"""An index of a database in this process: writing, reading and searching."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from whamming.native import Answer, Budget, Costs, InvalidArgumentError, Plan
from whamming.native.arguments import check_flag
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows, as_ids
from whamming.storage.items.write_batch import WriteBatch, check_batch, check_one_kind
from whamming.storage.reranking import Bound, Rerank, Reranked, check_k, read_queries, rerank_batch, search_exactly
from whamming.storage.search import Search, check_single, make_costs
from whamming.storage.settings import Durability, IndexSettings, check_choice
from whamming.storage.storage_errors import CLOSED, DROPPED, ClosedError, NoEncoderError, StorageError, no_encoder
from whamming.storage.store.protocol import Progress, Store, StoreStats, VerifyReport
from whamming.storage.store.requests import digest_of
from whamming.storage.store.snapshot import Items, Snapshot
from whamming.storage.unpicklable import Unpicklable
from whamming.storage.vectors.arrays import as_vectors
from whamming.storage.vectors.encoder_file import ENCODER_FILE, read_encoder
from whamming.storage.vectors.encoders import Encoder, Form
from whamming.storage.vectors.kept import encoding_kept
from whamming.storage.vectors.steps import Steps, finish
from whamming.storage.verbs import IndexVerbs, verb


class StoredIndex(Unpicklable, IndexVerbs):
    """An index of a database. Any number of threads may use it at once."""

    def __init__(
        self,
        name: str,
        store: Store,
        encoder: Encoder | None = None,
        *,
        directory: Path | None = None,
        reopen: Callable[[StoredIndex], None] | None = None,
    ) -> None:
        """Prefer :meth:`Database.index`.

        ``directory`` has the files of the store and of the encoder. ``reopen`` opens the store again after it was
        closed for being idle, and passes it to :meth:`resume`.
        """
        self.name = name
        self._store: Store | None = store
        self._settings = store.settings
        self._encoder = encoder
        self._directory = directory
        self._reopen = reopen
        self.closed = False
        """Whether :meth:`close` was called."""
        self.dropped = False
        """Whether :meth:`abandon` was called."""
        self._closing = threading.Lock()
        self._lock = threading.Lock()
        self._uses = 0
        self.used_at = 0.0
        """When it was used last, by ``time.monotonic()``."""

    @property
    def store(self) -> Store:
        """The store. If it was closed for being idle, it is opened again."""
        while (store := self._store) is None:
            if self.closed or self._reopen is None:
                raise ClosedError(DROPPED if self.dropped else CLOSED)
            self._reopen(self)
        return store

    @contextlib.contextmanager
    def _using(self) -> Iterator[Store]:
        """Use the store. During the block, it is not closed for being idle."""
        self.touch()
        while True:
            self.store  # noqa: B018 - opens it if necessary
            with self._lock:
                store = self._store
                if store is not None:
                    self._uses += 1
                    break
        try:
            yield store
        finally:
            with self._lock:
                self._uses -= 1

    @property
    def open_store(self) -> Store | None:
        """The store if it is open. Unlike :attr:`store`, this never opens it."""
        return None if self.closed else self._store

    @property
    def is_open(self) -> bool:
        """Whether the store is open. If not, the next call that uses the index has to wait for it."""
        return self.open_store is not None

    def touch(self) -> None:
        """Note that the index is in use."""
        self.used_at = time.monotonic()

    def pause(self) -> Store | None:
        """Let go of the store if it is idle, and return it; the caller closes it."""
        with self._lock:
            store = self._store
            if store is None or self.closed or self._reopen is None or self._uses or getattr(store, "is_busy", False):
                return None
            self._store = self._encoder = None
            return store

    def resume(self, store: Store) -> None:
        """Use a store that was opened after :meth:`pause`. If it has another index, closes it and raises an error."""
        try:
            if store.settings != self._settings:
                raise ClosedError(DROPPED)
            self.read_encoder()
            with self._lock:
                self._store = store
            if self.closed:
                raise ClosedError(DROPPED if self.dropped else CLOSED)
        except BaseException:
            store.close()
            raise

    def read_encoder(self) -> None:
        """Read the encoder from its file. Raises CorruptStoreError."""
        assert self._directory is not None
        self._encoder = read_encoder(self._directory, self._settings)[0]

    def refresh(self) -> None:
        """Apply what another process has written, if the index is open. This does not count as a use."""
        store = self._store
        if store is not None:
            store.snapshot()

    @property
    @verb
    def settings(self) -> IndexSettings:
        return self._settings

    @property
    @verb
    def encoder(self) -> Encoder | None:
        if self._settings.encoder is None:
            return None
        while (encoder := self._encoder) is None:
            self.store  # noqa: B018 - opens it again, together with the encoder
        return encoder

    @verb
    def __enter__(self) -> Self:
        return self

    @verb
    def __exit__(self, *exc: object) -> None:
        self.close()

    @verb
    def __len__(self) -> int:
        return len(self.snapshot())

    @verb
    def count(self) -> int:
        return len(self)

    def __repr__(self) -> str:
        return f"StoredIndex({self.name!r}, {self.settings.bits} bits{', closed' if self.closed else ''})"

    @verb
    def upsert(
        self,
        ids: ArrayLike,
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        *,
        vectors: ArrayLike | None = None,
        durability: Durability | None = None,
    ) -> None:
        self.write(self.batch(ids, codes, payloads, vectors=vectors), durability)

    @verb
    def batch(
        self,
        ids: ArrayLike = (),
        codes: ArrayLike | None = None,
        payloads: Sequence[bytes | None] | Payloads | None = None,
        deletes: ArrayLike = (),
        *,
        vectors: ArrayLike | None = None,
    ) -> WriteBatch:
        check_one_kind(codes, vectors)
        if vectors is None:
            return WriteBatch.of(self.settings, ids, codes, payloads, deletes)
        return finish(self.encoding(ids, vectors, payloads, deletes))

    def encoding(
        self, ids: ArrayLike, vectors: ArrayLike, payloads: Sequence[bytes | None] | Payloads | None, deletes: ArrayLike
    ) -> Steps[WriteBatch]:
        """Make a :meth:`batch` of items with vectors in short steps."""
        encoder, settings = self._need_encoder(), self.settings
        rows, _ = as_vectors(vectors, encoder.dim)
        codes, kept = yield from encoding_kept(encoder, rows, settings.keep_vectors)
        return WriteBatch.of(settings, ids, settings.from_engine(codes), payloads, deletes, vectors=kept)

    @verb
    def delete(self, ids: ArrayLike, *, durability: Durability | None = None) -> int:
        return self._write(self.batch(deletes=ids), durability)

    @verb
    def write(self, batch: WriteBatch, durability: Durability | None = None) -> None:
        self._write(batch, durability)

    def _write(self, batch: WriteBatch, durability: Durability | None) -> int:
        check_batch(batch, self._settings)
        if durability is not None:
            check_choice("durability", durability, ("fsync", "async"))
        with self._using() as store:
            return store.write(batch, durability)

    def write_once(self, batch: WriteBatch, request: bytes, durability: Durability | None = None) -> int:
        """Apply a batch unless one with the same request id was applied before; see ``store/requests.py``.

        ``request``: any bytes that identify the write; empty if it has no id. Returns how many items the write removed
        if it only deletes.
        """
        return self._write(replace(batch, request=digest_of(request)) if request else batch, durability)

    @verb
    def get(self, ids: ArrayLike) -> Items:
        return self.snapshot().get(as_ids(ids))

    @verb
    def snapshot(self) -> Snapshot:
        with self._using() as store:
            return store.snapshot()

    @verb
    def scan(self, size: int = 10_000, *, after: int | None = None) -> Iterator[Rows]:
        return self.snapshot().scan(size, after=after)

    @verb
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
        if rerank is not None:
            return self._search_reranked(
                vector, costs, k, plan, payloads, rerank, (code, weights, table, radius, after)
            )
        made = self._costs(code, weights, table, vector, costs)
        check_single(len(made), single=made.single)
        snapshot = self.snapshot()
        fetch = snapshot.payloads if check_flag("payloads", payloads) else None
        position = snapshot.position(made, after)
        return Search(snapshot, snapshot.view.cursor(made, k, radius, plan, after=position, payloads=fetch))

    @verb
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
        if rerank is None:
            made = self._costs(codes, weights, table, vectors, costs)
            return self.snapshot().view.search(made, k, radius, plan, budget=budget, threads=threads)
        encoder = self._check_rerank(vectors, (codes, weights, table, radius))
        queries, factor = read_queries(self.settings, vectors, rerank, costs)
        snapshot, count, single = self.snapshot(), check_k(k), np.ndim(vectors) == 1  # type: ignore[arg-type]
        if factor is None:
            if budget is not None:
                raise InvalidArgumentError(
                    "a budget with rerank = 'exact'; use search() instead and give a budget to next()"
                )
            return search_exactly(snapshot, encoder, queries, count, plan, single=single)
        nearest = min(count * factor, len(snapshot))
        made = encoder.costs(queries, costs)
        found = snapshot.view.search(made, nearest, plan=plan, budget=budget, threads=threads)
        return rerank_batch(snapshot, queries, found, count, single=single)

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
                raise InvalidArgumentError(f"costs = {form!r} without a vector; costs are computed from a vector")
            return make_costs(self.settings, code, weights, table)
        if code is not None or table is not None:
            raise InvalidArgumentError("a vector together with a code or a cost table; give only one of them")
        return self._need_encoder().costs(vector, form, weights=weights)

    def _search_reranked(
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
        check_single(len(queries), single=np.ndim(vector) == 1)  # type: ignore[arg-type]
        query, snapshot = queries[0], self.snapshot()
        wanted = len(snapshot) if k is None else check_k(k)
        fetch = snapshot.payloads if check_flag("payloads", payloads) else None
        bound = None
        if factor is None:
            bound = Bound(encoder, query)
            cursor = snapshot.view.cursor(bound.costs, plan=plan)
        elif k is None:
            raise InvalidArgumentError(f"rerank = {factor} without k; give k, as k x {factor} items are re-ranked")
        else:
            cursor = snapshot.view.cursor(encoder.costs(query, form), wanted * factor, plan=plan)
        return Search(snapshot, Reranked(snapshot, query, cursor, k=wanted, bound=bound, payloads=fetch))

    def _check_rerank(self, vectors: ArrayLike | None, others: tuple[object, ...]) -> Encoder:
        if vectors is None or any(other is not None for other in others):
            raise InvalidArgumentError(
                "rerank works with a vector, costs and k only; leave out code, weights, table, radius and after"
            )
        if self.settings.keep_vectors is None:
            raise NoEncoderError(
                f"the index {self.name!r} keeps no vectors to re-rank by; create it with "
                "keep_vectors='float16' or 'int8'"
            )
        return self._need_encoder()

    def _need_encoder(self) -> Encoder:
        if self.encoder is None:
            raise no_encoder(self.name)
        return self.encoder

    @verb
    def flush(self) -> None:
        with self._using() as store:
            store.flush()

    @verb
    def seal(self, progress: Progress | None = None) -> None:
        with self._using() as store:
            store.seal(progress)

    @verb
    def compact(self, progress: Progress | None = None) -> None:
        with self._using() as store:
            store.compact(progress)

    @verb
    def stats(self) -> StoreStats:
        with self._using() as store:
            return store.stats()

    @verb
    def verify(self, progress: Progress | None = None) -> VerifyReport:
        with self._using() as store:
            report = store.verify(progress)
        if self._directory is None or self.encoder is None:
            return report
        try:
            _, size = read_encoder(self._directory, self.settings)
        except StorageError as error:
            return replace(report, problems=(*report.problems, str(error)))
        return replace(report, bytes_checked=report.bytes_checked + size)

    @verb
    def backup(self, path: Path) -> None:
        with self._using() as store:
            store.backup(path)
        if self.encoder is not None:
            self.encoder.save(path / ENCODER_FILE)

    @verb
    def close(self) -> None:
        self.closed = True
        with self._closing:
            if self._store is not None:
                self._store.close()

    def check_files(self, *, writing: bool) -> None:
        """See :meth:`Store.check_files`. This does not open an index that was closed for being idle."""
        if (store := self.open_store) is not None:
            store.check_files(writing=writing)

    def abandon(self) -> None:
        """Stop soon and save nothing more, because the index was dropped. Call :meth:`close` afterwards."""
        self.closed = self.dropped = True
        abandon: Callable[[], None] | None = getattr(self._store, "abandon", None)
        if abandon is not None:
            abandon()
