"""What a database says about each of its indexes when it lists them."""

from __future__ import annotations

from dataclasses import dataclass

from whamming.native import WhammingError
from whamming.storage.settings import IndexSettings
from whamming.storage.store.protocol import StoreStats


@dataclass(frozen=True)
class IndexInfo:
    """One entry of :meth:`Database.describe_indexes`: either settings and statistics, or an error."""

    name: str
    settings: IndexSettings | None = None
    """None if the index is broken."""
    stats: StoreStats | None = None
    """None if the index is broken."""
    error: WhammingError | None = None
    """Why the index cannot be opened; opening it raises the same error. Or, if the index is open and its files were
    deleted or replaced: the error that writing raises. None if neither is so."""
