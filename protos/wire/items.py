"""Convert items to and from messages."""

from __future__ import annotations

import numpy as np

from whamming.native import InvalidArgumentError
from whamming.storage import IndexSettings, Rows
from whamming.v1 import item_pb2
from whamming.wire.columns import id_column, ids_of, payload_column, payloads_of


def items_message(rows: Rows) -> item_pb2.ItemBatch:
    """Pack items. Their codes are in the index's bit order."""
    payloads = None if rows.payloads is None else payload_column(rows.payloads)
    return item_pb2.ItemBatch(ids=id_column(rows.ids), codes=rows.codes.tobytes(), payloads=payloads)


def items_of(message: item_pb2.ItemBatch, settings: IndexSettings) -> Rows:
    """Return the items of a server's message. Their codes are in the index's bit order."""
    ids, width = ids_of(message.ids, "items.ids"), settings.code_bytes
    data = message.codes
    if len(data) != len(ids) * width:
        raise InvalidArgumentError(f"{len(data)} bytes of codes for {len(ids)} items; expected {len(ids) * width}")
    codes = np.frombuffer(data, dtype=np.uint8).reshape(len(ids), width)
    payloads = None
    if message.HasField("payloads"):
        payloads = payloads_of(message.payloads, len(ids), "items.payloads")
    return Rows(ids, codes, payloads)
