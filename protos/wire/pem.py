"""Read certificates and keys from PEM files.

The files are checked before gRPC gets them, because gRPC does not say what is wrong with a file.
"""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import TypeAlias

from whamming.native import InvalidArgumentError

File: TypeAlias = str | os.PathLike[str]


def read_pair(cert: File, key: File) -> tuple[bytes, bytes]:
    """Return a private key and its certificate chain, both as PEM."""
    data = _read(key), _read(cert)
    try:
        # Without a password, OpenSSL would prompt for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")
    except OSError as error:  # SSLError is a subclass
        text = f"{cert} and {key} are not a matching certificate and private key in PEM format without a password"
        raise InvalidArgumentError(text) from error
    return data


def read_authorities(file: File) -> bytes:
    """Return the certificates of certificate authorities (CAs), as PEM."""
    data = _read(file)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
    except OSError as error:  # SSLError is a subclass
        raise InvalidArgumentError(f"{file} has no CA certificates in PEM format") from error
    return data


def _read(file: File) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the PEM file {file}: {error.strerror or error}") from error
