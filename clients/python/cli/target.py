"""Where a command works: on a server, or on a directory in this process."""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import whamming
from whamming.cli.output import note
from whamming.cli.parser import UsageError, did_you_mean, positive
from whamming.storage import Database, NotFoundError, StorageError, WriterBusyError

if TYPE_CHECKING:
    from whamming import RemoteDatabase, RemoteIndex, StoredIndex

AnyDatabase: TypeAlias = "Database | RemoteDatabase"
AnyIndex: TypeAlias = "StoredIndex | RemoteIndex"

VARIABLE: Final = "WHAMMING_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7777"
TIMEOUT: Final = 5.0
NOTICE: Final = 1.0
"""Seconds after which somebody who waits is told what for."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add ``--server`` and how it is reached, and ``--data``."""
    group = parser.add_argument_group("where the database is")
    either = group.add_mutually_exclusive_group()
    text = f"a server (default: the environment's {VARIABLE}, or {DEFAULT_SERVER})"
    either.add_argument("--server", metavar="HOST:PORT", help=text)
    either.add_argument("--data", metavar="DIR", help="a directory, opened by this process")
    group.add_argument("--tls", action="store_true", help="the server has a certificate from a well-known authority")
    text = "it has one from an authority whose certificates are in this PEM file"
    group.add_argument("--tls-ca", metavar="FILE", help=text)
    group.add_argument(
        "--tls-cert", metavar="FILE", help="PEM file of your own certificate, where the server asks for it"
    )
    group.add_argument("--tls-key", metavar="FILE", help="PEM file of your private key")
    text = f"seconds to wait for a server that does not answer (default {TIMEOUT:g})"
    group.add_argument("--timeout", metavar="S", type=positive, default=TIMEOUT, help=text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` to a command that works on directories only."""
    parser.add_argument("--data", metavar="DIR", required=True, help="directory of the database")


def server_address(args: argparse.Namespace) -> str:
    """Return the server that a command line means."""
    given, source = args.server, "--server "
    if given is None:
        given, source = os.environ.get(VARIABLE) or DEFAULT_SERVER, f"{VARIABLE}="
    host, colon, port = given.rpartition(":")
    if not (host and "/" not in host and colon and port.isdecimal() and 0 < int(port) < 65_536):
        raise UsageError(f"{source}{given}; it must be HOST:PORT, as in {DEFAULT_SERVER}")
    return str(given)


def target_name(args: argparse.Namespace) -> str:
    """Return what tells one target from another."""
    return f"server {server_address(args)}" if args.data is None else f"directory {Path(args.data).resolve()}"


@contextlib.contextmanager
def opened(args: argparse.Namespace, *, write: bool = False, create: bool = False) -> Iterator[AnyDatabase]:
    """Open what a command line means: a directory for reading unless ``write``, made if it is missing if ``create``."""
    if args.data is not None:
        if _tls(args):
            raise UsageError("--tls is about servers, and --data is a directory; give one of them")
        with open_directory(args.data, write=write, create=create) as directory:
            yield directory
        return
    address = server_address(args)
    waiting = threading.Timer(NOTICE, note, [f"waiting for a server at {address}, up to {args.timeout:g} s"])
    waiting.daemon = True
    if args.timeout > NOTICE:
        waiting.start()
    try:
        remote = whamming.connect(address, tls=_tls(args), timeout=args.timeout, retry_seconds=args.timeout)
    finally:
        waiting.cancel()
    with remote:
        yield remote


def _tls(args: argparse.Namespace) -> whamming.Tls | bool:
    """Return how a command line means to connect."""
    files = args.tls_ca, args.tls_cert, args.tls_key
    if (args.tls_cert is None) != (args.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if args.tls_key is None else ("--tls-key", "--tls-cert")
        raise UsageError(f"{given} without {missing}; a certificate and its key go together")
    return args.tls if files == (None, None, None) else whamming.Tls(*files)


def find_index(database: AnyDatabase, name: str) -> AnyIndex:
    """Open the index that a command line names; one that is missing is told with those that there are."""
    try:
        return database.index(name)
    except NotFoundError as error:
        raise no_such_index(database, name) from error


def no_such_index(database: AnyDatabase, name: str) -> NotFoundError:
    """Return what to raise where there is no index of a name."""
    names = database.list_indexes()
    there = f"there are: {', '.join(names)}" if names else "there are none yet; make one: whamming create NAME --bits N"
    return NotFoundError(f"there is no index {name}{did_you_mean(name, names) or f'; {there}'}")


def open_directory(data: str, *, write: bool = False, create: bool = False) -> Database:
    """Open the database in a directory; what is wrong is told in the words of the command line."""
    if data == ":memory:":
        raise UsageError("--data :memory: would be gone with this command; give a directory, or a --server")
    try:
        return whamming.open(data, mode="w" if write else "r", create=create)
    except NotFoundError as error:
        remedy = f"make one: whamming create NAME --bits N --data {data}"
        raise NotFoundError(f"there is no database at {data}; {remedy}") from error
    except WriterBusyError as error:
        raise busy(data, "give that server's address as --server, or stop that process") from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError) and write:
            reason = error.__cause__.strerror or error.__cause__
            raise StorageError(f"{data} cannot be opened for writing: {reason}") from error
        raise


def busy(data: str, remedy: str) -> WriterBusyError:
    """Return what to raise where another process writes to a directory."""
    return WriterBusyError(f"another process has {data} open for writing; {remedy}")
