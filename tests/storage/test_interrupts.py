"""Interrupts and failures between two steps that belong together: nothing acknowledged is lost, then or later."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.storage.conftest import Place
from tests.storage.twin import Twin, random_codes
from whamming.storage.items.live_part import LivePart
from whamming.storage.store.contents import Contents


def once(function: Callable[..., Any], *, before: bool = True) -> Callable[..., Any]:
    """The same, but the first call is interrupted before it does anything, or when it is done."""
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
    """A hook that interrupts at a point when it was passed so many times."""
    left = [passes]

    def hook(name: str) -> None:
        if name == wanted:
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt

    return hook


def check_for_good(twin: Twin, place: Place) -> None:
    """The index is what its model says, now, when it is sealed, and when it is opened again."""
    twin.check()
    twin.index.seal()
    twin.check()
    if place.persistent:
        twin.index.close()
        with place.open(mode="r") as database:
            Twin(database.index("docs"), twin.model).check()


@pytest.mark.parametrize("before", [True, False])
def test_a_write_that_is_interrupted_once_it_is_on_disk_shows(
    place: Place, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next seal would drop it from the file, too: other threads' writes may have been in the same commit."""
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        with monkeypatch.context() as patched:
            patched.setattr(Contents, "with_change", once(Contents.with_change, before=before))
            with pytest.raises(KeyboardInterrupt):
                twin.index.upsert([7], random_codes(1, 13, 7))
        twin.model.upsert([7], random_codes(1, 13, 7))
        assert twin.index.stats().writes == 6
        check_for_good(twin, place)


@pytest.mark.parametrize("before", [True, False])
def test_a_search_that_is_interrupted_loses_no_writes(
    place: Place, before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.layer()
        with monkeypatch.context() as patched:
            patched.setattr(LivePart, "removing", once(LivePart.removing, before=before))
            with pytest.raises(KeyboardInterrupt):
                twin.index.search(random_codes(1, 13)[0])
        check_for_good(twin, place)


def test_async_writes_of_a_commit_that_was_interrupted_when_done_stay_in_order(
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
        check_for_good(twin, disk)


@pytest.mark.parametrize("point", ["built", "stored", "in install", "after install", "installed"])
@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_seal_into_several_segments_that_breaks_off(
    disk: Place, point: str, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.files.lmdb_journal.LmdbJournal.most_rows", 20)
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
        check_for_good(twin, disk)
