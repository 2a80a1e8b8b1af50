"""Kills a writer a thousand times, and checks what is left.

    python -m tests.storage.torture --cycles 1000 --rows 1000000 --seed 0

Each cycle starts a process that writes (``writing_process``), kills it at a random moment or at a named point of
storage, opens the database as the next writer would, and compares it with a model. For each thread of the writer, all
operations that had returned must be there. The one that was running must be complete or absent, and no operation may be
there without those before it. Meanwhile another process reads (``reading_process``).
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

import whamming
from tests.storage import reading_process, writing_process
from tests.storage.item_checks import (
    BITS,
    BrokenPromiseError,
    all_versions,
    codes_of,
    payloads_of,
    some,
    versions_in,
)
from tests.storage.lane_checks import LostWritesError, durable_count, surviving
from tests.storage.reading_process import Report
from tests.storage.writing_process import DONE, INDEX, LANES, Job, Operation
from whamming.storage import StorageError, StoredIndex
from whamming.storage.items.segment import SEGMENT_ARRAYS
from whamming.storage.store import segmented

COMMIT_POINTS = ("before commit", "in commit", "after commit")
SEGMENT_POINTS = (
    "built",
    "stored",
    *(f"stored {name}" for name in SEGMENT_ARRAYS),
    "in install",
    "after install",
    "installed",
)
POINTS = (*COMMIT_POINTS, *SEGMENT_POINTS)
"""The points at which storage can be killed: see :func:`points_in_storage`."""

SLOWEST_REOPEN = 2.0
"""Seconds that reopening may take."""
_STUCK = 60.0
"""Seconds within which a writer must reach its point."""
_AT_ONCE = 100_000

_processes = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Kill:
    """How a writer dies: at the n-th pass of a point, or after some seconds."""

    point: str | None
    passes: int = 1
    seconds: float = 0.0
    compacts: bool = False
    """Whether the writer merges everything, at about its sixth operation."""


@dataclass
class Summary:
    """The results of a run."""

    rows: int
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: int = 0
    """Writes that had returned, or whose flush had."""
    unfinished: int = 0
    """Writes that had not returned when the writer was killed."""
    survived: int = 0
    """How many of these are in the database."""
    lost: int = 0
    corrupt_opens: int = 0
    slowest_reopen: float = 0.0
    seals: int = 0
    compactions: int = 0
    verified: int = 0
    reader: Report | None = None
    file_bytes: int = 0
    used_bytes: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether there were no problems."""
        return not self.problems

    def __str__(self) -> str:
        lines = [
            f"cycles           {sum(self.kills.values()):,} over {self.rows:,} codes, in {self.seconds:.0f} s",
            f"acknowledged     {self.acknowledged:,} writes; {self.unfinished:,} unfinished ({self.survived:,} kept)",
            f"lost             {self.lost:,}",
            f"corrupt opens    {self.corrupt_opens:,}",
            f"slowest reopen   {1000 * self.slowest_reopen:.0f} ms",
            f"verified         {self.verified:,} times, byte by byte and against the model",
            f"file             {self.file_bytes / 2**20:.0f} MiB, {self.used_bytes / 2**20:.0f} MiB of it in use",
        ]
        if self.reader is not None:
            lines.append(
                f"reader           {self.reader.snapshots:,} snapshots in {self.reader.opens:,} openings, "
                f"{self.reader.items:,} items and {self.reader.searches:,} searches checked"
            )
        width = max(map(len, self.kills), default=0)
        lines += [f"killed           {name:<{width}}  {count:>5,}" for name, count in self.kills.items()]
        lines += [f"PROBLEM          {problem}" for problem in self.problems]
        return "\n".join(lines)


def points_in_storage() -> set[str]:
    """Return the names of all points in the source of storage, with ``stored <array>`` for each array."""
    names: set[str] = set()
    for file in Path(segmented.__file__).parents[1].rglob("*.py"):
        for name in re.findall(r'\bpoint\(f?"([^"]+)"\)', file.read_text(encoding="utf-8")):
            names |= {name.replace("{name}", array) for array in SEGMENT_ARRAYS}
    return names


def random_kills(cycles: int, seed: int) -> Iterator[Kill]:
    """Yield kills at random points, and every third one from outside."""
    rng = np.random.default_rng([seed, 2**32 - 2])
    for cycle in range(cycles):
        compacts = bool(rng.random() < 0.05)
        if cycle % 3 == 2:
            yield Kill(None, seconds=float(rng.uniform(0.0, 0.3)), compacts=compacts)
        elif rng.random() < 0.4:
            yield Kill(str(rng.choice(COMMIT_POINTS)), int(rng.integers(1, 30)), compacts=compacts)
        else:
            yield Kill(str(rng.choice(SEGMENT_POINTS)), int(rng.integers(1, 4)), compacts=compacts)


