"""Loses power at 500 moments, and checks what is left.

    python -m tests.storage.power_loss --points 500 --seed 0

A recording is a log of everything that some writing processes do to their files, one after the other
(``recorded_writer``, ``disk_recorder.c``). Most of them are killed. After each of them, the log must explain every byte
of the directory.

Then a disk is rebuilt from the log up to a random record. What was not synced there is lost, or parts of it are:
``recorded_disk`` describes the model. The database must open and verify, searches must find its items, and it must
accept new writes. It must contain all operations that had returned. Those that were running must be complete or absent.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

import whamming
from tests.storage.item_checks import BITS, BrokenPromiseError, Versions, all_versions, codes_of, payloads_of
from tests.storage.lane_checks import durable_count, surviving
from tests.storage.recorded_disk import Ignored, Kept, Record, RecordedDisk, read_log
from tests.storage.recorded_writer import (
    BACKUPS,
    DATABASE,
    EXPORTS,
    NAMES,
    UNIVERSE,
    Note,
    State,
    job_of,
    state_of,
)
from tests.storage.writing_process import INDEX, LANES, Operation
from whamming.storage import Database, StoredIndex

_SOURCE: Final = Path(__file__).with_name("disk_recorder.c")
_REPOSITORY: Final = Path(__file__).parents[2]
_SHARES: Final = (0.3, 0.1, 0.15, 0.15, 0.15, 0.15)
"""How often each :class:`Kept` is chosen."""
_KINDS: Final = ("", "", "", "r", "r", "r", "d", "c", "u", "w", "D", "F", "A", "S")
"""Records after which writers are killed: see ``disk_recorder.c``."""


_TELLING: Final = ("n", "cdru", "wteDFASn")
"""Power is lost equally often after a note, after a change of a directory, and after a record of any kind."""


@dataclass(frozen=True)
class Death:
    """When a writer is killed: as soon as it has made some records of a kind, or of any kind."""

    records: int
    kind: str = ""


def random_deaths(sessions: int, seed: int) -> Iterator[Death | None]:
    """Yield how the writers of a recording die. None: it is not killed."""
    rng = np.random.default_rng([seed, 2**32 - 4])
    for session in range(sessions):
        kind = str(rng.choice(_KINDS))
        yield None if session % 4 == 3 else Death(int(rng.integers(1, 25 if kind else 900)), kind)


def why_not() -> str | None:
    """Return why processes cannot be recorded on this machine; None if they can."""
    if sys.platform != "linux":
        return "recording needs LD_PRELOAD and /proc of Linux"
    return None if shutil.which("cc") else "recording needs a C compiler, cc"


def scratch() -> str | None:
    """Return a directory in RAM if there is one: the log knows what is synced, so the disk does not have to do it."""
    shared = Path("/dev/shm")
    if os.access(shared, os.W_OK) and shutil.disk_usage(shared).free > 1 << 30:
        return str(shared)
    return None


def build_recorder(directory: Path) -> Path:
    """Compile ``disk_recorder.c``."""
    library = directory / "disk_recorder.so"
    command = ["cc", "-std=gnu11", "-O2", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def run_recorded(library: Path, root: Path, log: Path, arguments: Sequence[str]) -> int:
    """Run Python, record into ``log`` what it does under ``root``, and return its exit code."""
    log.touch()
    environment = os.environ | {
        "LD_PRELOAD": str(library),
        "WHAMMING_RECORD_ROOT": str(root.resolve()),
        "WHAMMING_RECORD_LOG": str(log),
    }
    return subprocess.run([sys.executable, *arguments], cwd=_REPOSITORY, env=environment, check=False).returncode


class Promises:
    """What the database must contain, from the notes of the writers."""

    def __init__(self, root: Path, seed: int, kept: Sequence[Sequence[int]]) -> None:
        """``kept``: how many operations of each lane were there after each session, counted from the first one."""
        self._root = root
        self._seed = seed
        self._kept = kept
        self._session = -1
        self._history: list[list[Operation]] = [[] for _ in range(LANES)]
        """What is there of earlier sessions."""
        self._safe = [0] * LANES
        self._returned = [0] * LANES
        self.created = False
        """Whether the lanes' index must be there."""
        self.states: dict[str, list[State]] = {}
        """By name, what may be there."""

    def apply(self, record: Record) -> None:
        """Take note."""
        if record.kind != "n":
            return
        note = Note.read(record.data)
        match note.what:
            case "session":
                if self._session >= 0:
                    kept = self._kept[self._session]
                    self._history, self._safe = (
                        [self.operations(lane)[: kept[lane]] for lane in range(LANES)],
                        [self.safe(lane) for lane in range(LANES)],
                    )
                self._session = note.number
                self._returned = [0] * LANES
            case "created":
                self.created = True
            case "lane":
                self._returned[note.lane] = note.count
            case "begins":
                self.states.setdefault(note.name, [None]).append(note.state)
                if note.name.endswith(".npy"):  # two files, of which the first is removed meanwhile
                    self.states[note.name].append(None)
            case "done":
                self.states[note.name] = [note.state]

    def operations(self, lane: int) -> list[Operation]:
        """Return what a lane has done, in order. The last operation had not returned."""
        if self._session < 0:
            return []
        job = job_of(self._root, self._seed, self._session)
        return self._history[lane] + job.first(lane, self._returned[lane] + 1)

    def safe(self, lane: int) -> int:
        """Return how many of these must have survived."""
        count = len(self._history[lane])
        durable = durable_count(self.operations(lane)[count:-1])
        return count + durable if durable else self._safe[lane]


