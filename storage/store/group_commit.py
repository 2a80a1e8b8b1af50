"""Group commit: threads that write at the same time share one commit, and so one wait for the disk."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.storage_errors import StorageError
from whamming.storage.store.contents import Change, Contents
from whamming.storage.store.requests import AppliedRequests

GATHER_SECONDS: Final = 0.002
"""How long a commit waits for other threads that have written within RECENT_SECONDS. A thread that writes alone never
waits."""
RECENT_SECONDS: Final = 0.05


class QueuedWrite:
    """A write that waits for its group's commit."""

    def __init__(self, change: Change) -> None:
        self.change = change
        self.thread = threading.get_ident()
        self.done = False
        self.removed = 0
        """Number of items removed, if the write only deletes."""
        self.error: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        """Mark the write as failed; its thread raises the error."""
        self.error, self.done = error, True


class GroupCommit:
    """A queue of writes. One thread leads: it commits all writes that are in the queue."""

    def __init__(self, writing: threading.Lock, commit: Callable[[], None]) -> None:
        """``commit`` commits the writes that :meth:`take` returns. It is called with the lock ``writing`` held."""
        self._writing = writing
        self._commit = commit
        self._queueing = threading.Condition()
        self._leading = False  # whether a thread commits for the others, or is about to
        self._queue: list[QueuedWrite] = []
        self._writers: dict[int, float] = {}  # threads that wrote recently, and when

    def __len__(self) -> int:
        """Return the number of waiting writes."""
        return len(self._queue)

    def take(self) -> list[QueuedWrite]:
        """Remove all waiting writes from the queue, and return them. The caller commits them."""
        with self._queueing:
            taken, self._queue = self._queue, []
        return taken

    def write(self, change: Change) -> int:
        """Commit a change, or wait until another thread has committed it.

        Returns how many items were removed if the change only deletes, and 0 otherwise. Raises the error that prevented
        the commit.
        """
        write = QueuedWrite(change)
        self._wait_for_commit(write)
        if write.error is not None:
            raise write.error
        if not write.done:  # the leading thread took it from the queue and was interrupted
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
                    with contextlib.suppress(Exception):  # each failed write has the error
                        self._commit()
            self._stop_leading()
        except BaseException:  # an interrupt; the other threads must not wait forever
            self._stop_leading()
            raise

    def _stop_leading(self) -> None:
        """Let another thread lead.

        A waiting thread that is interrupted also calls this, although another thread is leading. Two threads may then
        lead at once. This is safe, because they commit one after the other: each holds the lock ``writing``.
        """
        with self._queueing:
            self._leading = False
            self._queueing.notify_all()

    def _gather(self) -> None:
        """Wait a moment for the other recent writers, so that they share this commit."""
        now = time.monotonic()
        self._writers = {thread: last for thread, last in self._writers.items() if now - last < RECENT_SECONDS}
        with self._queueing:
            self._writers |= dict.fromkeys((write.thread for write in self._queue), now)
        end = now + GATHER_SECONDS
        while len(self._queue) < len(self._writers) and time.monotonic() < end:
            time.sleep(GATHER_SECONDS / 20)


def apply_writes(
    contents: Contents, writes: Sequence[QueuedWrite], recovered: Sequence[WriteBatch], known: AppliedRequests
) -> tuple[Contents, list[int], dict[bytes, int]]:
    """Apply writes that were saved, except those whose request id is known or repeats.

    Returns the new contents, how many items each write has removed, and the same numbers by request id.
    ``recovered``: writes that are in the contents already.
    """
    applied = dict.fromkeys((batch.request for batch in recovered), 0)
    removed = []
    for write in writes:
        batch = write.change.batch
        count = applied.get(batch.request, known.removed_by(batch)) if batch.request else None
        if count is None:
            contents, count = contents.after(write.change)
            applied[batch.request] = count
        removed.append(count)
    return contents, removed, applied
