"""The tutorial runs, and prints what it says it prints."""

from __future__ import annotations

from tests.markdown import ROOT, check_examples


def test_examples_print_what_the_tutorial_shows() -> None:
    blocks = (ROOT / "clients" / "TUTORIAL.md").read_text(encoding="utf-8").count("```python")
    assert check_examples("clients/TUTORIAL.md") == blocks > 5, "an example shows nothing"
