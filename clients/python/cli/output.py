"""Output of commands: lines or JSON on standard output; notes, prompts and progress bars on standard error."""

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

from whamming.cli.parser import FailureError, UsageError


def say(text: str) -> None:
    print(text, flush=True)


def say_json(values: Mapping[str, Any]) -> None:
    """Print a JSON object on one line. Infinity and NaN, which JSON does not have, become null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value for key, value in values.items()
    }
    print(json.dumps(finite, ensure_ascii=False), flush=True)


def note(text: str) -> None:
    """Print a message on standard error, as one line."""
    with contextlib.suppress(OSError):  # standard error may be closed
        print(f"whamming: {' '.join(text.splitlines())}", file=sys.stderr, flush=True)


def say_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns: the first one left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        say("  ".join(cells).rstrip())


def say_pairs(title: str, values: Mapping[str, Any]) -> None:
    """Print a title, then one name and value per line."""
    say(title)
    width = max(map(len, values))
    for name, value in values.items():
        say(f"  {name.ljust(width)}  {amount(value)}")


def amount(value: Any) -> str:
    """Format an integer with thousands separators, and anything else with ``str``."""
    return f"{value:,}" if isinstance(value, int) else str(value)


def size(count: float) -> str:
    """Format a number of bytes: ``1.5 MiB``."""
    if count < 1024:
        return f"{count:.0f} bytes"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(int(math.log(count, 1024)), len(units))
    return f"{count / 1024**power:.1f} {units[power - 1]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Format a number with its noun: ``1 item``, ``2 items``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def payload_text(payload: bytes) -> str:
    """Return a payload as printable text, with anything else escaped."""
    text = payload.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def payload_json(payload: bytes) -> dict[str, str]:
    """Return a payload for JSON: as ``payload`` if it is UTF-8, otherwise as ``payload_hex``."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_hex": payload.hex()}


def items_bar(doing: str, total: int, done: int = 0) -> Any:
    """Return a progress bar that counts items, with their rate. It is shown only on a terminal."""
    return tqdm(total=total, initial=done, desc=doing, unit=" items", unit_scale=True, disable=None)


@contextlib.contextmanager
def progress_bar(doing: str) -> Iterator[Callable[[float], None]]:
    """Show a progress bar, on a terminal only. Yields a callback that takes the share done, 0 to 1."""
    form = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    with tqdm(total=1.0, desc=doing, bar_format=form, disable=None) as bar:

        def show(share: float) -> None:
            bar.update(share - bar.n)

        yield show
        show(1.0)


def check_new(file: str, overwrite: bool) -> None:
    """Fail if the file exists, unless ``overwrite``."""
    if not overwrite and Path(file).exists():
        raise FailureError(f"{file} already exists; choose another name, or pass --overwrite to replace it")


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")


def confirm(action: str, yes: bool) -> bool:
    """Ask for confirmation on the terminal, unless ``yes``. Returns the answer."""
    if yes:
        return True
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"stdin is not a terminal; pass --yes to {action}")
    print(f"{action[0].upper()}{action[1:]}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
