"""The command line put together: from arguments to an exit code."""

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

TEXT: Final = "Exact nearest neighbours of binary codes by weighted Hamming distance, handed out as they are proven."
MORE: Final = """\
example:
  whamming serve --data my-data &               serve the database in a directory
  whamming create docs --bits 64                make an index for codes of 64 bits
  whamming import docs codes.npy                load codes; interrupted, it goes on where it was
  whamming search docs --like 42 -k 5           the nearest to item 42, as they are proven
  whamming import texts vectors.npy --encoder itq --bits 256
                                                make an index for vectors, and load them
  whamming list --data my-data                  any command but serve also works without a server

exit codes:
  0    done
  1    refused or failed; one line on the error stream says why
  2    the command line is wrong
  3    the server cannot be reached
  130  interrupted (Ctrl-C)

environment:
  WHAMMING_SERVER   HOST:PORT of the server that commands talk to
  WHAMMING_*        options of serve, as WHAMMING_MAX_K for --max-k; see: whamming serve --show-config
  WHAMMING_DEBUG=1  show where in the program an error came from

With --json, commands print one JSON object per line. Each command has its own help: whamming COMMAND --help"""


def build_parser() -> Parser:
    """Return the whole command line."""
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
    """Run a command line, by default this process's; returns the exit code."""
    try:
        return _run(argv)
    except BrokenPipeError:
        return OK  # who reads the output has seen enough
    except KeyboardInterrupt as interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever presses it again does not want to wait
        note(str(interrupt) or "interrupted")
        logging.disable()  # what was under way is dropped now, which asyncio would complain of
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
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # before gRPC is loaded; what matters is told in our own words
    parser = build_parser()
    try:
        args = parser.parse_args(argv)
    except SystemExit:  # --help and --version have been printed
        sys.stdout.flush()
        return OK
    if args.command is None:
        parser.print_help(sys.stderr)
        return USAGE
    _report_unknown_variables(args.command)
    args.run(args)
    return OK


def _report_unknown_variables(command: str) -> None:
    """Tell of environment variables that look like ours and are not; serve does so itself, in its log."""
    if command == "serve" or not any(name.startswith("WHAMMING_") for name in os.environ):
        return
    from whamming.server.config import unknown_variables

    for text in unknown_variables():
        note(text)


def _flush() -> None:
    """Write what is left of the output; what cannot be written is dropped, or Python would complain of it at exit."""
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
    """Return what an error says, and of one that nobody foresaw, what it is and how to find out more."""
    if isinstance(error, OSError) and error.strerror and not isinstance(error, WhammingError):
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    if isinstance(error, WhammingError | OSError | MemoryError):
        return str(error) or type(error).__name__
    return f"{type(error).__name__}: {error}; this is a bug: run it with WHAMMING_DEBUG=1 and report what it shows"
