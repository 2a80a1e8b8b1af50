"""The check of file lengths that ``make check`` runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.file_lengths import MOST_LINES, ROOT, problems


def test_a_file_that_is_too_long_is_named(tmp_path: Path) -> None:
    (tmp_path / "server" / "search").mkdir(parents=True)
    file = tmp_path / "server" / "search" / "query.py"
    file.write_text("\n" * MOST_LINES)
    assert problems(tmp_path) == []
    file.write_text("\n" * (MOST_LINES + 1))
    (found,) = problems(tmp_path)
    assert "server/search/query.py" in found
    assert str(MOST_LINES + 1) in found


def test_generated_files_do_not_count(tmp_path: Path) -> None:
    (tmp_path / "native").mkdir()
    for name in ("_engine.c", "index_pb2.py", "data.npz"):
        (tmp_path / "native" / name).write_text("\n" * 10_000)
    assert problems(tmp_path) == []


def test_this_project_passes() -> None:
    done = subprocess.run([sys.executable, "tests/file_lengths.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
