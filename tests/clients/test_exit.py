"""A process that exits with open connections ends cleanly and prints nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest

import whamming
from tests.serving import PATIENCE, ServerProcess

N = 50_000

BEGIN = """
    import atexit, sys
    import numpy as np
    import whamming
"""
CONNECT = """
    database = whamming.connect(sys.argv[1])
    index = database.index("docs")
    code = np.zeros(8, dtype=np.uint8)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with whamming.connect(server.address) as database:
            index = database.create_index("docs", 64)
            index.upsert(np.arange(N), np.zeros((N, 8), dtype=np.uint8), [b"payload"] * N)
        yield server
        server.check_log()


def run(server: ServerProcess, *parts: str) -> str:
    """Run a program, and return what it prints."""
    program = "".join(textwrap.dedent(part) for part in parts)
    command = [sys.executable, "-c", program, server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    "left",
    [
        "scan = index.scan(100); next(scan)",
        "search = index.search(code, payloads=True); next(search)",
        "search = index.search(code)",
        "scan, search = index.scan(), index.search(code); next(scan), next(search); index.close()",
    ],
)
def test_exit_with_unfinished_scans_and_searches(server: ServerProcess, left: str) -> None:
    assert run(server, BEGIN, CONNECT, left, "\nprint('done')") == "done\n"


def test_closing_after_the_loop_has_ended(server: ServerProcess) -> None:
    """atexit handlers run in reverse order, so one registered before the client's runs after the loop has ended."""
    early = """
        def close():
            search.close()
            index.close()
            database.close()
            print("closed")
        atexit.register(close)
    """
    assert run(server, BEGIN, early, CONNECT, "search = index.search(code, payloads=True); next(search)") == "closed\n"


@pytest.mark.parametrize(
    "use",
    [
        "len(index)",
        "list(scan)",
        "next(index.scan())",
        "search.all()",
        "index.seal(print)",
        "whamming.connect(sys.argv[1])",
    ],
)
def test_using_a_connection_after_the_loop_has_ended(server: ServerProcess, use: str) -> None:
    early = f"""
        def late():
            try:
                {use}
            except whamming.storage.ClosedError as error:
                print("refused")
        atexit.register(late)
    """
    begun = "search, scan = index.search(code, payloads=True), index.scan(100); next(search), next(scan)"
    assert run(server, BEGIN, early, CONNECT, begun) == "refused\n"
