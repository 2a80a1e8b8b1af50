"""Environment variables that gRPC reads when it is imported."""

from __future__ import annotations

import os
from typing import Final

_VARIABLES: Final = {
    "GRPC_EXPERIMENTS": "-event_engine_listener,-event_engine_client",
    "GRPC_ENABLE_FORK_SUPPORT": "false",
}


def set_grpc_variables() -> None:
    """Configure gRPC for a server, except where the user has set a variable already.

    GRPC_EXPERIMENTS: poll all connections of this process in one thread. By default gRPC passes each message through a
    thread pool, which takes about 15 % more CPU time per query.

    GRPC_ENABLE_FORK_SUPPORT: a server starts processes, but does not use gRPC between fork and exec. By default gRPC
    restarts its threads in the child before exec. This sometimes deadlocks, and the event loop then waits for the child
    for ever.

    Call this before gRPC is imported. Child processes inherit the variables.
    """
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
