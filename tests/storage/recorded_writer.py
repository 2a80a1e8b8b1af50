"""A process to record with ``disk_recorder.c``: the lanes of ``writing_process``, and a thread for the rest.

    LD_PRELOAD=... python -m tests.storage.recorded_writer '{"root": ..., "seed": ..., "session": ...}'

The other thread creates and drops indexes, with and without encoders, fills them, backs the database up and exports
indexes. Both put notes into the log. A lane notes how many of its operations have returned. The other thread notes
before and after each operation what will then be there (:class:`Note`).
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import whamming
from tests.storage.item_checks import BITS, Ids, codes_of, payloads_of, versions_in
from tests.storage.writing_process import INDEX, LANES, SEAL_ROWS, Job, perform
from whamming.storage import Database, StoredIndex
from whamming.storage.store import maintenance
from whamming.storage.transfer.items import export_items

UNIVERSE: Final = 2000
NAMES: Final = ("a", "b", "c")
EXPORTS: Final = ("items.npy", "items.npz")
STEPS: Final = 6
"""Steps of the other thread in a process that is not killed."""
DATABASE: Final = "new/parents/database"
"""The database below the root. Its parents do not exist yet, so they must survive as well."""
BACKUPS: Final = "backups"

State = list[Any] | None
"""What there is under a name: see :func:`state_of`. None: nothing."""


@dataclass(frozen=True)
class Note:
    """What a thread puts into the log."""

    what: str
    """``session``, ``created``, ``lane``, ``closed``; or ``begins`` and ``done`` of an operation."""
    number: int = 0
    lane: int = 0
    count: int = 0
    name: str = ""
    """What an operation changes: an index, an exported file or a backup, such as ``index a`` or ``file items.npy``."""
    state: Any = None
    """What is under this name after the operation."""

    @classmethod
    def read(cls, data: bytes) -> Note:
        """Read what was noted."""
        return cls(**json.loads(data))


def note(what: str, **values: Any) -> None:
    """Put a note into the log, if there is one."""
    text = json.dumps(asdict(Note(what, **values))).encode()
    ctypes.CDLL(None).disk_recorder_note(text, ctypes.c_size_t(len(text)))


def vectors_of(ids: Ids, version: int) -> NDArray[np.int8]:
    """Return vectors whose signs are the expected codes."""
    bits = np.unpackbits(codes_of(ids, version), axis=1, bitorder="little")
    return bits.astype(np.int8) * 2 - 1


def state_of(index: StoredIndex) -> list[Any]:
    """Return the number of items of an index, their version, and whether it has an encoder.

    Its ids are 0, 1, 2 and so on, all of one version. Raises BrokenPromiseError if they are not.
    """
    count = len(index)
    versions = np.unique(versions_in(index.get(np.arange(count, dtype=np.uint64)))).tolist()
    return [count, versions[0] if len(versions) == 1 else len(versions), index.encoder is not None]


class Others:
    """The thread that does everything except for writing to the index of the lanes."""

    def __init__(self, root: Path, database: Database, seed: int, session: int) -> None:
        self._root = root
        self._database = database
        self._session = session
        self._rng = np.random.default_rng([seed, session, LANES])
        self.steps = 0
        self._states: dict[str, State] = dict.fromkeys(NAMES)
        for name in database.list_indexes():
            if name != INDEX:
                self._states[name] = state_of(database.index(name))

    def step(self) -> None:
        """Do one operation."""
        self.steps += 1
        name = str(self._rng.choice(NAMES))
        state = self._states[name]
        dice = self._rng.random()
        if state is None:
            self._create(name)
        elif dice < 0.45:
            self._fill(name, state)
        elif dice < 0.65:
            self._change(name, None, lambda: self._database.drop_index(name))
        elif dice < 0.9:
            self._export(name, state)
        else:
            self._back_up()

    def _create(self, name: str) -> None:
        encoded = bool(self._rng.random() < 0.5)

        def create() -> None:
            if encoded:
                self._database.create_index(name, encoder="sign", dim=BITS, keep_vectors="int8")
            else:
                self._database.create_index(name, BITS)

        self._change(name, [0, 0, encoded], create)

    def _fill(self, name: str, state: list[Any]) -> None:
        count, version, encoded = state
        version = version or self._session << 32 | self.steps
        ids = np.arange(count, count + int(self._rng.integers(1, 60)), dtype=np.uint64)
        payloads = payloads_of(len(ids), version)
        index = self._database.index(name)

        def upsert() -> None:
            if encoded:
                index.upsert(ids, vectors=vectors_of(ids, version), payloads=payloads, durability="fsync")
            else:
                index.upsert(ids, codes_of(ids, version), payloads, durability="fsync")

        self._change(name, [count + len(ids), version, encoded], upsert)

    def _change(self, name: str, after: State, action: Callable[[], None]) -> None:
        note("begins", name=f"index {name}", state=after)
        action()
        note("done", name=f"index {name}", state=after)
        self._states[name] = after

    def _export(self, name: str, state: list[Any]) -> None:
        file = str(self._rng.choice(EXPORTS))
        note("begins", name=f"file {file}", state=state[:2])
        export_items(self._database.index(name), self._root / file, progress=False)
        note("done", name=f"file {file}", state=state[:2])

    def _back_up(self) -> None:
        name = f"backup {self._session}.{self.steps}"
        states = {name: state for name, state in self._states.items() if state is not None}
        note("begins", name=name, state=states)
        (self._root / BACKUPS).mkdir(exist_ok=True)
        self._database.backup(self._root / BACKUPS / name.removeprefix("backup "))
        note("done", name=name, state=states)


def write(root: Path, seed: int, session: int, records: int, kind: str) -> None:
    """Write until there are so many records of a kind in the log, or of any kind; if 0, for some steps."""
    vars(maintenance).update(SEAL_ROWS=SEAL_ROWS)
    ctypes.CDLL(None).disk_recorder_die_after(ctypes.c_uint64(records), ctypes.c_uint64(ord(kind) if kind else 0))
    note("session", number=session)
    job = job_of(root, seed, session)
    with whamming.open(job.path) as database:
        index = database.create_index(INDEX, BITS, exist_ok=True)
        note("created")
        ends = threading.Event()

        def run(lane: int) -> None:
            for number, operation in enumerate(job.operations(lane), 1):
                if ends.is_set():
                    return
                perform(index, operation)
                note("lane", lane=lane, count=number)

        def run_others() -> None:
            others = Others(root, database, seed, session)
            while records or others.steps < STEPS:
                others.step()

        failed: list[BaseException] = []

        def guarded(action: Callable[[], None]) -> None:
            try:
                action()
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                ends.set()

        threads = [threading.Thread(target=guarded, args=(lambda lane=lane: run(lane),)) for lane in range(LANES)]
        threads.append(threading.Thread(target=guarded, args=(run_others,)))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
    note("closed")


def job_of(root: Path, seed: int, session: int) -> Job:
    """Return the instructions for the lanes."""
    compacts = session % 3 == 1
    return Job(str(root / DATABASE), seed, session, UNIVERSE, compacts, point=None, passes=0)


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    write(Path(arguments.pop("root")), **arguments)
