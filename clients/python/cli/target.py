"""The database that a command uses: on a server, or in a directory that this process opens."""

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
from whamming.storage.directory import address_in

if TYPE_CHECKING:
    from whamming import RemoteDatabase, RemoteIndex, StoredIndex

AnyDatabase: TypeAlias = "Database | RemoteDatabase"
AnyIndex: TypeAlias = "StoredIndex | RemoteIndex"

VARIABLE: Final = "WHAMMING_SERVER"
DEFAULT_SERVER: Final = "127.0.0.1:7777"
TIMEOUT: Final = 5.0
NOTICE_AFTER: Final = 1.0
"""Seconds without a connection after which a note says what the command is waiting for."""


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add ``--server``, ``--data`` and the options of a connection."""
    group = parser.add_argument_group("where the database is")
    either = group.add_mutually_exclusive_group()
    text = f"address of a server (default: environment variable {VARIABLE}, or {DEFAULT_SERVER})"
    either.add_argument("--server", metavar="HOST:PORT", help=text)
    either.add_argument("--data", metavar="DIR", help="directory to open in this process, without a server")
    text = "connect with TLS; trust the well-known certificate authorities"
    group.add_argument("--tls", action="store_true", help=text)
    text = "connect with TLS; trust only the authorities in this PEM file"
    group.add_argument("--tls-ca", metavar="FILE", help=text)
    text = "PEM file with your client certificate, if the server requires one"
    group.add_argument("--tls-cert", metavar="FILE", help=text)
    group.add_argument("--tls-key", metavar="FILE", help="PEM file with the private key of --tls-cert")
    text = f"seconds to wait for a server that does not answer (default {TIMEOUT:g})"
    group.add_argument("--timeout", metavar="S", type=positive, default=TIMEOUT, help=text)


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add ``--data`` to a command that works only on directories."""
    parser.add_argument("--data", metavar="DIR", required=True, help="directory of the database")


def server_address(args: argparse.Namespace) -> str:
    """Return the address of the server that the options name."""
    given, source = args.server, "--server"
    if given is None:
        given, source = os.environ.get(VARIABLE) or DEFAULT_SERVER, VARIABLE
    host, colon, port = given.rpartition(":")
    if not (host and "/" not in host and colon and port.isdecimal() and 0 < int(port) < 65_536):
        raise UsageError(f"{source} must be HOST:PORT, as in {DEFAULT_SERVER}, not {given}")
    return str(given)


def target_name(args: argparse.Namespace) -> str:
    """Return a name that identifies the target."""
    return f"server {server_address(args)}" if args.data is None else f"directory {Path(args.data).resolve()}"


@contextlib.contextmanager
def opened(args: argparse.Namespace, *, write: bool = False, create: bool = False) -> Iterator[AnyDatabase]:
    """Connect to the server or open the directory. ``write`` and ``create`` apply to directories only."""
    if args.data is not None:
        if _tls(args):
            raise UsageError("--tls applies to servers and cannot be used with --data; leave one of them out")
        with open_directory(args.data, write=write, create=create) as directory:
            yield directory
        return
    address = server_address(args)
    waiting = threading.Timer(NOTICE_AFTER, note, [f"waiting up to {args.timeout:g} s for a server at {address}"])
    waiting.daemon = True
    if args.timeout > NOTICE_AFTER:
        waiting.start()
    try:
        remote = whamming.connect(address, tls=_tls(args), timeout=args.timeout, retry_seconds=args.timeout)
    finally:
        waiting.cancel()
    with remote:
        yield remote


def _tls(args: argparse.Namespace) -> whamming.Tls | bool:
    files = args.tls_ca, args.tls_cert, args.tls_key
    if (args.tls_cert is None) != (args.tls_key is None):
        given, missing = ("--tls-cert", "--tls-key") if args.tls_key is None else ("--tls-key", "--tls-cert")
        raise UsageError(f"{given} requires {missing}; a certificate and its key go together")
    return args.tls if files == (None, None, None) else whamming.Tls(*files)


def find_index(database: AnyDatabase, name: str) -> AnyIndex:
    """Open an index. If it does not exist, the error names similar or existing ones."""
    try:
        return database.index(name)
    except NotFoundError as error:
        raise no_such_index(database, name) from error


def no_such_index(database: AnyDatabase, name: str) -> NotFoundError:
    """Return the error for an index that does not exist."""
    names = database.list_indexes()
    there = f"existing indexes: {', '.join(names)}" if names else "to create one: whamming create NAME --bits N"
    return NotFoundError(f"there is no index {name}{did_you_mean(name, names) or f'; {there}'}")


def open_directory(data: str, *, write: bool = False, create: bool = False) -> Database:
    """Open the database in a directory. Errors are phrased in terms of the command line."""
    if not data:
        raise UsageError("--data is empty; give a directory")
    if data == ":memory:":
        raise UsageError("--data :memory: would be lost when this command ends; give a directory, or use --server")
    address = None if Path(data).exists() else address_in(data)
    if address is not None:
        remedy = f"use --server {address}, or write ./{data} for a directory of that name"
        raise UsageError(f"--data {data} looks like the address of a server; {remedy}")
    try:
        return whamming.open(data, mode="w" if write else "r", create=create)
    except NotFoundError as error:
        remedy = f"to create one: whamming create NAME --bits N --data {data}"
        raise NotFoundError(f"there is no database at {data}; {remedy}") from error
    except WriterBusyError as error:
        raise busy(data, "if it is a server, use --server HOST:PORT instead of --data; otherwise, stop it") from error
    except StorageError as error:
        if isinstance(error.__cause__, OSError) and write:
            reason = error.__cause__.strerror or error.__cause__
            raise StorageError(f"{data} cannot be opened for writing: {reason}") from error
        raise


def busy(data: str, remedy: str) -> WriterBusyError:
    """Return the error for a directory that another process has open for writing."""
    return WriterBusyError(f"another process has {data} open for writing; {remedy}")
