"""A process that writes until it is killed, and reports each operation when it has returned.

Its operations follow from seed, cycle and lane, so the process that kills it knows them. Each lane is a thread with its
own ids. After a kill, the surviving operations of a lane must be a prefix of its operations.
"""

from __future__ import annotations

import os
import signal
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from typing import Literal

import numpy as np

import whamming
from tests.storage.item_checks import Ids, codes_of, payloads_of
from whamming.storage import StoredIndex
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import Durability
from whamming.storage.store import faults, maintenance

INDEX = "torture"
LANES = 3
HOT = 1500
"""Smaller ids are written often, so that items are replaced in all layers."""
SEAL_ROWS = 300
SIZES = (1, 1, 2, 8, 40, 150)
DONE = struct.Struct("<BI")
"""A lane, and how many of its operations have returned."""


@dataclass(frozen=True)
class Operation:
    """An operation of a lane. All items that it writes have the same version."""

    kind: Literal["write", "flush", "seal", "compact"]
    version: int
    upserts: Ids
    deletes: Ids
    durability: Durability = "fsync"

    @property
    def makes_durable(self) -> bool:
        """Whether it and all operations before it survive a kill once it has returned."""
        return self.kind != "write" or self.durability == "fsync"

    def effects(self) -> Iterator[tuple[int, int]]:
        """Yield the ids that it changes, and their new versions."""
        yield from ((id_, 0) for id_ in self.deletes.tolist())
        yield from ((id_, self.version) for id_ in self.upserts.tolist())


@dataclass(frozen=True)
class Job:
    """The instructions for a writer."""

    path: str
    seed: int
    cycle: int
    universe: int
    """All ids are smaller."""
    compacts: bool
    point: str | None
    """The point at which to die; None if it is killed from outside."""
    passes: int
    """The pass of the point at which to die, counted from 1."""

    def operations(self, lane: int) -> Iterator[Operation]:
        """Yield the operations of a lane, without end."""
        rng = np.random.default_rng([self.seed, self.cycle, lane])
        none = np.empty(0, dtype=np.uint64)
        number = 0

        def ids() -> Ids:
            size = int(rng.choice(SIZES))
            most = min(HOT, self.universe) if rng.random() < 0.7 else self.universe
            return rng.integers(0, most // LANES, size).astype(np.uint64) * np.uint64(LANES) + np.uint64(lane)

        while True:
            version = (self.cycle + 1) << 32 | number
            number += 1
            dice = rng.random()
            if lane == 0 and number == 6 and self.compacts:
                yield Operation("compact", version, none, none)
            elif lane == 0 and dice < 0.05:
                yield Operation("seal", version, none, none)
            elif dice < 0.1:
                yield Operation("flush", version, none, none)
            else:
                kind = rng.random()
                durability: Durability = "async" if rng.random() < 0.4 else "fsync"
                upserts, deletes = ids(), ids()
                yield Operation(
                    "write", version, upserts if kind < 0.8 else none, deletes if kind > 0.6 else none, durability
                )

    def first(self, lane: int, count: int) -> list[Operation]:
        """Return a lane's first operations."""
        return list(islice(self.operations(lane), count))


class _Dying:
    """A hook that kills its process at the n-th pass of a point."""

    def __init__(self, name: str, passes: int) -> None:
        self._name = name
        self._left = passes
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        if name == self._name:
            with self._lock:
                self._left -= 1
                if self._left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)


def perform(index: StoredIndex, operation: Operation) -> None:
    """Do what an operation says."""
    match operation.kind:
        case "write":
            upserts, version = operation.upserts, operation.version
            codes, payloads = codes_of(upserts, version), payloads_of(len(upserts), version)
            batch = WriteBatch.of(index.settings, upserts, codes, payloads, operation.deletes)
            index.write(batch, operation.durability)
        case "flush":
            index.store.flush()
        case "seal":
            index.seal()
        case "compact":
            index.compact()


def write(job: Job, done: Connection) -> None:
    """Run a job. Returns only if something is wrong."""
    vars(maintenance).update(SEAL_ROWS=SEAL_ROWS)
    if job.point is not None:
        faults.hook = _Dying(job.point, job.passes)
    index = whamming.open(job.path, wait=5).index(INDEX)
    failed = threading.Event()

    def run(lane: int) -> None:
        try:
            for number, operation in enumerate(job.operations(lane), 1):
                perform(index, operation)
                done.send_bytes(DONE.pack(lane, number))
        finally:
            failed.set()

    threads = [threading.Thread(target=run, args=(lane,), daemon=True) for lane in range(LANES)]
    for thread in threads:
        thread.start()
    failed.wait()
