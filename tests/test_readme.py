"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path


def test_examples_print_what_the_readme_shows() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n((?:(?!```).)*)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert examples, "the README has lost its examples"
    names: dict[str, object] = {}  # the later ones go on from the earlier ones
    for code, shown in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue() == shown
