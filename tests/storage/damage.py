"""Damages databases in thousands of ways, and checks that each damage is detected or harmless.

    python -m tests.storage.damage --cases 2000 --seed 0

A case flips a bit, cuts the file short, zeroes a sector, or damages ``whamming.json``. Then the database is opened for
reading and for writing, queried in every way, verified, written to, sealed and compacted. Allowed outcomes are:

- an error of the WhammingError family, anywhere;
- the same answers as without the damage, everywhere;
- wrong answers if ``verify()`` reports a problem, and still does after the writes.

Everything else is a failure: another exception, a signal, a hang, or a wrong answer while ``verify()`` reports nothing.
The cases run in child processes, because some of them may die.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np

import whamming
from tests.storage.file_regions import regions_of
from whamming import Database, StoredIndex, WhammingError
from whamming.native import Buckets, Plan, Tables
from whamming.storage.files import reading

INDEX = "docs"
ITEMS = 900
"""All ids are smaller."""
TIMEOUT = 60.0
"""Seconds that a case may take. It normally takes a tenth of one."""

_processes = multiprocessing.get_context("forkserver")

Answers = dict[str, Any]


@dataclass(frozen=True)
class Specimen:
    """A sound database that will be damaged."""

    name: str
    bits: int
    tables: Tables
    buckets: Buckets
    delta: bool
    """Whether it has writes that are not sealed."""

    def make(self, path: Path) -> None:
        """Create it with several segments, dead items, payloads and free pages."""
        rng = np.random.default_rng(self.bits)
        with whamming.open(path) as database:
            index = database.create_index(INDEX, self.bits, tables=self.tables, buckets=self.buckets)
            for first, last in ((0, 500), (400, 700), (650, 800)):
                ids = np.arange(first, last, dtype=np.uint64)
                self._upsert(index, rng, ids)
                index.seal()
            index.delete(np.arange(100, 160, dtype=np.uint64))
            index.seal()
            if self.delta:
                self._upsert(index, rng, np.arange(780, 830, dtype=np.uint64))
                index.delete([3, 500, 790])
                self._upsert(index, rng, np.array([3, 2**63 + 5], dtype=np.uint64))

    def _upsert(self, index: StoredIndex, rng: np.random.Generator, ids: np.ndarray[Any, np.dtype[np.uint64]]) -> None:
        codes = rng.integers(0, 4, (len(ids), (self.bits + 7) // 8), dtype=np.uint8)  # similar, and some equal
        codes[:, -1] &= (1 << (self.bits % 8 or 8)) - 1
        index.upsert(ids, codes, [b"%d" % i * int(rng.integers(0, 4)) for i in ids.tolist()])


SPECIMENS = (
    Specimen("single, compact, with a delta", 64, "single", "compact", True),
    Specimen("single, fast, all sealed", 70, "single", "fast", False),
    Specimen("multi, compact, all sealed", 96, "multi", "compact", False),
    Specimen("multi, fast, with a delta", 128, "multi", "fast", True),
    Specimen("no tables, with a delta", 37, "none", "compact", True),
)


@dataclass(frozen=True)
class Damage:
    """A change to the bytes of a file."""

    what: str
    file: str
    start: int
    """The byte where the file is cut or the change begins."""
    bytes: bytes | None
    """The new bytes; None if the file is cut."""

    def apply(self, directory: Path) -> None:
        with (directory / self.file).open("r+b") as file:
            if self.bytes is None:
                file.truncate(self.start)
            else:
                file.seek(self.start)
                file.write(self.bytes)


@dataclass(frozen=True)
class Case:
    """One damage to one specimen."""

    number: int
    specimen: str
    directory: str
    """The directory of the undamaged specimen."""
    damage: Damage

    def __str__(self) -> str:
        damage = self.damage
        return f"case {self.number}: {self.specimen}: {damage.what} of {damage.file} at byte {damage.start}"


def cases(specimens: dict[str, Path], count: int, seed: int) -> Iterator[Case]:
    """Yield ``count`` cases, spread evenly over specimens and kinds of damage."""
    names = sorted(specimens)
    data = {name: (specimens[name] / INDEX / "data.mdb").read_bytes() for name in names}
    regions = {name: regions_of(data[name]) for name in names}
    mark = (specimens[names[0]] / "whamming.json").read_bytes()
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        name = names[number % len(names)]
        kind = number // len(names) % 20
        if kind == 0:
            damage = _damage_mark(rng, mark)
        elif kind in (1, 2):
            damage = _cut(rng, data[name])
        elif kind == 3:
            damage = _wipe(rng, data[name])
        else:
            choices = [*sorted(regions[name]), *4 * ["array contents"], *2 * ["keys"]]
            region = choices[int(rng.integers(len(choices)))]
            ranges = regions[name][region]
            start, stop = ranges[int(rng.integers(len(ranges)))]
            damage = _flip(rng, data[name], f"{INDEX}/data.mdb", int(rng.integers(start, stop)), region)
        yield Case(number, name, str(specimens[name]), damage)


def _flip(rng: np.random.Generator, data: bytes, file: str, place: int, region: str) -> Damage:
    bit = int(rng.integers(8))
    return Damage(f"bit {bit} flipped in the {region}", file, place, bytes([data[place] ^ 1 << bit]))


def _cut(rng: np.random.Generator, data: bytes) -> Damage:
    size = int(rng.integers(len(data)))
    if rng.random() < 0.5:
        size &= ~4095
    return Damage("file cut", f"{INDEX}/data.mdb", size, None)


def _wipe(rng: np.random.Generator, data: bytes) -> Damage:
    sector = int(rng.integers(len(data) // 512)) * 512
    return Damage("sector wiped", f"{INDEX}/data.mdb", sector, bytes(512))


def _damage_mark(rng: np.random.Generator, data: bytes) -> Damage:
    place = int(rng.integers(len(data)))
    if rng.random() < 0.3:
        return Damage("file cut", "whamming.json", place, None)
    return _flip(rng, data, "whamming.json", place, "mark")


# -- in the child process ----------------------------------------------------------------------------------------------


class UndetectedError(Exception):
    """A damage was neither detected nor harmless."""


def questions(index: StoredIndex) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield all queries by name. Their answers can be compared with ``==``."""
    settings = index.settings
    rng = np.random.default_rng(7)
    queries = settings.to_engine(rng.integers(0, 4, (4, settings.code_bytes), dtype=np.uint8))
    queries[:, -1] &= (1 << (settings.bits % 8 or 8)) - 1
    weights = rng.uniform(0.1, 2, settings.bits)
    plans: tuple[Plan, ...] = ("auto", "sweep", "probe")
    wanted = np.concatenate([np.arange(ITEMS), [2**63 + 5]]).astype(np.uint64)

    def get() -> Any:
        items = index.get(wanted)
        return items.found.tobytes(), items.codes.tobytes(), items.payloads

    def scan() -> Any:
        rows: list[tuple[int, bytes, bytes]] = []
        for piece in index.snapshot().scan(200):
            payloads = [b""] * len(piece) if piece.payloads is None else [piece.payloads[i] for i in range(len(piece))]
            rows += zip(piece.ids.tolist(), map(bytes, piece.codes), payloads, strict=True)
        return sorted(rows)

    def batch(plan: Plan, k: int) -> Any:
        return [array.tobytes() for array in index.search_batch(queries, weights, k=k, plan=plan, threads=1)]

    def search(plan: Plan) -> Any:
        with index.search(queries[0], weights=weights, k=30, plan=plan, payloads=True) as hits:
            return list(hits)

    def within(plan: Plan) -> Any:
        with index.search(queries[1], radius=settings.bits / 8, plan=plan) as hits:
            return [array.tobytes() for array in hits.all()]

    yield "count", lambda: len(index)
    yield "get", get
    yield "scan", scan
    for plan in plans:
        yield f"batch by {plan}", partial(batch, plan, 5)
        yield f"large batch by {plan}", partial(batch, plan, 400)
        yield f"search by {plan}", partial(search, plan)
        yield f"radius by {plan}", partial(within, plan)


