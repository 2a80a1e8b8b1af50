"""A write with a request id is applied once, however often and whenever it is sent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest

from tests.storage.conftest import Place
from whamming.storage import StorageError, StoredIndex, WriteBatch
from whamming.storage.store import faults, requests

BITS = 8


def put(index: StoredIndex, request: bytes, value: int, ids: Sequence[int] = (1,)) -> None:
    index.write_once(index.batch(ids, np.full((len(ids), 1), value, dtype=np.uint8)), request)


def remove(index: StoredIndex, request: bytes, ids: Sequence[int]) -> int:
    return index.write_once(index.batch(deletes=ids), request)


def value_of(index: StoredIndex) -> int | None:
    items = index.get([1])
    return int(items.codes[0, 0]) if items.found[0] else None


def test_a_repeated_write_does_not_undo_a_newer_one(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", BITS)
        put(index, b"first", 5)
        put(index, b"second", 6)
        put(index, b"first", 5)
        assert value_of(index) == 6
        put(index, b"", 7)
        put(index, b"", 8)
        assert value_of(index) == 8, "writes without an id are always applied"
        assert remove(index, b"gone", [1, 2]) == 1
        put(index, b"third", 9)
        assert remove(index, b"gone", [1, 2]) == 1, "the answer is the same"
        assert value_of(index) == 9


@pytest.mark.parametrize("between", ["nothing", "seal", "compact"])
def test_ids_are_known_after_a_restart(persistent: Place, between: str) -> None:
    """They are stored with the writes; what is sealed leaves them in the journal."""
    with persistent.open() as database:
        index = database.create_index("docs", BITS)
        put(index, b"first", 5)
        remove(index, b"gone", [1])
        if between == "seal":
            index.seal()
        put(index, b"second", 6)
        if between == "compact":
            index.compact()
    for _ in range(2):
        with persistent.open() as database:
            index = database.index("docs")
            put(index, b"first", 5)
            put(index, b"second", 0)
            assert remove(index, b"gone", [1]) == 0
            assert value_of(index) == 6
            index.upsert([2], np.zeros((1, 1), dtype=np.uint8))
            index.seal()
            assert index.verify().ok


def test_a_write_that_failed_and_yet_succeeded_is_known(persistent: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was made, but its acknowledgement was lost, and so was the write for this process."""
    if persistent.store != "lmdb":
        pytest.skip("only the journal of LMDB has a named point after its commit")
    with persistent.open() as database:
        index = database.create_index("docs", BITS)

        def fail(name: str) -> None:
            if name == "after commit":
                raise OSError("lost")

        monkeypatch.setattr(faults, "hook", fail)
        with pytest.raises(OSError, match="lost"):
            put(index, b"first", 5)
        monkeypatch.setattr(faults, "hook", None)
        put(index, b"second", 6)
        put(index, b"first", 5)
        assert value_of(index) == 6
    with persistent.open() as database:
        assert value_of(database.index("docs")) == 6


def test_a_write_that_failed_can_be_sent_again(persistent: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if persistent.store != "lmdb":
        pytest.skip("only the journal of LMDB has a named point before its commit")
    with persistent.open() as database:
        index = database.create_index("docs", BITS)

        def fail(name: str) -> None:
            if name == "in commit":
                raise OSError("no")

        monkeypatch.setattr(faults, "hook", fail)
        with pytest.raises(StorageError, match="no"):
            put(index, b"first", 5)
        monkeypatch.setattr(faults, "hook", None)
        put(index, b"first", 5)
        assert value_of(index) == 5


@pytest.mark.parametrize("first", ["async", "fsync"])
@pytest.mark.parametrize("second", ["async", "fsync"])
def test_durability_does_not_matter(
    place: Place, first: Literal["async", "fsync"], second: Literal["async", "fsync"]
) -> None:
    with place.open() as database:
        index = database.create_index("docs", BITS)

        def write(request: bytes, value: int, durability: Literal["async", "fsync"]) -> None:
            index.write_once(
                WriteBatch.of(index.settings, [1], np.array([[value]], dtype=np.uint8)), request, durability
            )

        write(b"first", 5, first)
        write(b"second", 6, second)
        write(b"first", 5, second)
        assert value_of(index) == 6
        assert index.stats().version == 2


def test_repeats_that_arrive_together_are_applied_once(place: Place) -> None:
    """They may share a commit, or follow each other. Each thread then gets the same answer."""
    with place.open() as database:
        index = database.create_index("docs", BITS)
        put(index, b"", 1, range(100))
        answers: list[int] = []
        start = threading.Barrier(8)

        def write() -> None:
            start.wait()
            answers.append(remove(index, b"gone", range(50)))

        threads = [threading.Thread(target=write) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [50] * 8
        assert len(index) == 50


def test_the_number_of_ids_is_bounded(persistent: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "REMEMBERED", 20)
    with persistent.open() as database:
        index = database.create_index("docs", BITS)
        for number in range(30):
            put(index, b"%d" % number, 0, [number])
        for number in (10, 29):
            put(index, b"%d" % number, 1, [1])
        assert value_of(index) == 0
        put(index, b"9", 1, [1])
        assert value_of(index) == 1, "it was forgotten"