def check(root: Path, promises: Promises) -> list[int]:
    """Check what is left under a root, and write on. Returns how many operations of each lane are there.

    Raises BrokenPromiseError or whatever the database raises.
    """
    with whamming.open(root / DATABASE) as database:
        left = sorted(path.name for path in (root / DATABASE).glob(".*"))
        if left:
            raise BrokenPromiseError(f"{left} should have been removed")
        names = set(database.list_indexes())
        if not names <= {INDEX, *NAMES}:
            raise BrokenPromiseError(f"there are indexes {sorted(names)}; nobody has created some of these")
        _verify(database)
        if promises.created and INDEX not in names:
            raise BrokenPromiseError(f"the index {INDEX} is lost")
        for name in NAMES:
            _check_state(promises, f"index {name}", state_of(database.index(name)) if name in names else None)
        index = database.create_index(INDEX, BITS, exist_ok=True)
        counts, versions = _check_lanes(index, promises)
        _write_on(database, index)
    with whamming.open(root / DATABASE, mode="r") as database:
        index = database.index(INDEX)
        versions[:10] = 1
        if (all_versions(index.snapshot(), UNIVERSE) != versions).any():
            raise BrokenPromiseError("writing on has changed other items")
        _verify(database)
    for file in EXPORTS:
        _check_export(root / file, promises.states.get(f"file {file}", [None]))
    for name in promises.states:
        if name.startswith("backup "):
            _check_state(promises, name, _backed_up(root / BACKUPS / name.removeprefix("backup ")))
    return counts


def _check_state(promises: Promises, name: str, found: State | dict[str, State]) -> None:
    allowed = promises.states.get(name, [None])
    if found not in allowed:
        raise BrokenPromiseError(f"{name} has {found}; should be one of {allowed}")


