"""``whamming completion``: a script that teaches a shell our commands."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Final

from whamming.cli.output import say
from whamming.cli.parser import Commands, Parser

SHELLS: Final = ("bash", "zsh", "fish")

TEXT = "Prints a script that completes commands, options and files when you press Tab."
EXAMPLE = """\
bash:  echo 'eval "$(whamming completion bash)"' >> ~/.bashrc
zsh:   whamming completion zsh > ~/.zfunc/_whamming       # with fpath+=~/.zfunc before compinit
fish:  whamming completion fish > ~/.config/fish/completions/whamming.fish"""


def add(commands: Commands, build: Callable[[], Parser]) -> None:
    """Add the command; ``build`` makes the parser to describe."""

    def run(args: argparse.Namespace) -> None:
        import shtab

        parser = build()
        for action in _actions(parser):
            if action.metavar in ("FILE", "DIR", "FROM", "TO"):
                action.complete = shtab.FILE if action.metavar == "FILE" else shtab.DIRECTORY  # type: ignore[attr-defined]
        say(shtab.complete(parser, shell=args.shell))

    parser = commands("completion", run, "print a script for the shell's completion", text=TEXT, example=EXAMPLE)
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to use it")


def _actions(parser: Parser) -> Iterator[argparse.Action]:
    """Return all arguments of a parser and its commands."""
    parser.complete()
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
