"""Checks the project's metadata and guides: versions agree; links, paths, make targets and names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = ("CONTRIBUTING.md", "COMPATIBILITY.md", "SECURITY.md", ".github/PULL_REQUEST_TEMPLATE.md")
GENERATED = ("build/", "dist")
"""Prefixes of paths that exist only after a build."""


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def quoted(name: str) -> list[str]:
    """Return the inline code of a Markdown file, without code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text_of(name), flags=re.DOTALL))


def exists(path: str) -> bool:
    return any(ROOT.glob(path.rstrip("/"))) if "*" in path else (ROOT / path).exists()


def found(pattern: str, name: str) -> str:
    """Return the first match of a pattern's group in a file."""
    match = re.search(pattern, text_of(name), re.MULTILINE)
    assert match is not None, f"{name} has no line like {pattern}"
    return match[1]


def test_versions_agree() -> None:
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert found(r"^version: (\S+)$", "CITATION.cff") == version
    assert found(r"^## (\d\S+) - ", "CHANGELOG.md") == version
    assert found(r"^date-released: (\S+)$", "CITATION.cff") == found(r"^## \d\S+ - (\S+)$", "CHANGELOG.md")
    assert found(r"^## (.+)$", "CHANGELOG.md") == "Unreleased"


@pytest.mark.parametrize("guide", GUIDES)
def test_links_point_to_existing_files(guide: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", text_of(guide))
    missing = [link for link in links if not (ROOT / guide).parent.joinpath(link).exists()]
    assert missing == []


@pytest.mark.parametrize("guide", GUIDES)
def test_paths_exist(guide: str) -> None:
    paths = [word for word in quoted(guide) if re.fullmatch(r"[\w.*-]*(/[\w.*-]+)+/?|\w+\.(md|toml|cff)", word)]
    assert [path for path in paths if not path.startswith(GENERATED) and not exists(path)] == []


@pytest.mark.parametrize("guide", GUIDES)
def test_make_targets_exist(guide: str) -> None:
    rules = set(re.findall(r"^([a-z-]+):", text_of("Makefile") + text_of("tests/native/c/sanitize.mk"), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)\b(?!/)", " ".join(quoted(guide))))
    assert named - rules == set()


@pytest.mark.parametrize("guide", GUIDES)
def test_names_occur_in_the_files_they_are_attributed_to(guide: str) -> None:
    pairs = re.findall(r"`(\w+)` in `([\w/.]+\.(?:py|c|h))`", text_of(guide))
    assert [(name, path) for name, path in pairs if name not in text_of(path)] == []
