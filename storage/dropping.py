"""The last step of dropping an index: closing it and removing its files."""

from __future__ import annotations

from pathlib import Path

from whamming.storage.files.temporary import remove
from whamming.storage.stored_index import StoredIndex


def finish_drop(index: StoredIndex | None, gone: Path | None) -> None:
    """Close an index that was abandoned, and remove its directory. None: it was not open, or it has no directory."""
    try:
        if index is not None:
            index.close()
    finally:
        if gone is not None:
            remove(gone)
