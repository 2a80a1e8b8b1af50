"""The code writes and reads the examples of FORMAT.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from whamming.storage.files.records import array_key, check_array, delta_key, pack_array, pack_delta, unpack_delta
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError
from whamming.storage.vectors.kept import pack_vectors, unpack_vectors

TEXT = (Path(__file__).parents[2] / "storage" / "FORMAT.md").read_text(encoding="utf-8")


def dumps() -> list[bytes]:
    """Return the hex dumps of the document, in order."""
    found = []
    for block in re.findall(r"```\n(0000 .*?)```", TEXT, flags=re.DOTALL):
        rows = [re.match(r"[0-9a-f]{4}  ((?:[0-9a-f]{2} ?)+)", line) for line in block.splitlines()]
        found.append(bytes.fromhex("".join(row.group(1) for row in rows if row)))
    return found


def test_the_example_of_a_write() -> None:
    settings = IndexSettings(12)
    codes = np.array([[0x0F, 0xF3], [0x01, 0x00]], dtype=np.uint8)  # the four spare bits are cleared
    batch = WriteBatch.of(settings, [7, 2**64 - 1], codes, [b"hi", None], deletes=[9])
    assert pack_delta(3, batch) == dumps()[0]
    assert delta_key(3).hex(" ") in TEXT
    again = unpack_delta(dumps()[0], 3, settings)
    assert again.deletes.tolist() == [9]
    assert again.upserts.ids.tolist() == [7, 2**64 - 1]
    assert again.upserts.codes.tolist() == [[0x0F, 0x03], [0x01, 0x00]]
    assert again.upserts.payloads is not None
    assert [again.upserts.payloads[0], again.upserts.payloads[1]] == [b"hi", b""]


def test_the_example_of_a_write_with_vectors() -> None:
    settings = IndexSettings(8, dim=2, encoder="0011223344556677", keep_vectors="int8")
    packed = pack_vectors(np.array([[5, -7]], dtype=np.int8), "int8")
    batch = WriteBatch.of(settings, [7], np.array([[1]], dtype=np.uint8), vectors=packed)
    assert pack_delta(4, batch) == dumps()[1]
    again = unpack_delta(dumps()[1], 4, settings)
    assert again.upserts.vectors is not None
    assert unpack_vectors(again.upserts.vectors, "int8").tolist() == [[5, -7]]
    with pytest.raises(CorruptStoreError, match=r"write 4 .*flags 0x2"):
        unpack_delta(pack_delta(4, WriteBatch.of(settings, deletes=[9])), 4, IndexSettings(8))


def test_the_example_of_an_array() -> None:
    places = np.array([1, 0], dtype="<u4")
    assert pack_array(1, "by_id", places.data.cast("B")) == dumps()[2]
    assert array_key(1, "by_id").hex(" ") in TEXT
    assert check_array(dumps()[2], 1, "by_id") == len(dumps()[2])
