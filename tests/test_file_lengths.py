"""Tests of the file length check in ``make check``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.file_lengths import MAX_LINES, ROOT, problems


def test_reports_a_file_that_is_too_long(tmp_path: Path) -> None:
    (tmp_path / "server" / "search").mkdir(parents=True)
    file = tmp_path / "server" / "search" / "query.py"
    file.write_text("\n" * MAX_LINES)
    assert problems(tmp_path) == []
    file.write_text("\n" * (MAX_LINES + 1))
    (found,) = problems(tmp_path)
    assert "server/search/query.py" in found
    assert str(MAX_LINES + 1) in found


def test_ignores_generated_files(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    for name in ("_engine.c", "index_pb2.py", "data.npz"):
        (tmp_path / "native" / name).write_text("\n" * 10_000)
    assert problems(tmp_path) == []


def test_passes_on_this_repository() -> None:
    done = subprocess.run([sys.executable, "tests/file_lengths.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
