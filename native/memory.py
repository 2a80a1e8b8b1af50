"""Control over the memory that the C library keeps after it is freed."""

from __future__ import annotations

from whamming.native._engine import lib


def release_memory() -> bool:
    """Return freed memory that the C library keeps to the system. Returns whether there was any."""
    return bool(lib.wh_release_memory())


def keep_memory() -> bool:
    """Keep up to 16 MiB of freed memory per heap for reuse. Returns whether the C library supports it.

    For processes that mostly search: otherwise the scratch of each batch is returned to the system and mapped again.
    """
    return bool(lib.wh_keep_memory())
