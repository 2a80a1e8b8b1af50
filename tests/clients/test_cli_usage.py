"""Tests of the command line as a whole: help, exit codes, suggestions, completion, output errors."""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import whamming
from tests.clients.commands import COMMAND, PATIENCE, Cli, environment, run, start
from whamming.cli import build_parser
from whamming.cli.parser import Parser

COMMANDS = [
    *("serve", "create", "list", "stats", "seal", "compact", "drop", "import", "encoder", "search", "get", "delete"),
    *("export", "backup", "restore", "verify", "bench", "completion"),
]


def commands() -> dict[str, Parser]:
    (group,) = (action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction))
    return dict(group.choices)


def test_every_command_has_help_with_an_example(cli: Cli) -> None:
    assert list(commands()) == COMMANDS
    for name, parser in commands().items():
        parser.complete()
        text = cli(name, "--help").ok().out
        assert f"whamming {name}" in text.partition("example:")[2]
        for action in parser._actions:
            assert action.help, (name, action)
    top = cli("--help").ok().out
    for code in ("0 ", "1 ", "2 ", "3 ", "130 "):
        assert f"\n  {code}" in top
    assert all(f"\n    {name}" in top for name in COMMANDS)
    assert "WHAMMING_SERVER" in top


def test_version_and_missing_or_unknown_commands(cli: Cli) -> None:
    assert cli("--version").ok().out == f"whamming {whamming.__version__}\n"
    done = cli()
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("usage: whamming")
    cli("dance").refused(2, "unknown command dance", "see: whamming --help")
    cli("list", "extra").refused(2, "extra", "see: whamming list --help")


def test_suggests_corrections_for_misspelt_words(cli: Cli, directory: Path) -> None:
    cli("serch").refused(2, "unknown command serch", "did you mean search?", "see: whamming --help")
    cli("list", "--jso").refused(2, "unknown option --jso", "did you mean --json?", "see: whamming list --help")
    cli("search", "docs", "--lik", "3").refused(2, "--lik", "did you mean --like?")
    cli("search", "docs", "--lik=3").refused(2, "--lik", "did you mean --like?")
    cli("serve", "--max-kk", "3").refused(2, "--max-kk", "did you mean --max-k?")
    cli("search", "docs", "--like", "3", "--plan", "sweeps").refused(2, "--plan", "sweeps", "did you mean sweep?")
    cli("list", "--zzz").refused(2, "unknown option --zzz; see")
    where = ("--data", directory)
    for words in (("stats",), ("search", "--like", "1"), ("drop", "--yes"), ("get", "--json")):
        command, *flags = words
        ids = ["1"] if command == "get" else []
        cli(command, "dosc", *ids, *flags, *where).refused(1, "no index dosc", "did you mean docs?")
    cli("stats", "zzz", *where).refused(1, "no index zzz", "docs")
    cli("create", "none", "--bits", "8", "--data", directory / "other").ok()
    cli("drop", "none", "--yes", "--data", directory / "other").ok()
    cli("stats", "none", "--data", directory / "other").refused(1, "no index none", "whamming create")


def test_the_installed_command() -> None:
    command = shutil.which("whamming", path=Path(sys.executable).parent)
    assert command is not None
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"whamming {whamming.__version__}\n"


def test_grpc_is_imported_only_to_talk_to_a_server(directory: Path) -> None:
    program = (
        "import sys, whamming; from whamming.cli import main; "
        "code = main(['list', '--data', sys.argv[1]]); assert 'grpc' not in sys.modules; "
        "assert whamming.aio.connect and whamming.connect; assert 'grpc' in sys.modules; sys.exit(code)"
    )
    subprocess.run([sys.executable, "-c", program, directory], capture_output=True, check=True)


