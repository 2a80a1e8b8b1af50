"""Runs the demo with its real server and texts."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

SENTENCE = "a feeling of great happiness"
HIT = re.compile(r"^ *[0-9.]+ +([0-9.]+) +([0-9.]+)  (\S.*)$", re.MULTILINE)


def demo(data: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "whamming.demo", "--data", str(data), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_shows_neighbours_in_order_and_loads_once(tmp_path: Path) -> None:
    first = demo(tmp_path / "data", "-k", "5", *SENTENCE.split())
    again = demo(tmp_path / "data", "-k", "5", *SENTENCE.split())
    hits = HIT.findall(first)
    assert len(hits) == 5
    distances = [float(distance) for distance, _, _ in hits]
    assert distances == sorted(distances)
    assert all(float(distance) <= float(bound) for distance, bound, _ in hits)
    assert any("joy" in text for _, _, text in hits)
    assert "loaded 12,000 texts" in first
    assert "loaded" not in again
    assert [hit[0::2] for hit in HIT.findall(again)] == [hit[0::2] for hit in hits]
    assert "first hit after" in first


def test_shows_examples_by_default(tmp_path: Path) -> None:
    assert len(HIT.findall(demo(tmp_path / "data", "-k", "3"))) == 6


def test_has_help() -> None:
    command = [sys.executable, "-m", "whamming.demo", "--help"]
    assert "sentence" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("k", ["0", "x"])
def test_refuses_an_invalid_k(tmp_path: Path, k: str) -> None:
    command = [sys.executable, "-m", "whamming.demo", "--data", str(tmp_path / "data"), "-k", k, "stars"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "-k" in done.stderr
