"""Items as columns: taking, concatenating and merging them, compared with plain lists and dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming import InvalidArgumentError
from whamming.storage import BitOrder, IndexSettings, Rows, WriteBatch
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import as_ids
from whamming.storage.items.write_batch import net_changes

payload_lists = st.lists(st.binary(max_size=20), max_size=12)
small_ids = st.integers(0, 9) | st.sampled_from([2**63, 2**64 - 1])


def quick(base: int) -> settings:
    return settings(generated(base), suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick(100)
@given(payloads=payload_lists, data=st.data())
def test_payloads_are_taken_in_any_order(
    payloads: list[bytes], data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = data.draw(st.sampled_from([1, 7, 1 << 22]))
    monkeypatch.setattr("whamming.storage.items.payloads._CHUNK_BYTES", chunk)
    packed = Payloads.of(payloads)
    assert len(packed) == len(payloads)
    assert [packed[i] for i in range(len(packed))] == payloads
    order = data.draw(st.lists(st.integers(0, len(payloads) - 1), max_size=20)) if payloads else []
    taken = packed.take(np.array(order, dtype=np.int64))
    assert [taken[i] for i in range(len(taken))] == [payloads[i] for i in order]


@quick(100)
@given(lists=st.lists(payload_lists, min_size=1, max_size=4))
def test_payloads_are_concatenated(lists: list[list[bytes]]) -> None:
    together = Payloads.concatenate([Payloads.of(payloads) for payloads in lists])
    assert [together[i] for i in range(len(together))] == [payload for payloads in lists for payload in payloads]


def test_items_with_and_without_payloads_are_concatenated() -> None:
    with_payloads = Rows(as_ids([1, 2]), np.array([[1], [2]], dtype=np.uint8), Payloads.of([b"x", b"yz"]))
    without = Rows(as_ids([3]), np.array([[3]], dtype=np.uint8), None)
    rows = Rows.concatenate([without, with_payloads, without, Rows.none(1)])
    assert rows.ids.tolist() == [3, 1, 2, 3]
    assert rows.payloads is not None
    assert [rows.payloads[i] for i in range(4)] == [b"", b"x", b"yz", b""]
    taken = rows.take(np.array([2, 0]))
    assert (taken.ids.tolist(), taken.codes.tolist()) == ([2, 3], [[2], [3]])
    assert Rows.concatenate([without, without]).payloads is None
    assert rows.nbytes == 4 * 8 + 4 + 3


def columns(lengths: list[int], data: bytes) -> Payloads:
    return Payloads.from_lengths(np.array(lengths, dtype=np.uint32), data)


@quick(50)
@given(payloads=payload_lists)
def test_payloads_may_be_a_column_or_a_list(payloads: list[bytes]) -> None:
    given = columns([len(payload) for payload in payloads], b"".join(payloads))
    ids, codes = range(len(payloads)), np.zeros((len(payloads), 1), dtype=np.uint8)
    batches = [WriteBatch.of(IndexSettings(8), ids, codes, form) for form in (given, payloads)]
    lists = [batch.upserts.payloads.tolist() if batch.upserts.payloads else None for batch in batches]
    assert lists[0] == lists[1]
    assert lists[0] in (payloads, None)
    assert given.tolist() == payloads
    assert given.lengths().tolist() == [len(payload) for payload in payloads]


def test_a_column_of_payloads_is_copied_only_if_it_is_writable() -> None:
    settings, codes = IndexSettings(8), np.zeros((2, 1), dtype=np.uint8)
    fixed = columns([1, 2], b"abc")
    taken = WriteBatch.of(settings, [1, 2], codes, fixed).upserts.payloads
    assert taken is not None
    assert np.shares_memory(taken.data, fixed.data)
    loose = Payloads(np.array([1, 3], dtype=np.uint64), np.frombuffer(bytearray(b"abc"), dtype=np.uint8))
    taken = WriteBatch.of(settings, [1, 2], codes, loose).upserts.payloads
    loose.data[:] = 0
    assert taken is not None
    assert taken.tolist() == [b"a", b"bc"]


@pytest.mark.parametrize(
    ("payloads", "message"),
    [
        (columns([1], b"a"), "1 payloads for 2 items"),
        (columns([1, 1], b"abc"), "end at byte 2 of 3"),
        (Payloads(np.array([2, 1], dtype=np.uint64), np.zeros(1, dtype=np.uint8)), "must not decrease"),
        (columns([0, 65_537], bytes(65_537)), "row 1 has 65537 bytes; .*65536"),
        (Payloads(np.array([0, 1]), np.zeros(1, dtype=np.uint8)), "uint64"),
    ],
)
def test_invalid_columns_of_payloads_are_refused(payloads: Payloads, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        WriteBatch.of(IndexSettings(8), [1, 2], np.zeros((2, 1), dtype=np.uint8), payloads)


@quick(150)
@given(
    written=st.lists(
        st.tuples(
            st.lists(small_ids, max_size=5),
            st.lists(st.tuples(small_ids, st.integers(0, 255), st.none() | st.binary(max_size=3)), max_size=6),
        ),
        max_size=6,
    )
)
def test_net_changes_equal_those_of_a_dict(
    written: list[tuple[list[int], list[tuple[int, int, bytes | None]]]],
) -> None:
    batches = []
    touched: set[int] = set()
    items: dict[int, tuple[int, bytes]] = {}
    for deletes, upserts in written:
        ids = [id_ for id_, _, _ in upserts]
        codes = np.array([[code] for _, code, _ in upserts], dtype=np.uint8).reshape(-1, 1)
        batch = WriteBatch.of(IndexSettings(8), ids, codes, [payload for _, _, payload in upserts], deletes)
        assert len(batch) == len(deletes) + len(upserts)
        batches.append(batch)
        for id_ in deletes:
            items.pop(id_, None)
        items |= {id_: (code, payload or b"") for id_, code, payload in upserts}
        touched |= {*deletes, *ids}
    if not batches:
        return
    changed, rows = net_changes(batches)
    assert changed.tolist() == sorted(touched)
    payloads = [rows.payloads[i] if rows.payloads is not None else b"" for i in range(len(rows))]
    found = zip(rows.ids.tolist(), rows.codes[:, 0].tolist(), payloads, strict=True)
    assert {id_: (code, payload) for id_, code, payload in found} == items
    assert len(rows) == len(items)


@pytest.mark.parametrize(
    "ids",
    [
        [0, 2**64 - 1],
        [2**64 - 1],
        [2**63, 5, 2**63 - 1],
        np.array([0, 2**64 - 1], dtype=np.uint64),
        np.array([3, 4], dtype=np.int8),
        np.array([[1, 2], [3, 4]], dtype=np.uint16)[:, 1],
        np.array([7, 2**64 - 1], dtype=object),
        range(4),
        (),
        [],
        np.empty(0),
    ],
)
def test_ids_are_copied(ids: Any) -> None:
    own = as_ids(ids)
    assert own.dtype == np.uint64
    assert own.tolist() == [int(i) for i in ids]
    assert own.flags.c_contiguous
    assert not np.shares_memory(own, np.asarray(ids))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1, -1], "id -1 .*row 1; .*18446744073709551615"),
        (np.array([-5], dtype=np.int16), "id -5 .*row 0; .*18446744073709551615"),
        ([2**64], "id 18446744073709551616 in row 0"),
        ([2**64 - 1, -3], "id -3 in row 1"),
        ([1.5], "dtype float64; .*integers"),
        ([2**63, 1.5], "they must be integers"),
        ([np.nan], "they must be integers"),
        (["1"], "they must be integers"),
        ([None], "they must be integers"),
        (np.array([1.0]), "dtype float64; .*integers"),
        (7, r"shape \(\); they must be a list"),
        ([[1]], r"shape \(1, 1\); .*list"),
    ],
)
def test_invalid_ids_are_refused(ids: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        as_ids(ids)


@pytest.mark.parametrize("order", ["little", "big"])
@pytest.mark.parametrize("bits", [1, 5, 8, 11, 4096])
def test_codes_are_converted_for_the_engine_without_spare_bits_and_back(bits: int, order: BitOrder) -> None:
    rng = np.random.default_rng(bits)
    settings = IndexSettings(bits, order)
    plain = rng.integers(0, 2, (20, bits), dtype=np.uint8)
    codes = np.packbits(plain, axis=1, bitorder=order)
    noise = np.packbits(np.ones((1, bits), dtype=np.uint8), axis=1, bitorder=order)
    batch = WriteBatch.of(settings, range(20), codes | ~noise)
    assert (batch.upserts.codes == np.packbits(plain, axis=1, bitorder="little")).all()
    assert (settings.from_engine(batch.upserts.codes) == codes).all()
    assert not np.shares_memory(batch.upserts.codes, codes)


def test_settings_are_restored_from_json() -> None:
    settings = IndexSettings(100, "big", "multi", "fast", "async")
    assert IndexSettings.from_json(settings.to_json()) == settings
    assert IndexSettings.from_json({"bits": 8}) == IndexSettings(8, "little", "single", "compact", "fsync")
    with pytest.raises(InvalidArgumentError, match="unknown index settings: colour"):
        IndexSettings.from_json({"bits": 8, "colour": "red"})
