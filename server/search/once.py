"""SearchOnce: a call with one query, answered by one message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from whamming.native import MAX_BITS
from whamming.server.search.call import SearchCall
from whamming.server.search.results import Results, response
from whamming.server.search.turns import Turns
from whamming.storage.vectors.arrays import MAX_DIM
from whamming.v1 import search_pb2, types_pb2
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import AnswerTooLargeError, UnavailableError, error_of
from whamming.wire.statistics import query_statistics

HITS_TOGETHER: Final = 500
"""Hits that are converted in one turn of the event loop. This takes about half a millisecond."""
_QUERY_ID: Final = 0
_FIELDS: Final = {
    "codes": "code",
    "tables": "table",
    "vectors": "vector",
    "after_distances": "after.distance",
    "after_sums": "after.sum",
}
"""Fields of QueryBatch that have another name in SearchOnceRequest, for error messages."""


async def search_once(
    request: search_pb2.SearchOnceRequest, call: SearchCall, max_bytes: int
) -> search_pb2.SearchOnceResponse:
    """Search one query on a call of its own, and return all its hits. Raises the query's error if it fails."""
    options = request.options
    if not options.HasField("k") and not options.HasField("radius"):
        raise FieldError("options", "neither k nor radius is set; set one of them, or use the streaming Search")
    try:
        call.add(_batch(request))
        call.close_requests()
        parts: list[Results] = []
        size = 0
        while some := await call.next_results():
            parts += some
            size += sum(part.nbytes for part in some)
            if size > max_bytes:
                raise AnswerTooLargeError(
                    f"the answer has more than {max_bytes} bytes; request fewer hits, or use the streaming Search"
                )
    finally:
        call.close()
    return await _answer(parts, call.turns)


def _batch(request: search_pb2.SearchOnceRequest) -> search_pb2.QueryBatch:
    """Return the request as a batch of one query."""
    batch = search_pb2.QueryBatch(index=request.index, query_ids=[_QUERY_ID], codes=request.code, form=request.form)
    for field, numbers, most, column, kind, dtype in (
        ("weights", request.weights, MAX_BITS, batch.weights, types_pb2.ELEMENT_TYPE_FLOAT64, "<f8"),
        ("table", request.table, 2 * MAX_BITS, batch.tables, types_pb2.ELEMENT_TYPE_FLOAT64, "<f8"),
        ("vector", request.vector, MAX_DIM, batch.vectors, types_pb2.ELEMENT_TYPE_FLOAT32, "<f4"),
    ):
        if len(numbers) > most:  # before the conversion: Python objects take much more memory
            raise FieldError(field, f"{field} has {len(numbers)} numbers; the maximum is {most}")
        if numbers:
            column.type, column.columns, column.data = kind, len(numbers), np.array(numbers, dtype).tobytes()
    if request.HasField("after"):
        batch.after_distances.append(request.after.distance)
        batch.after_ids.uint64 = np.array([request.after.id], "<u8").tobytes()
        batch.after_sums = request.after.sum
    batch.options.CopyFrom(request.options)
    batch.options.ClearField("credit")
    return batch


async def _answer(parts: Sequence[Results], turns: Turns) -> search_pb2.SearchOnceResponse:
    """Convert all results of a call. Raises the error of a query that failed."""
    last = response(parts[-1:])  # the query ends with its last results
    ends = last.ends
    for error in ends.errors:
        raise error_of(error.reason, error.message, _FIELDS.get(error.field, error.field))
    if ends.reasons[0] == search_pb2.END_REASON_SHUTDOWN:
        raise UnavailableError("the server is shutting down; try again later")
    answer = search_pb2.SearchOnceResponse(
        lower_bound=last.lower_bounds[-1],
        reason=ends.reasons[0],
        exact=ends.exact[0],
        statistics=query_statistics(ends.statistics) if ends.HasField("statistics") else None,
        resume=ends.resumes[0].token if ends.resumes else None,
    )
    for part in parts:
        ids, distances = np.frombuffer(part.ids, "<u8"), np.frombuffer(part.distances, "<f8")
        payloads = part.payloads or [b""] * len(ids)
        for first in range(0, len(ids), HITS_TOGETHER):
            if answer.hits:
                await turns.next()
            rows = slice(first, first + HITS_TOGETHER)
            for item, distance, payload in zip(
                ids[rows].tolist(), distances[rows].tolist(), payloads[rows], strict=True
            ):
                answer.hits.add(id=item, distance=distance, payload=payload)
    for guess in ends.guesses:
        ids = np.frombuffer(guess.ids.uint64, "<u8")
        for item, distance in zip(ids.tolist(), np.frombuffer(guess.distances, "<f8").tolist(), strict=True):
            answer.guesses.add(id=item, distance=distance)
    return answer
