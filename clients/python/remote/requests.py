"""Packs arguments into request messages.

Items to upsert are checked here, because they may take several messages: the server would find a fault in one message
after it has written those before. Of other arguments, this checks only what packing needs. The server checks all again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.arguments import check_flag
from whamming.remote.message_size import REQUEST_BYTES, MessageSize
from whamming.storage import Durability, Encoder, IndexSettings, KeptVectors, Kind, Payloads
from whamming.storage.items.payloads import as_payloads
from whamming.storage.items.rows import as_ids
from whamming.storage.items.write_batch import as_item_codes, check_no_vectors, check_one_kind
from whamming.storage.storage_errors import no_encoder
from whamming.storage.store.scanning import check_scan
from whamming.storage.vectors.arrays import as_vectors, check_dim
from whamming.storage.vectors.fitting import check_seed
from whamming.storage.vectors.kept import checking_vectors
from whamming.storage.vectors.steps import Steps
from whamming.v1 import index_pb2, item_pb2
from whamming.wire.columns import id_column, matrix, payload_column
from whamming.wire.descriptions import settings_message
from whamming.wire.enums import DURABILITIES, ENCODER_KINDS

MAX_IDS: Final = 500_000
"""Ids to delete per message."""
MAX_SCAN_ROWS: Final = 100_000
"""Maximum number of rows that a server sends per message."""
SAMPLE_BYTES: Final = 12 << 20
"""Maximum size of a training sample. From a larger one, vectors are chosen at random."""


def create_index_request(
    size: MessageSize,
    name: str,
    bits: int | None,
    encoder: Kind | Encoder | None,
    dim: int | None,
    train: ArrayLike | None,
    seed: int,
    centre: bool | None,
    keep_vectors: KeptVectors | None,
    exist_ok: bool,
    **choices: str,
) -> index_pb2.CreateIndexRequest:
    requested, fitted = _encoder_messages(size, encoder, bits, dim, train, seed, centre)
    if bits is None and encoder is None:
        raise InvalidArgumentError("bits is missing; give the length of the codes, 1 to 4096, or an encoder")
    settings = settings_message(bits, keep_vectors, **choices)
    return index_pb2.CreateIndexRequest(
        name=as_text(name),
        settings=settings,
        exist_ok=check_flag("exist_ok", exist_ok),
        encoder=requested,
        fitted_encoder=fitted,
    )


def as_text(name: str) -> str:
    """Return the name of an index if it is a string. The server checks the rest."""
    if not isinstance(name, str):
        raise InvalidArgumentError(f"index name {name!r}; it must be a string")
    return name


def _encoder_messages(
    size: MessageSize,
    encoder: Kind | Encoder | None,
    bits: int | None,
    dim: int | None,
    train: ArrayLike | None,
    seed: int,
    centre: bool | None,
) -> tuple[index_pb2.EncoderSettings | None, bytes]:
    """Pack the encoder of a new index: as settings if the server is to make it, or as bytes if it is fitted already."""
    if encoder is None:
        if dim is not None or train is not None or centre is not None:
            raise InvalidArgumentError("dim, train and centre require an encoder; give encoder='sign', 'lsh' or 'itq'")
        return None, b""
    if isinstance(encoder, Encoder):
        if train is not None or centre is not None or dim not in (None, encoder.dim):
            raise InvalidArgumentError(f"{encoder!r} is fitted already; leave dim, train and centre out")
        data = encoder.to_bytes()
        if len(data) > size.room(len(data)):
            raise InvalidArgumentError(
                f"{encoder!r} takes {_mib(len(data))}, and the server accepts messages of {_mib(size.limit)}; start it "
                f"with a larger --max-message-mb"
            )
        return None, data
    settings = index_pb2.EncoderSettings(
        kind=ENCODER_KINDS.number("encoder", encoder),
        dimension=0 if dim is None else check_dim(dim),
        seed=check_seed(seed),
    )
    if centre is not None:
        settings.centred = check_flag("centre", centre)
    if train is not None:
        rows, _ = as_vectors(train, dim, "the sample's vectors")
        most = max(1, size.room(SAMPLE_BYTES) // max(1, rows.shape[1] * rows.itemsize))
        if len(rows) > most:
            _check_enough(encoder, bits, rows, most)
            rows = rows[np.sort(np.random.default_rng(seed).choice(len(rows), most, replace=False))]
        settings.sample.CopyFrom(matrix(rows))
    return settings, b""


def _check_enough(encoder: str, bits: int | None, rows: NDArray[Any], most: int) -> None:
    """Refuse to send so small a part of a sample that the server could not fit the encoder to it."""
    if encoder == "itq" and isinstance(bits, int) and most <= bits:
        raise InvalidArgumentError(
            f"train has {len(rows)} vectors of {rows.shape[1]} components, {_mib(rows.nbytes)}. A client can send "
            f"{most} of them, and 'itq' with {bits} bits needs at least {bits + 1}: give vectors with fewer bytes per "
            "component, or fit the encoder with whamming.fit_encoder and pass it as encoder"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


class UpsertRequests:
    """Splits items into messages. Each message is packed when it is sent, so that few are in memory at a time."""

    def __init__(
        self,
        size: MessageSize,
        index: str,
        settings: IndexSettings,
        ids: ArrayLike,
        codes: ArrayLike | None,
        payloads: Sequence[bytes | None] | Payloads | None,
        vectors: ArrayLike | None,
        durability: Durability | None,
    ) -> None:
        """Take items, and check all but the values of vectors; see :meth:`checking`.

        The caller must not change the items until all are acknowledged.
        """
        self.acknowledged = 0
        """Number of messages, counted from the first, that the server has acknowledged."""
        self._index = index
        self._request_id = uuid.uuid4().bytes
        self._durability = DURABILITIES.number("durability", durability)
        self._kind = settings.keep_vectors
        self._ids = as_ids(ids)
        count = len(self._ids)
        check_one_kind(codes, vectors)
        self._codes = self._vectors = None
        if vectors is None:
            self._codes = as_item_codes(settings, count, codes)
            check_no_vectors(settings, count)
        else:
            self._vectors = _item_vectors(index, settings, count, vectors)
        self._payloads = as_payloads(payloads, count)
        self._pieces = self._split(size.room(REQUEST_BYTES))

    def checking(self) -> Steps[None]:
        """Check the values of vectors in short steps. Raises InvalidArgumentError."""
        if self._vectors is not None:
            yield from checking_vectors(self._vectors, self._kind)

    def _split(self, most: int) -> list[slice]:
        """Return the rows of each message, whose columns have at most ``most`` bytes."""
        count = len(self._ids)
        columns: list[NDArray[Any]] = [rows for rows in (self._codes, self._vectors) if rows is not None]
        sizes = np.full(count, 8 + sum(rows.shape[1] * rows.itemsize for rows in columns), dtype=np.int64)
        if self._payloads is not None:
            sizes += 4 + self._payloads.lengths().astype(np.int64)
        ends = np.cumsum(sizes)
        pieces: list[slice] = []
        first = 0
        while first < count:
            start = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, start + most, side="right")))
            pieces.append(slice(first, last))
            first = last
        return pieces

    def __len__(self) -> int:
        return len(self._pieces)

    def unacknowledged(self) -> Iterator[item_pb2.UpsertRequest]:
        """Yield the messages that are not acknowledged yet, in order."""
        for sequence in range(self.acknowledged, len(self)):
            yield self._message(sequence)

    def _message(self, sequence: int) -> item_pb2.UpsertRequest:
        rows = self._pieces[sequence]
        request_id = self._request_id + sequence.to_bytes(4, "big")  # the same if the message is sent again
        message = item_pb2.UpsertRequest(
            index=self._index, sequence=sequence, durability=self._durability, request_id=request_id
        )
        items = message.items
        items.ids.CopyFrom(id_column(self._ids[rows]))
        if self._codes is not None:
            items.codes = self._codes[rows].tobytes()
        if self._vectors is not None:
            items.vectors.CopyFrom(matrix(self._vectors[rows]))
        if self._payloads is not None:
            items.payloads.CopyFrom(payload_column(_slice(self._payloads, rows)))
        return message


def _item_vectors(index: str, settings: IndexSettings, count: int, vectors: ArrayLike) -> NDArray[Any]:
    if settings.dim is None:
        raise no_encoder(index)
    rows, _ = as_vectors(vectors, settings.dim)
    if len(rows) != count:
        raise InvalidArgumentError(f"{count} ids but {len(rows)} vectors; give one vector per id")
    return rows


def _slice(payloads: Payloads, rows: slice) -> Payloads:
    """Return the payloads of adjacent rows, without copying their bytes."""
    start = payloads.ends[rows.start - 1] if rows.start else np.uint64(0)
    ends = payloads.ends[rows]
    return Payloads(ends - start, payloads.data[int(start) : int(ends[-1])])


def delete_requests(
    size: MessageSize, index: str, ids: ArrayLike, durability: Durability | None
) -> Iterator[item_pb2.DeleteRequest]:
    when, unwanted = DURABILITIES.number("durability", durability), as_ids(ids)
    most = size.room(8 * MAX_IDS) // 8
    for first in range(0, len(unwanted), most):
        column = id_column(unwanted[first : first + most])
        yield item_pb2.DeleteRequest(index=index, ids=column, durability=when, request_id=uuid.uuid4().bytes)


def get_request(index: str, ids: NDArray[np.uint64]) -> item_pb2.GetRequest:
    return item_pb2.GetRequest(index=index, ids=id_column(ids))


def scan_request(index: str, size: int, after: int | None) -> item_pb2.ScanRequest:
    rows, last = check_scan(size, after)
    return item_pb2.ScanRequest(index=index, batch_size=min(rows, MAX_SCAN_ROWS), after_id=last)
