"""A process that reads a database while other processes write to it and die, and checks what it reads."""

from __future__ import annotations

import faulthandler
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import whamming
from tests.storage.item_checks import BrokenPromiseError, Ids, Versions, some, versions_in
from tests.storage.writing_process import HOT, INDEX
from whamming.storage.search import make_costs
from whamming.storage.store.snapshot import Snapshot

PAUSE = 0.005
"""Seconds between two rounds, to leave the CPU to the writer."""
ROUNDS = 50
"""Rounds per opening. The database is reopened now and then, so that some openings coincide with commits."""
HELD = 8
"""Rounds for which a snapshot is kept, to check that it does not change."""


@dataclass(frozen=True)
class Report:
    """What a reader has checked."""

    rounds: int
    opens: int
    snapshots: int
    """Different snapshots."""
    items: int
    """Items looked up by id and found intact."""
    searches: int
    """Searches whose hits were all looked up."""
    problem: str = ""


def read(path: str, universe: int, seed: int, control: Connection) -> None:
    """Read until told to stop, then send a report; stop early if a guarantee was violated."""
    faulthandler.enable()
    reader = _Reader(Path(path), universe, seed)
    problem = ""
    try:
        while not control.poll(PAUSE):
            reader.read()
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    control.send(Report(reader.rounds, reader.opens, reader.snapshots, reader.items, reader.searches, problem))


class _Reader:
    def __init__(self, path: Path, universe: int, seed: int) -> None:
        self._path = path
        self._universe = universe
        self._rng = np.random.default_rng([seed, 2**32 - 1])
        self._last = np.zeros(universe, dtype=np.uint64)
        """The newest version seen of each id."""
        self._gone = np.zeros(universe, dtype=bool)
        """Whether it was seen to be deleted after that."""
        self.rounds = self.opens = self.snapshots = self.items = self.searches = 0

    def read(self) -> None:
        """Open the database, read for some rounds, close it."""
        self.opens += 1
        version = -1
        held: tuple[Snapshot, Ids, Versions] | None = None
        with whamming.open(self._path, mode="r") as database:
            index = database.index(INDEX)
            for number in range(ROUNDS):
                snapshot = index.snapshot()
                if snapshot.version < version:
                    raise BrokenPromiseError(f"a snapshot of version {snapshot.version} after one of {version}")
                self.snapshots += snapshot.version > version
                version = snapshot.version
                ids, versions = self._check_items(snapshot)
                self._check_searches(snapshot, ids[versions != 0][:4])
                if held is None or number % HELD == 0:
                    held = snapshot, ids, versions
                elif (versions_in(held[0].get(held[1])) != held[2]).any():
                    raise BrokenPromiseError("a snapshot has changed")
                self.rounds += 1

    def _check_items(self, snapshot: Snapshot) -> tuple[Ids, Versions]:
        hot = self._rng.integers(0, min(HOT, self._universe), 100)
        ids = np.unique(np.concatenate([hot, self._rng.integers(0, self._universe, 100)])).astype(np.uint64)
        self._rng.shuffle(ids)
        versions = versions_in(snapshot.get(ids))
        there = versions != 0
        back = there & ((versions < self._last[ids]) | (self._gone[ids] & (versions == self._last[ids])))
        if back.any():
            raise BrokenPromiseError(f"ids {some(ids[back])} went back to versions {some(versions[back])}")
        self._last[ids] = np.maximum(self._last[ids], versions)
        self._gone[ids] = ~there
        self.items += len(ids)
        return ids, versions

    def _check_searches(self, snapshot: Snapshot, ids: Ids) -> None:
        """Search for stored codes. Each must be found at distance 0, and all hits must have the right distance."""
        if len(ids) == 0:
            return
        codes = snapshot.get(ids).codes
        answer = snapshot.view.search(make_costs(snapshot.settings, codes, None, None), 8)
        hits = snapshot.get(answer.ids.ravel())
        versions_in(hits)
        if not hits.found[np.isfinite(answer.distances).ravel()].all():
            raise BrokenPromiseError("a hit that does not exist")
        far = _distances(codes, hits.codes.reshape(*answer.ids.shape, -1))
        if (far != answer.distances)[np.isfinite(answer.distances)].any():
            raise BrokenPromiseError("a hit at a wrong distance")
        missed = ids[~((answer.ids == ids[:, None]) & (answer.distances == 0)).any(axis=1)]
        if len(missed):
            raise BrokenPromiseError(f"searches of their codes miss ids {some(missed)}")
        self.searches += len(ids)


def _distances(queries: NDArray[np.uint8], codes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the distance of each query to the codes of its row."""
    far: NDArray[np.int64] = np.unpackbits(queries[:, None] ^ codes, axis=2).sum(axis=2, dtype=np.int64)
    return far