def _check_lanes(index: StoredIndex, promises: Promises) -> tuple[list[int], Versions]:
    expected = np.zeros(UNIVERSE, dtype=np.uint64)
    counts = []
    for lane in range(LANES):
        operations = promises.operations(lane)
        count = surviving(index, operations, promises.safe(lane), expected) if operations else 0
        counts.append(count)
        for operation in operations[:count]:
            for id_, version in operation.effects():
                expected[id_] = version
    if (all_versions(index.snapshot(), UNIVERSE) != expected).any():
        raise BrokenPromiseError("a scan finds other items than get")
    there = np.flatnonzero(expected)
    for id_ in there[:: max(1, len(there) // 3)].astype(np.uint64):
        code = codes_of(id_[None], expected[id_])[0]
        if int(id_) not in [hit.id for hit in index.search(code, radius=0)]:
            raise BrokenPromiseError(f"a search does not find the item {id_}")
    return counts, expected


def _write_on(database: Database, index: StoredIndex) -> None:
    """Write to every index, and create and drop one."""
    ids = np.arange(10, dtype=np.uint64)
    index.upsert(ids, codes_of(ids, 1), payloads_of(10, 1), durability="fsync")
    index.seal()
    for name in database.list_indexes():
        if name != INDEX:
            database.index(name).delete([0, 1])
    database.create_index("new", BITS)
    database.drop_index("new")


def _verify(database: Database) -> None:
    for name, report in database.verify().items():
        if not report.ok:
            raise BrokenPromiseError(f"verify() of {name}: {report.problems[0]}")


def _check_export(path: Path, allowed: Sequence[State]) -> None:
    """Check that a file is missing, or has as many items of one version as one of the states says."""
    if not path.exists():
        found = None in allowed
    else:
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                codes, ids = arrays["codes"], arrays["ids"]
        else:
            codes, ids = np.load(path), np.load(path.with_name(f"{path.stem}.ids.npy"))
        order = ids.argsort()
        own = np.arange(len(ids), dtype=np.uint64)
        found = (
            len(codes) == len(ids)
            and np.array_equal(ids[order], own)
            and any(
                state is not None and state[0] == len(ids) and np.array_equal(codes[order], codes_of(own, state[1]))
                for state in allowed
            )
        )
    if not found:
        raise BrokenPromiseError(f"{path.name} does not have the items of one of {allowed}")


def _backed_up(path: Path) -> dict[str, State] | None:
    """Return the states of the indexes in a backup; None if there is none."""
    if not path.exists():
        return None
    with whamming.open(path, mode="r") as database:
        _verify(database)
        all_versions(database.index(INDEX).snapshot(), UNIVERSE)
        return {name: state_of(database.index(name)) for name in database.list_indexes() if name != INDEX}


# -- recording and losing power --------------------------------------------------------------------------------------


class Recording:
    """What some processes have done to the files in a directory, one after the other."""

    def __init__(self, directory: Path, library: Path, seed: int, deaths: Iterable[Death | None]) -> None:
        """Run a process per death, one after the other.

        Raises EscapedWriteError if the log does not explain the directory, and BrokenPromiseError if something is lost
        although power is not.
        """
        self.root = directory.resolve() / "root"
        self._log = directory / "log"
        self._seed = seed
        self._kept: list[list[int]] = []
        self.root.mkdir(parents=True)
        self.records: list[Record] = []
        rng = np.random.default_rng(seed)
        disk, promises = RecordedDisk(self.root), self.promises()
        for session, death in enumerate(deaths):
            self._run(library, session, death)
            new = read_log(self._log)[len(self.records) :]
            self.records += new
            for record in new:
                disk.apply(record)
                promises.apply(record)
            disk.compare(self.root)
            copy = directory / "copy"
            disk.build(copy, Kept.EVERYTHING, Kept.EVERYTHING, rng)
            self._kept.append(check(copy, promises))
            shutil.rmtree(copy)

    def promises(self) -> Promises:
        """Return what holds at the beginning."""
        return Promises(self.root, self._seed, self._kept)

    def _run(self, library: Path, session: int, death: Death | None) -> None:
        arguments = {"root": str(self.root), "seed": self._seed, "session": session}
        arguments |= asdict(death or Death(0))
        writer = ["-m", "tests.storage.recorded_writer", json.dumps(arguments)]
        exit_code = run_recorded(library, self.root, self._log, writer)
        if exit_code != (0 if death is None else -signal.SIGKILL):
            raise BrokenPromiseError(f"the writer of session {session} ended with exit code {exit_code}")


@dataclass
class Summary:
    """The results of a run."""

    recordings: int = 0
    sessions: int = 0
    records: Counter[str] = field(default_factory=Counter)
    points: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By what survived of writes, and of changes of directories."""
    returned: Counter[str] = field(default_factory=Counter)
    """Operations that have returned, in the recordings."""
    acknowledged: int = 0
    """Operations of the lanes that had to be there, and were, over all points."""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        names = {"w": "writes", "c": "files", "d": "directories", "r": "renames", "u": "removals", "S": "syncs"}
        names["D"] = "synced writes"
        seen = ", ".join(f"{self.records[kind]:,} {name}" for kind, name in names.items())
        lines = [
            f"points           {self.points.total():,} in {self.recordings} recordings, in {self.seconds:.0f} s",
            f"recorded         {self.records.total():,} records of {self.sessions} processes: {seen}",
            f"returned         {', '.join(f'{count:,} {name}' for name, count in sorted(self.returned.items()))}",
            f"acknowledged     {self.acknowledged:,} operations of lanes found, over all points",
            f"problems         {len(self.problems):,}",
        ]
        for name, which in (("writes", 0), ("directories", 1)):
            counts: Counter[str] = Counter()
            for key, count in self.points.items():
                counts[key[which]] += count
            text = ", ".join(f"{kept.lower()} {count:,}" for kept, count in sorted(counts.items()))
            lines.append(f"kept of unsynced {name}: {text}")
        lines += [f"PROBLEM          {problem}" for problem in self.problems]
        return "\n".join(lines)


def lose_power(
    recording: Recording,
    directory: Path,
    count: int,
    seed: int,
    summary: Summary,
    *,
    kept: Kept | None = None,
    ignored: Ignored = Ignored.NOTHING,
) -> None:
    """Lose power at some points of a recording, and add what was found to the summary.

    ``kept``: what survives of what was not synced; None: a random choice for each point.
    """
    rng = np.random.default_rng([seed, 2**32 - 5])
    groups = [
        [number for number, record in enumerate(recording.records, 1) if record.kind in kinds] for kinds in _TELLING
    ]
    points = np.array([rng.choice(groups[i % len(groups)]) for i in range(count)])
    disk, promises = RecordedDisk(recording.root, ignored), recording.promises()
    done = 0
    for point in np.sort(points).tolist():
        for record in recording.records[done:point]:
            disk.apply(record)
            promises.apply(record)
        done = point
        data, entries = (kept or list(Kept)[rng.choice(len(Kept), p=_SHARES)] for _ in range(2))
        summary.points[data.name, entries.name] += 1
        left = directory / f"point {point}"
        disk.build(left, data, entries, rng)
        try:
            check(left, promises)
            summary.acknowledged += sum(map(promises.safe, range(LANES)))
        except Exception as error:  # whatever goes wrong: with damaged files, also in numpy or zipfile
            where = f"point {point} of recording {recording.root.parent.name}, {data.name} and {entries.name}"
            summary.problems.append(f"{where}: {type(error).__name__}: {error}")
        shutil.rmtree(left)


def main() -> int:
    """Run from the command line. Returns 1 if something was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=500)
    parser.add_argument("--recordings", type=int, default=20)
    parser.add_argument("--sessions", type=int, default=8, help="processes per recording")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if (reason := why_not()) is not None:
        print(f"cannot run here: {reason}")
        return 2
    summary = Summary()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=scratch()) as name:
        directory = Path(name).resolve()
        library = build_recorder(directory)
        for number in range(options.recordings):
            seed = options.seed + number
            recording = Recording(directory / str(seed), library, seed, random_deaths(options.sessions, seed))
            summary.recordings += 1
            summary.sessions += options.sessions
            summary.records.update(record.kind for record in recording.records)
            summary.returned.update(
                note.name.split(" ")[0] or note.what
                for note in (Note.read(record.data) for record in recording.records if record.kind == "n")
                if note.what in ("lane", "done")
            )
            share = options.points * (number + 1) // options.recordings - options.points * number // options.recordings
            lose_power(recording, directory, share, seed, summary)
            summary.seconds = time.perf_counter() - started
            progress = f"{summary.points.total()} points, {len(summary.problems)} problems, {summary.seconds:.0f} s"
            print(progress, file=sys.stderr, flush=True)
            shutil.rmtree(directory / str(seed))
    print(summary)
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())
