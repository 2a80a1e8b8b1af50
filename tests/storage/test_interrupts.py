"""Interrupts and failures between two related steps: no acknowledged write is lost, then or later."""

from __future__ import annotations

import itertools
import linecache
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, random_codes, wait_until
from whamming import StoredIndex
from whamming.storage import SegmentedStore, StorageError
from whamming.storage.items.live_part import LivePart
from whamming.storage.store.contents import Contents


def once(function: Callable[..., Any], *, before: bool = True) -> Callable[..., Any]:
    """Return the function, but interrupt its first call, before it does anything or when it is done."""
    interrupts = iter([KeyboardInterrupt])

    def interrupted(*arguments: Any) -> Any:
        interrupt = next(interrupts, None)
        if interrupt is not None and before:
            raise interrupt
        result = function(*arguments)
        if interrupt is not None:
            raise interrupt
        return result

    return interrupted


def interrupt_at(wanted: str, passes: int = 0) -> Callable[[str], None]:
    """Return a hook that interrupts at a point after ``passes`` passes."""
    left = [passes]

    def hook(name: str) -> None:
        if name == wanted:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

    return hook


def interrupted_at_line(number: int, work: Callable[[], None]) -> bool:
    """Do some work, and interrupt it before a line of the store or the journal. Returns whether it got that far.

    Lines with ``with`` do not count. They are traced again when the block ends, just before the lock is released, but
    real interrupts do not arrive there, because the interpreter checks for signals after calls. Waiting for other
    threads does not count either, because its number of lines varies.
    """
    left = number

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        code = frame.f_code
        ours = "/storage/store/" in code.co_filename or code.co_filename.endswith("_journal.py")
        if not ours or code.co_name == "_gather" or code.co_name.startswith("<"):
            return None
        if event == "line" and not linecache.getline(code.co_filename, frame.f_lineno).strip().startswith("with "):
            left -= 1
            if left == -1:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def follow(index: StoredIndex, item: int, leader: Callable[[], bool]) -> tuple[bool, BaseException | None]:
    """Write an item in another thread, in the commit that ``leader`` makes. Returns the outcomes of both."""
    store = index.store
    assert isinstance(store, SegmentedStore)
    outcome: list[BaseException | None] = []
    held, finished = threading.Event(), threading.Event()

    def write() -> None:
        try:
            index.upsert([item], random_codes(1, 13))
            outcome.append(None)
        except BaseException as error:
            outcome.append(error)

    follower = threading.Thread(target=write, daemon=True)

    def hold_commits_back() -> None:
        with store._writing:
            held.set()
            wait_until(lambda: len(store._group_commit) == 1 or finished.is_set())
            follower.start()
            wait_until(lambda: len(store._group_commit) == 2 or finished.is_set())

    holder = threading.Thread(target=hold_commits_back)
    holder.start()
    held.wait()
    led = leader()
    finished.set()
    holder.join()
    follower.join(20)
    assert outcome, "the follower waits forever"
    return led, outcome[0]


def check_permanently(twin: Twin, place: Place) -> None:
    """Check that the index equals its model now, after sealing, and after reopening."""
    twin.check()
    twin.index.seal()
    twin.check()
    if place.persistent:
        twin.index.close()
        with place.open(mode="r") as database:
            Twin(database.index("docs"), twin.model).check()


@pytest.mark.parametrize("before", [True, False])
def test_a_write_that_is_interrupted_after_reaching_the_disk_is_visible(
    place: Place, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next seal would remove it from the file, with writes of other threads in the same commit."""
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        with monkeypatch.context() as patched:
            patched.setattr(Contents, "with_change", once(Contents.with_change, before=before))
            with pytest.raises(KeyboardInterrupt):
                twin.index.upsert([7], random_codes(1, 13, 7))
        twin.model.upsert([7], random_codes(1, 13, 7))
        assert twin.index.stats().writes == 6
        check_permanently(twin, place)


def test_an_interrupt_at_any_line_of_a_commit_loses_no_acknowledged_write(persistent: Place) -> None:
    """The interrupted thread commits for another one, which must not return as if its write had been stored."""
    code = random_codes(1, 13)
    acknowledged, errors = [], []
    with persistent.open() as database:
        index = database.create_index("docs", 13)
        for line in itertools.count():
            write = partial(index.write, index.batch([2 * line], code))
            interrupted, error = follow(index, 2 * line + 1, partial(interrupted_at_line, line, write))
            acknowledged += [] if interrupted else [2 * line]
            if error is None:
                acknowledged.append(2 * line + 1)
            else:
                errors.append(error)
            assert index.get(acknowledged).found.all(), f"interrupted at line {line}"
            if not interrupted:
                break
        assert line > 50
        assert any(isinstance(error, StorageError) and "interrupted" in str(error) for error in errors)
        assert all(isinstance(error, StorageError | KeyboardInterrupt) for error in errors)
        index.seal()
        assert index.get(acknowledged).found.all()
    with persistent.open(mode="r") as database:
        assert database.index("docs").get(acknowledged).found.all()


@pytest.mark.parametrize("before", [True, False])
def test_an_interrupted_search_loses_no_writes(place: Place, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        twin.upsert([7], random_codes(1, 13, 7))  # a small write, which the search has to apply
        with monkeypatch.context() as patched:
            patched.setattr(LivePart, "removing", once(LivePart.removing, before=before))
            with pytest.raises(KeyboardInterrupt):
                twin.index.search(random_codes(1, 13)[0])
        check_permanently(twin, place)


def test_async_writes_stay_in_order_when_their_commit_is_interrupted_at_its_end(
    disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.store.segmented.ASYNC_SECONDS", 3600)
    with disk.open() as database:
        twin = Twin.create(database)
        twin.upsert([1, 2], random_codes(2, 13, 1), durability="async")
        with monkeypatch.context() as patched:
            patched.setattr("whamming.storage.store.faults.hook", interrupt_at("after commit"))
            with pytest.raises(KeyboardInterrupt):
                twin.index.flush()
        twin.upsert([2, 3], random_codes(2, 13, 2), durability="async")
        twin.delete([1], durability="async")
        twin.check()
        twin.index.flush()
        check_permanently(twin, disk)


@pytest.mark.parametrize("point", ["built", "stored", "in install", "after install", "installed"])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_an_interrupted_seal_into_several_segments_loses_nothing(
    disk: Place, point: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.files.lmdb_journal.LmdbJournal.max_rows", 20)
    with disk.open() as database:
        twin = Twin.create(database)
        twin.layer()
        twin.upsert(range(100, 170), random_codes(70, 13))
        with monkeypatch.context() as patched:
            patched.setattr("whamming.storage.store.faults.hook", interrupt_at(point, passes))
            with pytest.raises(KeyboardInterrupt):
                twin.index.seal()
        twin.check()
        with disk.open(mode="r") as other:
            Twin(other.index("docs"), twin.model).check()
        twin.delete(range(110, 120))
        twin.upsert(range(140, 145), random_codes(5, 13, 9))
        check_permanently(twin, disk)
