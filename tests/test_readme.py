"""The README's example runs, and prints what the README says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path


def test_example_prints_what_the_readme_shows() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL)
    assert found, "the README has lost its example"
    code, shown = found.groups()
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == shown
