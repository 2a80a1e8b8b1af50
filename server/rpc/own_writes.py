"""Lets a reader process see all writes that it has forwarded, even if they are not on disk yet.

A reader sees what the writer has committed. With ``durability="async"``, the writer acknowledges a write up to 50 ms
before it commits the write. A client that reads through the same process would miss its own write. So the process
remembers to which indexes it has forwarded such writes. Before the next read of such an index, it asks the writer to
commit them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from whamming.native import InvalidArgumentError, WhammingError
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.storage.settings import check_name
from whamming.v1 import index_pb2, item_pb2, search_pb2

log = logging.getLogger("whamming.server")

_FLUSH: Final = "/whamming.v1.IndexService/FlushIndex"
_WRITES: Final[dict[str, Callable[[bytes], Any]]] = {
    "/whamming.v1.ItemService/Upsert": item_pb2.UpsertRequest.FromString,
    "/whamming.v1.ItemService/Delete": item_pb2.DeleteRequest.FromString,
}
"""Parses the requests of forwarded calls that write items."""


class ForwardedCall:
    """Notes which indexes a forwarded call writes to."""

    def __init__(self, method: str, unsaved: dict[str, bool]) -> None:
        self._parse = _WRITES.get(method)
        self._unsaved = unsaved
        self._touched: dict[str, bool] = {}
        self._index = ""

    def sends(self, data: bytes) -> None:
        """Look at a request."""
        if self._parse is None:
            return
        try:
            request = self._parse(data)
        except DecodeError:  # the writer refuses it
            return
        self._index = request.index or self._index
        try:
            check_name(self._index)
        except InvalidArgumentError:  # the writer refuses it; a name may have megabytes
            self._index = ""
            return
        if request.durability != index_pb2.DURABILITY_FSYNC:
            is_async = request.durability == index_pb2.DURABILITY_ASYNC
            _note(self._touched, self._index, is_async)

    def receives(self) -> None:
        """A response has arrived, so at least one of the requests was applied."""
        for index, is_async in self._touched.items():
            _note(self._unsaved, index, is_async)


def _note(unsaved: dict[str, bool], index: str, is_async: bool) -> None:
    """Note a write to an index. A later write does not commit an async one, so True stays True."""
    unsaved[index] = is_async or unsaved.get(index, False)


class OwnWrites:
    """The indexes to which a reader process has forwarded writes that may not be committed yet."""

    def __init__(self, channel: Any, storage: StorageThreads) -> None:
        """``channel`` is connected to the writer process."""
        self._flush = channel.unary_unary(_FLUSH, index_pb2.FlushIndexRequest.SerializeToString)
        self._storage = storage
        self._unsaved: dict[str, bool] = {}
        """The indexes by name. True: a write was async. False: the settings of the index say whether it was."""
        self._flushes: dict[str, asyncio.Task[None]] = {}

    def call(self, method: str) -> ForwardedCall:
        """Return an object that notes the writes of a forwarded call."""
        return ForwardedCall(method, self._unsaved)

    async def before(self, request: Any) -> None:
        """Wait until a read sees all acknowledged writes that this process has forwarded to the index.

        If the writer cannot flush them, this logs a warning and returns.
        """
        if not self._unsaved and not self._flushes:
            return
        name: str = request.queries.index if isinstance(request, search_pb2.SearchRequest) else request.index
        if name in self._unsaved:
            task = asyncio.create_task(self._save(name, self._unsaved.pop(name)))
            self._flushes[name] = task
            task.add_done_callback(lambda done: self._flushes.get(name) is done and self._flushes.pop(name))
        if name in self._flushes:  # another read may have started this flush
            await asyncio.shield(self._flushes[name])

    async def _save(self, name: str, certain: bool) -> None:
        try:
            if certain or (await self._storage.index(name)).settings.durability == "async":
                await self._flush(index_pb2.FlushIndexRequest(name=name))
        except WhammingError:  # the read fails with the same error
            pass
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.NOT_FOUND:  # NOT_FOUND: the index was deleted
                log.warning("recent writes to the index %s cannot be saved: %s", name, error.details())
                _note(self._unsaved, name, certain)
