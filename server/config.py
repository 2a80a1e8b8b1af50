"""The server's configuration. Flags override environment variables, which override the config file and defaults."""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import shlex
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_type_hints

from whamming.native import InvalidArgumentError

PREFIX: Final = "WHAMMING_"
"""The prefix of environment variables: ``max_k`` is read from ``WHAMMING_MAX_K``."""
OTHER_VARIABLES: Final = frozenset(
    PREFIX + name
    for name in (
        "SERVER",
        "DEBUG",
        "CASES",
        "SEED",
        "DAMAGE",
        "TEST_ALLOCATOR",
        "BENCH_CACHE",
        "RECORD_LOG",
        "RECORD_ROOT",
    )
)
"""Other variables with this prefix, used by the command line, the tests and the benchmarks."""
_EMPTY_PATHS: Final = {
    "data": "it is empty; give a directory, or :memory:",
    **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), "it is empty; give a file, or leave the option out"),
}
"""The options that are paths, and why an empty value is refused. It often comes from a variable that is not set."""
_KINDS: Final = {int: "a whole number", float: "a number", str: "a string in quotes"}


class OptionError(InvalidArgumentError):
    """An option has an invalid value."""

    def __init__(self, option: str, value: object = None, rule: str = "", given: str = "") -> None:
        """``rule`` says which values are valid. ``given`` is the option and its value as the user wrote them."""
        super().__init__(f"{given or f'{option} = {value}'}; {rule}")
        self.option = option
        self.value = value
        self.rule = rule
        self.is_flag = given.startswith("--")
        """Whether the value is from the command line."""


class EmptyPathError(OptionError):
    """A path is empty in a flag, in the environment or in the config file."""


def _option(default: Any, text: str, least: float | None = None, most: float | None = None) -> Any:
    """Return a dataclass field with a help text and the limits of its value."""
    return field(default=default, metadata={"help": text, "least": least, "most": most})


@dataclass(frozen=True)
class Config:
    """The options of a server. Each can be a flag, an environment variable, or a key in a TOML file."""

    listen: str = _option("127.0.0.1:7777", "address to listen on, HOST:PORT; port 0 picks a free port")
    data: str = _option("whamming-data", "database directory, created if missing; ':memory:' keeps all data in memory")
    tls_cert: str = _option("", "PEM file with the server's certificate; enables TLS")
    tls_key: str = _option("", "PEM file with the certificate's private key")
    tls_client_ca: str = _option("", "PEM file with a CA certificate; clients need a certificate from this CA")
    workers: int = _option(1, "server processes that share the port and the data; one of them writes", 1, 64)
    threads: int = _option(0, "search threads per process; 0: one per core", 0, 256)
    slice_ms: float = _option(1.0, "milliseconds to work on one query before switching to another", 0.05, 1000.0)
    max_message_mb: int = _option(16, "maximum size of a received message, MiB", 1, 1024)
    max_k: int = _option(2**31 - 1, "maximum k of a query", 1, 2**31 - 1)
    max_batch: int = _option(4096, "maximum queries per batch, and running queries per stream", 1, 1_000_000)
    max_streams: int = _option(1000, "maximum concurrent calls per process", 1, 100_000)
    max_client_streams: int = _option(64, "maximum concurrent calls of one client (connection) per process", 1, 100_000)
    receive_mb: int = _option(
        4096, "MiB of messages to receive or keep at a time; a client may use a quarter", 64, 1_048_576
    )
    first_message_seconds: float = _option(30.0, "seconds for the first message of a call to arrive", 0.1, 3600.0)
    buffer_kb: int = _option(
        256, "KiB of hits to buffer for a client that does not read, before its queries pause", 16, 65_536
    )
    snapshot_seconds: float = _option(
        60.0, "seconds that a query may hold a snapshot before it has to be resumed", 0.1, 86_400.0
    )
    grace_seconds: float = _option(5.0, "seconds for running queries to finish when the server stops", 0.0, 3600.0)
    log_level: str = _option("info", "lowest level to log: debug, info, warning or error")

    def __post_init__(self) -> None:
        """Raise :class:`OptionError` for an invalid value."""
        for option in dataclasses.fields(self):
            value, least, most = getattr(self, option.name), option.metadata["least"], option.metadata["most"]
            if least is not None and not least <= value <= most:
                raise OptionError(option.name, value, f"it must be {least} to {most}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise OptionError("log_level", self.log_level, "choose debug, info, warning or error")
        if self.receive_mb < 4 * self.max_message_mb:
            rule = f"it must be at least four times max_message_mb, {4 * self.max_message_mb}"
            raise OptionError("receive_mb", self.receive_mb, rule)
        if self.workers > 1 and self.data == ":memory:":
            rule = "processes cannot share an in-memory database; give a directory as data, or use one worker"
            raise OptionError("workers", self.workers, rule)
        if not self.data:
            raise OptionError("data", "''", _EMPTY_PATHS["data"])
        host, colon, port = self.listen.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 65_536):
            raise OptionError("listen", self.listen, "it must be HOST:PORT, as in 127.0.0.1:7777")
        if bool(self.tls_cert) != bool(self.tls_key):
            name = "tls_cert" if self.tls_cert else "tls_key"
            raise OptionError(name, getattr(self, name), "TLS needs both a certificate and its key")
        if self.tls_client_ca and not self.tls_cert:
            rule = "client certificates need TLS: give the server a certificate and its key too"
            raise OptionError("tls_client_ca", self.tls_client_ca, rule)


