"""The results of queries (hits and ends), and their conversion to messages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.native import Position, Stats
from whamming.native.arguments import checked_position
from whamming.server.failures import Failure
from whamming.v1 import search_pb2
from whamming.wire.columns import payload_list_column, sum_column
from whamming.wire.statistics import NO_STATS, add_statistics

COMPLETE: Final = search_pb2.END_REASON_COMPLETE
EXHAUSTED: Final = search_pb2.END_REASON_EXHAUSTED
BUDGET: Final = search_pb2.END_REASON_BUDGET
CANCELLED: Final = search_pb2.END_REASON_CANCELLED
SNAPSHOT_EXPIRED: Final = search_pb2.END_REASON_SNAPSHOT_EXPIRED
SHUTDOWN: Final = search_pb2.END_REASON_SHUTDOWN
FAILED: Final = search_pb2.END_REASON_FAILED

EndReason = search_pb2.EndReason

CHUNK_BYTES: Final = 64
"""Approximate size of a chunk in a message without its hits: its id, count and bound."""
END_BYTES: Final = 64
"""Approximate size of an end in a message, without its error and its guesses."""


class End(NamedTuple):
    """Why and how a query ended."""

    query_id: int
    reason: EndReason
    exact: bool = False
    stats: Stats | None = None
    """None: not requested, or the query had not begun."""
    elapsed: float = 0.0
    resume: Position | None = None
    failure: Failure | None = None
    guess: tuple[NDArray[np.uint64], NDArray[np.float64]] | None = None

    @property
    def nbytes(self) -> int:
        """Approximate size in a message."""
        size = END_BYTES
        if self.failure is not None:
            size += len(self.failure.message) + len(self.failure.field)
        if self.guess is not None:
            size += self.guess[0].nbytes + self.guess[1].nbytes
        return size


class Results(NamedTuple):
    """Chunks of hits as columns, and the queries that end with them."""

    query_ids: Sequence[int]
    """One per chunk."""
    counts: Sequence[int]
    """Hits per chunk."""
    ids: bytes
    """uint64, little-endian. The hits of all chunks, one chunk after the other."""
    distances: bytes
    """float64, little-endian, in the same order."""
    bounds: Sequence[float]
    """One per chunk."""
    payloads: Sequence[bytes] | None = None
    """One per hit. None: not requested."""
    ends: Sequence[End] = ()
    last_sums: Sequence[bytes] | None = None
    """One per chunk: the exact distance of the last hit. None: the query cannot continue after it, or needs none."""

    @property
    def nbytes(self) -> int:
        """Approximate size in a message."""
        size = (
            len(self.ids) + len(self.distances) + CHUNK_BYTES * len(self.counts) + sum(end.nbytes for end in self.ends)
        )
        return size if self.payloads is None else size + sum(map(len, self.payloads)) + 4 * len(self.payloads)


def chunk(
    query_id: int,
    ids: NDArray[np.uint64],
    distances: NDArray[np.float64],
    bound: float,
    payloads: Sequence[bytes] | None = None,
    end: End | None = None,
    last_sum: bytes = b"",
) -> Results:
    """Return a chunk of hits of one query."""
    data = ids.astype("<u8", copy=False).tobytes(), distances.astype("<f8", copy=False).tobytes()
    ends = () if end is None else (end,)
    return Results((query_id,), (len(ids),), *data, (bound,), payloads, ends, (last_sum,) if last_sum else None)


def ends(ended: Sequence[End]) -> Results:
    """Return the ends of queries, without hits."""
    count = len(ended)
    return Results([end.query_id for end in ended], [0] * count, b"", b"", [-math.inf] * count, None, ended)


def response(results: Sequence[Results]) -> search_pb2.SearchResponse:
    """Pack results into one message, in their order."""
    message = search_pb2.SearchResponse()
    if len(results) == 1:
        message.ids.uint64, message.distances = results[0].ids, results[0].distances
    else:
        message.ids.uint64 = b"".join([some.ids for some in results])
        message.distances = b"".join([some.distances for some in results])
    query_ids, counts, bounds = message.query_ids, message.counts, message.lower_bounds
    for some in results:
        query_ids.extend(some.query_ids)
        counts.extend(some.counts)
        bounds.extend(some.bounds)
    ended = results[0].ends if len(results) == 1 else [end for some in results for end in some.ends]
    if ended:
        _set_ends(message.ends, ended)
    if any(some.payloads is not None for some in results):
        payloads: list[bytes] = []
        for some in results:
            payloads += [b""] * sum(some.counts) if some.payloads is None else some.payloads
        message.payloads.CopyFrom(payload_list_column(payloads))
    if any(some.last_sums is not None for some in results):
        sums: list[bytes] = []
        for some in results:
            sums += [b""] * len(some.counts) if some.last_sums is None else some.last_sums
        message.last_sums = sum_column(sums)
    return message


def _set_ends(message: search_pb2.QueryEnds, ended: Sequence[End]) -> None:
    """Add ends to the columns of a message."""
    query_ids, reasons, exact, stats, elapsed, resumes, failures, guesses = zip(*ended, strict=True)
    message.query_ids.extend(query_ids)
    message.reasons.extend(reasons)
    message.exact.extend(exact)
    if any(stats):
        add_statistics(message.statistics, [each or NO_STATS for each in stats], elapsed)
    if not (any(resumes) or any(failures) or any(guesses)):
        return
    for query_id, resume, failure, guess in zip(query_ids, resumes, failures, guesses, strict=True):
        if resume is not None:
            token = message.resumes.add(query_id=query_id).token
            token.distance, token.id, token.sum = checked_position(resume)
        if failure is not None:
            message.errors.add(
                query_id=query_id,
                code=failure.code,
                reason=failure.reason,
                message=failure.message,
                field=failure.field,
            )
        if guess is not None:
            column = message.guesses.add(query_id=query_id)
            column.ids.uint64 = guess[0].astype("<u8", copy=False).tobytes()
            column.distances = guess[1].astype("<f8", copy=False).tobytes()
