"""``whamming.v1.IndexService``: creates, describes, maintains and deletes indexes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

from whamming.native import WhammingError
from whamming.native.costs import check_bits
from whamming.server.failures import failure_of
from whamming.server.rpc.fit_queue import FitQueue
from whamming.server.rpc.methods import Context
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.server.search.request import need_encoder
from whamming.storage import ClosedError, Database, Encoder, NotFoundError, StoredIndex
from whamming.storage.database import existing_encoder
from whamming.storage.settings import check_name
from whamming.storage.vectors.fitting import check_fit
from whamming.v1 import index_pb2
from whamming.wire.columns import matrix_of
from whamming.wire.descriptions import broken_index_message, choices_of, index_message
from whamming.wire.enums import ENCODER_KINDS
from whamming.wire.fields import FieldError, in_field

PAGE: Final = 100
"""Default number of indexes per page."""
MAX_PAGE: Final = 1000
PAGE_SECONDS: Final = 1.0
"""A page ends after this time, so that it does not keep a thread from other calls."""
PAGE_BYTES: Final = 1 << 20
"""A page ends when it has this many bytes. The last index may exceed this by some 10 KiB. gRPC clients accept 4 MiB by
default."""
PROGRESS_SECONDS: Final = 0.2


class IndexService:
    """Handlers that check the request, call the database and build the response. The proto documents the rpcs."""

    def __init__(self, storage: StorageThreads, fits: FitQueue, max_message_bytes: int = 0) -> None:
        """``max_message_bytes``: the largest message that the server accepts, to tell clients."""
        self._storage = storage
        self._fits = fits
        self._max_message_bytes = max_message_bytes
        self._packing = asyncio.Lock()

    async def CreateIndex(  # noqa: N802 - the name in the proto
        self, request: index_pb2.CreateIndexRequest, context: Context
    ) -> index_pb2.CreateIndexResponse:
        described = choices_of(request.settings)
        described |= await self._storage.run(_encoder_of, request)  # in a thread: it may have megabytes
        bits = request.settings.bits or None
        with in_field("name"):
            check_name(request.name)
        with in_field("settings.bits"):
            if bits is not None or "encoder" not in described:
                check_bits(request.settings.bits)

        field = "fitted_encoder" if request.fitted_encoder else "encoder" if "encoder" in described else "settings"
        if request.HasField("encoder"):
            described, bits = await self._with_fitted(request, described, bits), None

        def create() -> index_pb2.Index:
            with in_field(field):
                index = self._storage.database.create_index(request.name, bits, exist_ok=request.exist_ok, **described)
            return _description(index)

        index = await self._storage.run(create)
        return index_pb2.CreateIndexResponse(index=index, max_message_bytes=self._max_message_bytes)

    async def _with_fitted(
        self, request: index_pb2.CreateIndexRequest, described: dict[str, Any], bits: int | None
    ) -> dict[str, Any]:
        """Return the arguments of ``create_index`` with a fitted encoder instead of its description."""
        others = dict(described)
        kind, dim, sample, seed, centre = (others.pop(name) for name in ("encoder", "dim", "train", "seed", "centre"))

        def existing() -> Encoder | None:
            with in_field("encoder"):
                database = self._storage.database
                return existing_encoder(database, request.name, kind, bits, dim, exist_ok=request.exist_ok)

        encoder = await self._storage.run(existing)
        if encoder is None:
            with in_field("encoder"):
                wanted = check_fit(kind, sample, bits=bits, dim=dim, seed=seed, centre=centre)
                encoder = await self._fits.fit(wanted)
        return {**others, "encoder": encoder}

    async def GetIndex(  # noqa: N802
        self, request: index_pb2.GetIndexRequest, context: Context
    ) -> index_pb2.GetIndexResponse:
        index = await self._storage.index(request.name, "name")
        described = await self._storage.run(_description, index)
        return index_pb2.GetIndexResponse(index=described, max_message_bytes=self._max_message_bytes)

    async def ListIndexes(  # noqa: N802
        self, request: index_pb2.ListIndexesRequest, context: Context
    ) -> index_pb2.ListIndexesResponse:
        size = request.page_size or PAGE
        if size > MAX_PAGE:
            raise FieldError("page_size", f"page_size = {size}; at most {MAX_PAGE}, or 0 for {PAGE}")

        page = await self._storage.run(_page, self._storage.database, request, size)
        page.max_message_bytes = self._max_message_bytes
        return page

    async def DeleteIndex(  # noqa: N802
        self, request: index_pb2.DeleteIndexRequest, context: Context
    ) -> index_pb2.DeleteIndexResponse:
        if not request.name:
            raise FieldError("name", "name is empty; give the name of an index")
        await self._storage.drop(request.name)
        return index_pb2.DeleteIndexResponse()

    async def SealIndex(  # noqa: N802
        self, request: index_pb2.SealIndexRequest, context: Context
    ) -> AsyncIterator[index_pb2.SealIndexResponse]:
        index = await self._storage.index(request.name, "name")
        async for share in self._progress(index.seal):
            yield index_pb2.SealIndexResponse(progress=share)
        yield index_pb2.SealIndexResponse(progress=1.0, index=await self._storage.run(_description, index))

    async def CompactIndex(  # noqa: N802
        self, request: index_pb2.CompactIndexRequest, context: Context
    ) -> AsyncIterator[index_pb2.CompactIndexResponse]:
        index = await self._storage.index(request.name, "name")
        async for share in self._progress(index.compact):
            yield index_pb2.CompactIndexResponse(progress=share)
        yield index_pb2.CompactIndexResponse(progress=1.0, index=await self._storage.run(_description, index))

    async def FlushIndex(  # noqa: N802
        self, request: index_pb2.FlushIndexRequest, context: Context
    ) -> index_pb2.FlushIndexResponse:
        index = await self._storage.index(request.name, "name")
        await self._storage.write(index.flush)
        return index_pb2.FlushIndexResponse()

    async def GetEncoder(  # noqa: N802
        self, request: index_pb2.GetEncoderRequest, context: Context
    ) -> index_pb2.GetEncoderResponse:
        index = await self._storage.index(request.name, "name")
        encoder = need_encoder(index)
        async with self._packing:  # packing takes several times the size of the encoder
            return index_pb2.GetEncoderResponse(fitted_encoder=await self._storage.run(encoder.to_bytes))

    async def _progress(self, work: Callable[[Callable[[float], None]], None]) -> AsyncIterator[float]:
        """Run work in a thread, and yield the fraction done at intervals."""
        latest = 0.0

        def report(share: float) -> None:
            nonlocal latest
            latest = share

        working = asyncio.ensure_future(self._storage.run_long(work, report))
        # Retrieve the exception even if the client is gone, or asyncio would log it.
        working.add_done_callback(lambda done: done.cancelled() or done.exception())
        while not (await asyncio.wait([working], timeout=PROGRESS_SECONDS))[0]:
            yield min(latest, 0.999)
        await working


def _description(index: StoredIndex) -> index_pb2.Index:
    return index_message(index.name, index.settings, index.encoder, index.stats())


def _page(database: Database, request: index_pb2.ListIndexesRequest, size: int) -> index_pb2.ListIndexesResponse:
    """Return a page of at most ``size`` indexes. It ends early if the indexes take too much time or space."""
    names = [name for name in database.list_indexes() if name > request.page_token]
    page = index_pb2.ListIndexesResponse()
    end, left = time.monotonic() + PAGE_SECONDS, PAGE_BYTES
    for number, name in enumerate(names[:size], 1):
        if request.names_only:
            page.indexes.add(name=name)
        else:
            with contextlib.suppress(NotFoundError, ClosedError):  # deleted in the meantime
                page.indexes.append(_listed(database, name))
                left -= page.indexes[-1].ByteSize()
        if number == size or left <= 0 or (page.indexes and time.monotonic() >= end):
            page.next_page_token = name if number < len(names) else ""
            break
    return page


def _listed(database: Database, name: str) -> index_pb2.Index:
    """Describe an index, or say why it is broken. Raises NotFoundError and ClosedError only."""
    try:
        with database.visiting(name) as index:
            return _description(index)
    except (NotFoundError, ClosedError):
        raise
    except Exception as error:  # one broken index must not hide the others
        failure = failure_of(error)
        return broken_index_message(name, failure.reason, failure.message)


def _encoder_of(request: index_pb2.CreateIndexRequest) -> dict[str, Any]:
    """Return the arguments of ``create_index`` that describe the encoder. Empty: no encoder."""
    wanted = request.encoder
    if request.fitted_encoder:
        if request.HasField("encoder"):
            raise FieldError("fitted_encoder", "both encoder and fitted_encoder are set; give one of them")
        try:
            return {"encoder": Encoder.from_bytes(request.fitted_encoder)}
        except WhammingError as error:
            raise FieldError("fitted_encoder", str(error)) from error
    if not request.HasField("encoder"):
        return {}
    kind = ENCODER_KINDS.word("encoder.kind", wanted.kind)
    if kind is None:
        raise FieldError("encoder.kind", f"encoder.kind is missing; choose one of {', '.join(ENCODER_KINDS.words)}")
    return {
        "encoder": kind,
        "dim": wanted.dimension or None,
        "train": matrix_of(wanted.sample, "encoder.sample") if wanted.HasField("sample") else None,
        "seed": wanted.seed,
        "centre": wanted.centred if wanted.HasField("centred") else None,
    }
