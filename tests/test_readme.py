"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

from tests.markdown import check_examples


def test_examples_print_what_the_readme_shows() -> None:
    assert check_examples("README.md") >= 2, "the README has lost its examples"
