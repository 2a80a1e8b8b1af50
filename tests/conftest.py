"""Counts generated cases and fails a run that has fewer than ``WHAMMING_CASES``.

A case is one complete answer of the engine, compared with the oracle. ``WHAMMING_CASES`` sets how many cases a run
needs: 10,000 in ``make test``, 1,000,000 in ``make soak``. It also scales the number of Hypothesis examples. If it is
unset, the tests generate as many as for 10,000, but there is no minimum, so a single test can be run alone.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

# pytest-xdist already keeps all cores busy, so NumPy's own threads would only compete with it.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

DEFAULT_CASES = 10_000


class Cases:
    """Number of cases that this process and its workers have compared."""

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
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs with SIGINT ignored, and commands started by tests would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add the count of a pytest-xdist worker."""
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
