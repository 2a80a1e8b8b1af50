"""Servers of the peers as processes: started on a core, waited for, measured, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

START_SECONDS = 120
"""How long a server may take until it answers."""

QUIET_SHARE = 0.1
"""A server whose processes use less than this share of a core has finished its work in the background."""


def spawn(args: list[str], core: int | None, log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a server on one core, in a session of its own, its output to a file."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # inherited by the child
    try:
        with log.open("wb") as out:
            return subprocess.Popen(args, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def megabytes(pid: int) -> float:
    """Return the memory of a process and its descendants; what they share is counted once."""
    total = 0
    for member in family(pid):
        try:
            rows = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total * 1024 / 1e6


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process and its descendants have used."""
    ticks = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(pid: int, seconds: float = 900) -> None:
    """Wait until a server has finished what it does in the background, such as merging and indexing again."""
    window, deadline = 5.0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = busy_seconds(pid)
        time.sleep(window)
        if busy_seconds(pid) - before < QUIET_SHARE * window:
            return
    print(f"process {pid} is still busy after {seconds:.0f} s; its neighbours are measured with it", file=sys.stderr)


def wait_until(ready: Callable[[], object], server: subprocess.Popen[Any], log: Path) -> None:
    """Call ``ready`` until it no longer raises."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ready()
            return
        except Exception as error:
            if server.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                raise RuntimeError(f"{server.args!r} does not answer: {error}\n{tail}") from error
            time.sleep(0.2)


def end(server: subprocess.Popen[Any] | None, how: signal.Signals = signal.SIGINT) -> None:
    """End a server that was started with a session of its own, gently at first."""
    if server is None or server.poll() is not None:
        return
    server.send_signal(how)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def lacking(requirements: tuple[str, ...]) -> list[str]:
    """Return those requirements whose distribution is not installed."""
    absent = []
    for requirement in requirements:
        try:
            metadata.version(requirement.partition("[")[0].partition("=")[0].partition(">")[0])
        except metadata.PackageNotFoundError:
            absent.append(requirement)
    return absent
