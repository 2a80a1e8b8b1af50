"""The bytes of the arrays that a build writes, against numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from whamming.native import Costs, Index

META_BYTES = struct.calcsize("<4sIQQ10I")


def _bits_of(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    return np.unpackbits(codes, axis=1, bitorder="little", count=bits)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 300, 70_000])
@pytest.mark.parametrize("bits", [1, 3, 4, 5, 8, 13, 64, 127, 260])
def test_codes_are_stored_in_cells_with_their_frequencies(bits: int, n: int) -> None:
    rng = np.random.default_rng(bits * 1000 + n)
    given = rng.integers(0, 256, (n, (bits + 7) // 8), dtype=np.uint8)
    index = Index.build(given, bits, tables="none", reorder=False)
    blocks, quads = -(-index.rows // 64), -(-bits // 32)
    cells = np.frombuffer(index.arrays["codes"], dtype=np.uint8).reshape(blocks, quads, 4, 4, 16)
    padded = cells.transpose(0, 2, 4, 1, 3).reshape(blocks * 64, quads * 4)  # by block, cell, code, quad, byte
    assert not padded[index.rows :].any()
    assert not padded[:, given.shape[1] :].any()
    codes = _bits_of(np.ascontiguousarray(padded[: index.rows, : given.shape[1]]), bits)
    rows = _bits_of(given, bits)
    stored = rows if index.rows == n else np.unique(rows, axis=0)
    assert sorted(map(bytes, stored)) == sorted(map(bytes, codes))

    sample = codes[:: index.rows // 65536 + 1]
    frequencies = np.frombuffer(index.arrays["meta"], dtype="<u2", offset=META_BYTES)
    assert frequencies.tolist() == (sample.sum(axis=0, dtype=np.int64) * 65535 // len(sample)).tolist()


def test_equal_codes_share_a_row_if_there_are_many() -> None:
    """Otherwise it would take more memory to say which ids a row has."""
    codes = np.random.default_rng(7).permutation(np.arange(8000, dtype="<u4")).view(np.uint8).reshape(-1, 4)
    few, often, many = codes.copy(), codes.copy(), codes.copy()
    few[:900] = codes[1000:1900]
    often[:1000] = codes[1000]
    many[:1200] = codes[1200:2400]
    for given, rows in ((codes, 8000), (few, 8000), (often, 7000), (many, 6800)):
        index = Index.build(given, 32)
        assert index.rows == rows
        assert (len(index.arrays["groups"]) == 0) == (rows == 8000)
        assert (index.codes_at()[np.argsort(index.ids)] == given).all()


@pytest.mark.parametrize("largest", [0xFF, 0x100, 0xFFFF, 0x10000, 2**24, 2**40, 2**48 - 1, 2**56, 2**64 - 1])
def test_ids_take_as_few_bytes_as_the_largest_needs(largest: int) -> None:
    ids = np.array([3, largest, 1, 7], dtype=np.uint64)
    index = Index.build(np.array([[1], [2], [2], [2]], dtype=np.uint8), 8, ids)
    assert len(index.arrays["ids"]) == 4 * ((largest.bit_length() + 7) // 8) + 8
    assert sorted(index.ids.tolist()) == sorted(ids.tolist())
    assert index.ids_at(np.array([2, 0])).tolist() == [index.ids[2], index.ids[0]]
    order = np.argsort(index.ids).astype(np.uint32)
    assert (index.ids[index.find(order, ids).astype(int)] == ids).all()


@pytest.mark.parametrize("n", [1, 254, 255, 256, 65_534, 65_535, 65_536])
def test_rows_take_as_few_bytes_as_the_number_of_items_needs(n: int) -> None:
    codes = np.arange(n, dtype="<u4").view(np.uint8).reshape(-1, 4)
    index = Index.build(codes, 32, tables="multi")
    width = (n.bit_length() + 7) // 8
    assert len(index.arrays["postings"]) == index.table_count * n * width + 8
    found = index.search(Costs.hamming(codes[-1:], 32), k=1)
    assert found.ids.tolist() == [[n - 1]]
