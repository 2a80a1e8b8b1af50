"""Tests of ``whamming serve``: options from flags, environment and file; starting, stopping, reloading."""

from __future__ import annotations

import dataclasses
import os
import pty
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.clients.commands import (
    COMMAND,
    PATIENCE,
    Cli,
    Done,
    environment,
    finish,
    listening,
    run,
    start,
    terminated,
    wait_until,
)
from whamming.server import Config

SERVE = ("serve", "--listen", "127.0.0.1:0", "--threads", "1")


def test_flags_override_environment_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "server.toml"
    file.write_text('max_k = 10\nmax_batch = 20\nmax_streams = 30\nlisten = "127.0.0.1:1"\ngrace_seconds = 2\n')
    variables = environment(WHAMMING_MAX_K="11", WHAMMING_MAX_BATCH="21", WHAMMING_LOG_LEVEL="error")
    words = ("serve", "--config", file, "--max-k", "12", "--data", "some where", "--show-config")
    shown = run(*words, "--json", env=variables).ok().record
    assert list(shown) == [option.name for option in dataclasses.fields(Config)]
    assert shown["max_k"] == {"value": 12, "source": "flag"}
    assert shown["data"] == {"value": "some where", "source": "flag"}
    assert shown["max_batch"] == {"value": 21, "source": "environment WHAMMING_MAX_BATCH"}
    assert shown["log_level"] == {"value": "error", "source": "environment WHAMMING_LOG_LEVEL"}
    assert shown["max_streams"] == {"value": 30, "source": f"file {file}"}
    assert shown["grace_seconds"] == {"value": 2.0, "source": f"file {file}"}
    assert shown["workers"] == {"value": 1, "source": "default"}
    text = run(*words, env=variables).ok().out
    assert tomllib.loads(text) == {name: setting["value"] for name, setting in shown.items() if setting["value"] != ""}
    assert "# tls_cert = " in text
    assert any(line.split() == ["max_k", "=", "12", "#", "flag"] for line in text.splitlines())
    file.write_text(text)
    again = run("serve", "--config", file, "--show-config", "--json").ok().record
    assert [setting["value"] for setting in again.values()] == [setting["value"] for setting in shown.values()]


def test_every_option_has_a_flag_and_help(cli: Cli) -> None:
    text = " ".join(cli("serve", "--help").ok().out.split())
    for option in dataclasses.fields(Config):
        assert f"--{option.name.replace('_', '-')} " in text
        assert option.metadata["help"] in text


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_stops_on_sigint_and_sigterm(how: signal.Signals, tmp_path: Path) -> None:
    with start(*SERVE, "--data", tmp_path / "data") as process:
        listening(process)
        process.send_signal(how)
        done = finish(process)
    assert (done.code, done.out) == (0, "")
    assert "Traceback" not in done.err
    assert all(" INFO " in line for line in done.err.splitlines())
    assert done.err


def test_sighup_does_not_stop_it(tmp_path: Path) -> None:
    """A closing terminal sends SIGHUP, and operators send it to reload the certificates."""
    log = tmp_path / "log"
    with log.open("w") as file, start(*SERVE, "--data", tmp_path / "data", stderr=file) as process, terminated(process):
        address = listening(process)
        assert run("create", "docs", "--bits", "8", "--server", address).code == 0
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "reload" in log.read_text())
        assert run("list", "--names", "--server", address).out == "docs\n"
        process.send_signal(signal.SIGTERM)
        assert finish(process).code == 0
    assert "Traceback" not in log.read_text()


def test_keeps_running_when_its_terminal_is_closed(tmp_path: Path) -> None:
    """It gets SIGHUP and its standard error is gone, but it continues to serve and stops properly."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", OWN_TERMINAL, *COMMAND, *SERVE, "--data", str(tmp_path / "data")]
    pipes: dict[str, Any] = {"stdin": theirs, "stdout": subprocess.PIPE, "stderr": theirs}
    with (
        subprocess.Popen(command, text=True, env=environment(), start_new_session=True, **pipes) as process,
        terminated(process),
    ):
        os.close(theirs)
        address = listening(process)
        assert run("create", "docs", "--bits", "8", "--server", address).code == 0
        os.close(ours)
        for _ in range(3):
            assert run("list", "--names", "--server", address).out == "docs\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    assert run("verify", "--data", tmp_path / "data").code == 0


OWN_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""Makes standard input the controlling terminal of a command. ``preexec_fn`` would run code between fork and exec,
which breaks gRPC if it is running in this process."""


def test_an_unknown_environment_variable_is_reported(tmp_path: Path) -> None:
    variables = environment(WHAMMING_MAX_KK="5", WHAMMING_CASES="5", WHAMMING_MAX_BATCH="21")
    done = run("serve", "--show-config", env=variables)
    (line,) = done.err.splitlines()
    assert done.code == 0
    assert "WHAMMING_MAX_KK" in line
    assert "did you mean WHAMMING_MAX_K?" in line
    with start(*SERVE, "--data", tmp_path / "data", "--log-level", "warning", env=variables) as process:
        listening(process)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    (line,) = done.err.splitlines()
    assert " WARNING " in line
    assert "WHAMMING_MAX_KK" in line
    with start(*SERVE, "--data", tmp_path / "data", "--log-level", "error", env=variables) as process:
        listening(process)
        process.send_signal(signal.SIGTERM)
        done = finish(process)
    assert "WHAMMING_MAX_KK" in done.err
    variables = environment(WHAMMING_BENCH_CACHE="cache", WHAMMING_SEED="1")
    assert run("serve", "--show-config", env=variables).ok()


