"""The bytes of the arrays that a build writes, against numpy."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from numpy.typing import NDArray

from whamming.native import Index

META_BYTES = struct.calcsize("<4sIQQ10I")


def _bits_of(codes: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    return np.unpackbits(codes, axis=1, bitorder="little", count=bits)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 300, 70_000])
@pytest.mark.parametrize("bits", [1, 3, 4, 5, 8, 13, 64, 127, 260])
def test_frequencies_and_blocks_are_those_of_the_codes(bits: int, n: int) -> None:
    rng = np.random.default_rng(bits * 1000 + n)
    given = rng.integers(0, 256, (n, (bits + 7) // 8), dtype=np.uint8)
    index = Index.build(given, bits, tables="none", reorder=False)
    codes = _bits_of(
        np.frombuffer(index.arrays["codes"], dtype=np.uint8)[: index.distinct * given.shape[1]].reshape(
            index.distinct, -1
        ),
        bits,
    )
    assert sorted(map(bytes, np.unique(_bits_of(given, bits), axis=0))) == sorted(map(bytes, codes))

    sample = codes[:: index.distinct // 65536 + 1]
    frequencies = np.frombuffer(index.arrays["meta"], dtype="<u2", offset=META_BYTES)
    assert frequencies.tolist() == (sample.sum(axis=0, dtype=np.int64) * 65535 // len(sample)).tolist()

    planes, blocks = (bits + 3) // 4, (index.distinct + 127) // 128
    padded = np.zeros((blocks * 128, planes * 4), dtype=np.uint8)
    padded[: index.distinct, :bits] = codes
    nibbles = np.packbits(padded.reshape(-1, 4), axis=1, bitorder="little").reshape(blocks, 2, 64, planes)
    expected = (nibbles[:, 0] | nibbles[:, 1] << 4).transpose(0, 2, 1)
    assert np.array_equal(np.frombuffer(index.arrays["blocks"], dtype=np.uint8), expected.ravel())
