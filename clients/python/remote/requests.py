"""Arguments of verbs to request messages. Shapes and types are checked as far as packing needs it; the server checks
what the values mean."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native import InvalidArgumentError
from whamming.native.costs import as_array, as_codes
from whamming.native.cursor import as_whole, checked_place
from whamming.remote.messages import Queries, batches, encoder_messages
from whamming.storage import Durability, Encoder, Form, IndexSettings, Kind, Rows, WriteBatch
from whamming.storage.items.rows import as_ids
from whamming.storage.settings import KeptVectors, check_choice
from whamming.storage.vectors.arrays import as_vectors
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.wire.values import durability_number, settings_request

MOST_IDS: Final = 500_000
"""Of items to delete, in one message."""
MOST_SCAN_ROWS: Final = 100_000
"""What a server sends in one message, at most."""


def create_index_request(
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
    """Pack what a new index is to be."""
    made, fitted = encoder_messages(encoder, dim, train, seed, centre)
    if bits is None and encoder is None:
        raise InvalidArgumentError("bits is missing; say how long codes are")
    settings = settings_request(bits, keep_vectors, **choices)
    return index_pb2.CreateIndexRequest(
        name=name, settings=settings, exist_ok=exist_ok, encoder=made, fitted_encoder=fitted
    )


def upsert_requests(
    index: str,
    settings: IndexSettings,
    ids: ArrayLike,
    codes: ArrayLike | None,
    payloads: Sequence[bytes | None] | None,
    vectors: ArrayLike | None,
    durability: Durability | None,
) -> list[item_pb2.UpsertRequest]:
    """Pack items, in messages of a moderate size."""
    when = _durability(durability)
    rows = None
    if vectors is not None:
        if codes is not None:
            raise InvalidArgumentError("both codes and vectors; give one of them, the encoder makes the other")
        _check_encoder(index, settings)
        rows, _ = as_vectors(vectors, settings.dim)
        codes = np.zeros((len(rows), settings.code_bytes), dtype=np.uint8)
    elif codes is None and np.size(ids):
        raise InvalidArgumentError("items without codes; give codes, or vectors if the index has an encoder")
    plain = IndexSettings(settings.bits, settings.bit_order)
    items = WriteBatch.of(plain, ids, codes, payloads).upserts
    packed = Rows(items.ids, plain.from_engine(items.codes), items.payloads)
    return [
        item_pb2.UpsertRequest(index=index, sequence=sequence, items=message, durability=when)
        for sequence, message in enumerate(batches(packed, rows))
    ]


def delete_requests(index: str, ids: ArrayLike, durability: Durability | None) -> Iterator[item_pb2.DeleteRequest]:
    """Pack ids to delete, in messages of a moderate size."""
    when, unwanted = _durability(durability), as_ids(ids)
    for first in range(0, len(unwanted), MOST_IDS):
        some = unwanted[first : first + MOST_IDS].tolist()
        yield item_pb2.DeleteRequest(index=index, ids=some, durability=when)


def get_request(index: str, ids: NDArray[np.uint64]) -> item_pb2.GetRequest:
    """Pack ids to look up."""
    return item_pb2.GetRequest(index=index, ids=ids.tolist())


def scan_request(index: str, size: int) -> item_pb2.ScanRequest:
    """Ask for all items, in pieces."""
    if as_whole("size", size) < 1:
        raise InvalidArgumentError(f"size = {size}; it must be 1 or more items")
    return item_pb2.ScanRequest(index=index, batch_size=min(size, MOST_SCAN_ROWS))


def is_single(codes: ArrayLike | None, table: ArrayLike | None, vectors: ArrayLike | None) -> bool:
    """Return whether a batch is one query without a batch dimension."""
    if table is not None:
        return as_array(table, "costs").ndim == 2
    given = codes if vectors is None else vectors
    return given is not None and as_array(given, "queries").ndim == 1


def query_of(
    index: str,
    settings: IndexSettings,
    code: ArrayLike | None,
    weights: ArrayLike | None,
    table: ArrayLike | None,
    vector: ArrayLike | None,
    form: Form | None,
    after: tuple[float, int] | None,
) -> search_pb2.Query:
    """Pack one query."""
    queries = queries_of(index, settings, code, weights, table, vector, form)
    if len(queries) != 1:
        raise InvalidArgumentError(f"search takes one query, these are {len(queries)}; use search_batch")
    query = queries[0]
    if after is not None:
        query.after.distance, query.after.id = checked_place(after)
    return query


def queries_of(
    index: str,
    settings: IndexSettings,
    codes: ArrayLike | None,
    weights: ArrayLike | None,
    table: ArrayLike | None,
    vectors: ArrayLike | None,
    form: Form | None,
) -> Queries:
    """Pack queries of one kind."""
    if vectors is None and form is not None:
        raise InvalidArgumentError(f"costs = {form!r} without a vector; they are made from one")
    if vectors is not None:
        if codes is not None or table is not None:
            raise InvalidArgumentError("a vector beside a code or a cost table; give one of them")
        _check_encoder(index, settings)
        rows, _ = as_vectors(vectors, settings.dim)
        return Queries(len(rows), vector=rows, weights=_weights(weights, settings.bits), form=form)
    if table is not None:
        if codes is not None or weights is not None:
            raise InvalidArgumentError("give a cost table, or a code with or without weights, not both")
        return _tables(table, settings.bits)
    if codes is None:
        raise InvalidArgumentError("give a query code, or a cost table")
    packed = as_array(codes, "query codes")
    own = as_codes(packed[None] if packed.ndim == 1 else packed, settings.bits, "query codes")
    given = _weights(weights, settings.bits)
    if given is not None and given.ndim == 2:
        if len(own) not in (1, len(given)):
            raise InvalidArgumentError(f"{len(own)} codes but {len(given)} rows of weights; give one each")
        own = np.broadcast_to(own, (len(given), own.shape[1]))
    return Queries(len(own), code=own, weights=given)


def _tables(table: ArrayLike, bits: int) -> Queries:
    tables = as_array(table, "costs", np.float64)
    tables = tables[None] if tables.ndim == 2 else tables
    if tables.ndim != 3 or tables.shape[1:] != (bits, 2):
        raise InvalidArgumentError(
            f"the cost table has shape {np.shape(table)}; it must be [{bits}, 2], or [q, {bits}, 2]"
        )
    return Queries(len(tables), table=tables)


def _weights(weights: ArrayLike | None, bits: int) -> NDArray[Any] | None:
    if weights is None:
        return None
    given = as_array(weights, "weights", np.float64)
    if given.ndim not in (1, 2) or given.shape[-1] != bits:
        raise InvalidArgumentError(f"the weights have shape {given.shape}; the index has codes of {bits} bits")
    return given


def _check_encoder(index: str, settings: IndexSettings) -> None:
    if settings.dim is None:
        raise InvalidArgumentError(
            f"vectors, but the index {index!r} has no encoder; give codes, or create it with encoder='sign', 'lsh' or "
            "'itq'"
        )


def _durability(durability: Durability | None) -> Any:
    if durability is not None:
        check_choice("durability", durability, ("fsync", "async"))
    return durability_number(durability)