def ask(index: StoredIndex) -> tuple[Answers, str]:
    """Return all answers, and the first error among them."""
    answers: Answers = {}
    error = ""
    for name, question in questions(index):
        try:
            answers[name] = question()
        except WhammingError as refusal:
            answers[name] = type(refusal).__name__
            error = error or f"{name}: {type(refusal).__name__}"
    return answers, error


def write(index: StoredIndex) -> None:
    """Write, delete, seal and merge."""
    settings = index.settings
    codes = np.full((3, settings.code_bytes), 1, dtype=np.uint8)
    index.upsert([2, 850, 851], codes, [b"two", b"", b"851"])
    index.delete([7, 420])
    index.seal()
    index.upsert([851], codes[:1])
    index.compact()


@dataclass(frozen=True)
class Expected:
    """The answers of an undamaged specimen."""

    before: Answers
    after: Answers
    """After :func:`write`."""


def expected_of(specimen: Path) -> Expected:
    """Return the answers of an undamaged specimen."""
    with tempfile.TemporaryDirectory() as directory:
        path = _copy(specimen, Path(directory) / "sound")
        with whamming.open(path, mode="r") as database:
            before, _ = ask(database.index(INDEX))
        with whamming.open(path) as database:
            write(database.index(INDEX))
        with whamming.open(path, mode="r") as database:
            after, _ = ask(database.index(INDEX))
    return Expected(before, after)


