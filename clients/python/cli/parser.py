"""argparse with examples in the help, suggestions for misspelt words, and one-line errors."""

from __future__ import annotations

import argparse
import difflib
import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, Protocol

from whamming.native import WhammingError

Run = Callable[[argparse.Namespace], None]
"""Runs a command. Raises an error if it fails."""


class UsageError(WhammingError):
    """The command line is invalid; exit code 2."""


class FailureError(WhammingError):
    """The command failed; exit code 1."""


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal's width. Paragraphs with indented lines are left alone."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        filled = []
        for paragraph in text.split("\n\n"):
            indented = any(line.startswith(" ") for line in paragraph.splitlines())
            filled.append(paragraph if indented else textwrap.fill(paragraph, width))
        return "\n\n".join(filled)


class Parser(argparse.ArgumentParser):
    """An argument parser that raises :class:`UsageError` and suggests corrections."""

    fill: Callable[[Parser], None] | None = None
    """Adds arguments on first use, if determining them needs a slow import."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _Formatter)
        # If options could be abbreviated, a new option could make an abbreviation in a script ambiguous.
        super().__init__(allow_abbrev=False, **options)

    def complete(self) -> None:
        """Call ``fill`` to add its arguments. Later calls do nothing."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line. Unknown options are reported first, because one may be a misspelt required option."""
        self.complete()
        if self._subparsers is None:
            for word in itertools.takewhile(lambda word: word != "--", args or ()):
                if word.startswith("--"):
                    self._check_known(word)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line. An error about unexpected arguments points to the help of their command."""
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            self._command(parsed.command)._check_known(left[0])
        return parsed

    def _command(self, name: str | None) -> Parser:
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction) and name in action.choices:
                command: Parser = action.choices[name]
                return command
        return self

    def _check_known(self, word: str) -> None:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"unexpected argument: {word}")
        if name not in self._option_string_actions:
            self.error(f"unknown option {name}{did_you_mean(name, self._option_string_actions)}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError as error:
            self.error(f"{_name(action)} {error.message}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"unknown command {value}{did_you_mean(value, action.choices)}")
        hint = did_you_mean(value, action.choices)
        self.error(f"{_name(action)} must be {listed(action.choices)}, not {value}{hint}")

    def error(self, message: str) -> NoReturn:
        plain = re.sub(r"\bargument (-)", r"\1", message).replace("arguments --", "options --")
        raise UsageError(f"{plain}{'' if plain.endswith('?') else ';'} see: {self.prog} --help")


def _name(action: argparse.Action) -> str:
    """Return the name of an argument as the help shows it."""
    if action.option_strings:
        return action.option_strings[-1]
    return str(action.metavar or action.dest)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` with the most similar known word, or nothing if none is similar."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def listed(choices: Iterable[str]) -> str:
    """Join choices: ``a, b or c``."""
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last


class Commands(Protocol):
    """A function that adds a command."""

    def __call__(self, name: str, run: Run, summary: str, *, text: str = "", example: str) -> Parser:
        """Add a command. Returns its parser, to which the caller adds arguments."""


def commands_of(parser: Parser) -> Commands:
    """Return a function that adds commands to the top-level parser."""
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


def add_json(parser: argparse.ArgumentParser, text: str = "print one JSON object per line") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def any_whole(text: str) -> int:
    """Parse a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text}") from None


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers within limits."""

    def read(text: str) -> int:
        value = any_whole(text)
        if value < least or (most is not None and value > most):
            limits = f"{least} to {most}" if most is not None else f"{least} or more"
            raise argparse.ArgumentTypeError(f"must be {limits}, not {value}")
        return value

    return read


def any_number(text: str) -> float:
    """Parse a number, including infinity and NaN."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text}") from None


def number(text: str) -> float:
    """Parse a number, including infinity."""
    value = any_number(text)
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"must be a number, not {text}")
    return value


def positive(text: str) -> float:
    """Parse a finite number greater than 0."""
    try:
        value = number(text)
    except argparse.ArgumentTypeError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number greater than 0, not {text}")
    return value
