"""The engine's folders include each other one way only: search -> index -> base, and search -> simd."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ENGINE = Path(__file__).resolve().parents[2] / "native" / "engine"
MAY_INCLUDE = {
    "base": {"base"},
    "simd": {"simd"},
    "index": {"index", "base"},
    "search": {"search", "simd", "index", "base"},
}
"""Every file may include ``whamming.h``, which itself includes no file of the engine."""
SOURCES = sorted(path for path in ENGINE.rglob("*") if path.suffix in {".c", ".h"})


def included(source: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+"([^"]+)"', source.read_text(encoding="utf-8"), flags=re.MULTILINE)


def name(source: Path) -> str:
    return str(source.relative_to(ENGINE))


def test_every_folder_has_a_rule() -> None:
    assert {path.parent.name for path in SOURCES} == {*MAY_INCLUDE, ENGINE.name}
    assert [name(path) for path in SOURCES if path.parent == ENGINE] == ["whamming.h"]
    assert included(ENGINE / "whamming.h") == []


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_includes_point_one_way(source: Path) -> None:
    allowed = MAY_INCLUDE.get(source.parent.name, set())
    for header in included(source):
        assert (ENGINE / header).is_file(), f"{header} is not a path relative to native/engine"
        assert header == "whamming.h" or header.partition("/")[0] in allowed, f"{name(source)} includes {header}"


@pytest.mark.parametrize("source", SOURCES, ids=name)
def test_no_file_exceeds_400_lines(source: Path) -> None:
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 400
