"""SearchOnce: a call with one query, answered by one message."""

from __future__ import annotations

from typing import Final

import numpy as np

from whamming.native import MAX_BITS
from whamming.server.search.call import SearchCall
from whamming.server.search.results import Results, response
from whamming.storage.vectors.arrays import MAX_DIM
from whamming.v1 import search_pb2, types_pb2
from whamming.wire.columns import payload_list_of
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import AnswerTooLargeError, UnavailableError, error_of
from whamming.wire.statistics import query_statistics

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
    return _answer(response(parts))


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


def _answer(whole: search_pb2.SearchResponse) -> search_pb2.SearchOnceResponse:
    """Convert the only message of a call. Raises the error of a query that failed."""
    ends = whole.ends
    for error in ends.errors:
        raise error_of(error.reason, error.message, _FIELDS.get(error.field, error.field))
    if ends.reasons[0] == search_pb2.END_REASON_SHUTDOWN:
        raise UnavailableError("the server is shutting down; try again later")
    answer = search_pb2.SearchOnceResponse(
        lower_bound=whole.lower_bounds[-1],
        reason=ends.reasons[0],
        exact=ends.exact[0],
        statistics=query_statistics(ends.statistics) if ends.HasField("statistics") else None,
        resume=ends.resumes[0].token if ends.resumes else None,
    )
    ids = np.frombuffer(whole.ids.uint64, "<u8").tolist()
    payloads = payload_list_of(whole.payloads, len(ids))
    for item, distance, payload in zip(ids, np.frombuffer(whole.distances, "<f8").tolist(), payloads, strict=True):
        answer.hits.add(id=item, distance=distance, payload=payload)
    for guess in ends.guesses:
        ids = np.frombuffer(guess.ids.uint64, "<u8").tolist()
        for item, distance in zip(ids, np.frombuffer(guess.distances, "<f8").tolist(), strict=True):
            answer.guesses.add(id=item, distance=distance)
    return answer
