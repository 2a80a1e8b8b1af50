"""Damaged files are detected, or the damage is harmless. ``WHAMMING_DAMAGE`` sets the number of cases."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import whamming
from tests.storage import damage as damage
from tests.storage.file_regions import Regions, regions_of
from whamming import WhammingError
from whamming.storage import CorruptStoreError, SegmentedStore
from whamming.storage.files import reading
from whamming.storage.files.records import array_key, dead_key, delta_key

CASES = int(os.environ.get("WHAMMING_DAMAGE", "300"))
KINDS = 17
"""Kinds of damage: two to whamming.json, two to data.mdb, and bits flipped in 13 regions of it."""


def test_damage_is_detected_or_harmless(tmp_path: Path) -> None:
    summary = damage.run(tmp_path, CASES, seed=int(os.environ.get("WHAMMING_SEED", "0")))
    print(summary)
    assert summary.failures == []
    assert sum(summary.seen.values()) == CASES
    assert len(summary.kinds) == KINDS
    assert summary.seen["nothing"]  # otherwise no byte was unused, or the answers were not compared
    assert summary.seen["verify(), and wrong answers"]


class Specimen:
    """A database with unsealed writes and equal codes, and a map of its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / damage.INDEX / "data.mdb"
        damage.SPECIMENS[-1].make(path)
        self.sound = self.file.read_bytes()
        self.regions: Regions = regions_of(self.sound)

    def flip(self, place: int, bit: int) -> None:
        """Flip one bit of the undamaged file."""
        changed = bytearray(self.sound)
        changed[place] ^= 1 << bit
        self.file.write_bytes(changed)

    def place_of(self, key: bytes) -> int:
        """Return where a key is in the file."""
        (place,) = (start for start, stop in self.regions["keys"] if self.sound[start:stop] == key)
        return place

    def array(self, name: str, segment: int = 1) -> range:
        """Return where the contents of an array are in the file."""
        kind = array_key(segment, name)[-1]
        (place,) = (
            stop
            for start, stop in self.regions["array headers"]
            if self.sound[start + 8 : start + 16] == segment.to_bytes(8, "little") and self.sound[start + 24] == kind
        )
        return range(place, place + int.from_bytes(self.sound[place - 32 : place - 24], "little"))


@pytest.fixture
def specimen(tmp_path: Path) -> Specimen:
    return Specimen(tmp_path / "database")


@pytest.mark.parametrize("mode", ["r", "w"])
def test_a_damaged_key_hides_no_write_and_revives_no_deleted_item(
    specimen: Specimen, mode: whamming.storage.directory.Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "_CHECKS", 1)  # nothing commits concurrently
    with whamming.open(specimen.path, mode="r") as database:
        store = database.index(damage.INDEX).store
        assert isinstance(store, SegmentedStore)
        last = store._journal.position
        with_dead = [found.number for found in store._journal.load().segments if found.dead is not None]
    assert with_dead
    for key in (delta_key(last), *map(dead_key, with_dead)):
        place = specimen.place_of(key)
        for bit in (*range(8), *range(8 * len(key) - 16, 8 * len(key))):
            specimen.flip(place + bit // 8, bit % 8)
            with whamming.open(specimen.path, mode=mode) as database, pytest.raises(CorruptStoreError):
                database.index(damage.INDEX)


@pytest.mark.parametrize("name", ["codes", "ids", "payload_data"])
def test_merging_does_not_hide_damage(specimen: Specimen, name: str) -> None:
    specimen.flip(specimen.array(name)[0], 0)
    with whamming.open(specimen.path) as database:
        index = database.index(damage.INDEX)
        count = len(index)
        with pytest.raises(CorruptStoreError, match=f"array {name} of segment 1 "):
            index.compact()
        assert len(index) == count
        assert not index.verify().ok
        index.upsert([1], index.get([0]).codes)  # writing still works
        index.seal()
    with whamming.open(specimen.path, mode="r") as database:
        assert not database.verify()[damage.INDEX].ok


def test_damaged_payload_ends_are_detected_by_get_and_by_scan(specimen: Specimen) -> None:
    specimen.flip(specimen.array("payload_ends")[8 * 200 + 6], 1)
    with whamming.open(specimen.path, mode="r") as database:
        index = database.index(damage.INDEX)
        with pytest.raises(CorruptStoreError, match="payload of place"):
            index.get(range(damage.ITEMS))
        with pytest.raises(CorruptStoreError, match="payloads overlap"):
            list(index.snapshot().scan())


@pytest.mark.parametrize("place", [2, -2])
def test_a_damaged_first_or_last_entry_of_by_id_is_detected_on_opening(specimen: Specimen, place: int) -> None:
    specimen.flip(specimen.array("by_id")[place], 3)
    with whamming.open(specimen.path, mode="r") as database, pytest.raises(CorruptStoreError, match="by_id"):
        database.index(damage.INDEX)


def test_an_item_without_a_code_is_detected(specimen: Specimen) -> None:
    width = (damage.ITEMS.bit_length() + 7) // 8
    last = specimen.array("groups")[-8 - width : -8]  # 8 zero bytes follow
    count = int.from_bytes(specimen.sound[last[0] : last[-1] + 1], "little")
    specimen.flip(last[(count.bit_length() - 1) // 8], (count.bit_length() - 1) % 8)
    with whamming.open(specimen.path, mode="r") as database, pytest.raises(WhammingError):
        database.index(damage.INDEX).get(range(damage.ITEMS))
