"""Counting generated cases: ``WHAMMING_CASES`` says how many, the last line of a run says how many there were.

A case is one whole answer of the engine compared with the oracle's. Set ``WHAMMING_CASES`` to demand that many
(``make test`` does: 10,000; ``make soak``: 1,000,000): the run fails where it made fewer. Hypothesis's examples are
scaled by it. Unset, the tests generate as if it were 10,000 and demand nothing, so that one of them can be run alone.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

# Numpy's own threads would only wait for each other: the tests keep all cores busy as it is.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

DEFAULT_CASES = 10_000


class Cases:
    """How many cases this process, and the processes it started, have compared."""

    def __init__(self) -> None:
        self.count = 0

    def add(self, count: int = 1) -> None:
        self.count += count


_CASES = pytest.StashKey[Cases]()


@pytest.fixture(scope="session")
def cases(pytestconfig: pytest.Config) -> Cases:
    return pytestconfig.stash[_CASES]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_CASES] = Cases()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add what a worker of pytest-xdist has counted."""
    node.config.stash[_CASES].add(getattr(node, "workeroutput", {}).get("cases", 0))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    count = session.config.stash[_CASES].count
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["cases"] = count
    elif count < _demanded() and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash[_CASES].count
    if count:
        short = count < _demanded()
        demand = f", fewer than the {_demanded():,} demanded by WHAMMING_CASES" if short else ""
        terminalreporter.write_line(f"{count:,} generated cases compared with the oracle{demand}", red=short)


def _demanded() -> int:
    return int(os.environ.get("WHAMMING_CASES", "0"))
