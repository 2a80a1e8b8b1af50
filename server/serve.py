"""Serving until told to stop: one process, or several that share the port and the database.

Of several, the first one writes. The others open the database for reading, answer searches, and pass everything else on
to the first one through a socket of their own. The kernel deals connections out to them, so that many clients are
spread over the processes; one connection is served by one process.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvloop

from whamming.native import InvalidArgumentError
from whamming.server.app import Server
from whamming.server.config import Config
from whamming.storage import StorageError

log = logging.getLogger("whamming.server")

RESTART_SECONDS: Final = 1.0
"""A process that has died is started again after so long."""


def run(config: Config, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM. ``announce`` hears the address when every process serves."""
    if config.workers > 1 and config.data == ":memory:":
        raise InvalidArgumentError(
            f"workers = {config.workers} with data = ':memory:'; processes share a directory: give --data DIR"
        )
    uvloop.run(_serve(config, announce))


async def _serve(config: Config, announce: Callable[[str], None]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for told in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(told, stopped.set)
    with tempfile.TemporaryDirectory(prefix="whamming-") as directory:
        socket = f"unix:{Path(directory) / 'writer'}" if config.workers > 1 else None
        async with Server(config, also_listen=socket) as server, contextlib.AsyncExitStack() as readers:
            if socket is not None:
                shared = dataclasses.replace(config, listen=server.address)
                for number in range(1, config.workers):
                    await readers.enter_async_context(_Reader(shared, socket, number))
            announce(server.address)
            await stopped.wait()


class _Reader:
    """A process that reads; started again if it dies, until it is told to stop by the end of its standard input."""

    def __init__(self, config: Config, writer: str, number: int) -> None:
        self._told = json.dumps({"config": dataclasses.asdict(config), "writer": writer}) + "\n"
        self._number = number
        self._stopping = False

    async def __aenter__(self) -> None:
        await self._start()
        self._watching = asyncio.create_task(self._watch())

    async def __aexit__(self, *exc: object) -> None:
        self._stopping = True
        self._watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._watching
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    async def _start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "whamming.server.serve")
        self._process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(self._told.encode())
        if not await self._process.stdout.readline():
            raise StorageError(f"server process {self._number} did not start; see its messages above")

    async def _watch(self) -> None:
        while True:
            code = await self._process.wait()
            log.error("server process %d ended with code %d; starting it again", self._number, code)
            await asyncio.sleep(RESTART_SECONDS)
            with contextlib.suppress(StorageError):
                await self._start()


async def _read() -> None:
    """Be a process that reads."""
    loop = asyncio.get_running_loop()
    stdin = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    told = json.loads(await stdin.readline())
    config = Config(**told["config"])
    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    async with Server(config, writer=told["writer"]):
        print("ready", flush=True)
        await stdin.read()


if __name__ == "__main__":
    uvloop.run(_read())
