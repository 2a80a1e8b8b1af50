"""Runs the command ``whamming`` in tests: in its own process, on a terminal, or in this process, which is faster."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from whamming.cli import main

PATIENCE = 30.0
"""Seconds to wait for something before the test fails."""
COMMAND = (sys.executable, "-m", "whamming")
PYTHON = re.compile(
    r"""\b(None|True|False|self|np|dtype)\b | \w=['\[] | \b\w+\ =\ ['\[] | \*\* | Errno | <U | _ssl | Traceback |
    \(\d+, | \b[A-Z]\w+(Error|Settings)\b | \w\(' | allow_pickle | fromhex | \b(int|float|str)\ value""",
    re.VERBOSE,
)
"""Traces of Python that must not occur in a message of the command line."""


@dataclass(frozen=True)
class Done:
    """The result of a command."""

    code: int
    out: str
    err: str

    def ok(self) -> Done:
        """Expect success, with nothing on standard error."""
        assert (self.code, self.err) == (0, ""), self
        return self

    @property
    def records(self) -> list[dict[str, Any]]:
        """The JSON objects that the command printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def record(self) -> dict[str, Any]:
        (record,) = self.records
        return record

    def refused(self, code: int, *words: str) -> None:
        """Expect a failure with a one-line message that contains some words."""
        lines = self.err.splitlines()
        assert self.code == code, self
        assert len(lines) == 1, self
        assert lines[0].startswith("whamming: error: "), self
        assert all(word in lines[0] for word in words), self
        assert "this is a bug" in lines[0] or not PYTHON.search(lines[0]), self


def environment(**variables: str) -> dict[str, str]:
    """Return the environment without our variables and gRPC's, plus the given ones."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("WHAMMING_", "GRPC_"))}
    return {**kept, "COLUMNS": "100", **variables}


def start(*args: str | Path, **options: Any) -> subprocess.Popen[str]:
    """Start a command in its own process."""
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([*COMMAND, *map(str, args)], text=True, **{**pipes, "env": environment(), **options})


@contextmanager
def terminated(process: subprocess.Popen[str]) -> Iterator[None]:
    """Terminate a server at the end of the block, even if the test fails."""
    try:
        yield
    finally:
        process.terminate()


def finish(process: subprocess.Popen[str]) -> Done:
    """Wait for a command to end."""
    out, err = process.communicate(timeout=PATIENCE)
    return Done(process.returncode, out or "", err or "")


def run(*args: str | Path, **options: Any) -> Done:
    """Run a command in its own process."""
    with start(*args, **options) as process:
        return finish(process)


def run_on_terminal(*args: str | Path, answer: str = "") -> tuple[int, str]:
    """Run a command on a terminal. Returns its exit code and what the terminal showed."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 120))
    with start(*args, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, answer.encode())
        seen = b""
        end = time.monotonic() + PATIENCE
        with suppress(OSError):  # the other end is closed
            while time.monotonic() < end:
                if select.select([ours], [], [], 0.1)[0]:
                    seen += os.read(ours, 65_536)
        os.close(ours)
        return process.wait(PATIENCE), seen.decode()


class Cli:
    """Runs commands in this process, without the time that a new one takes to start."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: str | Path) -> Done:
        self._capsys.readouterr()
        code = main([*map(str, args)])
        return Done(code, *self._capsys.readouterr())

    def json(self, *args: str | Path) -> list[dict[str, Any]]:
        """Run a command that succeeds, and return the JSON objects that it prints."""
        return self(*args, "--json").ok().records


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition that another process fulfils."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"it did not happen within {PATIENCE:.0f} seconds"
        time.sleep(0.001)


def listening(process: subprocess.Popen[str]) -> str:
    """Wait until a server listens, and return its address."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("listening on "), line
    return line.split()[-1]


Target = Sequence[str]
"""The options that select a server or a directory."""
