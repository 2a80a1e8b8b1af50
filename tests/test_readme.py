"""The examples in the README print the output that it shows."""

from __future__ import annotations

from tests.markdown import check_examples


def test_readme_examples_print_the_output_shown() -> None:
    assert check_examples("README.md") >= 2, "the README has fewer than two examples"
