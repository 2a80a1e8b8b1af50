"""The guides are short, their sentences are short, and their links point to existing files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.markdown import ROOT, sentences

MAX_README_LINES = 150
MAX_WORDS = 35
GUIDES = (
    "README.md",
    "ARCHITECTURE.md",
    "COMPATIBILITY.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THREAT_MODEL.md",
    "clients/README.md",
    "clients/TUTORIAL.md",
    "native/README.md",
    "server/README.md",
    "storage/FORMAT.md",
    "storage/README.md",
)
IGNORED = {"build", "dist", ".git", ".venv", "node_modules"}
"""Folders that are not part of the repository."""


def markdown_files() -> list[Path]:
    files = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(path for path in files if not IGNORED.intersection(path.parts))


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


def test_sentences_are_split_at_full_stops_and_bullets() -> None:
    text = "# A title\nOne `a. b` two. (Three\nfour.) Five:\n\n- six\n- seven\n\n| a | table |\n```\ncode\n```\n"
    assert list(sentences(text)) == ["One code two.", "(Three four.", "Five:", "six", "seven"]


@pytest.mark.parametrize("guide", GUIDES)
def test_sentences_are_short(guide: str) -> None:
    text = (ROOT / guide).read_text(encoding="utf-8")
    assert [sentence for sentence in sentences(text) if len(sentence.split()) > MAX_WORDS] == []


@pytest.mark.parametrize("file", markdown_files(), ids=str)
def test_links_point_to_existing_files(file: Path) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / file).read_text(encoding="utf-8"), flags=re.DOTALL)
    links = re.findall(r"\]\((?!https?:|mailto:)([^)#\s]+)", text)
    assert [link for link in links if not (ROOT / file).parent.joinpath(link).exists()] == []


@pytest.mark.parametrize("file", markdown_files(), ids=str)
def test_links_to_sections_point_to_existing_headings(file: Path) -> None:
    for path, section in re.findall(
        r"\]\((?!https?:)([^)#\s]*)#([^)\s]+)\)", (ROOT / file).read_text(encoding="utf-8")
    ):
        target = (ROOT / file).parent / path if path else ROOT / file
        headings = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert section in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
