"""What a server can be told: defaults, overridden by a file, by the environment, by flags, in that order."""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from whamming.native import InvalidArgumentError

PREFIX = "WHAMMING_"
"""Of environment variables: ``max_k`` is read from ``WHAMMING_MAX_K``."""


def _option(default: Any, text: str, least: float | None = None, most: float | None = None) -> Any:
    """Return a field that says what it is for and what it may be."""
    return field(default=default, metadata={"help": text, "least": least, "most": most})


@dataclass(frozen=True)
class Config:
    """A server's settings. Each can be given as a flag, in the environment, or in a TOML file."""

    listen: str = _option("127.0.0.1:7777", "address to serve, HOST:PORT; port 0 takes a free one")
    data: str = _option("whamming-data", "directory of the database, made if it is missing; ':memory:' keeps nothing")
    tls_cert: str = _option("", "PEM file of the certificate that clients are shown: connections are encrypted")
    tls_key: str = _option("", "PEM file of its private key")
    tls_client_ca: str = _option("", "PEM file of an authority: only clients with a certificate from it are served")
    workers: int = _option(1, "server processes that share the database and the port; one of them writes", 1, 64)
    threads: int = _option(0, "threads that search in each process; 0: one per core", 0, 256)
    slice_ms: float = _option(1.0, "milliseconds of work on one query before another has its turn", 0.05, 1000.0)
    max_message_mb: int = _option(16, "largest message taken, MiB", 1, 1024)
    max_k: int = _option(2**31 - 1, "largest k of a query", 1, 2**31 - 1)
    max_batch: int = _option(4096, "most queries in one batch, and under way on one stream", 1, 1_000_000)
    max_streams: int = _option(1000, "most calls served at once by a process", 1, 100_000)
    buffer_kb: int = _option(
        256, "KiB of hits kept for a client that does not read; then its queries pause", 16, 65_536
    )
    snapshot_seconds: float = _option(
        60.0, "oldest snapshot that a query may hold before it has to resume", 0.1, 86_400.0
    )
    grace_seconds: float = _option(5.0, "time that queries have to finish when the server stops", 0.0, 3600.0)
    log_level: str = _option("info", "debug, info, warning or error")

    def __post_init__(self) -> None:
        """Refuse what a server cannot do."""
        for option in dataclasses.fields(self):
            value, least, most = getattr(self, option.name), option.metadata["least"], option.metadata["most"]
            if least is not None and not least <= value <= most:
                raise InvalidArgumentError(f"{option.name} = {value}; it must be {least} to {most}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidArgumentError(f"log_level = {self.log_level!r}; choose debug, info, warning or error")
        host, colon, port = self.listen.rpartition(":")
        if not (host and colon and port.isdecimal() and int(port) < 65_536):
            raise InvalidArgumentError(f"listen = {self.listen!r}; it must be HOST:PORT, as in 127.0.0.1:7777")
        if bool(self.tls_cert) != bool(self.tls_key) or (self.tls_client_ca and not self.tls_cert):
            given = ", ".join(
                f"{name} = {value!r}" for name, value in vars(self).items() if name[:4] == "tls_" and value
            )
            raise InvalidArgumentError(f"{given}; a certificate and its key go together: give tls_cert and tls_key")


@dataclass(frozen=True)
class Setting:
    """One option of a config, and where its value comes from."""

    name: str
    value: Any
    source: str
    help: str


def load(
    flags: Mapping[str, Any], file: Path | None = None, environment: Mapping[str, str] | None = None
) -> tuple[Config, list[Setting]]:
    """Put a config together; returns it with the source of each value.

    ``flags`` that are None were not given. ``file`` is TOML with the options' names as keys.
    """
    environment = os.environ if environment is None else environment
    given = _read(file) if file is not None else {}
    values: dict[str, Any] = {}
    settings = []
    for option in dataclasses.fields(Config):
        name, variable = option.name, PREFIX + option.name.upper()
        value, source = option.default, "default"
        if name in given:
            value, source = _typed(name, given[name], f"{file}"), f"file {file}"
        if variable in environment:
            value, source = _typed(name, environment[variable], variable), f"environment {variable}"
        if flags.get(name) is not None:
            value, source = _typed(name, flags[name], f"--{name.replace('_', '-')}"), "flag"
        values[name] = value
        settings.append(Setting(name, value, source, option.metadata["help"]))
    return Config(**values), settings


def _read(file: Path) -> dict[str, Any]:
    try:
        values = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidArgumentError(f"the config file {file} cannot be read: {error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(f"the config file {file} is not TOML: {error}") from error
    known = [option.name for option in dataclasses.fields(Config)]
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidArgumentError(f"{file} has unknown options: {', '.join(unknown)}; there are: {', '.join(known)}")
    return values


def _typed(name: str, value: Any, source: str) -> Any:
    """Return a value as its option's type, which text is read as."""
    wanted = get_type_hints(Config)[name]
    if isinstance(value, str) and wanted is not str:
        try:
            return wanted(value)
        except ValueError:
            pass
    elif type(value) is wanted or (wanted is float and type(value) is int):
        return wanted(value)
    raise InvalidArgumentError(f"{name} = {value!r} from {source}; it must be a {wanted.__name__}")
