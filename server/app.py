"""The server: connects the database, the searcher and the gRPC services, and starts and stops them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from whamming.native import release_memory
from whamming.native.arguments import check_threads
from whamming.server.config import Config
from whamming.server.listening import ListenError, check_listen
from whamming.server.rpc.clients import Clients
from whamming.server.rpc.fit_queue import FitQueue
from whamming.server.rpc.forwarding import Forwarding
from whamming.server.rpc.index_service import IndexService
from whamming.server.rpc.item_service import ItemService
from whamming.server.rpc.message_memory import STREAM_WINDOW, MessageMemory
from whamming.server.rpc.methods import handler
from whamming.server.rpc.search_service import SearchService
from whamming.server.rpc.status import silence_lost_clients
from whamming.server.rpc.storage_threads import StorageThreads
from whamming.server.rpc.system_calls import SystemCalls
from whamming.server.search.opening import IndexOpener
from whamming.server.search.searcher import Searcher
from whamming.server.tls import Certificates, is_open
from whamming.storage import Database, open_database
from whamming.storage.directory import Mode
from whamming.storage.health import file_problems
from whamming.v1 import index_pb2, item_pb2, search_pb2

log = logging.getLogger("whamming.server")

SERVICES: Final = (
    index_pb2.DESCRIPTOR.services_by_name["IndexService"],
    item_pb2.DESCRIPTOR.services_by_name["ItemService"],
    search_pb2.DESCRIPTOR.services_by_name["SearchService"],
)
READING: Final = frozenset({"Search", "SearchOnce", "Get", "Scan"})
"""Methods that every server process handles itself."""
FORWARDED: Final = frozenset(
    f"/{service.full_name}/{method.name}"
    for service in SERVICES
    for method in service.methods
    if method.name not in READING
)
"""Methods that reader processes forward to the writer: all methods of IndexService, and writes."""
HOUSEKEEPING_SECONDS: Final = 1.0
"""How often to check for old snapshots and for memory to release."""
CROWD: Final = 16
"""If at least this many calls ran at once and at least half have ended, freed memory is returned to the system."""


def server_options(config: Config, *, forwarded: bool = False) -> list[tuple[str, int]]:
    """Return the options of the gRPC server. ``forwarded``: other processes forward calls to it."""
    return [
        ("grpc.max_receive_message_length", config.max_message_mb << 20),
        ("grpc.max_send_message_length", -1),
        # How much of a message gRPC accepts before the server asks for the message; see message_memory.py. Without
        # these two options, gRPC would accept up to 4 MiB.
        ("grpc.http2.lookahead_bytes", STREAM_WINDOW),
        ("grpc.http2.bdp_probe", 0),
        # Refuse compressed messages: gRPC would decompress them completely before it checks their size.
        ("grpc.compression_enabled_algorithms_bitset", 1),
        ("grpc.so_reuseport", int(config.workers > 1)),
        # gRPC in the client delays further calls when this many are running. The class Clients enforces the limits once
        # more, because a client may open calls before it has received this option, and because other processes forward
        # the calls of many clients on one connection.
        ("grpc.max_concurrent_streams", config.max_streams if forwarded else config.max_client_streams),
        # Allow keepalive pings every five seconds. By default gRPC closes the connection of a client that does this.
        ("grpc.http2.min_ping_interval_without_data_ms", 5000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
    ]


class Server:
    """Serves one database. Use it in an ``async with`` block, or call :meth:`start` and :meth:`stop`."""

    def __init__(
        self,
        config: Config,
        database: Database | None = None,
        *,
        writer: str | None = None,
        also_listen: str | None = None,
        on_health: Callable[[bool], None] | None = None,
    ) -> None:
        """Configure the server without starting it.

        ``database``: the database to serve. By default :meth:`start` opens the one at ``config.data``.
        ``writer``: the address of the writer process. If given, this process opens the database for reading,
        handles the methods in READING, health checks and reflection itself, and forwards the methods in FORWARDED.
        ``also_listen``: a second address to listen on, for calls forwarded by other processes.
        ``on_health``: called with True when this process finds a problem with its files, and with False when all are
        solved.
        """
        self.config = config
        self.address = config.listen
        """HOST:PORT. After :meth:`start`, the port is the actual one."""
        self._given = database
        self._writer = writer
        self._also_listen = also_listen
        self._on_health = on_health
        self._problems: list[str] = []
        """Problems with the files that this process has open. Health checks fail if there are any."""
        self.others_fail = False
        """Whether another process has found a problem. Health checks then fail here, too, within about a second."""
        self._is_serving = True
        """What health checks report."""
        memory = MessageMemory(config.max_message_mb << 20, config.receive_mb << 18, config.receive_mb << 20)
        self._clients = Clients(config.max_streams, config.max_client_streams, memory, config.first_message_seconds)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the database and start serving."""
        silence_lost_clients()
        config = self.config
        self._certificates = Certificates(config) if config.tls_cert else None
        port = contextlib.ExitStack()
        if self._writer is None:  # a reader does not check: the writer already listens on the same port
            port = await asyncio.to_thread(check_listen, config.listen, shared=config.workers > 1)
        with port:
            await self._open()
        if self._also_listen is not None:
            self._grpc.add_insecure_port(self._also_listen)
        await self._grpc.start()
        await self._report_health()
        self._housekeeping = asyncio.create_task(self._do_housekeeping())
        log.info("serving %s on %s", config.data if self._given is None else "a database", self.address)
        if is_open(config.listen) and not config.tls_client_ca:
            log.warning("anyone who can reach %s can read and change the data; see --tls-client-ca", self.address)

    async def _open(self) -> None:
        """Open the database, make the services, and listen on the address."""
        config, certificates = self.config, self._certificates
        if self._given is not None:
            self._database = self._given
        else:
            mode: Mode = "w" if self._writer is None else "r"
            self._database = await asyncio.to_thread(open_database, config.data, mode=mode)
        threads = config.threads or check_threads(None)
        opener = IndexOpener(self._database)
        self._searcher = Searcher(self._database, threads, config.slice_ms / 1e3, config.snapshot_seconds, opener)
        self._storage = StorageThreads(self._database, opener)
        self._fits = FitQueue()
        self._search = SearchService(self._searcher, config)
        self._items = ItemService(self._storage, config.snapshot_seconds)
        self._health = health.aio.HealthServicer()
        options = server_options(config, forwarded=self._also_listen is not None)
        self._grpc = grpc.aio.server(interceptors=[SystemCalls(self._clients)], options=options)
        own: dict[str, Any] = {}
        if self._writer is not None:  # gRPC uses the first handler of a method, so forwarding comes before the services
            self._forwarding = Forwarding(self._writer, FORWARDED, self._clients, self._storage)
            self._grpc.add_generic_rpc_handlers((self._forwarding,))
            own["before"] = self._forwarding.own_writes.before
        parts = (IndexService(self._storage, self._fits, config.max_message_mb << 20), self._items, self._search)
        self._grpc.add_generic_rpc_handlers(
            tuple(handler(service, part, self._clients, **own) for service, part in zip(SERVICES, parts, strict=True))
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._grpc)
        self._names = names = [service.full_name for service in SERVICES]
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], self._grpc)
        host, _, _ = config.listen.rpartition(":")
        try:
            if certificates is not None:
                port = self._grpc.add_secure_port(config.listen, certificates.credentials())
            else:
                port = self._grpc.add_insecure_port(config.listen)
        except RuntimeError as error:
            await self._release()
            raise ListenError(f"cannot listen on {config.listen}; choose another --listen") from error
        self.address = f"{host}:{port}"

    async def stop(self, grace: float | None = None) -> None:
        """Shut down gracefully.

        New calls are refused at once. Running calls have ``grace`` seconds to finish, by default the config's
        ``grace_seconds``. Queries that are still running after that end with resume tokens, except re-ranked ones. All
        other calls that are still running are cancelled at most a second later. Fits of encoders are abandoned at once.
        """
        grace = self.config.grace_seconds if grace is None else grace
        self._clients.closed = True
        await self._health.enter_graceful_shutdown()
        self._search.drain()
        self._fits.stop()
        end = asyncio.get_running_loop().time() + grace
        while self._clients.count and asyncio.get_running_loop().time() < end:
            await asyncio.sleep(0.02)
        self._search.stop()
        await self._grpc.stop(min(1.0, grace + 0.2))
        self._housekeeping.cancel()
        await asyncio.gather(self._housekeeping, return_exceptions=True)
        await self._release()
        log.info("stopped")

    def reload(self) -> None:
        """Reload the certificates. Open connections and running searches are not affected."""
        if self._certificates is None:
            log.info("nothing to reload: the server has no certificates")
        else:
            self._certificates.reload()

    async def wait(self) -> None:
        """Wait until the server has stopped."""
        await self._grpc.wait_for_termination()

    async def _release(self) -> None:
        if self._writer is not None:
            await self._forwarding.close()
        self._fits.stop()
        await asyncio.to_thread(self._fits.close)
        if self._given is None:  # before the threads: closing abandons seals and merges, which may take minutes
            await asyncio.to_thread(self._database.close)
        await asyncio.to_thread(self._storage.close)
        await asyncio.to_thread(self._searcher.close)

    async def _check_files(self) -> None:
        """Let health checks fail while files of the database are lost."""
        problems = await asyncio.to_thread(file_problems, self._database)
        if problems != self._problems:
            for problem in problems:
                log.error("not healthy: %s", problem)
            if not problems:
                log.info("healthy again")
            self._problems = problems
            if self._on_health is not None:
                self._on_health(bool(problems))
        if self._is_serving == bool(problems or self.others_fail):
            self._is_serving = not self._is_serving
            await self._report_health()

    async def _report_health(self) -> None:
        states = health_pb2.HealthCheckResponse
        for name in ("", *self._names):
            await self._health.set(name, states.SERVING if self._is_serving else states.NOT_SERVING)

    async def _do_housekeeping(self) -> None:
        """Periodically let go of old snapshots, look at the files, and release memory after many calls have ended.

        A step that fails does not prevent the others. Its error is logged once, until the step succeeds again.
        """
        steps = self._search.expire, self._items.expire, self._refresh, self._check_files, self._release_memory
        failing = set()
        while True:
            await asyncio.sleep(min(HOUSEKEEPING_SECONDS, self.config.snapshot_seconds / 4))
            for step in steps:
                try:
                    await step()
                    failing.discard(step)
                except Exception:
                    if step not in failing:
                        log.exception("housekeeping failed; the server goes on, and tries again")
                    failing.add(step)

    async def _refresh(self) -> None:
        if self._writer is not None:
            await asyncio.to_thread(self._database.indexes.refresh)

    async def _release_memory(self) -> None:
        if self._clients.peak >= max(CROWD, 2 * self._clients.count):
            self._clients.peak = self._clients.count
            await asyncio.to_thread(release_memory)
