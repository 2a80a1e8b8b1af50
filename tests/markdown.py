"""Runs the examples in Markdown files and compares their output."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def check_examples(name: str) -> int:
    """Run the examples of a file in order, in one namespace. Returns how many there are.

    An example is a block of Python followed by a block with its output.
    """
    text = (ROOT / name).read_text(encoding="utf-8")
    examples = re.findall(r"```python\n((?:(?!```).)*)```\n\n```\n(.*?)```", text, re.DOTALL)
    names: dict[str, object] = {}
    for code, shown in examples:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        assert printed.getvalue() == shown
    return len(examples)
