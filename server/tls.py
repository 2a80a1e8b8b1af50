"""The server's TLS certificates, reloaded when their files change.

Certificates are renewed every few weeks. On each new connection the server checks the modification times of the files,
so a renewed certificate takes effect without a restart. If the new files are invalid, the server logs an error and
keeps the old certificates.
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
from pathlib import Path

import grpc

from whamming.native import InvalidArgumentError
from whamming.server.config import Config
from whamming.wire.pem import read_authorities, read_pair

log = logging.getLogger("whamming.server")


class Certificates:
    """The server's certificate and key, and the CA that client certificates must come from."""

    def __init__(self, config: Config) -> None:
        """Read the files. Raises :class:`InvalidArgumentError` if one is invalid."""
        self._cert, self._key, self._client_ca = config.tls_cert, config.tls_key, config.tls_client_ca
        self._seen = self._times()
        self._first = self._read()
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        """Certificates that :meth:`reload` has read, and that were not passed to gRPC yet."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for gRPC."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self._fetch, require_client_authentication=bool(self._client_ca)
        )

    def reload(self) -> None:
        """Read the files now, even if they have not changed."""
        self._fresh = self._read_again() or self._fresh

    def _read(self) -> grpc.ServerCertificateConfiguration:
        authorities = read_authorities(self._client_ca) if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([read_pair(self._cert, self._key)], authorities)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the new certificates, or None if they have not changed. gRPC calls this for each connection."""
        if self._times() != self._seen:
            return self._read_again()
        fresh, self._fresh = self._fresh, None
        return fresh

    def _read_again(self) -> grpc.ServerCertificateConfiguration | None:
        """Return the current certificates, or None if the files are invalid."""
        self._seen = self._times()
        try:
            fresh = self._read()
        except InvalidArgumentError as error:
            log.error("cannot load the new certificates, keeping the old ones: %s", error)
            return None
        log.info("reloaded the certificates")
        return fresh

    def _times(self) -> list[int]:
        times = []
        for file in (self._cert, self._key, self._client_ca):
            with contextlib.suppress(OSError):  # a file may be missing while it is being replaced
                times.append(Path(file).stat().st_mtime_ns)
        return times


def is_open(listen: str) -> bool:
    """Return whether other machines can reach an address."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
