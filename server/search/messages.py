"""Messages to values and back, as only the server needs it. Shape is checked here, meaning by the engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.native import Costs, WhammingError, wire
from whamming.server.rpc.status import NoEncoderError, NoTablesError, refusal
from whamming.server.search import queries
from whamming.server.search.given import Field, GivenQueries
from whamming.server.search.queries import Answers, Chunk, End, Options, Ranking
from whamming.storage import IndexSettings, StoredIndex
from whamming.storage.reranking import Bound, Rerank, read_queries
from whamming.storage.stored_index import make_costs
from whamming.storage.vectors.encoders import Encoder
from whamming.v1 import index_pb2, search_pb2
from whamming.wire.packed import FEW, field_bytes, pack
from whamming.wire.values import (
    FieldError,
    blaming,
    encoder_message,
    fill_statistics,
    form_of,
    kind_of,
    plan_of,
    settings_message,
    store_stats_message,
    vectors_of,
)

_REASONS: Final = {reason: number for number, reason in enumerate(get_args(queries.Reason), start=1)}
MOST_CHUNK: Final = 65_536
_CHUNKS: Final = search_pb2.SearchResponse.CHUNKS_FIELD_NUMBER
_IDS: Final = search_pb2.Chunk.IDS_FIELD_NUMBER
_DISTANCES: Final = search_pb2.Chunk.DISTANCES_FIELD_NUMBER


def index_message(index: StoredIndex) -> index_pb2.Index:
    """Describe an index."""
    return index_pb2.Index(
        name=index.name,
        settings=settings_message(index.settings),
        encoder=encoder_message(index.encoder),
        statistics=store_stats_message(index.stats()),
    )


def encoder_of(request: index_pb2.CreateIndexRequest) -> dict[str, Any]:
    """Return what ``create_index`` is to know of an encoder, by its names; nothing where there is to be none."""
    wanted = request.encoder
    if request.fitted_encoder:
        if request.HasField("encoder"):
            raise FieldError("fitted_encoder", "both a fitted encoder and how to make one; give one of them")
        try:
            return {"encoder": Encoder.from_bytes(request.fitted_encoder)}
        except WhammingError as error:
            raise FieldError("fitted_encoder", str(error)) from error
    if not request.HasField("encoder"):
        return {}
    return {
        "encoder": kind_of(wanted.kind),
        "dim": wanted.dimension or None,
        "train": vectors_of(wanted.sample, "encoder.sample") if wanted.HasField("sample") else None,
        "seed": wanted.seed,
        "centre": wanted.centred if wanted.HasField("centred") else None,
    }


def options_of(message: search_pb2.QueryOptions, max_k: int) -> Options:
    """Return what is wanted of a query."""
    k = message.k if message.HasField("k") else None
    if k is not None and not 1 <= k <= max_k:
        raise FieldError("options.k", f"k = {k}; it must be 1 to {max_k}, or unset for all")
    radius = message.radius if message.HasField("radius") else None
    if radius is not None and math.isnan(radius):
        raise FieldError("options.radius", "radius = nan; it must be a number, or unset for no limit")
    seconds = message.budget.seconds
    if not 0 <= seconds < math.inf:
        raise FieldError("options.budget.seconds", f"seconds = {seconds}; it must be 0 or more, 0 for no limit")
    return Options(
        k,
        radius,
        plan_of(message.plan),
        message.payloads,
        min(message.chunk_size, MOST_CHUNK) or queries.DEFAULT_CHUNK,
        message.credit if message.HasField("credit") else None,
        message.budget.candidates or None,
        seconds or None,
        _rerank_of(message, k),
    )


def _rerank_of(message: search_pb2.QueryOptions, k: int | None) -> Rerank | None:
    """Return how hits are to be ranked again."""
    if not message.rerank and not message.rerank_exactly:
        return None
    if message.rerank and (message.rerank_exactly or k is None):
        raise FieldError("options.rerank", f"rerank = {message.rerank} goes with k, and not with rerank_exactly")
    if message.HasField("radius") or message.HasField("budget"):
        raise FieldError("options.rerank", "ranking again goes with neither a radius nor a budget; leave them out")
    return "exact" if message.rerank_exactly else message.rerank


def ranking_of(given: GivenQueries, place: int, options: Options, index: StoredIndex) -> tuple[Ranking, Costs]:
    """Return how a query's hits are ranked again, and by which costs they are found."""
    settings, encoder = index.settings, need_encoder(index.encoder)
    assert options.rerank is not None
    query = given.message(place)
    if not query.vector or query.HasField("after") or query.weights:
        raise FieldError("options.rerank", "ranking again goes with a vector, without weights and without after")
    if settings.keep_vectors is None:
        raise NoEncoderError(f"ranking again, but the index {index.name!r} keeps no vectors; create one that does")
    vectors = _numbers(given, [place], "vector", encoder.dim, "the encoder's dimension")
    with blaming("options.rerank"):
        read, factor = read_queries(settings, vectors, options.rerank, form_of(query.form))
    if factor is None:
        bound = Bound(encoder, read[0])
        return Ranking(read[0], None, bound), bound.costs
    return Ranking(read[0], factor, None), encoder.costs(read[0], form_of(query.form))


