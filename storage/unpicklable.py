"""Objects that belong to the process that made them."""

from __future__ import annotations

from typing import NoReturn


class Unpicklable:
    """Cannot be pickled or copied: it has open files, threads or connections."""

    def __reduce__(self) -> NoReturn:
        """Raise TypeError, which names the remedy."""
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled or copied: it belongs to this process; pass the path or the "
            "address of the database instead, and use whamming.open or whamming.connect there"
        )
