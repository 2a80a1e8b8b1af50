"""The options of a server: their sources, their precedence and their limits."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from whamming import InvalidArgumentError
from whamming.server import Config, load
from whamming.server.config import PREFIX, EmptyPathError, OptionError, unknown_variables

OPTIONS: dict[str, Any] = {option.name: option for option in dataclasses.fields(Config)}


def test_defaults() -> None:
    config, settings = load({}, environment={})
    assert config == Config()
    assert [setting.name for setting in settings] == list(OPTIONS)
    assert {setting.source for setting in settings} == {"default"}
    assert all(setting.help and setting.value == getattr(config, setting.name) for setting in settings)
    assert config.listen.startswith("127.0.0.1:"), "by default, other machines cannot reach the server"


def test_flags_beat_the_environment_beats_the_file_beats_defaults(tmp_path: Path) -> None:
    file = tmp_path / "whamming.toml"
    file.write_text('max_k = 1\nmax_batch = 2\nthreads = 3\ngrace_seconds = 7\nlog_level = "debug"\n')
    environment = {"WHAMMING_MAX_K": "10", "WHAMMING_MAX_BATCH": "20", "WHAMMING_SLICE_MS": "2.5", "MAX_STREAMS": "9"}
    config, settings = load({"max_k": 100, "max_batch": None, "unknown": 5}, file, environment)
    sources = {setting.name: setting.source for setting in settings}
    assert (config.max_k, sources["max_k"]) == (100, "flag")
    assert (config.max_batch, sources["max_batch"]) == (20, "environment WHAMMING_MAX_BATCH")
    assert (config.slice_ms, sources["slice_ms"]) == (2.5, "environment WHAMMING_SLICE_MS")
    assert (config.threads, sources["threads"]) == (3, f"file {file}")
    assert (config.log_level, sources["log_level"]) == ("debug", f"file {file}")
    assert config.grace_seconds == 7.0
    assert isinstance(config.grace_seconds, float)
    assert (config.max_streams, sources["max_streams"]) == (Config().max_streams, "default")


def test_options_are_read_from_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHAMMING_MAX_K", "77")
    assert load({})[0].max_k == 77


def test_the_data_directory_is_not_empty() -> None:
    for flags, environment, given in (
        ({"data": ""}, {}, "--data ''"),
        ({}, {"WHAMMING_DATA": ""}, "WHAMMING_DATA="),
    ):
        with pytest.raises(OptionError, match=rf"^{given}; it is empty; give a directory"):
            load(flags, environment=environment)


@pytest.mark.parametrize("name", ["data", "tls_cert", "tls_key", "tls_client_ca"])
def test_a_path_that_is_given_is_not_empty(name: str, tmp_path: Path) -> None:
    """An empty value must not turn TLS or client certificates off."""
    flag, variable, file = f"--{name.replace('_', '-')}", PREFIX + name.upper(), tmp_path / "server.toml"
    file.write_text(f'{name} = ""\n')
    pair = {"tls_cert": "server.pem", "tls_key": "server.key"}
    for flags, source, environment, given in (
        ({**pair, name: ""}, None, {}, f"{flag} ''"),
        (pair, None, {variable: ""}, f"{variable}="),
        (pair, file, {}, f'{name} = "" in {file}'),
        ({name: ""}, None, {variable: "x"}, f"{flag} ''"),
    ):
        with pytest.raises(EmptyPathError, match=rf"^{re.escape(given)}; it is empty; give a ") as caught:
            load(flags, source, environment)
        assert caught.value.option == name
    assert load({}, environment={})[0] == Config()


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.metadata["least"] is not None])
def test_numbers_outside_their_limits_are_refused(name: str) -> None:
    least, most = OPTIONS[name].metadata["least"], OPTIONS[name].metadata["most"]
    kind = type(OPTIONS[name].default)
    for value in (kind(least), kind(most)):
        assert getattr(Config(**{name: value}), name) == value
    for value in (least - 1, most + 1):
        with pytest.raises(InvalidArgumentError, match=rf"{name} = {value}.* {least} to {most}"):
            Config(**{name: kind(value)})
        with pytest.raises(InvalidArgumentError, match=rf"{PREFIX}{name.upper()}={kind(value)};.* {least} to {most}"):
            load({}, environment={PREFIX + name.upper(): str(kind(value))})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_k", "many", "WHAMMING_MAX_K=many;.* whole number"),
        ("max_k", "1.5", "WHAMMING_MAX_K=1.5;.* whole number"),
        ("max_k", "", "WHAMMING_MAX_K=;.* whole number"),
        ("slice_ms", "nan", "WHAMMING_SLICE_MS=nan;.* 0.05 to 1000"),
        ("slice_ms", "inf", "WHAMMING_SLICE_MS=inf"),
        ("log_level", "loud", "WHAMMING_LOG_LEVEL=loud;.* debug, info"),
        ("listen", "7777", "WHAMMING_LISTEN=7777;.* HOST:PORT"),
        ("listen", ":7777", "it must be HOST:PORT"),
        ("listen", "localhost:", "it must be HOST:PORT"),
        ("listen", "localhost:http", "it must be HOST:PORT"),
        ("listen", "localhost:65536", "it must be HOST:PORT"),
        ("listen", "localhost:-1", "it must be HOST:PORT"),
    ],
)
def test_invalid_values_are_refused_by_name(name: str, value: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        load({}, environment={PREFIX + name.upper(): value})


def test_an_option_error_has_the_option_and_its_value() -> None:
    with pytest.raises(OptionError) as caught:
        load({"max_k": 0}, environment={})
    assert (caught.value.option, caught.value.value) == ("max_k", 0)
    assert re.match("--max-k 0; .* 1 to ", str(caught.value))


def test_unknown_environment_variables_are_reported() -> None:
    ours = {"WHAMMING_MAX_K": "5", "WHAMMING_DATA": "x", "WHAMMING_SERVER": "x", "WHAMMING_CASES": "5", "PATH": "/"}
    assert unknown_variables({**ours, "WHAMMING_DEBUG": "1"}) == []
    near, far = unknown_variables({**ours, "WHAMMING_MAX_KK": "5", "WHAMMING_ZZZZ": "5"})
    assert "WHAMMING_MAX_KK" in near
    assert "did you mean WHAMMING_MAX_K?" in near
    assert "WHAMMING_ZZZZ" in far
    assert "did you mean" not in far


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:7777", "0.0.0.0:65535", "example.org:1"])
def test_valid_addresses(listen: str) -> None:
    assert Config(listen=listen).listen == listen


@pytest.mark.parametrize("value", [True, 1.5, "5 ", [5]])
def test_flags_of_the_wrong_type_are_refused(value: Any) -> None:
    if value == "5 ":
        assert load({"max_k": value}, environment={})[0].max_k == 5
    else:
        with pytest.raises(InvalidArgumentError, match=r"--max-k .*whole number"):
            load({"max_k": value}, environment={})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"max_k = ", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"max_k = " + b"9" * 5000, "is not TOML"),
        (b"max_k = " + b"[" * 5000, "is not TOML"),
        (b"max_q = 5\nmaxk = 3", r"unknown options.* max_q, maxk.*listen"),
        (b"[server]\nmax_k = 5", "unknown options: server"),
        (b"max_k = 5.5", r"max_k = 5.5 .*file.toml.* whole"),
        (b"max_k = true", r"max_k = true .*file.toml.* whole"),
        (b"listen = 7", r"listen = 7 .*file.toml.* string"),
        (b"max_k = 0", r"max_k = 0 .*file.toml.* 1 to"),
        (b'log_level = "loud"', r'log_level = "loud" .*file.toml.* debug'),
        (b"max_bach = 5", "max_bach.* max_batch"),
    ],
)
def test_invalid_config_files_are_refused(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "file.toml"
    file.write_bytes(text)
    with pytest.raises(InvalidArgumentError, match=message):
        load({}, file, {})


def test_unreadable_config_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"absent.toml cannot be read"):
        load({}, tmp_path / "absent.toml", {})
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        load({}, tmp_path, {})
