"""Fails when a product file is too long to be about one concept: ``python tests/file_lengths.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

MOST_LINES = 450
ROOT = Path(__file__).parent.parent
FOLDERS = ("native", "storage", "server", "protos", "clients")
SUFFIXES = {".py", ".pyi", ".c", ".h", ".proto"}
EXCEPTIONS = {
    "storage/files/lmdb_store.py",
    "storage/files/pages.py",
}
"""Files still to be split. Remove a name when its file is short enough; this check says so."""


def product_files(root: Path) -> Iterator[Path]:
    """Return every file that people write: generated ones are left out."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            generated = "_pb2" in path.name or (path.suffix == ".c" and path.name.startswith("_"))
            if path.suffix in SUFFIXES and not generated:
                yield path


def problems(root: Path, exceptions: set[str]) -> list[str]:
    """Return what is wrong: files that are too long, and exceptions that are no longer needed."""
    lengths = {
        path.relative_to(root).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in product_files(root)
    }
    too_long = {name for name, lines in lengths.items() if lines > MOST_LINES}
    found = [
        f"{name} has {lengths[name]} lines; at most {MOST_LINES}: split it" for name in sorted(too_long - exceptions)
    ]
    found += [
        f"{name} is no longer too long, or gone: remove it from EXCEPTIONS" for name in sorted(exceptions - too_long)
    ]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(problems(ROOT, EXCEPTIONS)) or 0)
