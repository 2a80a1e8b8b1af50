"""Written items are found, in any form; a batch is applied as a whole or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.examples import LAYOUTS, make_codes
from tests.native.examples import make_table as costs_around
from tests.storage.conftest import Place
from tests.storage.model import check_answers, check_items
from tests.storage.twin import Twin, random_codes
from whamming import InvalidArgumentError
from whamming.native import Buckets, Tables
from whamming.storage import BitOrder, Durability, Payloads, WriteBatch


def test_written_items_are_found(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.check()
        twin.upsert([5, 9, 7], random_codes(3, 13))
        twin.check()
        twin.upsert([9, 11], random_codes(2, 13, seed=1))
        twin.check()
        twin.delete([7])
        twin.check()
        twin.delete([7, 12345])
        twin.delete([7])
        twin.check()
        twin.delete([5, 9, 11])
        twin.check()
        assert len(twin.index) == 0
        twin.upsert([7], random_codes(1, 13, seed=2))
        twin.check()


def test_items_in_every_layer_are_found(twin: Twin) -> None:
    twin.check()
    twin.index.seal()
    twin.check()
    twin.index.compact()
    twin.check()


def test_the_smallest_and_the_largest_id(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database)
        twin.upsert([0, 2**64 - 1], random_codes(2, 13), [b"smallest", b"largest"])
        twin.check()
        assert twin.index.get([2**64 - 1, 0]).payloads == [b"largest", b"smallest"]
        twin.index.seal()
        twin.upsert(np.array([2**64 - 1, 0], dtype=np.uint64), random_codes(2, 13, seed=1))
        twin.check()
        twin.delete([2**64 - 1, 0])
        twin.check()


@pytest.mark.parametrize("ids", [[0, 2**64 - 1], (2**63, 1), [np.uint64(2**64 - 1), 0], range(3, 5)])
def test_ids_may_be_given_in_any_form(place: Place, ids: Any) -> None:
    with place.open() as database:
        index = database.create_index("docs", 8)
        index.upsert(ids, np.array([[1], [2]], dtype=np.uint8))
        assert index.get(ids).codes.tolist() == [[1], [2]]
        assert {int(i) for rows in index.snapshot().scan() for i in rows.ids} == {int(i) for i in ids}
        index.delete(ids)
        assert len(index) == 0


def test_an_empty_batch_does_nothing(twin: Twin) -> None:
    before = twin.index.stats()
    twin.index.upsert([], [])
    twin.index.upsert(np.empty(0, dtype=np.uint64), np.empty((0, 2), dtype=np.uint8), [])
    twin.index.delete([])
    twin.index.write(WriteBatch.of(twin.index.settings))
    assert twin.index.stats() == before
    assert len(twin.index.get([])) == 0
    twin.check()


def test_the_last_item_of_a_repeated_id_wins(twin: Twin) -> None:
    codes = random_codes(6, 13, seed=9)
    twin.upsert([70, 71, 70, 1, 70, 1], codes, [b"a", b"b", b"c", b"d", None, b"f"])
    twin.check()
    assert twin.index.get([70, 1]).payloads == [b"", b"f"]


def test_a_batch_deletes_first_and_then_upserts(twin: Twin) -> None:
    codes = random_codes(3, 13, seed=9)
    twin.index.write(WriteBatch.of(twin.index.settings, [1, 80, 80], codes, deletes=[1, 80, 4, 4]))
    twin.model.delete([1, 80, 4])
    twin.model.upsert([1, 80, 80], codes)
    twin.check()


def test_none_and_an_empty_payload_are_the_same(twin: Twin) -> None:
    codes = random_codes(4, 13, seed=9)
    twin.upsert([1, 2, 3, 4], codes, [b"x", b"", None, b"y" * 65_536])
    twin.check()
    twin.index.seal()
    twin.upsert([1, 4], codes[:2])
    twin.check()
    assert twin.index.get([1, 2, 3, 4, 7777]).payloads == [b""] * 5
    assert twin.index.snapshot().payloads(np.array([4, 7777], dtype=np.uint64)) == [b"", b""]


BAD_BATCHES: dict[str, tuple[Any, Any, Any, str]] = {
    "negative id": ([1, -7, 2], 3, None, r"id -7 .*row 1; .*18446744073709551615"),
    "id beyond": ([1, 2, 2**64], 3, None, r"id 18446744073709551616 .*row 2; .*18446744073709551615"),
    "negative beside huge": ([2**64 - 1, 2, -1], 3, None, "id -1 in row 2"),
    "fraction": ([0.5, 1, 2], 3, None, "dtype float64; .*integers"),
    "floats": (np.array([1.0, 2.0, 3.0]), 3, None, "dtype float64; .*integers"),
    "text": (["a", "b", "c"], 3, None, "they must be integers"),
    "booleans": ([True, False, True], 3, None, "dtype bool; they must be integers"),
    "matrix of ids": ([[1, 2, 3]], 3, None, r"shape \(1, 3\)"),
    "one id": (1, 1, None, r"shape \(\); they must be a list"),
    "more ids": ([1, 2, 3, 4], 3, None, "4 ids but 3 codes"),
    "more codes": ([1, 2], 3, None, "2 ids but 3 codes"),
    "no codes": ([1, 2], None, None, "items without codes"),
    "narrow": ([1, 2], np.zeros((2, 1), dtype=np.uint8), None, r"shape \(2, 1\); .*\[n, 2\]"),
    "wide": ([1, 2], np.zeros((2, 3), dtype=np.uint8), None, r"shape \(2, 3\); .*\[n, 2\]"),
    "flat": ([1, 2], np.zeros(4, dtype=np.uint8), None, r"shape \(4,\); .*\[n, 2\]"),
    "signed": ([1, 2], np.zeros((2, 2), dtype=np.int8), None, "dtype int8, not uint8"),
    "unpacked": ([1, 2], np.zeros((2, 13), dtype=bool), None, "dtype bool, not uint8"),
    "long payload": ([1, 2, 3], 3, [b"", None, b"x" * 65_537], "row 2 has 65537 bytes; .*65536"),
    "text payload": ([1, 2, 3], 3, [b"", "x", b""], "row 1 .*str; .*bytes"),
    "few payloads": ([1, 2, 3], 3, [b"x"], "1 payloads for 3 items"),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_a_batch_with_an_invalid_row_is_refused_as_a_whole(what: str, twin: Twin) -> None:
    ids, codes, payloads, message = BAD_BATCHES[what]
    before = twin.index.stats()
    if isinstance(codes, int):
        codes = random_codes(codes, 13, seed=5)
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.upsert(ids, codes, payloads)
    assert twin.index.stats() == before
    twin.check()


def test_invalid_deletes_and_lookups_are_refused(twin: Twin) -> None:
    for refuse in (twin.index.delete, twin.index.get):
        with pytest.raises(InvalidArgumentError, match="id -1 in row 2"):
            refuse([1, 2, -1])
        with pytest.raises(InvalidArgumentError, match="dtype float64"):
            refuse([1.0])
    with pytest.raises(InvalidArgumentError, match=r"durability = 'later'.*'fsync', 'async'"):
        twin.index.delete([1], durability="later")  # type: ignore[arg-type]
    twin.check()


def test_changing_the_callers_arrays_later_has_no_effect(twin: Twin) -> None:
    ids, codes = np.arange(60, 70, dtype=np.uint64), random_codes(10, 13, seed=3)
    twin.upsert(ids, codes)
    ids[:], codes[:] = 0, 0
    twin.check()
    items = twin.index.get([60, 61])
    items.codes[:] = 77
    twin.check()


def test_delete_returns_how_many_of_the_ids_existed(twin: Twin) -> None:
    count = len(twin.model)
    present = [int(i) for i in list(twin.model.items)[:5]]
    assert twin.index.delete([*present, *present, 7777, 8888]) == 5
    assert twin.index.delete(present) == 0
    assert twin.index.delete([]) == 0
    assert len(twin.index) == count - 5


def test_payloads_may_be_a_column(twin: Twin) -> None:
    ids, codes = range(300, 303), random_codes(3, 13)
    twin.index.upsert(ids, codes, Payloads.from_lengths([2, 0, 3], b"xxyyy"))
    twin.model.upsert(ids, codes, [b"xx", b"", b"yyy"])
    twin.check()


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_batch_too_large_for_a_record_is_refused_and_blocks_no_other(
    disk: Place, durability: Durability, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("whamming.storage.files.lmdb_journal.LARGEST_VALUE", 1000)
    with disk.open() as database:
        twin = Twin.create(database)
        twin.upsert(range(50), random_codes(50, 13), durability=durability)  # 48 + 50 x 10 bytes
        fits: list[bytes | None] = [b"x" * 808, *[None] * 7]  # 48 + 8 x 18 + 808
        twin.upsert(range(8), random_codes(8, 13), fits, durability=durability)
        with pytest.raises(InvalidArgumentError, match=r"8 changes takes 1001 bytes; .*1000"):
            twin.index.upsert(range(8), random_codes(8, 13), [b"x" * 809, *fits[1:]], durability=durability)
        with pytest.raises(InvalidArgumentError, match="120 changes takes 1008 bytes"):
            twin.index.delete(range(120), durability=durability)
        twin.upsert([3], random_codes(1, 13, 5), durability=durability)
        twin.index.flush()
        twin.check()


# -- codes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("bits", [1, 7, 8, 13, 64, 100])
def test_weights_are_in_order_of_bit_numbers_in_either_bit_order(place: Place, bits: int, order: BitOrder) -> None:
    rng = np.random.default_rng(bits)
    plain = rng.integers(0, 2, (40, bits), dtype=np.uint8)
    codes = np.packbits(plain, axis=1, bitorder=order)
    spare = -bits % 8
    noise = rng.integers(0, 1 << spare, 40, dtype=np.uint8)
    noisy = codes.copy()
    noisy[:, -1] |= noise if order == "big" else noise << (8 - spare) if spare else 0
    weights = rng.integers(1, 50, bits).astype(np.float64)
    with place.open() as database:
        index = database.create_index("docs", bits, bit_order=order)
        index.upsert(range(20), noisy[:20])
        index.seal()
        index.upsert(range(20, 40), noisy[20:])
        assert (index.get(range(40)).codes == codes).all()
        expected = (plain[5] != plain) @ weights
        ids, distances = index.search(noisy[5], weights=weights).all()
        assert distances.tolist() == sorted(expected)
        assert distances.tolist() == expected[ids.astype(np.int64)].tolist()
        hamming = (plain[5] != plain).sum(axis=1)
        assert {hit.id: hit.distance for hit in index.search(noisy[5])} == dict(enumerate(hamming.tolist()))
        table = np.stack([np.arange(bits), -np.arange(bits) * 0.5], axis=1)
        tabled = table[np.arange(bits), plain].sum(axis=1)
        assert {hit.id: hit.distance for hit in index.search(table=table)} == dict(enumerate(tabled.tolist()))


@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
@pytest.mark.parametrize("bits", [1, 7, 64, 100, 257, 4096])
def test_codes_of_every_length_in_every_layout(place: Place, bits: int, tables: Tables, buckets: Buckets) -> None:
    with place.open() as database:
        twin = Twin.create(database, bits, tables=tables, buckets=buckets)
        twin.layer(seed=bits)
        rng = np.random.default_rng(bits)
        for step in (twin.index.snapshot, twin.index.compact):
            step()
            snapshot = twin.index.snapshot()
            check_items(snapshot, twin.model)
            near = make_codes("uniform", 1, bits, rng)[0]
            check_answers(snapshot, twin.model, costs_around("random", near, bits, rng), 25, 0.7)
            check_answers(snapshot, twin.model, costs_around("equal", near, bits, rng), 200)
        assert {part.index.tables for part in twin.index.snapshot().view.parts} == {tables}
