"""The size of messages to a server."""

from __future__ import annotations

from typing import Final

REQUEST_BYTES: Final = 4 << 20
"""Approximate maximum size of a message with items or queries."""
ASSUMED_BYTES: Final = 16 << 20
"""The largest message of a server that does not tell its limit: the default of ``whamming serve --max-message-mb``."""
OVERHEAD: Final = 4096
"""What a message needs at most besides its columns: names, options, and the tags and lengths of fields."""


class MessageSize:
    """The largest message that a server accepts.

    The server tells it in all responses that describe indexes. So a client knows it before it writes or searches.
    """

    def __init__(self) -> None:
        self._limit = ASSUMED_BYTES
        self.is_known = False
        """Whether the server has told its limit."""

    def learn(self, max_message_bytes: int) -> None:
        """Take the limit from a response. 0: the server is older, and does not tell it."""
        if max_message_bytes:
            self._limit, self.is_known = max_message_bytes, True

    def room(self, most: int) -> int:
        """Return the size for the columns of a message: at most ``most``, and less if the server accepts less."""
        return min(most, self._limit - OVERHEAD)

    @property
    def limit(self) -> int:
        """The size of the largest message in bytes."""
        return self._limit
