"""Run the server until a signal stops it, in one process or in several that share the port and the database.

With several processes, the first one is the writer. The others are readers: they open the database for reading, answer
searches, Get and Scan, and forward all other calls to the writer through a Unix socket. The kernel distributes
connections over the processes. Each connection is served by one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from typing import Final

import uvloop

from whamming.native import keep_memory
from whamming.server.app import Server
from whamming.server.config import Config
from whamming.server.exposure import warnings_of
from whamming.server.shared_health import FAILING, SharedHealth, line_of
from whamming.server.socket_directory import socket_directory
from whamming.storage import StorageError

log = logging.getLogger("whamming.server")

RESTART_SECONDS: Final = 1.0
"""Delay before a reader process that died is restarted, and before each further attempt."""


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. Calls ``announce`` with the address when all processes are ready.

    SIGHUP reloads the certificates. A terminal also sends SIGHUP when it is closed; the server keeps running.
    """
    _tune_process()
    uvloop.run(_serve(config, announce))


def _tune_process() -> None:
    """Tune memory management for a process that only runs the server.

    Freed memory is kept for the next group of queries. The garbage collector runs less often, because a server creates
    many short-lived objects and few of them form cycles.
    """
    keep_memory()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for stop_signal in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop_signal, stopped.set)
    with contextlib.ExitStack() as made:
        socket = f"unix:{made.enter_context(socket_directory()) / 'writer'}" if config.workers > 1 else None
        health = SharedHealth()
        server = Server(config, also_listen=socket, on_health=lambda failing: health.report(0, failing))
        health.follow(functools.partial(setattr, server, "others_fail"))
        readers: list[_Reader] = []

        def reload() -> None:
            if started.is_set():
                server.reload()
            for reader in readers:
                reader.reload()

        loop.add_signal_handler(signal.SIGHUP, reload)
        async with server, contextlib.AsyncExitStack() as running:
            started.set()
            if socket is not None:
                shared = dataclasses.replace(config, listen=server.address)
                for number in range(1, config.workers):
                    reader = _Reader(shared, socket, number, health)
                    readers.append(reader)
                    await running.enter_async_context(reader)
            for text in warnings_of(config):
                log.warning(text)
            announce(server.address)
            await stopped.wait()


class _Reader:
    """A reader process. It is restarted if it dies. Closing its standard input stops it."""

    def __init__(self, config: Config, writer: str, number: int, health: SharedHealth) -> None:
        self._arguments = json.dumps({"config": dataclasses.asdict(config), "writer": writer}) + "\n"
        self._number = number
        self._health = health
        self._is_ready = False
        """Whether it is ready. Before that, SIGHUP would kill it."""
        health.follow(self._tell)

    async def __aenter__(self) -> None:
        await self._start()
        self._watching = asyncio.create_task(self._watch())

    async def __aexit__(self, *exc: object) -> None:
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    def reload(self) -> None:
        """Make the process reload its certificates. A process that is starting reads them anyway."""
        if self._is_ready:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(signal.SIGHUP)

    def _tell(self, failing: bool) -> None:
        """Tell the process whether any process has found a problem. One that is starting is told when it is ready."""
        if self._is_ready and self._process.stdin is not None:
            self._process.stdin.write(line_of(failing))

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-P", "-m", "whamming.server.serve")  # -P: no modules from the working directory
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, stdout=pipe, start_new_session=True
            )
        except OSError as error:  # uvloop's errors do not name the file
            reason = f"{sys.executable} cannot be executed: {error.strerror or error}"
            remedy = "; let this user execute it, or leave --workers out" if isinstance(error, PermissionError) else ""
            raise StorageError(f"server process {self._number} cannot be started: {reason}{remedy}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._arguments.encode())
        if not await self._process.stdout.readline():
            raise StorageError(f"server process {self._number} did not start; see its log messages above")
        self._is_ready = True
        if self._health.fails:
            self._tell(True)

    async def _watch(self) -> None:
        while True:
            assert self._process.stdout is not None
            while line := await self._process.stdout.readline():  # until the process ends
                self._health.report(self._number, line == FAILING)
            self._is_ready = False
            code = await self._process.wait()
            self._health.report(self._number, False)
            log.error("server process %d ended with exit code %d; restarting it", self._number, code)
            await self._restart()

    async def _restart(self) -> None:
        while True:
            await asyncio.sleep(RESTART_SECONDS)
            try:
                return await self._start()
            except (StorageError, OSError) as error:  # for example, too many open files
                log.error("server process %d could not be restarted: %s; retrying", self._number, error)


async def _run_reader() -> None:
    """Run a reader process."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server is ready to reload
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    line = await stdin.readline()
    if not line:  # the writer has died
        return
    arguments = json.loads(line)
    config = Config(**arguments["config"])
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    async with Server(config, writer=arguments["writer"], on_health=lambda failing: _send(line_of(failing))) as server:
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        _send(b"ready\n")
        while line := await stdin.readline():
            server.others_fail = line == FAILING


def _send(line: bytes) -> None:
    """Send a line to the writer."""
    with contextlib.suppress(BrokenPipeError):  # the writer has died; standard input then ends, too
        os.write(sys.stdout.fileno(), line)


if __name__ == "__main__":
    _tune_process()
    uvloop.run(_run_reader())
