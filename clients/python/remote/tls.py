"""TLS settings of a client: trusted authorities and the client certificate."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from whamming.native import InvalidArgumentError
from whamming.wire.pem import File, read_authorities, read_pair


@dataclass(frozen=True)
class Tls:
    """How to connect with TLS: ``whamming.connect(address, tls=whamming.Tls(ca="ca.pem"))``.

    The server's certificate must be valid for the host name or IP address that you connect to.
    """

    ca: File | None = None
    """PEM file of the authorities to trust. By default those built into gRPC, or those in the file named by the
    environment variable GRPC_DEFAULT_SSL_ROOTS_FILE_PATH."""
    cert: File | None = None
    """PEM file with the client certificate, if the server requires one."""
    key: File | None = None
    """PEM file with the private key of ``cert``."""

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise InvalidArgumentError(f"cert = {self.cert}, key = {self.key}; a certificate and its key go together")

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files. Raises :class:`InvalidArgumentError` if they cannot be used."""
        authorities = None if self.ca is None else read_authorities(self.ca)
        if self.cert is None or self.key is None:
            return grpc.ssl_channel_credentials(authorities)
        return grpc.ssl_channel_credentials(authorities, *read_pair(self.cert, self.key))
