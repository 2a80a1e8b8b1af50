"""Read certificates and keys from PEM files.

The files are checked before gRPC gets them, because gRPC does not say what is wrong with a file.
"""

from __future__ import annotations

import os
import re
import ssl
from datetime import UTC, datetime
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


def earliest_expiry(file: File) -> datetime | None:
    """Return when the first of the certificates in a PEM file expires, in UTC; None if no date can be read."""
    texts = re.findall(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", _read(file).decode("latin-1"), re.S)
    try:
        return min((_not_after(ssl.PEM_cert_to_DER_cert(text)) for text in texts), default=None)
    except (IndexError, ValueError):
        return None


def _not_after(der: bytes) -> datetime:
    """Return the end of a certificate's validity (RFC 5280, section 4.1). The ssl module does not offer this."""
    _, certificate, _ = _value(der)
    _, rest, _ = _value(certificate)  # the part that is signed: [version], serial, algorithm, issuer, validity, ...
    if rest[0] == 0xA0:
        _, _, rest = _value(rest)
    for _ in range(3):
        _, _, rest = _value(rest)
    _, validity, _ = _value(rest)
    _, _, rest = _value(validity)  # the first date is the start
    tag, text, _ = _value(rest)
    form = "%y%m%d%H%M%SZ" if tag == 0x17 else "%Y%m%d%H%M%SZ"  # UTCTime until 2049, then GeneralizedTime
    return datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)


def _value(der: bytes) -> tuple[int, bytes, bytes]:
    """Split DER into the tag and the contents of its first value, and what follows it."""
    length, start = der[1], 2
    if length >= 0x80:
        start += length - 0x80
        length = int.from_bytes(der[2:start], "big")
    return der[0], der[start : start + length], der[start + length :]


def _read(file: File) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the PEM file {file}: {error.strerror or error}") from error
