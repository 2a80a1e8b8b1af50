"""The examples in the tutorial print the output that it shows."""

from __future__ import annotations

from tests.markdown import check_examples


def test_tutorial_examples_print_the_output_shown() -> None:
    assert check_examples("clients/TUTORIAL.md") > 5
