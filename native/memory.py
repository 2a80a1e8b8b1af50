"""Memory of the process."""

from __future__ import annotations

from whamming.native._engine import lib


def release_memory() -> bool:
    """Give memory that was freed, but is kept for later, back to the system; tells whether there was any."""
    return bool(lib.wh_release_memory())


def keep_memory() -> bool:
    """Keep freed memory for later, up to 16 MiB per heap; returns whether the C library can be told so.

    For processes that only search: otherwise each batch's scratch goes back to the system and has to be mapped again.
    """
    return bool(lib.wh_keep_memory())