class Torture:
    """A database whose writers are killed, and a model of what it must contain."""

    def __init__(self, path: Path, rows: int, seed: int) -> None:
        """Create the database, with ``rows`` codes."""
        self._path = path
        self._seed = seed
        self._model = np.zeros(rows + rows // 4, dtype=np.uint64)
        self._rng = np.random.default_rng([seed, 2**32 - 3])
        self._cycle = 0
        self.summary = Summary(rows)
        with whamming.open(path) as database:
            index = database.create_index(INDEX, BITS)
            for first in range(0, rows, _AT_ONCE):
                ids = np.arange(first, min(rows, first + _AT_ONCE), dtype=np.uint64)
                index.upsert(ids, codes_of(ids, 1), payloads_of(len(ids), 1))
            index.seal()
        self._model[:rows] = 1

    def run(self, kills: Iterable[Kill], *, verify_every: int = 50, aloud: bool = False) -> Summary:
        """Go through some cycles while a reader runs. Stops when a guarantee is violated."""
        started = time.perf_counter()
        _processes.set_forkserver_preload(["tests.storage.reading_process"])
        control, far_end = _processes.Pipe()
        arguments = (str(self._path), len(self._model), self._seed, far_end)
        reader = _processes.Process(target=reading_process.read, args=arguments, daemon=True)
        reader.start()
        far_end.close()
        summary = self.summary
        try:
            for kill in kills:
                self._go_through(kill, verify=(self._cycle + 1) % verify_every == 0)
                if control.poll():
                    break
                if aloud and self._cycle % 50 == 0:
                    print(f"{self._cycle} cycles, {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
            with whamming.open(self._path) as database:
                self._verify(database.index(INDEX))
        except BrokenPromiseError as error:
            summary.problems.append(f"cycle {self._cycle}: {error}")
        except StorageError as error:
            summary.corrupt_opens += 1
            summary.problems.append(f"cycle {self._cycle}: {type(error).__name__}: {error}")
        finally:
            self._stop(reader, control)
            summary.seconds = time.perf_counter() - started
        return summary

    def _stop(self, reader: multiprocessing.process.BaseProcess, control: Connection) -> None:
        problem = ""
        try:
            control.send("stop")
            self.summary.reader = report = control.recv()
            problem = report.problem
        except (EOFError, OSError):
            reader.join()
            problem = f"it died with exit code {reader.exitcode}"
        reader.join()
        if problem:
            self.summary.problems.append(f"the reader: {problem}")

    def _go_through(self, kill: Kill, *, verify: bool) -> None:
        """Start a writer, kill it, and compare the database with the model."""
        job = Job(
            path=str(self._path),
            seed=self._seed,
            cycle=self._cycle,
            universe=len(self._model),
            compacts=kill.compacts,
            point=kill.point,
            passes=kill.passes,
        )
        returned = _run_and_kill(job, kill.seconds)
        self._cycle += 1
        self.summary.kills[kill.point or "at a random moment"] += 1
        started = time.perf_counter()
        with whamming.open(self._path) as database:
            index = database.index(INDEX)
            count = len(index)
            self.summary.slowest_reopen = max(self.summary.slowest_reopen, time.perf_counter() - started)
            for lane in range(LANES):
                self._check_lane(index, job.first(lane, returned[lane] + 1))
            others = np.unique(self._rng.integers(0, len(self._model), 300)).astype(np.uint64)
            wrong = others[versions_in(index.get(others)) != self._model[others]]
            if len(wrong):
                self.summary.lost += len(wrong)
                raise BrokenPromiseError(f"ids {some(wrong)} have changed, but were not written")
            if count != np.count_nonzero(self._model):
                raise BrokenPromiseError(f"{count} items; should be {np.count_nonzero(self._model)}")
            if verify:
                self._verify(index)
            stats = index.stats()
            self.summary.file_bytes, self.summary.used_bytes = stats.disk_bytes, stats.used_bytes

    def _check_lane(self, index: StoredIndex, operations: list[Operation]) -> None:
        """Find out how many of a lane's operations the index contains, and update the model.

        The last operation of the list had not returned.
        """
        safe = durable_count(operations[:-1])
        writes = [one.kind == "write" for one in operations]
        self.summary.acknowledged += sum(writes[:safe])
        self.summary.unfinished += sum(writes[safe:])
        try:
            there = surviving(index, operations, safe, self._model)
        except LostWritesError as error:
            self.summary.lost += error.count
            raise
        self.summary.survived += sum(writes[safe:there])
        for operation in operations[:there]:
            for id_, version in operation.effects():
                self._model[id_] = version

    def _verify(self, index: StoredIndex) -> None:
        """Verify every byte and compare every item."""
        self.summary.verified += 1
        report = index.verify()
        if not report.ok:
            raise BrokenPromiseError(f"verify() found {len(report.problems)} problems, first: {report.problems[0]}")
        wrong = np.flatnonzero(all_versions(index.snapshot(), len(self._model)) != self._model)
        if len(wrong):
            self.summary.lost += len(wrong)
            raise BrokenPromiseError(f"{len(wrong)} ids are wrong: {some(wrong)}")


def _run_and_kill(job: Job, seconds: float) -> list[int]:
    """Start a writer and wait for its death. Returns how many operations of each lane had returned."""
    receiver, sender = _processes.Pipe(duplex=False)
    writer = _processes.Process(target=writing_process.write, args=(job, sender), daemon=True)
    writer.start()
    sender.close()
    writer.join(_STUCK if job.point is not None else seconds)
    stuck = job.point is not None and writer.is_alive()
    writer.kill()
    writer.join()
    if stuck:
        raise BrokenPromiseError(f"the writer did not reach {job.point!r} {job.passes} times in {_STUCK:.0f} s")
    if writer.exitcode != -signal.SIGKILL:
        raise BrokenPromiseError(f"the writer ended with exit code {writer.exitcode}; see its traceback")
    returned = [0] * LANES
    with receiver:
        try:
            while True:
                lane, count = DONE.unpack(receiver.recv_bytes())
                returned[lane] = count
        except EOFError:
            return returned


def main() -> int:
    """Run from the command line. Returns 1 if a guarantee was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--path", type=Path, help="create the database here, and keep it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        torture = Torture(options.path or Path(directory) / "database", options.rows, options.seed)
        summary = torture.run(random_kills(options.cycles, options.seed), aloud=True)
    print(summary)
    if summary.slowest_reopen >= SLOWEST_REOPEN:
        print(f"PROBLEM          reopening took {summary.slowest_reopen:.1f} s; the limit is {SLOWEST_REOPEN} s")
        return 1
    return 0 if summary.ok else 1


if __name__ == "__main__":
    sys.exit(main())
