"""A private directory for the socket through which the processes of a server talk."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from whamming.storage.files.temporary import temporary


@contextlib.contextmanager
def socket_directory() -> Iterator[Path]:
    """Create a directory that only this user can enter, with a short path, and remove it at the end.

    If the server is killed, the next one that starts removes it.
    """
    with temporary(Path(tempfile.gettempdir()) / "whamming", directory=True) as path:
        yield path
