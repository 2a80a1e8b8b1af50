"""Fuzz a server with random calls: ``python -m tests.server.fuzz``; see ``--help``.

The server and its clients run in one process and one event loop. A failure is printed with its seed, its number and the
messages that were sent. ``--seed S --first N --cases 1`` repeats a case; ``--replay FILE`` runs a case from a file.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.server.fuzz_cases import Case, make_case
from tests.server.fuzz_client import fuzzing
from tests.server.fuzz_statuses import UnsoundError, expect

CONTROL_EVERY: Final = 250
"""Number of cases between two control searches."""
GROWTH: Final = 96 << 20
"""Bytes by which the process may grow after the first tenth of the cases."""
SHOWN: Final = 4000
"""Maximum number of hexadecimal digits of a message to print."""


class FuzzError(AssertionError):
    """A case failed. The message says how to repeat it."""


@dataclass
class Report:
    """The results of a run."""

    seed: int
    cases: int = 0
    seconds: float = 0.0
    work: float = 0.0
    """CPU seconds of the server and its clients."""
    compared: int = 0
    controls: int = 0
    grown: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {self.cases:,} cases in {self.seconds:.0f} s ({self.work:.0f} s of CPU time), "
            f"{self.cases / self.seconds:.0f} per second; "
            f"{self.compared:,} searches and {self.controls} controls compared with the oracle; "
            f"grown by {self.grown / 2**20:.0f} MiB"
        )


async def fuzz_service(
    seed: int,
    cases: int,
    data: str,
    *,
    first: int = 0,
    workers: int = 48,
    progress: Callable[[int], None] = lambda done: None,
) -> Report:
    """Run cases concurrently. Raises :class:`FuzzError` for the first one that fails."""
    report = Report(seed)
    numbers = iter(range(first, first + cases))
    rng = random.Random(seed)
    start, worked = time.perf_counter(), time.process_time()
    settled = 0

    async with fuzzing(data) as fuzz:
        files = open_files()

        async def work() -> None:
            nonlocal settled
            for number in numbers:
                case = make_case(seed, number)
                try:
                    await fuzz.run(case, number)
                    report.cases += 1
                    if report.cases % CONTROL_EVERY == 0:
                        await fuzz.control(rng)
                        report.controls += 1
                        progress(report.cases)
                except UnsoundError as error:
                    raise FuzzError(describe(seed, number, case, error)) from error
                if not settled and report.cases >= cases // 10:
                    settled = resident()

        tasks = [asyncio.create_task(work()) for _ in range(workers)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        report.seconds, report.work = time.perf_counter() - start, time.process_time() - worked
        await fuzz.check_idle()
        for _ in range(4):
            await fuzz.control(rng)
            report.controls += 1
        await fuzz.drop([name for name in await fuzz.indexes() if name not in fuzz.controls])
        await fuzz.check_idle()
        expect(open_files() <= files, f"{open_files()} open files, {files} at the start")
        report.grown = resident() - settled
        report.compared, report.statuses, report.ends = fuzz.checks.compared, fuzz.checks.statuses, fuzz.checks.ends
        if settled:
            expect(
                report.grown <= GROWTH,
                f"grown by {report.grown / 2**20:.0f} MiB; the limit is {GROWTH / 2**20:.0f} MiB",
            )
    return report


def describe(seed: int, number: int, case: Case, error: Exception) -> str:
    """Return a report of what went wrong and how to repeat it."""
    lines = [
        f"{error}",
        f"seed {seed}, case {number}: {case.method}, timeout {case.timeout}",
        *(f"  {verb} {_shown(value) if verb == 'send' else value}" for verb, value in case.steps),
        f"repeat: python -m tests.server.fuzz --seed {seed} --first {number} --cases 1",
        f"repeat with all earlier cases: python -m tests.server.fuzz --seed {seed} --cases {number + 1}",
    ]
    return "\n".join(lines)


def _shown(data: bytes) -> str:
    text = data.hex()
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(data)} bytes)"


def resident() -> int:
    """Return the anonymous memory of this process in bytes."""
    return int(re.findall(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) << 10


def open_files() -> int:
    """Return the number of open files of this process."""
    return len(os.listdir("/proc/self/fd"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.server.fuzz", description="Fuzz a server with random calls.")
    parser.add_argument("--seed", type=int, default=None, help="seed of the cases (default: random)")
    parser.add_argument("--cases", type=int, default=20_000, help="number of cases (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="number of the first case (default: %(default)s)")
    parser.add_argument("--store", choices=("ram", "lmdb"), default="ram", help="kind of store (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=48, help="number of concurrent calls (default: %(default)s)")
    parser.add_argument("--replay", type=Path, help="run the case in a file written by --write")
    parser.add_argument("--write", type=Path, help="write the first case to a file and exit")
    given = parser.parse_args(arguments)
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    if given.write is not None:
        given.write.write_text(make_case(seed, given.first).to_json())
        return 0
    with tempfile.TemporaryDirectory() as directory:
        data = ":memory:" if given.store == "ram" else directory
        try:
            if given.replay is not None:
                asyncio.run(_replay(Case.from_json(given.replay.read_text()), data))
                return 0
            print(f"seed {seed}", flush=True)
            report = asyncio.run(
                fuzz_service(
                    seed,
                    given.cases,
                    data,
                    first=given.first,
                    workers=given.workers,
                    progress=lambda done: print(f"\r{done:,} cases", end="", file=sys.stderr, flush=True),
                )
            )
        except AssertionError as error:
            print(f"\n{error}", flush=True)
            return 1
    print(f"\n{report}")
    for what in (report.statuses, report.ends):
        print("\n".join(f"{count:8,} {name}" for name, count in sorted(what.items())))
    return 0


async def _replay(case: Case, data: str) -> None:
    async with fuzzing(data) as fuzz:
        answer = await fuzz.call(case, fuzz.channels[0])
        print(answer.code, answer.details)
        for response in answer.responses:
            print(response.hex())
        fuzz.checks.check(case, answer)


if __name__ == "__main__":
    sys.exit(main())
