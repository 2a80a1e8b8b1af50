"""A short fuzz of the files that Whamming reads, and tests that the fuzz notices what it should."""

from __future__ import annotations

import os
import re
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from tests.storage.fuzz_files import MOST_FAILURES, fuzz, input_of, mutate
from tests.storage.fuzz_targets import TARGETS, Input, Target

INPUTS = {"pages": 60, "records": 60}
"""Number of inputs by target; the other targets are faster."""


def arguments(artifacts: Path, inputs: int) -> Namespace:
    return Namespace(inputs=inputs, seconds=0.0, seed=7, artifacts=artifacts, atheris=False, replay=None)


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_no_file_does_harm(target: str, tmp_path: Path) -> None:
    inputs = INPUTS.get(target, 400)
    result = fuzz(target, arguments(tmp_path, inputs))
    assert result.failures == []
    assert result.inputs == inputs
    assert 0 < result.accepted < inputs


class Harmful(Target):
    """Does harm with all inputs but its seed."""

    def seeds(self) -> list[bytes]:
        return [bytes(20)]

    def use(self, source: Input) -> None:
        if any(source.rest()):
            self.harm()

    def harm(self) -> None:
        raise KeyError("not a documented error")


class Deadly(Harmful):
    def harm(self) -> None:
        os.abort()


class Greedy(Harmful):
    def harm(self) -> None:
        bytearray(4 << 30)


@pytest.mark.parametrize(("kind", "says"), [(Harmful, "KeyError"), (Deadly, "SIGABRT"), (Greedy, "MemoryError")])
def test_harm_is_noticed(kind: type[Target], says: str, tmp_path: Path) -> None:
    if kind is Greedy and not Path("/proc/self/status").exists():
        pytest.skip("limits memory by what /proc says")
    name = f"{__name__}:{kind.__name__}"
    result = fuzz(name, arguments(tmp_path, 1000))
    assert len(result.failures) == MOST_FAILURES
    assert all(says in failure for failure in result.failures)
    saved = Path(re.findall(r"--replay (\S+)", result.failures[0])[0])
    assert any(saved.read_bytes())


def test_inputs_can_be_repeated(tmp_path: Path) -> None:
    for kind in TARGETS:
        target = kind(tmp_path)
        assert input_of(target, 3, 100) == input_of(target, 3, 100)
    seeds = [b"one 1", b"two 22"]
    assert len({mutate(np.random.default_rng(number), seeds) for number in range(50)}) > 20
