"""Named points in the code at which tests kill the process, to check what a crash leaves behind.

In production :data:`hook` is None and a point costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Call the hook, if a test has set one. The crash tests in ``tests/storage`` refer to the names."""
    if hook is not None:
        hook(name)
