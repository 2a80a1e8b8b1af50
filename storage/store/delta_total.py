"""A limit on the deltas of all open indexes of a process together, because they are in memory.

Each index seals its delta when that is large. With hundreds of open indexes, smaller deltas add up, too. So if their
total is above MAX_TOTAL_BYTES, the largest are sealed early: as many as are needed for the rest to be within the limit.
A seal may take long, if the index is being compacted, or fail. The other deltas are then still limited.
"""

from __future__ import annotations

import threading
from typing import Final
from weakref import WeakSet

from whamming.storage.store.background import BackgroundTask

MAX_TOTAL_BYTES: Final = 1 << 30
"""If the deltas of all indexes have more bytes together, the largest are sealed."""
WAIT_FACTOR: Final = 2
"""At this many times MAX_TOTAL_BYTES, writers wait for a seal of their index, unless its delta is below average."""
STEP_BYTES: Final = 1 << 20
"""The deltas are added up each time that one has grown by this much, because adding them up takes time."""
WAIT_SECONDS: Final = 10.0
"""Maximum time that a write waits."""

_shares: WeakSet[DeltaShare] = WeakSet()
_lock = threading.Lock()


class DeltaShare:
    """What the delta of one index adds to the total."""

    def __init__(self, sealer: BackgroundTask, *, counted: bool) -> None:
        """``sealer``: the task that seals the delta if :attr:`must_seal`.

        ``counted``: False if sealing would not help, because the index is in memory or read-only.
        """
        self.size = 0
        """The memory of the delta in bytes, about."""
        self.must_seal = False
        """Whether the delta has to be sealed, however small it is."""
        self._sealer = sealer
        self._counted = counted
        self._added_up = 0
        if counted:
            with _lock:
                _shares.add(self)

    def limit_total(self, *, wait: bool) -> None:
        """Have the largest deltas sealed if the total is too large. Call this when :attr:`size` has changed.

        ``wait``: wait for this index if the total is much too large. The caller must not hold a lock of the index.
        """
        if not self._counted or self._added_up <= self.size < self._added_up + STEP_BYTES:
            return
        self._added_up = self.size
        with _lock:
            shares = [share for share in _shares if not share._sealer.stopped]
        total = left = sum(share.size for share in shares)
        for share in sorted(shares, key=lambda share: share.size, reverse=True):
            if left <= MAX_TOTAL_BYTES:
                break
            share.must_seal = True
            share._sealer.request()
            left -= share.size
        if wait and total >= WAIT_FACTOR * MAX_TOTAL_BYTES and self.size * len(shares) >= total:
            self.must_seal = True
            self._sealer.wait(WAIT_SECONDS)
