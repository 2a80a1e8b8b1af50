"""``whamming serve``: run a server."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, get_type_hints

from whamming.cli.output import note, say, say_json
from whamming.cli.parser import Commands, Parser, UsageError, add_json, any_number, any_whole
from whamming.cli.target import busy
from whamming.storage import WriterBusyError

if TYPE_CHECKING:  # importing the server would slow down the other commands
    from whamming.server.config import Config, Setting

TEXT = """\
Every option of the server can also be set in the environment (WHAMMING_MAX_K for --max-k) or in a TOML file
(max_k = 1000). Flags override the environment, and the environment overrides the file.

The server prints "listening on HOST:PORT" when it is ready and logs to standard error. Ctrl-C or SIGTERM stops it;
running queries get --grace-seconds to finish. SIGHUP reloads the certificates and does nothing else, so the server
keeps running when its terminal is closed."""

EXAMPLE = """\
whamming serve --data my-data --listen 127.0.0.1:7777
whamming serve --listen 0.0.0.0:7777 --tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem
whamming serve --config server.toml --show-config"""


def add(commands: Commands) -> None:
    parser = commands("serve", serve, "serve a database over gRPC", text=TEXT, example=EXAMPLE)
    parser.add_argument("--config", metavar="FILE", help="TOML file with options of the server")
    parser.add_argument("--show-config", action="store_true", help="print each option with its source, and exit")
    add_json(parser, "with --show-config: print one JSON object, keyed by option")
    parser.fill = _add_options


def _add_options(parser: Parser) -> None:
    """Add a flag for each field of the server's config."""
    from whamming.server.config import Config

    group = parser.add_argument_group("options of the server")
    types = get_type_hints(Config)
    metavars = {"listen": "HOST:PORT", "data": "DIR", "log_level": "LEVEL"}
    metavars |= dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), "FILE")
    for option in dataclasses.fields(Config):
        limits = option.metadata
        text = f"{limits['help']} (default {'none' if option.default == '' else option.default}"
        text += f"; {limits['least']} to {limits['most']})" if limits["least"] is not None else ")"
        flag = f"--{option.name.replace('_', '-')}"
        metavar = metavars.get(option.name, "N")
        read = {int: any_whole, float: any_number}.get(types[option.name], str)
        group.add_argument(flag, metavar=metavar, type=read, help=text.replace("%", "%%"))


def serve(args: argparse.Namespace) -> None:
    from whamming.server.config import Config, EmptyPathError, OptionError, load, unknown_variables

    if args.config == "":
        raise UsageError("--config is empty; give a file, or leave the option out")
    flags = {option.name: getattr(args, option.name) for option in dataclasses.fields(Config)}
    try:
        config, settings = load(flags, Path(args.config) if args.config is not None else None)
    except OptionError as error:
        if error.is_flag or isinstance(error, EmptyPathError):
            raise UsageError(str(error)) from error
        raise
    if args.show_config and args.json:
        say_json({setting.name: {"value": setting.value, "source": setting.source} for setting in settings})
    elif args.show_config:
        lines = [_toml_of(setting) for setting in settings]
        width = max(map(len, lines))
        for line, setting in zip(lines, settings, strict=True):
            say(f"{line.ljust(width)}  # {setting.source}")
    else:
        _serve(config, unknown_variables())
        return
    for text in unknown_variables():
        note(text)


def _toml_of(setting: Setting) -> str:
    """Return a line of a config file. An option without a value is left out with a comment."""
    line = f"{setting.name} = {json.dumps(setting.value)}"
    return f"# {line}" if setting.value == "" else line


def _serve(config: Config, warnings: list[str]) -> None:
    from whamming.server.grpc_variables import set_grpc_variables

    set_grpc_variables()
    from whamming.server.serve import log, run  # imports gRPC

    logging.basicConfig(level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s")
    for text in warnings:
        (log.warning if log.isEnabledFor(logging.WARNING) else note)(text)
    try:
        run(config, lambda address: say(f"listening on {address}"))
    except WriterBusyError as error:
        raise busy(config.data, "stop it, or give another --data") from error
