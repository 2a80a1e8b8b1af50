"""What commands print: lines for people or JSON for programs on the standard output, progress beside it."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from whamming.cli.parser import UsageError


def say(text: str) -> None:
    """Print a line at once."""
    print(text, flush=True)


def say_json(values: Mapping[str, Any]) -> None:
    """Print a JSON object on a line; numbers that JSON does not have become null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
    print(json.dumps(finite, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """Tell a person something beside the output."""
    with contextlib.suppress(OSError):  # nobody listens
        print(f"whamming: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        say("  ".join(cells).rstrip())


def say_pairs(title: str, values: Mapping[str, Any]) -> None:
    """Print names with their values, one below the other."""
    say(title)
    width = max(map(len, values))
    for name, value in values.items():
        say(f"  {name.ljust(width)}  {amount(value)}")


def amount(value: Any) -> str:
    """Return a number with its thousands apart, or anything else as it is."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Return a number of bytes as people say it."""
    if count < 1024:
        return f"{count:.0f} bytes"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(count, 1024)), len(units))
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with what it counts."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def payload_text(payload: bytes) -> str:
    """Return a payload as a text that a terminal shows as it is."""
    text = payload.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def payload_json(payload: bytes) -> dict[str, str]:
    """Return a payload for JSON: as text, or where it is none, as hexadecimal digits under another name."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}


def items_bar(doing: str, total: int, done: int = 0) -> Any:
    """Return a bar that counts items, with their rate, on the error stream if that is a terminal."""
    return tqdm(total=total, initial=done, desc=doing, unit=" items", unit_scale=True, disable=None)


@contextlib.contextmanager
def share_bar(doing: str) -> Iterator[Callable[[float], None]]:
    """Show a bar on the error stream, if that is a terminal; gives what is to be called with the share done."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=doing, bar_format=form, disable=None) as bar:

        def show(share: float) -> None:
            bar.update(share - bar.n)

        yield show
        show(1.0)


def check_new(file: str, overwrite: bool) -> None:
    """Refuse to write to a file that exists, unless that is wanted."""
    if not overwrite and Path(file).exists():
        raise UsageError(f"{file} exists; give another name, or pass --overwrite to replace it")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    """Add the flag that lets a command replace a file."""
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def confirm(deed: str, yes: bool) -> bool:
    """Return whether something may be done; a person is asked where ``--yes`` was not given."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"stdin is not a terminal; pass --yes to {deed}")
    print(f"{deed[0].upper()}{deed[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
