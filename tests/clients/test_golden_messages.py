"""Pins the wording of the most important messages that users see. The other tests check only their facts.

After a deliberate change of wording, rewrite the file and review the difference::

    UPDATE_GOLDEN=1 python -m pytest tests/clients/test_golden_messages.py
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.clients.commands import Cli
from tests.serving import ServerProcess

GOLDEN = Path(__file__).with_name("golden_messages.txt")
HEAD = """\
# The wording of the most important messages that users see. test_golden_messages.py provokes each of them.
# To rewrite this file: UPDATE_GOLDEN=1 python -m pytest tests/clients/test_golden_messages.py
"""
UNUSED_ADDRESS = "127.0.0.1:1"
"""An address without a server."""
BITS, DIM = 16, 4
CODES = np.zeros((2, BITS // 8), dtype=np.uint8)

Use = Callable[[Any], Any]
USES: dict[str, Use] = {
    "create: length out of range": lambda db: db.create_index("new", bits=5000),
    "create: invalid name": lambda db: db.create_index("my docs", bits=BITS),
    "create: the name is taken": lambda db: db.create_index("docs", bits=BITS),
    "open an index that does not exist": lambda db: db.index("dosc"),
    "use a closed index": lambda db: _closed(db.index("codes")).count(),
    "upsert: codes of another length": lambda db: db.index("docs").upsert([1, 2], np.zeros((2, 3), dtype=np.uint8)),
    "upsert: a negative id": lambda db: db.index("docs").upsert([1, -2], CODES),
    "upsert: a payload that is too long": lambda db: db.index("docs").upsert([1, 2], CODES, [b"", bytes(65_537)]),
    "upsert: vectors without an encoder": lambda db: db.index("docs").upsert([1], vectors=np.ones((1, DIM))),
    "search: a code of another length": lambda db: next(db.index("docs").search(np.zeros(3, dtype=np.uint8))),
    "search: a weight that is not a number": lambda db: next(
        db.index("docs").search(CODES[0], weights=[np.nan] * BITS)
    ),
    "search: negative k": lambda db: db.index("docs").search(CODES[0], k=-1),
    "search: rerank without kept vectors": lambda db: next(
        db.index("vectors").search(vector=np.ones(DIM), k=1, rerank=2)
    ),
}
"""Mistakes that are made in this process and on a server."""

COMMANDS = {
    "an unknown command": "serch docs",
    "a missing option": "create new --data DIR/db",
    "a value out of range": "create new --bits 0 --data DIR/db",
    "the name is taken": f"create docs --bits {BITS} --data DIR/db",
    "an index that does not exist": "stats dosc --data DIR/db",
    "a directory that does not exist": "list --data DIR/missing",
    "no server": f"list --server {UNUSED_ADDRESS} --timeout 0.2",
    "a file of another shape": "import docs DIR/wide.npy --data DIR/db",
    "drop without a terminal": "drop docs --data DIR/db",
}
"""Mistakes on the command line."""


def _closed(index: Any) -> Any:
    index.close()
    return index


def fill(database: Any) -> None:
    database.create_index("docs", bits=BITS).upsert([1, 2], CODES)
    database.create_index("codes", bits=BITS)
    database.create_index("vectors", encoder="sign", dim=DIM).upsert([1], vectors=np.ones((1, DIM)))


def error_of(use: Callable[[], Any]) -> str:
    with pytest.raises(whamming.WhammingError) as caught:
        use()
    names = [cls.__name__ for cls in type(caught.value).__mro__]
    public = next(name for name in names if hasattr(whamming, name) or hasattr(whamming.storage, name))
    return f"{public}: {caught.value}"


def messages_of_open(directory: Path) -> dict[str, str]:
    with whamming.open(directory / "db"):
        busy = error_of(lambda: whamming.open(directory / "db"))
    with whamming.open(directory / "db", mode="r") as reader:
        read_only = error_of(lambda: reader.create_index("new", bits=BITS))
    return {
        "open: a directory that does not exist": error_of(lambda: whamming.open(directory / "missing", mode="r")),
        "open: a directory of something else": error_of(lambda: whamming.open(directory)),
        "open: the address of a server": error_of(lambda: whamming.open("localhost:7777")),
        "open: another writer": busy,
        "write to a database that is open for reading": read_only,
    }


def messages_of_connect(address: str) -> dict[str, str]:
    with whamming.connect(address) as database:
        local_only = error_of(database.verify)
    return {
        "connect: a malformed address": error_of(lambda: whamming.connect("http://localhost:7777")),
        "connect: no server": error_of(lambda: whamming.connect(UNUSED_ADDRESS, timeout=0.2)),
        "connect: a server without TLS": error_of(lambda: whamming.connect(address, tls=True, timeout=30)),
        "a method that works only in this process": local_only,
    }


def messages_of_uses(local: Any, remote: Any) -> dict[str, str]:
    """Return one message per mistake, or two if they differ between this process and a server."""
    messages: dict[str, str] = {}
    for what, use in USES.items():
        here, there = error_of(lambda: use(local)), error_of(lambda: use(remote))  # noqa: B023 - called at once
        messages |= {what: here} if here == there else {f"{what} (in process)": here, f"{what} (on a server)": there}
    return messages


def messages_of_commands(cli: Cli, directory: Path) -> dict[str, str]:
    messages: dict[str, str] = {}
    for what, line in COMMANDS.items():
        done = cli(*line.replace("DIR", str(directory)).split())
        messages[f"command line: {what}"] = f"$ whamming {line}\n    exit code {done.code}: {done.err.rstrip()}"
    return messages


def test_messages(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 3), dtype=np.uint8))
    with whamming.open(tmp_path / "db") as stored:
        fill(stored)
    messages = messages_of_open(tmp_path)
    with ServerProcess() as server, whamming.open() as local, whamming.connect(server.address) as remote:
        fill(local)
        fill(remote)
        messages |= messages_of_connect(server.address) | messages_of_uses(local, remote)
    messages |= messages_of_commands(cli, tmp_path)
    blocks = [f"{what}\n    {text}\n" for what, text in messages.items()]
    text = "\n".join([HEAD, *blocks]).replace(str(tmp_path), "DIR").replace(server.address, "SERVER")
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8"), "to accept the new wording, run again with UPDATE_GOLDEN=1"
