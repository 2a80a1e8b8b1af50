"""Encrypted connections: whom a client trusts, and how it shows who it is."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from whamming.native import InvalidArgumentError
from whamming.wire.pem import File, read_authorities, read_pair


@dataclass(frozen=True)
class Tls:
    """How to connect to a server that has a certificate: ``whamming.connect(address, tls=whamming.Tls(ca="ca.pem"))``.

    The address must be a name or number that the server's certificate is for.
    """

    ca: File | None = None
    """PEM file of the authorities that are trusted; by default those that gRPC comes with, or the file that the
    environment's GRPC_DEFAULT_SSL_ROOTS_FILE_PATH names."""
    cert: File | None = None
    """PEM file of this client's certificate, where the server asks for one ..."""
    key: File | None = None
    """... and of its private key."""

    def __post_init__(self) -> None:
        """Refuse half a pair."""
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError(f"cert = {self.cert}, key = {self.key}; a certificate and its key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; raises :class:`InvalidArgumentError` where they cannot be used."""
        authorities = None if self.ca is None else read_authorities(self.ca)
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(authorities)
        return grpc.ssl_channel_credentials(authorities, *read_pair(self.cert, self.key))
