"""How commands are described to argparse: each has an example, and what is wrong is told in one line."""

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

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read a command line. A misspelt option is refused first, before one is missing in its place."""
        self.complete()
        if self._subparsers is None:
            for word in itertools.takewhile(lambda word: word != "--", args or ()):
                if word.startswith("--"):
                    self._check_known(word)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Read a whole command line; words that are left over are refused by the command that was given them."""
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
            self.error(f"there is one argument too many: {word}")
        if name not in self._option_string_actions:
            self.error(f"there is no option {name}{did_you_mean(name, self._option_string_actions)}")

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError as error:
            self.error(f"{_name(action)} {error.message}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value}{did_you_mean(value, action.choices)}")
        self.error(f"{_name(action)} {value}; choose {listed(action.choices)}{did_you_mean(value, action.choices)}")

    def error(self, message: str) -> NoReturn:
        """Refuse a command line."""
        plain = re.sub(r"\bargument (-)", r"\1", message).replace("arguments --", "options --")
        raise UsageError(f"{plain}{'' if plain.endswith('?') else ';'} see: {self.prog} --help")


def _name(action: argparse.Action) -> str:
    """Return what an argument is called on the command line."""
    if action.option_strings:
        return action.option_strings[-1]
    return str(action.metavar or action.dest)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question that names what is spelt almost like a word; empty if nothing is."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def listed(choices: Iterable[str]) -> str:
    """Return choices as a sentence has them: ``a, b or c``."""
    *most, last = choices
    return f"{', '.join(most)} or {last}" if most else last


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


def any_whole(text: str) -> int:
    """Read a whole number."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}; it must be a whole number") from None


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return what reads a whole number within limits."""

    def read(text: str) -> int:
        value = any_whole(text)
        if value < least or (most is not None and value > most):
            limits = f"{least} to {most}" if most is not None else f"{least} or more"
            raise argparse.ArgumentTypeError(f"{value}; it must be {limits}")
        return value

    return read


def any_number(text: str) -> float:
    """Read a number, which may be infinite, or none at all (nan)."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}; it must be a number") from None


def number(text: str) -> float:
    """Read a number, which may be infinite."""
    value = any_number(text)
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"{text}; it must be a number")
    return value


def positive(text: str) -> float:
    """Read a number of seconds."""
    try:
        value = number(text)
    except argparse.ArgumentTypeError:
        value = 0.0
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}; it must be a number greater than 0")
    return value
