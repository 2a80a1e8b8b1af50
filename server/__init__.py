"""The gRPC server: a :class:`Server` serves one database, with the options of a :class:`Config`."""

from typing import TYPE_CHECKING, Any

from whamming.server.config import Config, load

if TYPE_CHECKING:
    from whamming.server.app import Server

__all__ = ["Config", "Server", "load"]


def __getattr__(name: str) -> Any:
    """Import ``Server``, and gRPC with it, on first use: ``set_grpc_variables`` must run before gRPC loads."""
    if name == "Server":
        from whamming.server.app import Server

        return Server
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
