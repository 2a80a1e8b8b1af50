"""Checks the project's metadata and guides: versions agree; paths, make targets and names exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUIDES = (
    "README.md",
    "ARCHITECTURE.md",
    "COMPATIBILITY.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THREAT_MODEL.md",
    "clients/README.md",
    "native/README.md",
    "server/README.md",
    "storage/README.md",
    ".github/PULL_REQUEST_TEMPLATE.md",
)
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
    pairs = re.findall(r"`([\w.]+)` in `([\w/.]+\.(?:py|c|h))`", text_of(guide))
    assert [(name, path) for name, path in pairs if not is_defined(name, text_of(path))] == []


def test_names_are_found_where_they_are_defined() -> None:
    code = "LIMIT: int = 3\n\nclass Index:\n    async def search(self) -> None: ...\n"
    assert all(is_defined(name, code) for name in ("LIMIT", "Index", "Index.search"))
    assert not any(is_defined(name, code) for name in ("int", "Search.search", "Index.searches"))


def is_defined(name: str, code: str) -> bool:
    """Return whether code defines a name, such as ``Class.method``. C code only has to mention it."""
    if "#include" in code or "#ifndef" in code:
        return name in code
    return all(
        re.search(rf"^ *((async )?def|class) {part}\b|^ *{part}\b.*=", code, re.MULTILINE) for part in name.split(".")
    )


def test_the_source_distribution_has_every_file_of_the_c_code() -> None:
    """setuptools packs only the C files that pyproject.toml lists."""
    extensions = tomllib.loads(text_of("pyproject.toml"))["tool"]["setuptools"]["ext-modules"]
    listed = {file for extension in extensions for key in ("sources", "depends") for file in extension[key]}
    found = {
        str(file.relative_to(ROOT)) for room in ("engine", "lab") for file in ROOT.glob(f"native/{room}/**/*.[ch]")
    }
    assert found <= listed
