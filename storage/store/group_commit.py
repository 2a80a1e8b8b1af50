"""Group commit: one wait for the disk serves all threads that write at once."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Final

from whamming.storage.storage_errors import StorageError
from whamming.storage.store.contents import Change

GATHER_SECONDS: Final = 0.002
"""A commit waits at most so long for other threads, if they have been writing within RECENT_SECONDS. A thread that
writes alone never waits."""
RECENT_SECONDS: Final = 0.05


class QueuedWrite:
    """A write that waits for its group's commit."""

    def __init__(self, change: Change) -> None:
        """Remember who writes what."""
        self.change = change
        self.thread = threading.get_ident()
        self.done = False
        self.removed = 0
        """Items that it removed, if it only deletes."""
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Let the writer raise an error."""
        self.error, self.done = error, True


class GroupCommit:
    """A queue of writes. The first thread to come commits for all that queue up meanwhile."""

    def __init__(self, writing: threading.Lock, commit: Callable[[], None]) -> None:
        """``commit`` commits what :meth:`take` gives, and is called with the lock ``writing`` held."""
        self._writing = writing
        self._commit = commit
        self._queueing = threading.Condition()
        self._leading = False  # a thread is about to commit for the others
        self._queue: list[QueuedWrite] = []
        self._writers: dict[int, float] = {}  # threads that wrote lately, and when

    def __len__(self) -> int:
        """Return how many writes are waiting."""
        return len(self._queue)

    def take(self) -> list[QueuedWrite]:
        """Return all writes that are waiting, which the caller commits now."""
        with self._queueing:
            taken, self._queue = self._queue, []
        return taken

    def write(self, change: Change) -> int:
        """Return when a write is committed: by another thread, or by this one for all that have queued up.

        Returns how many items it removed, if it only deletes. Raises what kept it from being committed.
        """
        write = QueuedWrite(change)
        self._wait_for_commit(write)
        if write.error is not None:
            raise write.error
        if not write.done:  # the thread that took it from the queue was interrupted
            raise StorageError("the commit of this write was interrupted, so it may not be stored; write it again")
        return write.removed

    def _wait_for_commit(self, write: QueuedWrite) -> None:
        try:
            with self._queueing:
                self._queue.append(write)
                while self._leading and not write.done:
                    self._queueing.wait()
                if write.done:
                    return
                self._leading = True
            with self._writing:
                if not write.done:
                    self._gather()
                    with contextlib.suppress(Exception):  # the writes carry it
                        self._commit()
            self._stop_leading()
        except BaseException:  # an interrupt, which must not leave the others waiting
            self._stop_leading()
            raise

    def _stop_leading(self) -> None:
        """Let another thread lead. It does no harm if two lead at once: the lock ``writing`` makes them take turns."""
        with self._queueing:
            self._leading = False
            self._queueing.notify_all()

    def _gather(self) -> None:
        """Wait a moment for the other threads that have been writing, so that they share this commit."""
        now = time.monotonic()
        self._writers = {thread: last for thread, last in self._writers.items() if now - last < RECENT_SECONDS}
        with self._queueing:
            self._writers |= dict.fromkeys((write.thread for write in self._queue), now)
        end = now + GATHER_SECONDS
        while len(self._queue) < len(self._writers) and time.monotonic() < end:
            time.sleep(GATHER_SECONDS / 20)
