"""Serving until told to stop: one process, or several that share the port and the database.

Of several, the first one writes. The others open the database for reading, answer searches, and pass everything else on
to the first one through a socket of their own. The kernel deals connections out to them, so that many clients are
spread over the processes; one connection is served by one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from whamming.native import InvalidArgumentError, keep_memory
from whamming.server.app import Server
from whamming.server.config import Config
from whamming.storage import StorageError

log = logging.getLogger("whamming.server")

RESTART_SECONDS: Final = 1.0
"""A process that has died is started again after so long."""


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM; ``announce`` is called with the address when every process serves.

    SIGHUP reloads the certificates. A terminal sends it, too, when it is closed: the server goes on.
    """
    if config.workers > 1 and config.data == ":memory:":
        raise InvalidArgumentError(
            f"{config.workers} workers share a directory, and :memory: is none; give --data DIR, or one worker"
        )
    _tune_process()
    uvloop.run(_serve(config, announce))


def _tune_process() -> None:
    """Set what only a process that does nothing but serve should set.

    Freed memory is kept for the next group of queries. The garbage collector looks for cycles less often: a server
    makes many short-lived objects, and few of them form cycles.
    """
    keep_memory()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for told in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(told, stopped.set)
    with tempfile.TemporaryDirectory(prefix="whamming-") as directory:
        socket = f"unix:{Path(directory) / 'writer'}" if config.workers > 1 else None
        server = Server(config, also_listen=socket)
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
                    reader = _Reader(shared, socket, number)
                    readers.append(reader)
                    await running.enter_async_context(reader)
            announce(server.address)
            await stopped.wait()


class _Reader:
    """A process that reads; started again if it dies, until it is told to stop by the end of its standard input."""

    def __init__(self, config: Config, writer: str, number: int) -> None:
        self._told = json.dumps({"config": dataclasses.asdict(config), "writer": writer}) + "\n"
        self._number = number
        self._serves = False
        """Before that, a signal would end it."""

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
        """Have the process read its certificates again; one that is about to start reads them anyway."""
        if self._serves:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.send_signal(signal.SIGHUP)

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "whamming.server.serve")
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._told.encode())
        if not await self._process.stdout.readline():
            raise StorageError(f"server process {self._number} did not start; see its messages above")
        self._serves = True

    async def _watch(self) -> None:
        while True:
            code = await self._process.wait()
            self._serves = False
            log.error("server process %d ended with code %d; starting it again", self._number, code)
            await asyncio.sleep(RESTART_SECONDS)
            with contextlib.suppress(StorageError):
                await self._start()


async def _read() -> None:
    """Be a process that reads."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    told = json.loads(await stdin.readline())
    config = Config(**told["config"])
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    async with Server(config, writer=told["writer"]) as server:
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        print("ready", flush=True)
        await stdin.read()


if __name__ == "__main__":
    _tune_process()
    uvloop.run(_read())
