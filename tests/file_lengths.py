"""Fails if a source file is too long: ``python tests/file_lengths.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

MAX_LINES = 450
ROOT = Path(__file__).parent.parent
FOLDERS = ("native", "storage", "server", "protos", "clients")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".proto"}


def product_files(root: Path) -> Iterator[Path]:
    """Yield every source file that is not generated."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            generated = "_pb2" in path.name or (path.suffix == ".c" and path.name.startswith("_"))
            if path.suffix in SUFFIXES and not generated:
                yield path


def problems(root: Path) -> list[str]:
    """Return a message for each file that is too long."""
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in product_files(root)}
    return [
        f"{path.relative_to(root).as_posix()} has {lines} lines; the limit is {MAX_LINES}; split it"
        for path, lines in lengths.items()
        if lines > MAX_LINES
    ]


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT)) or 0)
