"""Named points at which tests kill the process, to see what a crash there leaves behind.

In production :data:`hook` is None and a point costs nothing."""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Pass a point. The names are a part of what the crash tests cover: see ``tests/storage``."""
    if hook is not None:
        hook(name)
