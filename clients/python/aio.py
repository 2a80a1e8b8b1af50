"""The asyncio client: ``async with whamming.aio.connect("host:port") as db``.

It has the methods of :class:`whamming.Database` and :class:`whamming.StoredIndex`. Most are coroutines; ``search`` and
``scan`` return asynchronous iterators::

    async with whamming.aio.connect("localhost:7777") as db:
        docs = await db.create_index("docs", bits=256)
        await docs.upsert(ids, codes)
        async for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

After a dropped connection, searches, scans and upserts resume automatically. (A re-ranked search that has returned hits
raises an error instead.) Calls that only read, ``delete`` and ``flush`` are retried. ``seal``, ``compact``,
``create_index`` and ``drop_index`` are not: they raise :class:`whamming.UnavailableError`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from whamming.native import InvalidArgumentError
from whamming.native.arguments import check_seconds
from whamming.remote.channel import open_channel, split_address
from whamming.remote.database import Database
from whamming.remote.index import Index
from whamming.remote.search import Search
from whamming.remote.tls import Tls

__all__ = ["Connecting", "Database", "Index", "Search", "connect"]

RETRY_SECONDS: Final = 30.0
"""While the server is unreachable or overloaded, calls that are safe to repeat are retried for this long."""


def connect(
    address: str, *, tls: Tls | bool = False, timeout: float = 10.0, retry_seconds: float = RETRY_SECONDS
) -> Connecting:
    """Connect to a server.

    Parameters
    ----------
    address : HOST:PORT, as ``whamming serve`` prints it.
    tls : True or a :class:`whamming.Tls` to use TLS. True trusts the certificate authorities that gRPC trusts.
    timeout : seconds to wait for the server.
    retry_seconds : how long to retry if the server is unreachable or overloaded. Only calls that are safe to
        repeat are retried. 0: no retries.

    Raises
    ------
    InvalidArgumentError : the address is not HOST:PORT, or a file in ``tls`` cannot be used.
    UnavailableError : no server answered in time, or only one of the two sides uses TLS.
    """
    split_address(address)
    if not isinstance(tls, bool | Tls):
        raise InvalidArgumentError(f"tls = {tls!r}; it must be True, False or a whamming.Tls, as in Tls(ca='ca.pem')")
    check_seconds("timeout", timeout)
    check_seconds("retry_seconds", retry_seconds)
    return Connecting(address, tls, timeout, retry_seconds)


class Connecting:
    """What :func:`connect` returns: ``db = await connect(...)``, or ``async with connect(...) as db``."""

    def __init__(self, address: str, tls: Tls | bool, timeout: float, retry_seconds: float) -> None:
        self._address = address
        self._tls = tls
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._database: Database | None = None

    def __repr__(self) -> str:
        return f"Connecting({self._address!r}); await it, or use it in an async with block"

    async def open(self) -> Database:
        channel = await open_channel(self._address, self._tls, self._timeout)
        return Database(channel, self._address, self._retry_seconds)

    def __await__(self) -> Generator[Any, None, Database]:
        return self.open().__await__()

    async def __aenter__(self) -> Database:
        self._database = await self.open()
        return self._database

    async def __aexit__(self, *exc: object) -> None:
        if self._database is not None:
            await self._database.close()
