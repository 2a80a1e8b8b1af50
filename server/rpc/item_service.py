"""``whamming.v1.ItemService``: writes, reads and exports items."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whamming.server.rpc.methods import Context, Receive, Send
from whamming.server.rpc.scan import Scan
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.server.search.request import need_encoder
from whamming.storage import Payloads, StoredIndex
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import Durability
from whamming.storage.vectors.steps import Steps
from whamming.v1 import item_pb2
from whamming.wire.columns import ids_of, matrix_of, payload_list_column, payloads_of
from whamming.wire.enums import DURABILITIES
from whamming.wire.fields import FieldError, in_field
from whamming.wire.service_errors import AnswerTooLargeError

SCAN_ROWS: Final = 10_000
"""Default number of items per message of Scan."""
MAX_SCAN_ROWS: Final = 100_000
GET_ROWS: Final = 256
"""Items that Get looks up at a time. Their payloads have at most 16 MiB."""
MIN_REQUEST_ID: Final = 8
MAX_REQUEST_ID: Final = 64
GET_ANSWER_BYTES: Final = 3 << 20
"""Maximum size of the items in a response of Get."""


class ItemService:
    """Handlers that check the request, call the database and build the response. The proto documents the rpcs."""

    def __init__(self, storage: StorageThreads, snapshot_seconds: float) -> None:
        self._storage = storage
        self._snapshot_seconds = snapshot_seconds
        self._scans: set[Scan] = set()

    async def Upsert(  # noqa: N802 - the name in the proto
        self, receive: Receive[item_pb2.UpsertRequest], send: Send[item_pb2.UpsertResponse], context: Context
    ) -> None:
        index: StoredIndex | None = None
        while (request := await receive()) is not None:
            if index is None or (request.index and request.index != index.name):
                index = await self._storage.index(request.index)
            durability = DURABILITIES.word("durability", request.durability)
            if request.items.HasField("vectors"):
                batch = await self._storage.encode(_encoded(index, request.items))
                count = await self._storage.write(_write, index, request, batch, durability)
                del batch
            else:
                count = await self._storage.write(_upsert, index, request, durability)
            await send(item_pb2.UpsertResponse(sequence=request.sequence, count=count))
            del request  # free it before waiting for the next one

    async def Delete(  # noqa: N802
        self, request: item_pb2.DeleteRequest, context: Context
    ) -> item_pb2.DeleteResponse:
        index = await self._storage.index(request.index)
        durability = DURABILITIES.word("durability", request.durability)
        ids = ids_of(request.ids, "ids")
        request_id = _request_id(request.request_id)
        count = await self._storage.write(lambda: index.write_once(index.batch(deletes=ids), request_id, durability))
        return item_pb2.DeleteResponse(count=count)

    async def Get(self, request: item_pb2.GetRequest, context: Context) -> item_pb2.GetResponse:  # noqa: N802
        index = await self._storage.index(request.index)
        return await self._storage.run(_get, index, request)

    async def Scan(  # noqa: N802
        self, request: item_pb2.ScanRequest, context: Context
    ) -> AsyncIterator[item_pb2.ScanResponse]:
        index = await self._storage.index(request.index)
        size = request.batch_size or SCAN_ROWS
        if size > MAX_SCAN_ROWS:
            raise FieldError("batch_size", f"batch_size = {size}; at most {MAX_SCAN_ROWS}, or 0 for {SCAN_ROWS}")
        after = request.after_id if request.HasField("after_id") else None
        scan = Scan(index, size, after, self._snapshot_seconds)
        self._scans.add(scan)
        try:
            while responses := await self._storage.run(scan.next):
                yield responses.pop()  # not kept while the client does not read
        finally:
            self._scans.discard(scan)

    async def expire(self) -> None:
        """Make scans let go of stale snapshots, even if their clients do not read."""
        for scan in list(self._scans):
            await self._storage.run(scan.expire)


def _upsert(index: StoredIndex, request: item_pb2.UpsertRequest, durability: Durability | None) -> int:
    """Write items with codes. Returns their number."""
    ids, payloads = _ids_and_payloads(request.items)
    width, data = index.settings.code_bytes, request.items.codes
    if len(data) != len(ids) * width:
        raise FieldError(
            "items.codes",
            f"items.codes has {len(data)} bytes for {len(ids)} ids; codes of {index.settings.bits} bits have "
            f"{width} each, {len(ids) * width} in total",
        )
    codes = np.frombuffer(data, dtype=np.uint8).reshape(len(ids), width)
    with in_field("items.payloads"):  # other fields were checked above
        batch = index.batch(ids, codes, payloads)
    return _write(index, request, batch, durability)


def _encoded(index: StoredIndex, items: item_pb2.ItemBatch) -> Steps[WriteBatch]:
    """Encode items with vectors."""
    ids, payloads = _ids_and_payloads(items)
    if items.codes:
        raise FieldError("items.vectors", "items have both codes and vectors; give one of them")
    need_encoder(index)
    vectors = matrix_of(items.vectors, "items.vectors")
    with in_field("items.vectors"):
        return (yield from index.encoding(ids, vectors, payloads, deletes=()))


def _ids_and_payloads(items: item_pb2.ItemBatch) -> tuple[NDArray[np.uint64], Payloads | None]:
    ids = ids_of(items.ids, "items.ids")
    return ids, payloads_of(items.payloads, len(ids), "items.payloads") if items.HasField("payloads") else None


def _write(
    index: StoredIndex, request: item_pb2.UpsertRequest, batch: WriteBatch, durability: Durability | None
) -> int:
    """Write a batch. Returns its number of items."""
    with in_field("items"):
        index.write_once(batch, _request_id(request.request_id), durability)
    return len(batch)


def _request_id(value: bytes) -> bytes:
    """Check a request id."""
    if value and not MIN_REQUEST_ID <= len(value) <= MAX_REQUEST_ID:
        raise FieldError(
            "request_id",
            f"request_id has {len(value)} bytes; give {MIN_REQUEST_ID} to {MAX_REQUEST_ID} random bytes, or none",
        )
    return value


def _get(index: StoredIndex, request: item_pb2.GetRequest) -> item_pb2.GetResponse:
    ids, snapshot = ids_of(request.ids, "ids"), index.snapshot()
    codes, payloads, found = [], [], []
    size = len(ids) * (9 + index.settings.code_bytes)
    first = 0
    while first < len(ids) and size <= GET_ANSWER_BYTES:  # the size counts a repeated id every time
        items = snapshot.get(ids[first : first + GET_ROWS])
        size += sum(map(len, items.payloads))
        codes.append(items.codes.tobytes())
        found.append(items.found.tobytes())
        payloads += items.payloads
        first += GET_ROWS
    if size > GET_ANSWER_BYTES:
        raise AnswerTooLargeError(f"{len(ids)} items have more than {GET_ANSWER_BYTES} bytes; request fewer at once")
    answer = item_pb2.GetResponse(found=b"".join(found))
    answer.items.ids.CopyFrom(request.ids)
    answer.items.codes = b"".join(codes)
    if any(payloads):
        answer.items.payloads.CopyFrom(payload_list_column(payloads))
    return answer
