"""PEM files by which the ends of a connection know each other, judged before gRPC sees them: it would not say why."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TypeAlias

from whamming.native import InvalidArgumentError

File: TypeAlias = str | os.PathLike[str]


def read_pair(cert: File, key: File) -> tuple[bytes, bytes]:
    """Return a private key and its certificate, with those that lead to its authority if they are in the file."""
    data = _read(key), _read(cert)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")  # or it would ask for one
    except OSError as error:  # of which SSLError is one
        text = f"{cert} and {key} are not a certificate and its private key, as PEM without a password"
        raise InvalidArgumentError(text) from error
    return data


def read_authorities(file: File) -> bytes:
    """Return the certificates of authorities."""
    data = _read(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except OSError as error:  # of which SSLError is one
        raise InvalidArgumentError(f"{file} holds no certificates of authorities as PEM") from error
    return data


def _read(file: File) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"the PEM file {file} cannot be read: {error.strerror or error}") from error