def test_an_invalid_variable_is_a_failure_and_an_invalid_flag_a_usage_error() -> None:
    variables = environment(WHAMMING_MAX_K="0")
    run("serve", env=variables).refused(1, "WHAMMING_MAX_K=0", "1 to")
    run("serve", "--max-k", "0", env=variables).refused(2, "--max-k 0", "1 to")


@pytest.mark.parametrize("option", ["data", "tls-cert", "tls-key", "tls-client-ca"])
def test_an_empty_path_is_a_usage_error_wherever_it_is_from(option: str, tmp_path: Path) -> None:
    variable, file = f"WHAMMING_{option.replace('-', '_').upper()}", tmp_path / "server.toml"
    file.write_text(f'{option.replace("-", "_")} = ""')
    run("serve", f"--{option}", "").refused(2, f"--{option} ''", "it is empty; give a ")
    run("serve", env=environment(**{variable: ""})).refused(2, f"{variable}=", "it is empty; give a ")
    run("serve", "--config", file).refused(2, str(file), "it is empty; give a ")


def test_an_empty_config_file_name_is_a_usage_error(cli: Cli) -> None:
    cli("serve", "--config", "").refused(2, "--config is empty")


def test_the_environment_names_the_server(cli: Cli, cli_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("list", "--json", env=environment(WHAMMING_SERVER=cli_server)).ok()
    monkeypatch.setenv("WHAMMING_SERVER", "here")
    cli("list").refused(2, "WHAMMING_SERVER", "here", "HOST:PORT")


def test_a_server_that_cannot_be_reached(cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        run("list", "--server", address, "--timeout", "0.2").refused(3, address, "0.2 s")
    cli("list", "--server", "nowhere").refused(2, "--server", "nowhere", "HOST:PORT")
    cli("list", "--server", "x:70000").refused(2, "HOST:PORT")
    cli("list", "--server", "x:1", "--data", "y").refused(2, "--server", "--data")


def test_a_note_says_what_a_command_waits_for() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = run("list", "--server", address, "--timeout", "1.5")
    assert done.code == 3
    first, last = done.err.splitlines()
    for text in ("waiting", address, "1.5 s"):
        assert text in first
    assert address in last


@pytest.mark.parametrize("workers", ["1", "2"])
def test_addresses_that_cannot_be_used(workers: str, tmp_path: Path) -> None:
    """The port is refused even if its owner would share it (SO_REUSEPORT)."""
    words = ("serve", "--data", tmp_path / "data", "--workers", workers, "--listen")
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run(*words, f"127.0.0.1:{port}").refused(1, f"127.0.0.1:{port} is in use", "--listen")
        run(*words, f"localhost:{port}").refused(1, f"localhost:{port} is in use")
        run(*words, f"0.0.0.0:{port}").refused(1, f"0.0.0.0:{port} is in use")
    run(*words, "192.0.2.1:7777").refused(1, "192.0.2.1:7777", "address of this machine")
    run(*words, "no.such.host.invalid:7777").refused(1, "no.such.host.invalid")
    assert not (tmp_path / "data").exists()


NOT_EXECUTABLE = """
import sys
from whamming.cli import main
sys.executable = sys.argv[1]
sys.exit(main(sys.argv[2:]))
"""


def test_an_interpreter_that_this_user_may_not_execute(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.touch(mode=0o600)
    words = [*SERVE, "--data", str(tmp_path / "data"), "--workers", "2", "--log-level", "error"]
    command = [sys.executable, "-c", NOT_EXECUTABLE, str(python), *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    facts = (str(python), "cannot be executed", "Permission denied", "--workers")
    Done(done.returncode, done.stdout, done.stderr).refused(1, *facts)


def test_refused_server_options(cli: Cli, cli_server: str, tmp_path: Path) -> None:
    run("serve", "--listen", cli_server, "--data", tmp_path / "data", "--log-level", "error").refused(
        1, f"{cli_server} is in use", "--listen"
    )
    with start(*SERVE, "--data", tmp_path / "taken", "--log-level", "error") as process:
        listening(process)
        run(*SERVE, "--data", tmp_path / "taken", "--log-level", "error").refused(
            1, "another process", "taken", "--data"
        )
        process.send_signal(signal.SIGTERM)
        assert finish(process).ok()
    cli("serve", "--listen", "7777").refused(2, "--listen", "7777", "HOST:PORT")
    cli("serve", "--max-k", "0").refused(2, "--max-k", "0", "1 to")
    cli("serve", "--max-k", "many").refused(2, "--max-k", "many", "whole number")
    cli("serve", "--config", tmp_path / "none.toml").refused(1, "none.toml")
    (tmp_path / "bad.toml").write_text("max_q = 1")
    cli("serve", "--config", tmp_path / "bad.toml").refused(1, "max_q", "did you mean max_k?")
