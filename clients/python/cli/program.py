"""Entry point of the command ``whamming``: runs a command line and returns its exit code."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import Final

import whamming
from whamming.cli import benching, completion, directory, encoding, importing, indexes, items, searching, serving
from whamming.cli.output import note
from whamming.cli.parser import Parser, UsageError, commands_of
from whamming.native import WhammingError
from whamming.wire.service_errors import UnavailableError

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 128 + signal.SIGINT

TEXT: Final = "Finds the exact nearest neighbours of binary codes under weighted Hamming distance."
MORE: Final = """\
example:
  whamming serve --data my-data &               start a server on a directory
  whamming create docs --bits 64                create an index for 64-bit codes
  whamming import docs codes.npy                load codes; run it again to resume after an interruption
  whamming search docs --like 42 -k 5           find the 5 items nearest to item 42
  whamming import texts vectors.npy --encoder itq --bits 256
                                                create an index for vectors and load them
  whamming list --data my-data                  work on a directory without a server

exit codes:
  0    success
  1    the command failed; one line on standard error says why
  2    the command line is invalid
  3    the server cannot be reached
  130  interrupted (Ctrl-C)

environment:
  WHAMMING_SERVER   HOST:PORT of the default server
  WHAMMING_*        options of serve, such as WHAMMING_MAX_K for --max-k; see: whamming serve --show-config
  WHAMMING_DEBUG=1  show a traceback when a command fails

With --json, commands print one JSON object per line. For help on a command: whamming COMMAND --help"""


def build_parser() -> Parser:
    parser = Parser(prog="whamming", description=TEXT, epilog=MORE)
    parser.add_argument("--version", action="version", version=f"whamming {whamming.__version__}")
    commands = commands_of(parser)
    serving.add(commands)
    indexes.add(commands)
    importing.add(commands)
    encoding.add(commands)
    searching.add(commands)
    items.add(commands)
    directory.add(commands)
    benching.add(commands)
    completion.add(commands, build_parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line, by default that of this process, and return the exit code."""
    try:
        return _run(argv)
    except BrokenPipeError:
        return OK  # the reader has closed the pipe, as head does
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends the process at once
        note(str(interrupt) or "interrupted")
        logging.disable()  # asyncio would complain about the tasks that are abandoned now
        warnings.simplefilter("ignore")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("WHAMMING_DEBUG"):
            raise
        note(f"error: {_explain(error)}")
        return _code(error)
    finally:
        _flush()


def _run(argv: Sequence[str] | None) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # set before gRPC is loaded: we report its errors ourselves
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit:  # --help or --version
        sys.stdout.flush()
        return OK
    if args.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    _report_unknown_variables(args.command)
    args.run(args)
    return OK


def _report_unknown_variables(command: str) -> None:
    """Warn about unknown WHAMMING_* environment variables. serve writes these warnings to its log instead."""
    if command == "serve" or not any(name.startswith("WHAMMING_") for name in os.environ):
        return
    from whamming.server.config import unknown_variables

    for text in unknown_variables():
        note(text)


def _flush() -> None:
    """Flush standard output. If that fails, discard the rest: otherwise Python would print an error at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _code(error: Exception) -> int:
    if isinstance(error, UsageError):
        return USAGE
    return UNREACHABLE if isinstance(error, UnavailableError) else FAILED


def _explain(error: Exception) -> str:
    """Return the message of an error. For an unexpected error, it says that this is a bug and how to report it."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, WhammingError):
        if error.filename is None:  # nothing says which file or call it was
            return f"the system reports: {error.strerror}; WHAMMING_DEBUG=1 shows where"
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, WhammingError | OSError | MemoryError):
        return str(error) or type(error).__name__
    remedy = "please report it with the traceback that WHAMMING_DEBUG=1 shows"
    return f"{type(error).__name__}: {error}; this is a bug: {remedy}"
