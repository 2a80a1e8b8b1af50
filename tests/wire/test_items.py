"""Items survive a round trip through messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming import InvalidArgumentError
from whamming.storage import IndexSettings, Payloads, Rows
from whamming.v1.item_pb2 import ItemBatch
from whamming.wire.items import items_message, items_of


@given(
    ids=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    bits=st.sampled_from([1, 8, 9, 64, 100]),
    data=st.data(),
)
@generated(60)
def test_items(ids: list[int], bits: int, data: st.DataObject) -> None:
    settings = IndexSettings(bits)
    size = len(ids) * settings.code_bytes
    raw = data.draw(st.binary(min_size=size, max_size=size))
    codes = np.frombuffer(raw, dtype=np.uint8).reshape(len(ids), settings.code_bytes)
    payloads = None
    if data.draw(st.booleans()):
        kept = [data.draw(st.binary(max_size=5)) for _ in ids]
        ends = np.cumsum([len(payload) for payload in kept], dtype=np.uint64)
        payloads = Payloads(ends, np.frombuffer(b"".join(kept), dtype=np.uint8))
    rows = Rows(np.array(ids, dtype=np.uint64), codes, payloads)
    found = items_of(ItemBatch.FromString(items_message(rows).SerializeToString()), settings)
    assert found.ids.tolist() == ids
    assert found.codes.tobytes() == raw
    assert found.codes.shape == codes.shape
    if payloads is None:
        assert found.payloads is None
    else:
        assert found.payloads is not None
        assert found.payloads.ends.tolist() == payloads.ends.tolist()
        assert found.payloads.data.tobytes() == payloads.data.tobytes()


@pytest.mark.parametrize("size", [0, 3, 5])
def test_codes_that_do_not_match_the_ids(size: int) -> None:
    message = items_message(Rows(np.arange(2, dtype=np.uint64), np.zeros((2, 2), dtype=np.uint8), None))
    message.codes = bytes(size)
    with pytest.raises(InvalidArgumentError, match=f"{size} bytes .*2 items"):
        items_of(message, IndexSettings(13))
