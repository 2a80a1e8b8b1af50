"""The examples in the tutorial print the output that it shows."""

from __future__ import annotations

from tests.markdown import ROOT, check_examples


def test_tutorial_examples_print_the_output_shown() -> None:
    blocks = (ROOT / "clients" / "TUTORIAL.md").read_text(encoding="utf-8").count("```python")
    assert check_examples("clients/TUTORIAL.md") == blocks > 5, "a code block has no output below it"