def test_output_that_cannot_be_written(directory: Path) -> None:
    with Path("/dev/full").open("w") as full:
        run("list", "--json", "--data", directory, stdout=full).refused(1, "No space left on device")
    with start("--help") as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == ("", 0)
    # The shell closes the output: code between fork and exec would break gRPC if it is running in this process.
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", *COMMAND, "list", "--data", str(directory)]
    done = subprocess.run(closed, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_unexpected_error_is_reported_on_one_line(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oh\ndear")

    monkeypatch.setattr("whamming.open", broken)
    cli("list", "--data", tmp_path).refused(1, "ZeroDivisionError: oh dear", "this is a bug", "WHAMMING_DEBUG=1")
    monkeypatch.setenv("WHAMMING_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        cli("list", "--data", tmp_path)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/some/file"), ("/some/file: Permission denied",)),
        (PermissionError(errno.EACCES, "Permission denied"), ("Permission denied", "WHAMMING_DEBUG=1")),
    ],
)
def test_an_error_of_the_system_names_the_file_or_how_to_find_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: OSError, words: tuple[str, ...]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("whamming.open", broken)
    cli("list", "--data", tmp_path).refused(1, *words)


COMPLETE = """
whamming_try() {
    COMP_WORDS=("$@"); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}; COMPREPLY=()
    $(complete -p whamming | sed 's/.*-F \\([^ ]*\\).*/\\1/')
    echo "${COMPREPLY[*]}"
}
"""


def test_completion_in_bash(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "codes.npy").touch()
    (tmp_path / "folder").mkdir()
    script = cli("completion", "bash").ok().out + COMPLETE
    for words in ("s", "search docs --pl", "search docs --plan ''", "import docs co", "verify --data f"):
        script += f"whamming_try whamming {words}\n"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.splitlines() == ["serve stats seal search", "--plan", "auto probe sweep", "codes.npy", "folder"]


def complete_in_bash(cli: Cli, line: str, **variables: str) -> list[str]:
    """Return the completions that bash offers at the end of a line."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    script = cli("completion", "bash").ok().out + COMPLETE + f"whamming_try {line}\n"
    variables = environment(PATH=path, **variables)
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=variables)
    assert done.stderr == ""
    return done.stdout.split()


def test_completion_of_index_names_in_a_directory(cli: Cli, directory: Path) -> None:
    for name in ("dogs", "cats"):
        cli("create", name, "--bits", "8", "--data", directory).ok()
    assert complete_in_bash(cli, f"whamming search --data {directory} do") == ["docs", "dogs"]
    assert complete_in_bash(cli, f"whamming stats --data {directory} c") == ["cats"]
    assert complete_in_bash(cli, f"whamming drop --data {directory} ''") == ["cats", "docs", "dogs"]
    home = {"HOME": str(directory.parent)}
    assert complete_in_bash(cli, "whamming stats --data '~/data' do", **home) == ["docs", "dogs"]
    assert complete_in_bash(cli, f"whamming create --data {directory} do") == [], "create takes a new name"
    assert complete_in_bash(cli, f"whamming stats --data {directory / 'none'} do") == []


def test_completion_of_index_names_on_a_server(cli: Cli, cli_server: str, name: str) -> None:
    cli("create", name, "--bits", "8", "--server", cli_server).ok()
    variables = {"WHAMMING_SERVER": cli_server}
    assert complete_in_bash(cli, f"whamming stats --server {cli_server} {name[:-1]}") == [name]
    assert complete_in_bash(cli, f"whamming stats {name[:-1]}", **variables) == [name]
    assert complete_in_bash(cli, f"whamming stats --server 127.0.0.1:1 {name[:-1]}") == []


def test_completion_of_index_names_in_zsh(cli: Cli, directory: Path) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    stubs = 'compadd() { print -r -- ${(P)2} }; words=(whamming stats --data "$1" do)'
    script = f"{cli('completion', 'zsh').ok().out.partition('_shtab_whamming_commands')[0]}\n{stubs}\n_whamming_indexes"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["zsh", "-c", script, "zsh", str(directory)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=environment(PATH=path))
    assert done.stdout.split() == ["docs"]


def test_list_names(cli: Cli, directory: Path) -> None:
    cli("create", "cats", "--bits", "8", "--data", directory).ok()
    assert cli("list", "--names", "--data", directory).ok().out == "cats\ndocs\n"
    assert cli.json("list", "--names", "--data", directory) == [{"name": "cats"}, {"name": "docs"}]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_have_valid_syntax(cli: Cli, shell: str, tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text(cli("completion", shell).ok().out)
    assert all(name in script.read_text() for name in COMMANDS)
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", str(script)], check=True)
    cli("completion", "cmd").refused(2, "cmd", "bash, zsh or fish")
