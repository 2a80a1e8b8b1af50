"""The gRPC server: :class:`whamming.server.Server` over a database, configured by a :class:`Config`."""

from typing import TYPE_CHECKING, Any

from whamming.server.config import Config, load

if TYPE_CHECKING:
    from whamming.server.app import Server

__all__ = ["Config", "Server", "load"]


def __getattr__(name: str) -> Any:
    """Import the server, and gRPC with it, when it is first used; :mod:`whamming.server.polling` has to come before."""
    if name == "Server":
        from whamming.server.app import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
