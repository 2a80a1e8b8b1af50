"""A segment is opened only if its arrays belong to the settings of the index."""

from __future__ import annotations

import numpy as np
import pytest

from whamming.storage import CorruptStoreError, IndexSettings, Rows, Segment


@pytest.mark.parametrize("bits", [7, 8, 15, 17, 72, 128])
def test_codes_of_another_length_are_refused(bits: int) -> None:
    settings = IndexSettings(16)
    rows = Rows(np.arange(3, dtype=np.uint64), np.ones((3, 2), dtype=np.uint8))
    arrays = Segment.build(settings, rows).arrays
    assert Segment(settings, arrays).n == 3
    with pytest.raises(CorruptStoreError, match=rf"16 bits; the index has {bits}"):
        Segment(IndexSettings(bits), arrays)
