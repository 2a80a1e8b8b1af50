"""Reads Markdown files: runs their examples and compares the output, and splits their prose into sentences."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHOWN_ADDRESS = "127.0.0.1:7777"
"""The address of the server in examples. A test replaces it with the address of its own server."""
_EXAMPLE = re.compile(r"```(python|sh)\n((?:(?!```).)*)```(?:\n\n```\n((?:(?!```).)*)```)?", re.DOTALL)
_BULLET = re.compile(r"^\s*(?:[-*]|\d+\.)\s+", re.MULTILINE)


def check_examples(name: str, address: str = SHOWN_ADDRESS) -> int:
    """Run the examples of a file in order, in the working directory. Returns how many there are.

    An example is a block of Python, or a block of shell commands that is followed by a block with its output. Blocks of
    Python share one namespace. A block of Python without output must print nothing. Shell commands without output are
    not run. In the output, ``...`` stands for anything within a line.
    """
    count, names = 0, dict[str, object]()
    for language, code, shown in _EXAMPLE.findall((ROOT / name).read_text(encoding="utf-8")):
        if language == "sh" and not shown:
            continue
        code = code.replace(SHOWN_ADDRESS, address)
        printed = _run_python(code, name, names) if language == "python" else _run_shell(code, address)
        pattern = re.escape(shown).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, printed), f"{name} shows:\n{shown}but this prints:\n{printed}{code}"
        count += 1
    return count


def _run_python(code: str, name: str, names: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), names)
    return printed.getvalue()


def _run_shell(code: str, address: str) -> str:
    """Run shell commands, with the commands of this Python's environment, against a server."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "WHAMMING_SERVER": address}
    run = subprocess.run(["sh", "-ec", code], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a Markdown text, without headings, tables and code blocks. Inline code is one word."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"`[^`]+`", "code", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"^(?:\||#).*$", "", text, flags=re.MULTILINE)
    for paragraph in re.split(r"\n\s*\n", _BULLET.sub("\n\n", text)):
        for sentence in re.split(r"(?<=[.!?])[*_)\"]*\s+", " ".join(paragraph.split())):
            if sentence:
                yield sentence
