"""Kills a server a thousand times while clients use it, and checks that no promise is broken.

    python -m tests.server.torture --cycles 1000 --workers 3 --seed 0

Six clients write, read and search all the time (``torture_client``). Each cycle kills the server with SIGKILL: all its
processes, only the writer, or only a reader. Each client checks its own answers: its writes are read back, a search
that crosses a kill resumes in exact order, and so does a scan. Between a kill of the writer and the restart, this
process compares the files with a model: all writes that were acknowledged are there, in order, and those under way are
there message by message or not at all. Restarts must be quick, and no log may have a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO

import numpy as np

import whamming
from tests.server.torture_model import (
    DOCS,
    FIRST_STATIC,
    LANES,
    QUICK,
    QUICK_ITEMS,
    Board,
    Model,
    box_name,
    check_items,
    ids_of,
    match_writes,
    payload_of,
    write_of,
)
from tests.serving import COMPLAINTS, ServerProcess
from tests.storage.item_checks import BITS, BrokenPromiseError, Ids, Versions, codes_of
from whamming import Database, StoredIndex
from whamming.storage import StorageError

LONGEST_RESTART = 5.0
"""Seconds of CPU time that the writer may take until it is ready. It normally takes less than one. Unlike the time on
the clock, this does not depend on what else the machine does."""
STUCK = 300.0
"""Seconds within which anything else must happen that should take one or two, even on a busy machine."""
VERIFY_EVERY = 25
"""Number of cycles between two verifications of every byte."""
PROGRESS = 4 * LANES
"""Calls that the clients make between a restart and the next kill, at least."""


@dataclass(frozen=True)
class Kill:
    """How a server dies."""

    what: str
    """``server`` (all its processes), ``writer`` or ``reader``."""
    seconds: float
    """Time from when the clients use the server again; or from its start, if it is starting."""
    starting: bool = False
    """Whether it dies before it is ready."""

    def __str__(self) -> str:
        return f"{self.what}, starting" if self.starting else self.what


def random_kills(cycles: int, workers: int, seed: int) -> Iterator[Kill]:
    """Yield kills of servers with a number of processes."""
    rng = np.random.default_rng([seed, 2**32 - 4])
    for _ in range(cycles):
        what = "server" if workers == 1 else str(rng.choice(["server", "writer", "reader"], p=[0.4, 0.3, 0.3]))
        starting = what != "reader" and bool(rng.random() < 0.1)
        yield Kill(what, float(rng.uniform(0.0, (1.5 if workers > 1 else 0.6) if starting else 0.5)), starting)


@dataclass
class Summary:
    """The results of a run."""

    workers: int
    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    unfinished: int = 0
    """Writes under way when a server was killed."""
    survived: int = 0
    """How many of these were in the files, at least in part."""
    restarts: list[float] = field(default_factory=list)
    """Seconds from the start of a server until it was ready."""
    restart_work: float = 0.0
    """The longest CPU time of these."""
    orphans: float = 0.0
    """The longest time that readers have outlived their writer."""
    compared: int = 0
    verified: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        counts = self.counts
        lines = [
            f"kills            {self.kills.total():,} of servers with {self.workers} processes in {self.seconds:.0f} s "
            f"(seed {self.seed}): " + ", ".join(f"{count:,} {what}" for what, count in sorted(self.kills.items())),
            f"calls            {counts.get('calls', 0):,} of {LANES} clients",
            f"acknowledged     {self.acknowledged:,} writes; {self.unfinished:,} unfinished ({self.survived:,} kept)",
            f"searches         {counts.get('searches', 0):,}, of which {counts.get('crossed', 0):,} crossed a kill; "
            f"{counts.get('hits', 0):,} hits of long searches",
            f"others           {counts.get('scans', 0):,} scans, {counts.get('box_done', 0):,} indexes created, filled "
            f"or dropped, {counts.get('maintained', 0):,} seals and compactions",
            f"compared         {self.compared:,} times with the model; {self.verified:,} times verified byte by byte",
        ]
        if self.restarts:
            lines.append(
                f"restarts         {median(self.restarts):.1f} s (median), {max(self.restarts):.1f} s (slowest), "
                f"{self.restart_work:.2f} s of CPU time (longest); readers outlived their writer by up to "
                f"{self.orphans:.1f} s"
            )
        return "\n".join([*lines, *(f"PROBLEM          {problem}" for problem in self.problems)])


class TorturedServer(ServerProcess):
    """A server on a fixed port whose processes can be killed one by one."""

    def __init__(self, data: Path, workers: int) -> None:
        super().__init__(data, workers=workers, grace_seconds=0.2)
        self.address = f"127.0.0.1:{free_port()}"
        self._checked = 0

    def readers(self) -> list[int]:
        """Return the process ids of the readers."""
        found = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += [int(pid) for pid in (task / "children").read_text().split()]
        return [pid for pid in found if b"whamming.server.serve" in _read(f"/proc/{pid}/cmdline")]

    def new_complaints(self) -> str:
        """Return what the log says since the last call, if there is an unexpected error in it."""
        text = os.pread(self._log.fileno(), 1 << 24, self._checked).decode(errors="replace")
        self._checked += len(text.encode()) - len(text.rpartition("\n")[2].encode())
        return text if any(complaint in text for complaint in COMPLAINTS) else ""


def free_port() -> int:
    """Return a free port outside the range of temporary ports.

    While the server is away, no client that connects can be given the server's port as its own.
    """
    for port in np.random.default_rng().permutation(np.arange(20_000, 32_000)).tolist():
        with socket.socket() as attempt, contextlib.suppress(OSError):
            attempt.bind(("127.0.0.1", port))
            return int(port)
    raise OSError("no free port from 20,000 to 32,000")


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _is_alive(pid: int) -> bool:
    state = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return bool(state) and state[0] != b"Z"


class Clients:
    """The processes with the clients."""

    def __init__(self, address: str, board: Path, seed: int, log: Path) -> None:
        self._log: IO[bytes] = log.open("w+b")
        command = (sys.executable, "-m", "tests.server.torture_client")
        lanes = [str(lane) for lane in range(LANES)]
        self._processes = [
            subprocess.Popen([*command, kind, address, str(board), str(seed), *own], stderr=self._log)
            for kind, own in (("blocking", lanes[::2]), ("asyncio", lanes[1::2]))
        ]

    def check(self) -> None:
        """Raise an error if one of them has ended or complained."""
        text = self.log()
        if any(process.poll() is not None for process in self._processes) or text:
            raise BrokenPromiseError(f"a client failed:\n{text}")

    def log(self) -> str:
        """Return what they wrote, without what gRPC writes for information."""
        text = os.pread(self._log.fileno(), 1 << 20, 0).decode(errors="replace")
        return re.sub(r"^(?:I\d{4} |WARNING: All log messages before).*\n", "", text, flags=re.M)

    def wait(self) -> None:
        """Wait until all have ended, after the board was told to stop."""
        for process in self._processes:
            try:
                code = process.wait(STUCK)
            except subprocess.TimeoutExpired as error:
                raise BrokenPromiseError("a client's call did not end although the server is there") from error
            if code or self.log():
                raise BrokenPromiseError(f"a client ended with exit code {code}:\n{self.log()}")

    def kill(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._log.close()


class Torture:
    """A database whose servers are killed, and a model of what it must contain."""

    def __init__(self, directory: Path, workers: int, seed: int, rows: int = 3000) -> None:
        """Create the database, with ``rows`` items that never change besides those of the clients."""
        self.path = directory / "database"
        self._directory = directory
        self._seed = seed
        self._models = [Model(lane) for lane in range(LANES)]
        self._replayed = [0] * LANES
        self._static = np.arange(FIRST_STATIC, FIRST_STATIC + rows, dtype=np.uint64)
        self._board = Board(directory / "board", create=True)
        self._server = TorturedServer(self.path, workers)
        self.summary = Summary(workers, seed)
        with whamming.open(self.path) as database:
            index = database.create_index(DOCS, BITS)
            index.upsert(self._static, codes_of(self._static, 1), [payload_of(1)] * rows)
            index.seal()
            database.create_index(QUICK, BITS, durability="async")

    def run(self, kills: Iterable[Kill], *, aloud: bool = False) -> Summary:
        """Go through some cycles. Stops when a promise is broken."""
        started = time.monotonic()
        summary = self.summary
        with self._server:
            clients = Clients(
                self._server.address, self._directory / "board", self._seed, self._directory / "clients.log"
            )
            try:
                for kill in kills:
                    self._wait_for_calls(clients)
                    self._go_through(kill)
                    summary.kills[str(kill)] += 1
                    if aloud and summary.kills.total() % 25 == 0:
                        say(self._progress(time.monotonic() - started))
                self._wait_for_calls(clients)
                self._board.stop()
                clients.wait()
                self._finish()
            except (BrokenPromiseError, StorageError, AssertionError) as error:
                summary.problems.append(f"cycle {summary.kills.total()}: {type(error).__name__}: {error}")
            finally:
                clients.kill()
                log = self._server.log()
                (self._directory / "server.log").write_text(log)
                summary.counts = {name: int(self._board.row(name).sum()) for name in Board.FIELDS}
                summary.acknowledged = summary.counts["acknowledged"] + summary.counts["quick_safe"]
                summary.seconds = time.monotonic() - started
        return summary

    def _progress(self, seconds: float) -> str:
        calls, crossed = int(self._board.row("calls").sum()), int(self._board.row("crossed").sum())
        return f"{self.summary.kills.total()} kills, {seconds:.0f} s, {calls:,} calls, {crossed:,} searches crossed"

    def _wait_for_calls(self, clients: Clients) -> None:
        """Wait until the clients use the server."""
        wanted = int(self._board.row("calls").sum()) + PROGRESS
        end = time.monotonic() + STUCK
        while int(self._board.row("calls").sum()) < wanted:
            clients.check()
            if time.monotonic() > end:
                raise BrokenPromiseError(f"the clients made fewer than {PROGRESS} calls in {STUCK:.0f} s")
            time.sleep(0.005)
        clients.check()

    # -- killing -------------------------------------------------------------------------------------------------------

    def _go_through(self, kill: Kill) -> None:
        """Kill, compare the files with the model, and restart."""
        if not kill.starting:
            time.sleep(kill.seconds)
        if kill.what == "reader":
            self._kill_reader()
        else:
            self._board.begin_kill(self.summary.workers * (2 if kill.starting else 1))
            self._kill_server(kill.what)
            self._check_files()
            if kill.starting:
                self._start_and_kill(kill)
            self._restart()
            self._board.end_kill()
        if complaints := self._server.new_complaints():
            raise BrokenPromiseError(f"the server complained:\n{complaints}")

    def _kill_reader(self) -> None:
        readers = self._server.readers()  # may be none, if the last ones were just killed
        for pid in readers[:1]:
            self._board.begin_kill(1)
            os.kill(pid, signal.SIGKILL)
            _wait_for_end([pid])
            self._board.end_kill()

    def _kill_server(self, what: str) -> None:
        """Kill the writer, and with ``what="server"`` the readers, too. Waits until all have ended."""
        readers = self._server.readers()
        self._server.process.kill()
        if what == "server":
            for pid in readers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        self._server.process.wait()
        if what == "writer":  # the files are compared while readers are still there
            self._check_files()
        _wait_for_end(readers)
        self.summary.orphans = max(self.summary.orphans, time.monotonic() - killed)
        assert self._server.process.stdout is not None
        self._server.process.stdout.close()

    def _restart(self) -> None:
        started = time.monotonic()
        self._server.start()
        work = self._server.cpu_seconds()
        self.summary.restarts.append(time.monotonic() - started)
        self.summary.restart_work = max(self.summary.restart_work, work)
        if work > LONGEST_RESTART:
            raise BrokenPromiseError(f"a restart took {work:.1f} s of CPU time; the limit is {LONGEST_RESTART} s")

    def _start_and_kill(self, kill: Kill) -> None:
        """Start the server and kill it, most often before it is ready."""
        before = self._server.process
        starting = threading.Thread(target=self._try_to_start, daemon=True)
        starting.start()
        while self._server.process is before:
            time.sleep(0.001)
        time.sleep(kill.seconds)
        self._kill_server(kill.what)
        starting.join()
        self._check_files()

    def _try_to_start(self) -> None:
        with contextlib.suppress(AssertionError):  # it was killed before it was ready
            self._server.start()

    # -- checking ------------------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        """Compare the files with the model, while no server runs and all clients wait for one."""
        summary = self.summary
        summary.compared += 1
        acknowledged = {name: self._board.row(name).tolist() for name in ("acknowledged", "quick_safe", "box_done")}
        started = {name: self._board.row(name).tolist() for name in ("started", "quick_started", "box_started")}
        with whamming.open(self.path, mode="r") as database:
            docs, quick = database.index(DOCS), database.index(QUICK)
            for lane in range(LANES):
                self._check_lane(docs, lane, acknowledged["acknowledged"][lane], started["started"][lane])
                self._check_quick(quick, lane, acknowledged["quick_safe"][lane], started["quick_started"][lane])
                self._check_box(database, lane, acknowledged["box_done"][lane], started["box_started"][lane])
            if len(docs) < len(self._static):
                raise BrokenPromiseError(f"{len(docs)} items, fewer than the {len(self._static)} that nobody changes")
            if summary.compared % VERIFY_EVERY == 1:
                self._verify(database)

    def _check_lane(self, docs: StoredIndex, lane: int, acknowledged: int, started: int) -> None:
        model = self._models[lane]
        for number in range(self._replayed[lane] + 1, acknowledged + 1):
            model.apply_write(write_of(self._seed, lane, number))
        self._replayed[lane] = acknowledged
        found = _versions(docs, ids_of(lane))
        under_way = [write_of(self._seed, lane, number) for number in range(acknowledged + 1, started + 1)]
        kept = _copy(model)
        self.summary.unfinished += len(under_way)
        self.summary.survived += match_writes(kept, found, under_way)

    def _check_quick(self, quick: StoredIndex, lane: int, safe: int, started: int) -> None:
        versions = set(_versions(quick, ids_of(lane, QUICK_ITEMS)).tolist())
        if len(versions) != 1 or not safe <= min(versions) <= started:
            raise BrokenPromiseError(f"client {lane}: versions {versions} in {QUICK!r}, not one of {safe} to {started}")

    def _check_box(self, database: Database, lane: int, done: int, started: int) -> None:
        """Check the index that a client creates, fills and drops: the last call may or may not have had an effect."""
        names = {name for name in database.list_indexes() if name.startswith(f"box-{lane}-")}
        possible = []
        for step in range(done, started + 1):
            name = box_name(lane, step)
            count = len(database.index(name)) if name in names else -1
            possible.append((set() if step % 3 == 0 else {name}, (-1, 0, QUICK_ITEMS)[step % 3]))
            if (names, count) == (possible[-1][0], possible[-1][1]):
                return
        raise BrokenPromiseError(f"client {lane} has the indexes {names}, not one of {possible}")

    def _verify(self, database: Database) -> None:
        self.summary.verified += 1
        for name, report in database.verify().items():
            if not report.ok:
                raise BrokenPromiseError(f"verify() of {name!r} found: {report.problems[0]}")
        if (_versions(database.index(DOCS), self._static) != 1).any():
            raise BrokenPromiseError("an item has changed that nobody writes")

    def _finish(self) -> None:
        """Stop the server and check that everything is there that was acknowledged, and nothing else."""
        if self._server.stop() != 0:
            raise BrokenPromiseError("the server did not stop with exit code 0")
        if complaints := self._server.new_complaints():
            raise BrokenPromiseError(f"the server complained:\n{complaints}")
        self._check_files()
        with whamming.open(self.path) as database:
            self._verify(database)
            count = sum(len(model.items[0]) for model in self._models) + len(self._static)
            if len(database.index(DOCS)) != count:
                raise BrokenPromiseError(f"{len(database.index(DOCS))} items at the end, not {count}")
        left = {entry.name for entry in self.path.iterdir() if entry.name.startswith(".")}
        if left:
            raise BrokenPromiseError(f"left in the directory: {left}")
        started, acknowledged = self._board.row("started"), self._board.row("acknowledged")
        if not np.array_equal(started, acknowledged):
            raise BrokenPromiseError(f"{started - acknowledged} writes have not ended")


def _copy(model: Model) -> Model:
    copy = Model(model.lane)
    copy.versions = model.versions.copy()
    return copy


def _versions(index: StoredIndex, ids: Ids) -> Versions:
    """Return the versions of items; 0 if one does not exist."""
    items = index.get(ids)
    found = np.flatnonzero(items.found)
    versions = np.zeros(len(ids), dtype=np.uint64)
    versions[found] = check_items(ids[found], items.codes[found], [items.payloads[row] for row in found])
    return versions


def _wait_for_end(pids: list[int]) -> None:
    end = time.monotonic() + STUCK
    while any(map(_is_alive, pids)):
        if time.monotonic() > end:
            raise BrokenPromiseError(f"processes {pids} live on {STUCK:.0f} s after their writer was killed")
        time.sleep(0.005)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run from the command line. Returns 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=1, help="processes of the server")
    parser.add_argument("--seed", type=int, default=None, help="seed of kills and calls (default: random)")
    options = parser.parse_args()
    seed = int(np.random.SeedSequence().generate_state(1)[0]) if options.seed is None else options.seed
    say(f"seed {seed}")
    directory = Path(tempfile.mkdtemp(prefix="whamming-torture-"))
    torture = Torture(directory, options.workers, seed)
    summary = torture.run(random_kills(options.cycles, options.workers, seed), aloud=True)
    print(summary, flush=True)
    if summary.problems:
        print(f"repeat: python -m tests.server.torture --cycles {options.cycles} --workers {options.workers} "
              f"--seed {seed}   # the moments differ from run to run")  # fmt: skip
        print(f"kept: {directory} (database, server.log, clients.log)")
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
