"""An index with a model that receives the same writes, and helpers that the contract tests share."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.native.examples import make_codes
from tests.native.oracle import Codes, Floats
from tests.storage.model import Model, check_answers, check_items
from whamming import Database, StoredIndex
from whamming.storage import Snapshot

if TYPE_CHECKING:
    from tests.storage.conftest import Place

EDGE_IDS = (0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


def random_codes(n: int, bits: int, seed: int = 0) -> Codes:
    return make_codes("uniform", n, bits, np.random.default_rng(seed))


def random_table(bits: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=(bits, 2))


@dataclass
class Twin:
    """An index and a model of it. Both receive the same writes."""

    index: StoredIndex
    model: Model

    @classmethod
    def create(cls, database: Database, bits: int = 13, name: str = "docs", **options: Any) -> Twin:
        index = database.create_index(name, bits, **options)
        return cls(index, Model(index.settings))

    def upsert(self, ids: Any, codes: Codes, payloads: list[bytes | None] | None = None, **options: Any) -> None:
        self.index.upsert(ids, codes, payloads, **options)
        self.model.upsert(ids, codes, payloads)

    def delete(self, ids: Any, **options: Any) -> None:
        self.index.delete(ids, **options)
        self.model.delete(ids)

    def layer(self, seed: int = 0) -> None:
        """Write so that there are segments, dead items in them, recent writes, and replaced items."""
        bits = self.index.settings.bits
        codes = random_codes(90, bits, seed)
        payloads: list[bytes | None] = [b"p%d" % i if i % 3 else None for i in range(90)]
        self.upsert(range(40), codes[:40], payloads[:40])
        self.index.seal()
        self.upsert(range(30, 60), codes[40:70], payloads[40:70])
        self.delete([2, 5, 31, 32])
        self.index.seal()
        self.upsert([*range(55, 68), *EDGE_IDS], codes[70:], payloads[70:])
        self.delete([6, 50, 56])

    def check(self) -> None:
        check_items(self.index.snapshot(), self.model)
        for seed in range(2):
            check_answers(self.index.snapshot(), self.model, random_table(self.index.settings.bits, seed), 20)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in the background."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "it did not happen within 20 seconds"
        time.sleep(0.002)


def change_everything(twin: Twin) -> None:
    """Write, seal and compact until every item has changed."""
    twin.delete(range(0, 70, 2))
    twin.upsert(range(1, 70, 2), random_codes(35, 13, seed=77), [b"new"] * 35)
    twin.index.seal()
    twin.delete(range(1, 30))
    twin.index.compact()
    twin.upsert(range(100, 120), random_codes(20, 13, seed=78))
    twin.index.seal()


def frozen(twin: Twin) -> Twin:
    """Return the current state of the index, as a twin that does not change."""
    return Twin(_Frozen(twin.index.snapshot()), twin.model.copy())  # type: ignore[arg-type]


class _Frozen:
    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self.settings = snapshot.settings

    def snapshot(self) -> Snapshot:
        return self._snapshot


def in_threads(*work: Callable[[], None]) -> None:
    """Run all functions at the same time, and raise the first error."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(work))

    def run(job: Callable[[], None]) -> None:
        try:
            start.wait()
            job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,)) for job in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def on_disk(place: Place) -> list[int]:
    """Return the ids that another process would find after a crash now, by opening a copy of the files."""
    copy = place.directory / "copy"
    shutil.copytree(place.directory / "db", copy)
    try:
        with place.open("copy") as database:
            snapshot = database.index("docs").snapshot()
            return sorted(int(i) for rows in snapshot.scan() for i in rows.ids)
    finally:
        shutil.rmtree(copy)
