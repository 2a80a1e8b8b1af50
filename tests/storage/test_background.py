"""Background tasks: requesting, waiting, errors and stopping; and merging runs in the background."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, random_codes, wait_until
from whamming.storage import SegmentedStore
from whamming.storage.store import background, maintenance, segmented
from whamming.storage.store.background import BackgroundTask, at_low_priority


def test_one_run_serves_all_requests_that_come_before_it() -> None:
    entered, go_on, runs = threading.Event(), threading.Event(), []

    def work() -> None:
        runs.append(1)
        entered.set()
        go_on.wait()

    task = BackgroundTask("test", work)
    task.request()
    entered.wait()
    for _ in range(5):
        task.request()
    go_on.set()
    task.wait(20)
    wait_until(lambda: len(runs) == 2)
    task.stop()
    task.join()
    task.request()
    assert len(runs) == 2


def test_waiting_ends_even_if_the_run_is_very_fast() -> None:
    task = BackgroundTask("test", lambda: None)
    for _ in range(2000):
        task.wait(1000)
    task.stop()
    task.join()
    task.wait(1000)


def test_waiting_until_a_task_is_idle() -> None:
    entered, go_on = threading.Event(), threading.Event()

    def work() -> None:
        entered.set()
        go_on.wait()

    task = BackgroundTask("test", work)
    task.wait_until_idle(1000)
    task.request()
    entered.wait()
    task.wait_until_idle(0.001)
    waiting = threading.Thread(target=task.wait_until_idle, args=(1000,))
    waiting.start()
    wait_until(lambda: task.waiting == 1)
    go_on.set()
    waiting.join(20)
    assert not waiting.is_alive()
    task.stop()
    task.join()


@pytest.mark.parametrize("searched", [False, True])
def test_writes_let_merges_go_first_while_the_index_is_searched(
    searched: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def held_up(build: Callable[[], Any]) -> Any:
        entered.set()
        go_on.wait()
        return build()

    monkeypatch.setattr(segmented, "at_low_priority", held_up)
    monkeypatch.setattr(segmented, "PACE_SECONDS", 1000)
    monkeypatch.setattr(segmented, "SEARCHED_SECONDS", 1000 if searched else -1)
    rows = maintenance.SMALL_RUN_ROWS + 1
    with place.open() as database:
        index = database.create_index("docs", 8)
        assert isinstance(index.store, SegmentedStore)
        merger = index.store._merger

        def write(turn: int) -> None:
            index.upsert(np.arange(turn * rows, (turn + 1) * rows), random_codes(rows, 8))

        for turn in range(maintenance.FANOUT - 1):
            write(turn)
        index.snapshot()
        last = threading.Thread(target=write, args=(maintenance.FANOUT,))
        last.start()
        assert entered.wait(20)
        if searched:
            wait_until(lambda: merger.waiting == 1)
        else:
            last.join(20)
        assert last.is_alive() == searched
        go_on.set()
        last.join(20)
        assert not last.is_alive()


def test_a_task_that_fails_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "RETRY_SECONDS", 0.001)
    outcomes = iter([OSError("no"), OSError("not yet"), None])
    done = threading.Event()

    def work() -> None:
        failure = next(outcomes)
        if failure is not None:
            raise failure
        done.set()

    task = BackgroundTask("test", work, retry=True)
    task.request()
    assert done.wait(20)
    task.stop()
    task.join()


def test_builds_in_the_background_have_a_lower_priority() -> None:
    def priority() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    assert at_low_priority(priority) == min(19, priority() + 10)
    with pytest.raises(ZeroDivisionError):
        at_low_priority(lambda: 1 // 0)


def test_runs_are_merged_and_stay_few(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SMALL_RUN_ROWS", 8)
    monkeypatch.setattr(maintenance, "MAX_RUNS", 15)  # FANOUT - 1 for each of five tiers
    monkeypatch.setattr("whamming.storage.store.contents.PENDING_ROWS", 1)
    rng = np.random.default_rng(3)
    with place.open() as database:
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        for step in range(150):
            ids = rng.integers(0, 2000, int(rng.integers(1, 40)))
            if step % 7 == 6:
                twin.delete(ids)
            else:
                twin.upsert(ids, random_codes(len(ids), 13, step), [b"%d" % step] * len(ids))
            assert len(store._contents.runs) <= 16
        twin.check()
        wait_until(lambda: not maintenance.choose_runs(store._contents.runs))
        twin.check()
        twin.index.seal()
        twin.check()


def test_a_run_with_many_dead_items_is_rewritten(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SMALL_RUN_ROWS", 8)
    monkeypatch.setattr("whamming.storage.store.contents.PENDING_ROWS", 1)
    with place.open() as database:
        twin = Twin.create(database, durability="async")
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        twin.upsert(range(90), random_codes(90, 13), [b"%d" % i for i in range(90)])
        twin.delete(range(30))  # exactly a third: not yet
        (run,) = store._contents.runs
        assert (run.segment.n, run.live) == (90, 60)
        twin.delete([40])
        wait_until(lambda: [run.segment.n for run in store._contents.runs] == [59])
        twin.check()


def test_segments_with_many_dead_items_are_rewritten_before_the_next_seal(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.upsert(range(90), random_codes(90, 13))
        twin.index.seal()
        twin.upsert(range(45), random_codes(45, 13, 1))  # half of the segment is dead: not yet
        assert twin.index.stats().sealed_rows == 90
        twin.delete([50])
        twin.upsert([200], random_codes(1, 13, 2))
        wait_until(lambda: (twin.index.stats().sealed_rows, twin.index.stats().compactions) == (44, 1))
        assert twin.index.stats().seals == 1
        twin.check()


def test_items_deleted_while_runs_are_merged_stay_deleted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A running merge does not see the writes that come meanwhile."""
    monkeypatch.setattr(maintenance, "SMALL_RUN_ROWS", 2)
    monkeypatch.setattr("whamming.storage.store.contents.PENDING_ROWS", 1)
    merging, go_on = threading.Event(), threading.Event()
    merge = SegmentedStore._merge_runs.__globals__["merged_rows"]

    def slow(parts: object) -> object:
        rows = merge(parts)
        merging.set()
        go_on.wait(20)
        return rows

    monkeypatch.setattr("whamming.storage.store.segmented.merged_rows", slow)
    with place.open() as database:
        twin = Twin.create(database)
        for step in range(4):
            twin.upsert(range(10 * step, 10 * step + 10), random_codes(10, 13, step))
        assert merging.wait(20)
        twin.delete([3, 14])
        twin.upsert([25, 26], random_codes(2, 13, 9))
        twin.check()
        go_on.set()
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        wait_until(lambda: any(run.segment.n == 40 for run in store._contents.runs))
        twin.check()


def test_a_merge_of_runs_that_are_being_sealed_is_discarded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SMALL_RUN_ROWS", 2)
    monkeypatch.setattr("whamming.storage.store.contents.PENDING_ROWS", 1)
    merging, go_on = threading.Event(), threading.Event()
    merge = SegmentedStore._merge_runs.__globals__["merged_rows"]

    def slow(parts: object) -> object:
        merging.set()
        go_on.wait(20)
        return merge(parts)

    monkeypatch.setattr("whamming.storage.store.segmented.merged_rows", slow)
    with place.open() as database:
        twin = Twin.create(database)
        for step in range(4):
            twin.upsert(range(10 * step, 10 * step + 10), random_codes(10, 13, step))
        assert merging.wait(20)
        twin.index.seal()
        go_on.set()
        store = twin.index.store
        assert isinstance(store, SegmentedStore)
        store._merger.wait(20)
        assert store._contents.runs == ()
        twin.check()
