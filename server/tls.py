"""The server's certificate and the authority of its clients: PEM files, read again when they have changed.

A certificate is renewed every few weeks. Each new connection looks at the files' times, so a server goes on with the
new one without being started again; what cannot be used is logged, and the last good ones stay.
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
    """What a server shows, and what it asks of clients."""

    def __init__(self, config: Config) -> None:
        """Read the files; raises :class:`InvalidArgumentError` where they cannot be used."""
        self._cert, self._key, self._client_ca = config.tls_cert, config.tls_key, config.tls_client_ca
        self._seen = self._times()
        self._first = self._read()
        self._fresh: grpc.ServerCertificateConfiguration | None = None
        """Read by :meth:`reload`, and not yet given to gRPC."""

    def credentials(self) -> grpc.ServerCredentials:
        """Return what gRPC is given."""
        return grpc.dynamic_ssl_server_credentials(
            self._first, self._fetch, require_client_authentication=bool(self._client_ca)
        )

    def reload(self) -> None:
        """Read the files again now, whether they have changed or not."""
        self._fresh = self._read_again() or self._fresh

    def _read(self) -> grpc.ServerCertificateConfiguration:
        authorities = read_authorities(self._client_ca) if self._client_ca else None
        return grpc.ssl_server_certificate_configuration([read_pair(self._cert, self._key)], authorities)

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what new connections are to be met with; None: the same as before. Called for each, by gRPC."""
        if self._times() != self._seen:
            return self._read_again()
        fresh, self._fresh = self._fresh, None
        return fresh

    def _read_again(self) -> grpc.ServerCertificateConfiguration | None:
        """Return what the files hold now; None if it cannot be used."""
        self._seen = self._times()
        try:
            fresh = self._read()
        except InvalidArgumentError as error:
            log.error("the certificates cannot be used, so the old ones stay: %s", error)
            return None
        log.info("the certificates were read again and are used from now on")
        return fresh

    def _times(self) -> list[int]:
        times = []
        for file in (self._cert, self._key, self._client_ca):
            with contextlib.suppress(OSError):  # missing while it is replaced, and seen when it is there again
                times.append(Path(file).stat().st_mtime_ns)
        return times


def is_open(listen: str) -> bool:
    """Tell whether an address can be reached from elsewhere."""
    host = listen.rpartition(":")[0].strip("[]")
    try:
        return not ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host != "localhost"