def examine(path: Path, expected: Expected) -> str:
    """Use a damaged database. Returns how the damage was detected, or raises :class:`UndetectedError`."""
    seen = _examine_reading(path, expected.before)
    if seen == "nothing" or seen.startswith("verify"):
        return _examine_writing(path, expected.after, seen)
    try:
        with whamming.open(path) as database:
            index = database.index(INDEX)
            _compare(database, ask(index)[0], expected.before)
            write(index)
    except WhammingError:
        pass
    return seen


def _examine_reading(path: Path, expected: Answers) -> str:
    try:
        with whamming.open(path, mode="r") as database:
            answers, error = ask(database.index(INDEX))
            return _compare(database, answers, expected, error)
    except WhammingError as refusal:
        return f"opening: {type(refusal).__name__}"


def _compare(database: Database, answers: Answers, expected: Answers, error: str = "") -> str:
    problems = database.verify()[INDEX].problems
    wrong = [name for name in expected if answers[name] != expected[name]]
    if problems:
        return "verify(), and wrong answers" if wrong else "verify()"
    if error and wrong:
        raise UndetectedError(f"verify() finds nothing, but asking ended with {error}")
    if wrong:
        raise UndetectedError(f"verify() finds nothing, but these answers are wrong: {', '.join(wrong)}")
    return "nothing"


def _examine_writing(path: Path, expected: Answers, seen: str) -> str:
    try:
        with whamming.open(path) as database:
            write(database.index(INDEX))
    except WhammingError as refusal:
        if seen == "nothing":
            raise UndetectedError(f"verify() finds nothing, but writing ended with {refusal!r}") from refusal
        return seen
    with whamming.open(path, mode="r") as database:
        after = _compare(database, ask(database.index(INDEX))[0], expected)
        if seen != "nothing" and after == "nothing":
            raise UndetectedError("verify() found a problem before writing, but not afterwards")
    return seen


def _copy(specimen: Path, target: Path) -> Path:
    (target / INDEX).mkdir(parents=True)
    for name in ("whamming.json", f"{INDEX}/data.mdb"):
        shutil.copyfile(specimen / name, target / name)
    return target


