"""Starts real servers for tests, each in its own process on a free port, and reads their logs and resource usage."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import grpc
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from whamming.v1.index_pb2_grpc import IndexServiceStub
from whamming.v1.item_pb2_grpc import ItemServiceStub
from whamming.v1.search_pb2_grpc import SearchServiceStub

PATIENCE = 30.0
"""A test fails if something does not happen within this many seconds."""
SETTLING = 60.0
"""Seconds within which a server must free its resources. gRPC keeps idle threads of its pool for 20 s."""
POOL = 16
"""The largest number of threads in gRPC's own pool. It does not depend on the number of clients."""
COMPLAINTS = ("Traceback", "unexpected error", "a query failed", "never retrieved", "never awaited", "was destroyed")
"""A healthy server logs none of these."""


def wait_until(condition: Callable[[], object], what: str = "it") -> None:
    """Wait until a condition is true. Another thread or process makes it true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:.0f} seconds"
        time.sleep(0.005)


@dataclass(frozen=True)
class Usage:
    """Resource usage of a process."""

    rss: int
    """Resident memory in bytes."""
    threads: int
    files: int


class ServerProcess:
    """A server in its own process. Use it in a ``with`` block."""

    def __init__(self, data: Path | str = ":memory:", **options: Any) -> None:
        """``options`` are fields of ``whamming.server.Config``."""
        self.options = {"data": str(data), "threads": 2, "log_level": "warning", **options}
        """Used by :meth:`start`, so a restarted server may have others."""
        self._log = tempfile.TemporaryFile("w+b")  # noqa: SIM115 - closed by __exit__
        self.address = "127.0.0.1:0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()
        self._log.close()

    def start(self) -> None:
        """Start the server, or restart it on the same port."""
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        command = [sys.executable, "-m", "whamming", "serve", "--listen", self.address, *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self._log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line.startswith("listening on "), line + self.log()
        self.address = line.split()[-1]

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._wait()

    def kill(self) -> None:
        """Send SIGKILL."""
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")

    def check_log(self) -> None:
        """Check that the log has no unexpected errors."""
        text = self.log()
        assert not any(complaint in text for complaint in COMPLAINTS), text

    def usage(self) -> Usage:
        proc = Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        files = len(list((proc / "fd").iterdir()))
        names = []
        for task in (proc / "task").iterdir():
            with contextlib.suppress(OSError):  # the thread may have ended
                names.append((task / "comm").read_text())
        threads = sum(not name.startswith("event_engine") for name in names)  # gRPC's pool varies in size
        assert len(names) - threads <= POOL
        return Usage(int(fields["VmRSS"].split()[0]) << 10, threads, files)

    def cpu_seconds(self) -> float:
        """Return the CPU time that all threads have used so far."""
        return time.clock_gettime((~self.process.pid << 3) | 2)  # the clock of clock_getcpuclockid(pid)

    def settled(self, before: Usage, rss: int) -> Usage:
        """Wait until the server has no more threads and files than before, and at most ``rss`` more bytes of memory.

        Returns the usage at that time.
        """

        def is_back() -> bool:
            now = self.usage()
            return now.threads <= before.threads and now.files <= before.files and now.rss <= before.rss + rss

        end = time.monotonic() + SETTLING
        while not is_back():
            assert time.monotonic() < end, f"before: {before}, {SETTLING} s afterwards: {self.usage()}"
            time.sleep(0.02)
        return self.usage()

    @contextlib.contextmanager
    def stubs(self, **options: Any) -> Iterator[Stubs]:
        """Connect with the generated gRPC stubs instead of the Whamming client."""
        with grpc.insecure_channel(self.address, options=list(options.items())) as channel:
            yield Stubs(channel)


@dataclass(frozen=True)
class Details:
    """The message and the machine-readable details of a gRPC status."""

    message: str
    reason: str
    field: str
    """The name of the invalid field; empty if none is named."""
    retry_seconds: float
    """Seconds to wait before a retry; 0 if the status does not suggest one."""


def details_of(error: grpc.RpcError) -> Details:
    """Return the details of a failed call's status. Checks that they are consistent."""
    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error.code()}, {error.details()}"
    info, fault, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    kinds = [detail.TypeName() for detail in status.details]
    assert len(set(kinds)) == len(kinds)
    for detail in status.details:
        assert detail.Unpack(info) or detail.Unpack(fault) or detail.Unpack(retry), kinds
    assert info.domain == "whamming"
    fields = [violation.field for violation in fault.field_violations]
    assert len(fields) <= 1
    assert all(violation.description == status.message for violation in fault.field_violations)
    delay = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return Details(status.message, info.reason, fields[0] if fields else "", delay)


class Stubs:
    """The generated stubs of all three services, on one channel."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.indexes: Any = IndexServiceStub(channel)  # type: ignore[no-untyped-call]
        self.items: Any = ItemServiceStub(channel)  # type: ignore[no-untyped-call]
        self.search: Any = SearchServiceStub(channel)  # type: ignore[no-untyped-call]