@dataclass(frozen=True)
class Setting:
    """The value of one option, and where it comes from."""

    name: str
    value: Any
    source: str
    help: str


def load(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Config, list[Setting]]:
    """Return the config, and the source of each of its values.

    ``flags`` maps option names to values; None means that the flag was not given. ``file`` is a TOML file with option
    names as keys. ``environment`` is ``os.environ`` by default. A path that is given must not be empty: TLS or client
    certificates would silently be off.
    """
    environment = os.environ if environment is None else environment
    given = _read(file) if file is not None else {}
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    """How the user wrote each option that is not a default, for error messages."""
    settings = []
    for option in dataclasses.fields(Config):
        name, variable = option.name, PREFIX + option.name.upper()
        value, source = option.default, "default"
        if name in given:
            written[name] = f"{name} = {json.dumps(given[name], default=str)} in {file}"  # as written in TOML
            value, source = _typed(name, given[name], written[name]), f"file {file}"
        if variable in environment:
            written[name] = f"{variable}={environment[variable]}"
            value, source = _typed(name, environment[variable], written[name]), f"environment {variable}"
        if flags.get(name) is not None:
            written[name] = f"--{name.replace('_', '-')} {shlex.quote(str(flags[name]))}"
            value, source = _typed(name, flags[name], written[name]), "flag"
        values[name] = value
        settings.append(Setting(name, value, source, option.metadata["help"]))
    try:
        return Config(**values), settings
    except OptionError as error:
        raise OptionError(error.option, error.value, error.rule, written.get(error.option, "")) from None


def unknown_variables(environment: Mapping[str, str] | None = None) -> list[str]:
    """Return a warning for each environment variable that has our prefix but is not an option."""
    environment = os.environ if environment is None else environment
    known = [PREFIX + option.name.upper() for option in dataclasses.fields(Config)] + [PREFIX + "SERVER"]
    unknown = sorted(name for name in environment if name.startswith(PREFIX))
    return [
        f"the environment variable {name} is unknown and has no effect{_did_you_mean(name, known, PREFIX)}"
        for name in unknown
        if name not in known and name not in OTHER_VARIABLES
    ]


def _did_you_mean(name: str, known: list[str], prefix: str = "") -> str:
    """Return a hint with the known name most similar to ``name``, or an empty string. Ignores the ``prefix``."""
    near = difflib.get_close_matches(name.removeprefix(prefix), [one.removeprefix(prefix) for one in known], n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the config file {file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # a ValueError of TOML, of UTF-8, or of an integer that is too long
        raise InvalidArgumentError(f"the config file {file} is not TOML: {error}") from error
    known = [option.name for option in dataclasses.fields(Config)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        near = [_did_you_mean(name, known) for name in unknown[:1] if len(unknown) == 1]
        hint = "".join(near) or f"; known options: {', '.join(known)}"
        raise InvalidArgumentError(f"{file} has unknown options: {', '.join(unknown)}{hint}")
    return values


def _typed(name: str, value: Any, written: str) -> Any:
    """Convert a value to the type of its option."""
    if value == "" and name in _EMPTY_PATHS:
        raise EmptyPathError(name, value, _EMPTY_PATHS[name], written)
    wanted = get_type_hints(Config)[name]
    if isinstance(value, str) and wanted is not str:
        try:
            return wanted(value)
        except ValueError:
            pass
    elif type(value) is wanted or (wanted is float and type(value) is int):
        return wanted(value)
    raise OptionError(name, value, f"it must be {_KINDS[wanted]}", written)