def work(todo: Sequence[Case], results: Connection) -> None:
    """Go through cases, in a child process. Sends how each damage was detected, and what was wrong."""
    faulthandler.enable()
    vars(reading).update(_CHECKS=1)  # nothing commits concurrently, so one check is enough
    expected: dict[str, Expected] = {}
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as directory:
        for case in todo:
            if case.specimen not in expected:
                expected[case.specimen] = expected_of(Path(case.directory))
            path = _copy(Path(case.directory), Path(directory) / str(case.number))
            case.damage.apply(path)
            seen = wrong = ""
            try:
                seen = examine(path, expected[case.specimen])
            except UndetectedError as error:
                wrong = str(error)
            except BaseException as error:
                wrong = f"{error!r}\n{traceback.format_exc()}"
            shutil.rmtree(path)
            results.send((seen, wrong))


# -- in the parent process ---------------------------------------------------------------------------------------------


@dataclass
class Summary:
    """The results of a run."""

    seen: Counter[str] = field(default_factory=Counter)
    """How many damages were detected, by how."""
    kinds: Counter[str] = field(default_factory=Counter)
    """How many damages there were, by kind."""
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __str__(self) -> str:
        lines = [f"cases      {sum(self.kinds.values()):,} in {self.seconds:.0f} s, {len(self.failures)} failures"]
        lines += [f"damage     {count:>6,}  {kind}" for kind, count in sorted(self.kinds.items())]
        lines += [f"noticed by {count:>6,}  {seen}" for seen, count in sorted(self.seen.items())]
        lines += [f"FAILURE    {failure}" for failure in self.failures]
        return "\n".join(lines)


class _Child:
    """A child process that goes through cases. It is replaced if it dies or hangs."""

    def __init__(self, todo: Sequence[Case]) -> None:
        self.todo = list(todo)
        self._start()

    def _start(self) -> None:
        self.results, sender = _processes.Pipe(duplex=False)
        self._process = _processes.Process(target=work, args=(self.todo, sender), daemon=True)
        self._process.start()
        sender.close()
        self.deadline = time.monotonic() + TIMEOUT

    def take(self, summary: Summary) -> None:
        """Receive the result of a case, or notice that the process died."""
        case = self.todo.pop(0)
        try:
            seen, wrong = self.results.recv()
            self.deadline = time.monotonic() + TIMEOUT
        except EOFError:
            self._process.join()
            seen, wrong = "", f"the process died with {self._process.exitcode}"
            if self.todo:
                self._start()
        self._note(summary, case, seen, wrong)

    def kill_hung(self, summary: Summary) -> None:
        """Kill a process that hangs, and continue with the next case."""
        case = self.todo.pop(0)
        self._process.kill()
        self._process.join()
        if self.todo:
            self._start()
        self._note(summary, case, "", f"no result within {TIMEOUT:.0f} s")

    def _note(self, summary: Summary, case: Case, seen: str, wrong: str) -> None:
        what = case.damage.what
        summary.kinds[what[6:] if what.startswith("bit ") else f"{what} ({case.damage.file})"] += 1
        if wrong:
            summary.failures.append(f"{case}: {wrong}")
        else:
            summary.seen[seen] += 1


def run(directory: Path, count: int, seed: int, *, workers: int = 2, only: int | None = None) -> Summary:
    """Create the specimens and go through ``count`` cases."""
    started = time.monotonic()
    specimens = {specimen.name: directory / specimen.name for specimen in SPECIMENS}
    for specimen in SPECIMENS:
        specimen.make(specimens[specimen.name])
    todo = [case for case in cases(specimens, count, seed) if only is None or case.number == only]
    _processes.set_forkserver_preload(["tests.storage.file_regions", "whamming"])
    share = -(-len(todo) // workers)
    children = [_Child(todo[first : first + share]) for first in range(0, len(todo), share)]
    summary = Summary()
    while children:
        left = min(child.deadline for child in children) - time.monotonic()
        ready = wait([child.results for child in children], timeout=max(0.0, left))
        for child in children:
            if child.results in ready:
                child.take(summary)
            elif time.monotonic() > child.deadline:
                child.kill_hung(summary)
        children = [child for child in children if child.todo]
    summary.seconds = time.monotonic() - started
    return summary


def main() -> int:
    """Run from the command line. Returns 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run only the case of this number")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        summary = run(Path(directory), options.cases, options.seed, only=options.only)
    print(summary)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
