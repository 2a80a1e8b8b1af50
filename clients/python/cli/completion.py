"""``whamming completion``: shell completion of commands, options, files and index names."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Final

from whamming.cli.output import say
from whamming.cli.parser import Commands, Parser

SHELLS: Final = ("bash", "zsh", "fish")

TEXT = """\
Prints a script that makes your shell complete commands, options, files and index names when you press Tab. Index names
come from the --data or --server already on the line, or from the default server. A server that does not answer within
a second offers no names."""
EXAMPLE = """\
bash:  echo 'eval "$(whamming completion bash)"' >> ~/.bashrc
zsh:   whamming completion zsh > ~/.zfunc/_whamming       # with fpath+=~/.zfunc before compinit
fish:  whamming completion fish > ~/.config/fish/completions/whamming.fish"""

# Bash splits words at colons, which would break HOST:PORT, so the script splits the line itself.
BASH = """\
_whamming_indexes() {
    local -a line target
    local i value
    read -ra line <<< "$COMP_LINE"
    for ((i = 1; i < ${#line[@]}; i++)); do
        case "${line[i]}" in
            --data|--server|--tls-ca|--tls-cert|--tls-key)
                value="${line[i + 1]}"
                target+=("${line[i]}" "${value/#\\~\\//$HOME/}") ;;
            --tls) target+=(--tls) ;;
        esac
    done
    compgen -W "$("${line[0]}" list --names --timeout 1 "${target[@]}" 2> /dev/null)" -- "$1"
}"""
ZSH = """\
_whamming_indexes() {
    local -a target names
    local i
    for ((i = 2; i <= $#words; i++)); do
        case $words[i] in
            --data|--server|--tls-ca|--tls-cert|--tls-key) target+=($words[i] ${~words[i+1]}) ;;
            --tls) target+=(--tls) ;;
        esac
    done
    names=(${(f)"$(whamming list --names --timeout 1 $target 2> /dev/null)"})
    compadd -a names
}"""
FISH = """\
function _whamming_indexes
    set -l target
    set -l line (commandline -opc)
    for i in (seq (count $line))
        switch $line[$i]
            case --data --server --tls-ca --tls-cert --tls-key
                set -l next (math $i + 1)
                set -a target $line[$i] (string replace -r '^~/' "$HOME/" -- $line[$next])
            case --tls
                set -a target --tls
        end
    end
    whamming list --names --timeout 1 $target 2> /dev/null
end"""
INDEXES: Final = {
    "bash": "_whamming_indexes",
    "zsh": "_whamming_indexes",
    "fish": "(_whamming_indexes)",
    "preamble": {"bash": BASH, "zsh": ZSH, "fish": FISH},
}
"""How each shell completes an index name, in shtab's format."""


def add(commands: Commands, build: Callable[[], Parser]) -> None:
    """Add the command. ``build`` returns the parser to generate completions for."""

    def run(args: argparse.Namespace) -> None:
        import shtab

        completions = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "FROM": shtab.DIRECTORY, "TO": shtab.DIRECTORY}
        parser = build()
        for command, action in _actions(parser):
            if action.metavar == "NAME" and command != "create":  # create takes a new name
                action.complete = INDEXES  # type: ignore[attr-defined]
            elif action.metavar in completions:
                action.complete = completions[str(action.metavar)]  # type: ignore[attr-defined]
        say(shtab.complete(parser, shell=args.shell))

    parser = commands("completion", run, "print a shell completion script", text=TEXT, example=EXAMPLE)
    parser.add_argument("shell", choices=SHELLS, help="the shell to print the script for")


def _actions(parser: Parser, command: str = "") -> Iterator[tuple[str, argparse.Action]]:
    """Yield every argument of a parser and of its commands, with the name of the command that it belongs to."""
    parser.complete()
    for action in parser._actions:
        yield command, action
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _actions(sub, name)
