"""How commands are described to argparse: each has an example, and what is wrong is told in one line."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from whamming.native import WhammingError

Run = Callable[[argparse.Namespace], None]
"""Does what a command line asks for; raises an error to fail."""


class UsageError(WhammingError):
    """The command line asks for nothing that could be done; exit code 2."""


class FailureError(WhammingError):
    """What was asked for did not come out well; exit code 1."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Fits paragraphs to the terminal, and leaves lines that are indented as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for paragraph in text.split("\n\n"):
            indented = any(line.startswith(" ") for line in paragraph.splitlines())
            filled.append(paragraph if indented else textwrap.fill(paragraph, width))
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """Options are not abbreviated, so that scripts go on working when others are added."""

    fill: Callable[[Parser], None] | None = None
    """Adds arguments that it takes time to know, when they are needed."""

    def __init__(self, **options: Any) -> None:
        """Prepare."""
        options.setdefault("formatter_class", _Formatter)
        super().__init__(allow_abbrev=False, **options)

    def complete(self) -> None:
        """Have all arguments."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """Read a command line."""
        self.complete()
        return super().parse_known_args(*args, **options)

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        raise UsageError(f"{message}; see: {self.prog} --help")


class Commands(Protocol):
    """What the groups add their commands to."""

    def __call__(self, name: str, run: Run, summary: str, *, text: str = "", example: str) -> Parser:
        """Add a command; returns its parser, for its arguments."""


def commands_of(parser: Parser) -> Commands:
    """Return what adds commands to the top-level parser."""
    group = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")

    def add(name: str, run: Run, summary: str, *, text: str = "", example: str) -> Parser:
        sentence = summary[0].upper() + summary[1:] + "."
        command: Parser = group.add_parser(
            name,
            help=summary,
            description=f"{sentence}\n\n{text}" if text else sentence,
            epilog="example:\n" + "\n".join(f"  {line}" for line in example.splitlines()),
        )
        command.set_defaults(run=run)
        return command

    return add


def add_json(parser: argparse.ArgumentParser, text: str = "one JSON object per line, for programs") -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help=text)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number within limits."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least or (most is not None and value > most):
            limits = f"{least} to {most}" if most is not None else f"{least} or more"
            raise argparse.ArgumentTypeError(f"{value}; it must be {limits}")
        return value

    return read


def positive(text: str) -> float:
    """Read a number of seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; it must be a number greater than 0")
    return value