def costs_of(given: GivenQueries, places: Sequence[int], settings: IndexSettings, encoder: Encoder | None) -> Costs:
    """Return the costs of queries of one shape, as a batch."""
    has_code, has_weights = given.has(places[0], "code"), given.has(places[0], "weights")
    has_table, has_vector = given.has(places[0], "table"), given.has(places[0], "vector")
    form, bits = given.form(places[0]), settings.bits
    if has_vector:
        if has_code or has_table:
            raise FieldError("vector", "a query has a vector and a code or a cost table; give one of them")
        encoder = need_encoder(encoder)
        vectors = _numbers(given, places, "vector", encoder.dim, "the encoder's dimension")
        weights = _numbers(given, places, "weights", bits, "one per bit")[0] if has_weights else None
        if has_weights and len(places) > 1:
            raise FieldError("weights", "weights differ from query to query")  # read one by one instead
        with blaming("weights" if has_weights else "vector"):
            return encoder.costs(vectors, form_of(form), weights=weights)
    if form:
        raise FieldError("form", f"form = {form} without a vector; it says what is made of one")
    if has_table:
        if has_code or has_weights:
            raise FieldError("table", "a query has a cost table and a code or weights; give one or the other")
        table = _numbers(given, places, "table", 2 * bits, f"two per bit, {bits} bits")
        with blaming("table"):
            return make_costs(settings, None, None, table.reshape(len(places), bits, 2))
    if not has_code:
        raise FieldError("code", "a query has no code, no cost table and no vector; give one of them")
    codes = given.read(places, "code")
    if codes.shape[1] != settings.code_bytes:
        raise FieldError("code", f"the code has {codes.shape[1]} bytes; {bits} bits need {settings.code_bytes}")
    weights = None
    if has_weights:
        weights = _numbers(given, places, "weights", bits, "one per bit")
    with blaming("weights"):
        return make_costs(settings, codes, weights, None)


def _numbers(given: GivenQueries, places: Sequence[int], field: Field, width: int, rule: str) -> NDArray[np.float64]:
    rows = given.read(places, field)
    if rows.shape[1] != width:
        raise FieldError(field, f"{field} has {rows.shape[1]} numbers; it must have {width}: {rule}")
    return rows.astype(np.float64, copy=False)


def need_encoder(encoder: Encoder | None) -> Encoder:
    """Return the encoder of an index that vectors are brought to."""
    if encoder is None:
        raise NoEncoderError("vectors for an index without an encoder; give codes, or create it with an encoder")
    return encoder


def after_of(query: search_pb2.Query) -> tuple[float, int] | None:
    """Return where a query is to go on."""
    if not query.HasField("after"):
        return None
    if math.isnan(query.after.distance):
        raise FieldError("after.distance", "after.distance = nan; give the token that a search has sent")
    return query.after.distance, query.after.id


def token_of(given: GivenQueries, place: int) -> tuple[float, int] | None:
    """Return where a query that ends before it has begun can go on: where it was to begin."""
    if not given.has_own(place):
        return None
    query = given.message(place)
    if not query.HasField("after") or math.isnan(query.after.distance):
        return None
    return query.after.distance, query.after.id


def check_plan(options: Options, settings: IndexSettings) -> None:
    """Refuse to probe an index without tables."""
    if options.plan == "probe" and settings.tables == "none":
        raise NoTablesError("plan = PROBE needs tables; the index was created with TABLES_NONE")


def chunk_message(chunk: Chunk) -> search_pb2.Chunk:
    """Pack some hits."""
    message = search_pb2.Chunk()
    _fill(message, chunk)
    _fill_hits(message, chunk)
    return message


def encode_chunks(chunks: Sequence[Chunk]) -> bytes:
    """Return a serialised SearchResponse.

    Where hits are many, ids and distances go in as they lie in memory: that is what packed fields are, and fields may
    stand in any order.
    """
    if all(len(chunk.ids) <= FEW for chunk in chunks):
        response = search_pb2.SearchResponse()
        for chunk in chunks:
            message = response.chunks.add()
            _fill(message, chunk)
            _fill_hits(message, chunk)
        return response.SerializeToString()
    pieces = []
    for chunk in chunks:
        message = search_pb2.Chunk()
        _fill(message, chunk)
        ids, distances = chunk.ids.astype("<u8", copy=False), chunk.distances.astype("<f8", copy=False)
        hits = field_bytes(_IDS, ids.tobytes()) + field_bytes(_DISTANCES, distances.tobytes())
        pieces.append(field_bytes(_CHUNKS, message.SerializeToString() + hits))
    return b"".join(pieces)


def encode_answers(answers: Answers) -> bytes:
    """Return a serialised SearchResponse that ends queries with all their hits."""
    return wire.write_answers(*answers)


def _fill(message: search_pb2.Chunk, chunk: Chunk) -> None:
    """Pack all but the hits. Field by field: messages that are made to be put into others are copied."""
    message.query_id, message.lower_bound = chunk.query_id, chunk.lower_bound
    if chunk.payloads:
        message.payloads.extend(chunk.payloads)
    if chunk.end is not None:
        _fill_end(message.end, chunk.end)


def _fill_hits(message: search_pb2.Chunk, chunk: Chunk) -> None:
    pack(message, "ids", chunk.ids)
    pack(message, "distances", chunk.distances)


def _fill_end(message: search_pb2.QueryEnd, end: End) -> None:
    message.reason, message.exact = _REASONS[end.reason], end.exact  # type: ignore[assignment]
    fill_statistics(message.statistics, end.stats, end.elapsed)
    if end.resume is not None:
        message.resume.distance, message.resume.id = end.resume
    if end.error is not None:
        why = refusal(end.error)
        message.error.code, message.error.message, message.error.reason = why.code, why.message, why.reason
        message.error.field = why.field
    if end.guess is not None:
        message.guess_ids.extend(end.guess[0].tolist())
        message.guess_distances.extend(end.guess[1].tolist())
