"""A database on a server, for asyncio: ``async with whamming.aio.connect("host:port") as db``.

The same verbs as :class:`whamming.Database` and :class:`whamming.StoredIndex`, to be awaited::

    async with whamming.aio.connect("localhost:7777") as db:
        docs = await db.create_index("docs", bits=256)
        await docs.upsert(ids, codes)
        async for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

After a dropped connection, searches and upserts resume automatically, and ``get``, ``count``, ``stats``, ``delete`` and
``flush`` are retried. ``scan``, ``seal``, ``compact``, ``create_index`` and ``drop_index`` are not: they raise
:class:`whamming.UnavailableError`.
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
"""For how long a call that may be repeated is tried again while the server is away."""


def connect(
    address: str, *, tls: Tls | bool = False, timeout: float = 10.0, retry_seconds: float = RETRY_SECONDS
) -> Connecting:
    """Connect to a server.

    Parameters
    ----------
    address : HOST:PORT, as ``whamming serve`` prints it.
    tls : how to connect to a server with a certificate; True trusts the usual authorities.
    timeout : seconds to wait for the server.
    retry_seconds : for how long calls that may be repeated are tried again while the server is away; 0: not at all.

    Raises
    ------
    InvalidArgumentError : the address is not HOST:PORT, or a file of ``tls`` cannot be used.
    UnavailableError : no server answers in time, or it does not speak TLS as asked.
    """
    split_address(address)
    if not isinstance(tls, bool | Tls):
        raise InvalidArgumentError(f"tls = {tls!r}; it must be True, False, or a whamming.Tls such as Tls(ca='ca.pem')")
    check_seconds("timeout", timeout)
    check_seconds("retry_seconds", retry_seconds)
    return Connecting(address, tls, timeout, retry_seconds)


class Connecting:
    """A connection to be made: ``db = await connect(...)``, or ``async with connect(...) as db``."""

    def __init__(self, address: str, tls: Tls | bool, timeout: float, retry_seconds: float) -> None:
        """Remember what to connect to; prefer :func:`connect`."""
        self._address = address
        self._tls = tls
        self._timeout = timeout
        self._retry_seconds = retry_seconds
        self._database: Database | None = None

    def __repr__(self) -> str:
        """Describe the connection in a line."""
        return f"Connecting({self._address!r}); await it, or use it in an async with block"

    async def open(self) -> Database:
        """Connect."""
        channel = await open_channel(self._address, self._tls, self._timeout)
        return Database(channel, self._address, self._retry_seconds)

    def __await__(self) -> Generator[Any, None, Database]:
        """Connect."""
        return self.open().__await__()

    async def __aenter__(self) -> Database:
        """Connect."""
        self._database = await self.open()
        return self._database

    async def __aexit__(self, *exc: object) -> None:
        """Close the connection."""
        if self._database is not None:
            await self._database.close()
