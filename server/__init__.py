"""The gRPC server: :class:`whamming.server.Server` over a database, told what to do by a :class:`Config`."""

from whamming.server.app import Server
from whamming.server.config import Config, load

__all__ = ["Config", "Server", "load"]
