"""Memory of the process."""

from __future__ import annotations

from whamming.native._engine import lib


def release_memory() -> bool:
    """Give memory that was freed, but is kept for later, back to the system; tells whether there was any."""
    return bool(lib.wh_release_memory())
