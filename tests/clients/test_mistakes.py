"""Regression tests: mistakes that once cost data or time, or showed a traceback, are refused at once."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming.cli import main
from whamming.native import InvalidArgumentError
from whamming.storage import ClosedError


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        with whamming.connect(server.address) as database:
            docs = database.create_index("docs", 8)
            docs.upsert(np.arange(200), np.arange(200, dtype=np.uint8)[:, None])
        yield server


# -- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["127.0.0.1:7777", "localhost:1", "[::1]:7777", ":memry:", "::"])
def test_open_refuses_the_address_of_a_server(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"\./"):
        whamming.open(path)
    assert list(tmp_path.iterdir()) == []
    with whamming.open(f"./{path}") as database:
        database.create_index("docs", 8)
    with whamming.open(path) as database:
        assert database.list_indexes() == ["docs"], "an existing directory is opened"


@pytest.mark.parametrize(
    ("path", "address"),
    [
        ("http://127.0.0.1:7777", "127.0.0.1:7777"),
        ("https://search.example:7777/path", "search.example:7777"),
        ("HTTP://[::1]:7777/", "[::1]:7777"),
        (Path("http://localhost:7777"), "localhost:7777"),
        ("grpc://search.example", "HOST:PORT"),
        ("file:///tmp/data", "HOST:PORT"),
    ],
)
@pytest.mark.parametrize("mode", ["r", "w"])
def test_open_refuses_urls(
    path: str | Path, address: str, mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match=rf'{re.escape(str(path))} .*connect\("{re.escape(address)}"\)'):
        whamming.open(path, mode=mode)
    assert list(tmp_path.iterdir()) == []
    with whamming.open(f"./{path}") as database:
        database.create_index("docs", 8)


@pytest.mark.parametrize("path", [None, 7, b"data", ["data"]])
def test_open_takes_only_paths(path: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"path = .*directory"):
        whamming.open(path)


def test_databases_cannot_be_pickled_and_say_what_to_do(server: ServerProcess) -> None:
    with whamming.open() as local, whamming.connect(server.address) as remote:
        local.create_index("docs", 8)
        for database in (local, remote):
            docs = database.index("docs")
            for thing in (database, docs, docs.search(np.zeros(1, dtype=np.uint8))):
                with pytest.raises(TypeError, match=r"cannot be pickled.*pass the path or the address"):
                    pickle.dumps(thing)


# -- connecting -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["timeout", "retry_seconds"])
@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "5", None])
@pytest.mark.parametrize("connect", [whamming.connect, whamming.aio.connect])
def test_timeouts_must_be_seconds(connect: Any, seconds: Any, name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{name} = .*seconds"):
        connect("127.0.0.1:1", **{name: seconds})


@pytest.mark.parametrize("tls", ["ca.pem", None, 1])
@pytest.mark.parametrize("connect", [whamming.connect, whamming.aio.connect])
def test_tls_must_be_a_flag_or_tls_settings(connect: Any, tls: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="Tls"):
        connect("127.0.0.1:1", tls=tls)


def test_a_forked_process_cannot_use_the_connection(server: ServerProcess) -> None:
    """Without the error, its calls would wait forever: fork does not copy the threads that they need."""
    script = """
import multiprocessing, sys
import numpy as np
import whamming

def use(act):
    try:
        act()
    except whamming.StorageError as error:
        return f"{type(error).__name__} {'spawn' in str(error)}"

with whamming.connect(sys.argv[1]) as database:
    index = database.index("docs")
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    acts = (lambda: index.search(np.zeros(1, dtype=np.uint8), k=1).all(), lambda: whamming.connect(sys.argv[1]))
    child = context.Process(target=lambda: answers.put([use(act) for act in acts]))
    child.start()
    print(*answers.get(timeout=30))
    child.join(30)
    print(len(index), child.exitcode)
"""
    done = subprocess.run([sys.executable, "-c", script, server.address], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["ClosedError True ClosedError True", "200 0"], done.stderr


def test_closed_event_loops_leave_no_traceback(server: ServerProcess) -> None:
    """A blocking client reads the events of all loops, including loops that were closed during a search."""
    script = """
import asyncio, sys
import numpy as np
import whamming
address = sys.argv[1]
blocking = whamming.connect(address)
async def leave():
    async with whamming.aio.connect(address) as database:
        docs = await database.index("docs")
        async for hit in docs.search(np.zeros(1, dtype=np.uint8)):
            break
for _ in range(15):
    asyncio.run(leave())
    assert len(blocking.index("docs")) == 200
blocking.close()
"""
    done = subprocess.run([sys.executable, "-c", script, server.address], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    path = tmp_path / "codes.npy"
    np.save(path, np.arange(50, dtype=np.uint8)[:, None])
    return path


def run(server: ServerProcess, *words: object) -> int:
    return main([*map(str, words), "--server", server.address])


def test_a_checkpoint_does_not_replace_another_file(
    server: ServerProcess, codes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "notes.json"
    other.write_text('{"rows": 3}')
    for file in (codes, other):
        before = file.read_bytes()
        assert run(server, "import", "docs", codes, "--checkpoint", file) == 1
        assert str(file) in capsys.readouterr().err
        assert file.read_bytes() == before
    assert run(server, "import", "docs", codes, "--checkpoint", tmp_path / "new") == 0
    assert not (tmp_path / "new").exists()


def test_export_replaces_a_file_only_with_overwrite(
    server: ServerProcess, codes: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = codes.read_bytes()
    assert run(server, "export", "docs", codes) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert codes.read_bytes() == before
    (tmp_path / "other.ids.npy").write_bytes(b"mine")
    assert run(server, "export", "docs", tmp_path / "other.npy") == 1
    assert run(server, "export", "docs", codes, "--overwrite") == 0
    assert codes.read_bytes() != before


def test_encoder_replaces_a_file_only_with_overwrite(
    server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with whamming.connect(server.address) as database:
        database.create_index("vectors", encoder="sign", dim=8, exist_ok=True)
    file = tmp_path / "encoder"
    assert run(server, "encoder", "vectors", file) == 0
    assert run(server, "encoder", "vectors", file) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert run(server, "encoder", "vectors", file, "--overwrite") == 0


def test_commands_report_a_misspelt_environment_variable(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WHAMMING_SERVR", "somewhere:1")
    assert run(server, "list") == 0
    said = capsys.readouterr().err
    assert "WHAMMING_SERVR" in said
    assert "WHAMMING_SERVER" in said


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_closed_search_says_so() -> None:
    with whamming.open() as database:
        docs = database.create_index("docs", 8)
        docs.upsert([1], np.zeros((1, 1), dtype=np.uint8))
        search = docs.search(np.zeros(1, dtype=np.uint8))
        search.close()
        for read in (lambda: search.lower_bound, lambda: search.stats):
            with pytest.raises(ClosedError, match=r"^the search is closed; start a new one$"):
                read()


def test_a_zip_file_that_was_cut_short_says_so(tmp_path: Path) -> None:
    np.savez(tmp_path / "codes.npz", codes=np.zeros((100, 1), dtype=np.uint8))
    data = (tmp_path / "codes.npz").read_bytes()
    (tmp_path / "codes.npz").write_bytes(data[: len(data) // 2])
    with pytest.raises(InvalidArgumentError, match="cut short"):
        whamming.storage.read_codes(tmp_path / "codes.npz", 8)
