"""Tests of splitting upserts into messages, which are packed when they are sent and can be sent again."""

from __future__ import annotations

import numpy as np
import pytest

from tests.native.oracle import Codes
from whamming.remote.message_size import REQUEST_BYTES, MessageSize
from whamming.remote.requests import UpsertRequests
from whamming.storage import IndexSettings, Payloads
from whamming.v1 import item_pb2
from whamming.wire.columns import payload_list_of

N, WIDTH = 70_000, 128
"""Codes of 1,024 bits and payloads of up to 300 bytes: about 20 MB."""
SETTINGS = IndexSettings(8 * WIDTH)
IDS = np.arange(N, dtype=np.uint64) * 3


@pytest.fixture
def codes() -> Codes:
    return np.random.default_rng(0).integers(0, 256, (N, WIDTH), dtype=np.uint8)


PAYLOADS = [bytes([row % 256]) * (row % 300) for row in range(N)]


def ids_of(message: item_pb2.UpsertRequest) -> list[int]:
    ids: list[int] = np.frombuffer(message.items.ids.uint64, "<u8").tolist()
    return ids


@pytest.mark.parametrize("packed", [False, True])
def test_messages_have_all_items_in_order(codes: Codes, packed: bool) -> None:
    requests = UpsertRequests(
        MessageSize(), "docs", SETTINGS, IDS, codes, Payloads.of(PAYLOADS) if packed else PAYLOADS, None, None
    )
    messages = list(requests.unacknowledged())
    assert len(messages) == len(requests) > 4
    assert [message.sequence for message in messages] == list(range(len(messages)))
    assert all(message.ByteSize() < 1.01 * REQUEST_BYTES for message in messages)
    assert [id_ for message in messages for id_ in ids_of(message)] == IDS.tolist()
    assert b"".join(message.items.codes for message in messages) == codes.tobytes()
    counts = [len(ids_of(message)) for message in messages]
    sent = [payload_list_of(message.items.payloads, count) for message, count in zip(messages, counts, strict=True)]
    assert [payload for some in sent for payload in some] == PAYLOADS


def test_unacknowledged_messages_can_be_sent_again(codes: Codes) -> None:
    requests = UpsertRequests(MessageSize(), "docs", SETTINGS, IDS, codes, PAYLOADS, None, None)
    first = list(requests.unacknowledged())
    requests.acknowledged = 2
    assert list(requests.unacknowledged()) == first[2:]
    requests.acknowledged = len(requests)
    assert list(requests.unacknowledged()) == []


def test_a_message_is_packed_when_it_is_sent(codes: Codes) -> None:
    """The test changes the array, which callers must not do: messages that are not sent yet show the change."""
    messages = UpsertRequests(MessageSize(), "docs", SETTINGS, IDS, codes, None, None, None).unacknowledged()
    first = next(messages).items.codes
    codes[:] ^= 255
    assert first == (codes[: len(first) // WIDTH] ^ 255).tobytes()
    assert b"".join(message.items.codes for message in messages) == codes[len(first) // WIDTH :].tobytes()
