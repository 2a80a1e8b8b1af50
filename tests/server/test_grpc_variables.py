"""A server configures gRPC by environment variables."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import whamming
from tests.serving import ServerProcess


def test_a_server_polls_in_one_thread(tmp_path: Path) -> None:
    """The threads of gRPC's event engine would take a fifth of the time of short calls."""
    with ServerProcess(tmp_path / "data") as server, whamming.connect(server.address) as database:
        docs = database.create_index("docs", 8)
        docs.upsert([1], np.array([[1]], dtype=np.uint8))
        for _ in range(500):
            docs.search(np.array([1], dtype=np.uint8), k=1).next(1)
        spent: dict[bool, float] = {True: 0.0, False: 0.0}
        for task in Path(f"/proc/{server.process.pid}/task").iterdir():
            in_pool = (task / "comm").read_text().startswith("event_engine")
            spent[in_pool] += int((task / "schedstat").read_text().split()[0]) / 1e9
    assert spent[True] < 0.05 * spent[False]


def test_a_setting_of_the_user_is_kept() -> None:
    script = "import os; from whamming.server.grpc_variables import *; set_grpc_variables(); print(os.environ[%r])"
    name = "GRPC_EXPERIMENTS"
    for given, kept in (
        (None, "-event_engine_listener,-event_engine_client"),
        ("event_engine_fork", "event_engine_fork"),
    ):
        environment = {key: value for key, value in os.environ.items() if key != name}
        if given is not None:
            environment[name] = given
        done = subprocess.run(
            [sys.executable, "-c", script % name], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == kept


def test_importing_the_configuration_does_not_import_grpc() -> None:
    """gRPC reads its settings on import, so ``set_grpc_variables`` must run before that."""
    script = "import sys, whamming.server, whamming.server.grpc_variables; print('grpc' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


FORKING = """
import asyncio, os
from whamming.server.grpc_variables import set_grpc_variables
set_grpc_variables()
import grpc.aio

async def main():
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    for _ in range(20):
        if (child := os.fork()) == 0:
            os._exit(len(os.listdir("/proc/self/task")))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    await server.stop(0)

asyncio.run(main())
"""


def test_grpc_starts_no_threads_in_forked_children() -> None:
    """They took locks that nobody released, so that a server sometimes waited for ever for a process it had started."""
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["1"] * 20
