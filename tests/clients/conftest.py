"""Fixtures for tests of the command line: a server, directories and filled indexes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.clients.commands import PATIENCE, Cli, Target, listening, start

BITS = 64


@pytest.fixture(scope="session")
def cli_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server that all tests share."""
    data = tmp_path_factory.mktemp("server") / "data"
    options = ("--data", data, "--threads", "1", "--log-level", "warning")
    with start("serve", "--listen", "127.0.0.1:0", *options) as process:
        yield listening(process)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, err) == (0, "", "")


@pytest.fixture(params=["server", "directory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    """The options for a server, or for a directory."""
    if request.param == "server":
        return ("--server", request.getfixturevalue("cli_server"), "--timeout", "30")
    return ("--data", str(tmp_path / "data"))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """An index name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.nodeid.rpartition("/")[2]).strip("-")


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("WHAMMING_SERVER", raising=False)
    return Cli(capsys)


@pytest.fixture
def codes(tmp_path: Path) -> Path:
    """A file of 20,000 codes of 64 bits."""
    path = tmp_path / "codes.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (20_000, BITS // 8), dtype=np.uint8))
    return path


@pytest.fixture
def filled(cli: Cli, target: Target, name: str, codes: Path) -> Target:
    """A target with an index of these codes, named ``name``."""
    cli("create", name, "--bits", "64", *target).ok()
    cli("import", name, codes, *target).ok()
    return target


@pytest.fixture
def directory(cli: Cli, tmp_path: Path, codes: Path) -> Path:
    """A directory with a sealed index ``docs`` of these codes."""
    data = tmp_path / "data"
    for words in (("create", "docs", "--bits", "64"), ("import", "docs", codes), ("seal", "docs")):
        cli(*words, "--data", data).ok()
    return data
