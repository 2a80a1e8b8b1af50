"""Fuzz all files that Whamming reads: databases, encoders, imports, small text files, resume tokens.

    python -m tests.storage.fuzz_files --seconds 600
    python -m tests.storage.fuzz_files --target records --replay FILE

Whatever a file contains, using it must end with an answer or a documented error: no crash, no hang, no other exception,
and no memory out of proportion. ``fuzz_targets.py`` has a target per kind of file. Each target runs in a child process.
If atheris is installed, libFuzzer chooses the inputs by coverage; else they are random changes of the seeds.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import hashlib
import importlib
import importlib.util
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.storage.fuzz_targets import NUMBERS, TARGETS, Target
from whamming.storage.files.environment import Environment

SLOWEST = 120
"""Seconds within which an input must be done with. It normally takes milliseconds."""
ROOM = 512 << 20
"""Bytes of memory that an input may take. Files have less than a MiB."""
LONGEST = 1 << 16
"""Bytes of an input."""
MOST_FAILURES = 3
"""A target ends after so many failures."""
FAILED = 70
"""Exit code of a child that has found a failure and saved its input."""
_COUNTS = struct.Struct("<QQ")
_SUFFIX_OF_ATHERIS = re.compile(r"(crash|timeout|oom|leak)-[0-9a-f]+")


@dataclass
class Result:
    """What became of a target."""

    target: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.inputs / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.target:<9} {self.inputs:>12,} inputs in {self.seconds:,.0f} s, {rate:,.0f} per second; "
            f"{self.accepted:,} accepted, {self.inputs - self.accepted:,} refused; {len(self.failures)} failures"
        ]
        return "\n".join([*lines, *(f"FAILURE {failure}" for failure in self.failures)])


# -- in the child process ----------------------------------------------------------------------------------------------


class _Runner:
    """Runs inputs, and counts them in a file that the parent reads even if this process dies."""

    def __init__(self, target: Target, counts: Path) -> None:
        self._target = target
        self._counts = np.memmap(counts, dtype=np.uint64, mode="r+")
        self._files = 0

    def __call__(self, data: bytes) -> None:
        faulthandler.dump_traceback_later(SLOWEST, exit=True)
        accepted = self._target.run(bytes(data))
        if Environment._opened:
            gc.collect()
            if Environment._opened:
                raise AssertionError("an LMDB file is still open")
        faulthandler.cancel_dump_traceback_later()
        self._counts[0] += 1
        self._counts[1] += accepted
        if self._counts[0] % 500 == 0:
            self._check_files()
            limit_memory(ROOM)  # what the fuzzer itself has allocated meanwhile does not count

    def _check_files(self) -> None:
        if (proc := Path("/proc/self/fd")).exists():
            gc.collect()
            files = len(list(proc.iterdir()))
            self._files = self._files or files
            if files > self._files + 50:
                raise AssertionError(f"{files} open files; {self._files} at first")


def limit_memory(room: int) -> None:
    """Let allocations fail that take more than some bytes besides what the process has now."""
    status = Path("/proc/self/status")
    if status.exists():
        used = int(re.findall(r"VmData:\s+(\d+) kB", status.read_text())[0]) << 10
        resource.setrlimit(resource.RLIMIT_DATA, (used + room, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def mutate(rng: np.random.Generator, seeds: Sequence[bytes]) -> bytes:
    """Return a random change of a seed."""
    data = bytearray(seeds[int(rng.integers(len(seeds)))])
    for _ in range(int(rng.geometric(0.3))):
        at = int(rng.integers(len(data) + 1))
        action = int(rng.integers(8))
        if action == 0:
            data[at : at + 1] = rng.bytes(1)
        elif action == 1 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif action == 2:
            size = int(rng.choice([1, 2, 4, 8]))
            number = NUMBERS[int(rng.integers(len(NUMBERS)))] & 2 ** (8 * size) - 1
            data[at : at + size] = number.to_bytes(size, "little")
        elif action == 3:
            del data[at : at + int(rng.integers(1, 40))]
        elif action == 4:
            data[at:at] = rng.bytes(int(rng.integers(1, 40)))
        elif action == 5:
            other = seeds[int(rng.integers(len(seeds)))]
            start = int(rng.integers(len(other) + 1))
            data[at : at + 64] = other[start : start + int(rng.integers(1, 64))]
        elif action == 6 and (numbers := list(re.finditer(rb"\d+", bytes(data)))):
            found = numbers[int(rng.integers(len(numbers)))]
            data[found.start() : found.end()] = str(NUMBERS[int(rng.integers(len(NUMBERS)))]).encode()
        elif action == 7 and rng.random() < 0.2:
            del data[at:]
    return bytes(data[:LONGEST])


def input_of(target: Target, seed: int, number: int) -> bytes:
    """Return an input of a run without atheris: first the seeds themselves, then changes of them."""
    seeds = target.seeds()
    return seeds[number] if number < len(seeds) else mutate(np.random.default_rng([seed, number]), seeds)


def work(given: argparse.Namespace) -> int:
    """Run one target in this process, until the time is over or an input fails."""
    faulthandler.enable()
    fast = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=fast) as directory:
        target = _target_named(given.target)(Path(directory))
        run = _Runner(target, given.counts)
        seeds = target.seeds()
        for data in seeds:
            target.run(data)  # imports and caches
        if given.replay is not None:
            limit_memory(ROOM)
            run(given.replay.read_bytes())
            return 0
        if given.atheris:
            return _work_with_atheris(given, run, seeds)
        limit_memory(ROOM)
        end = time.monotonic() + given.seconds
        number = given.first
        while time.monotonic() < end if given.inputs is None else number < given.inputs:
            data = seeds[number] if number < len(seeds) else mutate(np.random.default_rng([given.seed, number]), seeds)
            try:
                run(data)
            except BaseException:
                traceback.print_exc()
                return FAILED
            number += 1
    return 0


def _work_with_atheris(given: argparse.Namespace, run: Callable[[bytes], None], seeds: Sequence[bytes]) -> int:
    atheris = importlib.import_module("atheris")  # it has no wheels for some platforms
    corpus = given.artifacts / f"corpus-{given.target}"
    corpus.mkdir(parents=True, exist_ok=True)
    for data in seeds:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    options = [
        f"-max_total_time={max(1, int(given.seconds))}",
        f"-max_len={LONGEST}",
        f"-timeout={SLOWEST}",
        "-rss_limit_mb=4096",
        f"-artifact_prefix={given.artifacts}/{given.target}-",
        f"-seed={given.seed % 2**31 + 1}",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], run)
    limit_memory(ROOM)
    atheris.Fuzz()
    return 0


def _target_named(name: str) -> type[Target]:
    """Return a target by its name, or another one as MODULE:CLASS."""
    if ":" in name:
        module, _, kind = name.partition(":")
        other: type[Target] = getattr(importlib.import_module(module), kind)
        return other
    return next(target for target in TARGETS if target.name == name)


# -- in the parent process ---------------------------------------------------------------------------------------------


def fuzz(target: str, given: argparse.Namespace) -> Result:
    """Run a target in child processes, and start a new one after each failure."""
    result = Result(target)
    started = time.monotonic()
    given.artifacts.mkdir(parents=True, exist_ok=True)
    first = 0
    while len(result.failures) < MOST_FAILURES:
        left = given.seconds - (time.monotonic() - started)
        if left <= 0 and given.inputs is None:
            break
        with tempfile.NamedTemporaryFile() as counts:
            counts.write(bytes(_COUNTS.size))
            counts.flush()
            child = _start(target, given, left, first, counts.name)
            inputs, accepted = _COUNTS.unpack(Path(counts.name).read_bytes())
        result.inputs += inputs
        result.accepted += accepted
        if child.returncode == 0:
            break
        first += inputs
        result.failures.append(_describe(target, given, child, first))
        first += 1
    result.seconds = time.monotonic() - started
    return result


def _start(
    target: str, given: argparse.Namespace, left: float, first: int, counts: str
) -> subprocess.CompletedProcess[str]:
    """Run a child process to its end."""
    module = "fuzz_with_atheris" if given.atheris else "fuzz_files"
    command = [sys.executable, "-m", f"tests.storage.{module}", "--child", "--target", target, "--counts", counts]
    command += ["--seconds", str(max(1.0, left)), "--artifacts", str(given.artifacts)]
    if given.atheris:
        command += ["--atheris", "--seed", str(given.seed + first)]  # the same seed would find the same failure
    else:
        command += ["--seed", str(given.seed), "--first", str(first)]
        command += ["--inputs", str(given.inputs)] if given.inputs is not None else []
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _describe(target: str, given: argparse.Namespace, child: subprocess.CompletedProcess[str], number: int) -> str:
    """Return what went wrong and how to repeat it. Without atheris, saves the input first."""
    output = child.stdout + child.stderr
    name = re.search(rf"{target}-{_SUFFIX_OF_ATHERIS.pattern}", output)
    if name is not None:
        saved = given.artifacts / name[0]
    else:
        saved = given.artifacts / f"{target.rpartition(':')[2]}-{given.seed}-{number}"
        with tempfile.TemporaryDirectory() as directory:
            saved.write_bytes(input_of(_target_named(target)(Path(directory)), given.seed, number))
    code = child.returncode
    how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    lines = [line for line in output.splitlines() if not line.startswith(("#", "INFO:", "NEW_FUNC", "stat::"))]
    return "\n".join(
        [
            f"{target}: {how}",
            *lines[-40:],
            f"repeat: python -m tests.storage.fuzz_files --target {target} --replay {saved}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line. Returns 1 if an input failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.storage.fuzz_files", description=__doc__.splitlines()[0])
    names = [target.name for target in TARGETS]
    parser.add_argument("--target", help=f"one of {', '.join(names)} (default: all of them, one after the other)")
    parser.add_argument("--seconds", type=float, default=600.0, help="time for all targets (default: %(default)s)")
    parser.add_argument("--inputs", type=int, help="instead of a time: number of inputs per target, without atheris")
    parser.add_argument("--seed", type=int, help="seed of the inputs (default: random)")
    parser.add_argument("--artifacts", type=Path, default=Path("build/fuzz"), help="directory for inputs that fail")
    parser.add_argument("--replay", type=Path, help="run the input in this file")
    for hidden in ("--child", "--atheris"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--counts", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.child:
        return work(given)
    if given.replay is not None:
        with tempfile.NamedTemporaryFile() as counts:
            counts.write(bytes(_COUNTS.size))
            counts.flush()
            given.counts = Path(counts.name)
            return work(given)
    given.seed = int.from_bytes(os.urandom(4), "little") if given.seed is None else given.seed
    given.atheris = given.inputs is None and importlib.util.find_spec("atheris") is not None
    print(f"seed {given.seed}; inputs chosen {'by coverage (atheris)' if given.atheris else 'at random'}", flush=True)
    wanted = [_target_named(given.target)] if given.target else TARGETS
    share = given.seconds / sum(target.share for target in wanted)
    failed = False
    for target in wanted:
        given.seconds = target.share * share
        result = fuzz(given.target or target.name, given)
        print(result, flush=True)
        failed = failed or bool(result.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
