"""Control over freed memory, which the C library may keep for reuse."""

from __future__ import annotations

from whamming.native._engine import lib


def release_memory() -> bool:
    """Make the C library return the freed memory that it has kept. Returns whether there was any."""
    return bool(lib.wh_release_memory())


def keep_memory() -> bool:
    """Keep up to 16 MiB of freed memory per heap for reuse. Returns whether the C library supports it.

    Meant for processes that mostly search. By default, the C library returns the scratch memory of each batch to the
    system, and maps it again for the next batch.
    """
    return bool(lib.wh_keep_memory())
