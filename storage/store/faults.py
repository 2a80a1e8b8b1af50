"""Named points in the code at which a test can kill the process, raise an error or make a thread wait.

In production :data:`hook` is None, and a point costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

hook: Callable[[str], None] | None = None


def point(name: str) -> None:
    """Call the hook, if a test has set one. The tests in ``tests/storage`` refer to the names."""
    if hook is not None:
        hook(name)
