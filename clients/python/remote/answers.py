"""Reads search responses: chunks of hits, and how each query ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.native import Stats, WhammingError
from whamming.v1 import search_pb2
from whamming.wire.columns import payload_list_of, sum_list_of
from whamming.wire.service_errors import error_of
from whamming.wire.statistics import stats_at

NO_IDS: Final = np.empty(0, dtype=np.uint64)
NO_DISTANCES: Final = np.empty(0, dtype=np.float64)
FINISHED: Final = (search_pb2.END_REASON_COMPLETE, search_pb2.END_REASON_EXHAUSTED)
"""End reasons of a query that has returned all its hits."""
RESUMABLE: Final = (search_pb2.END_REASON_SNAPSHOT_EXPIRED, search_pb2.END_REASON_SHUTDOWN)
"""End reasons after which the query can be sent again to continue."""


class QueryEnd(NamedTuple):
    """How a query ended: one row of the ``ends`` of a message."""

    ends: search_pb2.QueryEnds
    row: int

    @property
    def reason(self) -> search_pb2.EndReason:
        return self.ends.reasons[self.row]

    @property
    def stats(self) -> Stats:
        return stats_at(self.ends.statistics, self.row)

    @property
    def error(self) -> WhammingError:
        """The error that the query failed with. If it did not fail, an error that names the end reason."""
        query_id = self.ends.query_ids[self.row]
        for error in self.ends.errors:
            if error.query_id == query_id:
                return error_of(error.reason, error.message)
        return error_of(0, f"the query ended early: {search_pb2.EndReason.Name(self.reason)}")


class Chunk(NamedTuple):
    """The next hits of one query."""

    ids: NDArray[np.uint64]
    distances: NDArray[np.float64]
    payloads: Sequence[bytes]
    """One per hit, or empty if the message has no payloads."""
    bound: float
    end: QueryEnd | None
    last_sum: bytes
    """The exact distance of the last hit, or empty if it needs none."""


def hits_of(response: search_pb2.SearchResponse) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Return the ids and distances of all hits of a message."""
    return np.frombuffer(response.ids.uint64, "<u8"), np.frombuffer(response.distances, "<f8")


def chunks_of(response: search_pb2.SearchResponse) -> Iterator[tuple[int, Chunk]]:
    """Yield the chunks of a message, each with the id of its query. Raises an exception if the columns do not match."""
    ids, distances = hits_of(response)
    _check_lengths(response, len(ids), len(distances))
    payloads: Sequence[bytes] = ()
    if response.HasField("payloads"):
        payloads = payload_list_of(response.payloads, len(ids))
    query_ids = response.query_ids
    sums = sum_list_of(response.last_sums, len(query_ids), "last_sums")
    last = {query_id: row for row, query_id in enumerate(query_ids)}
    ended = {query_id: QueryEnd(response.ends, row) for row, query_id in enumerate(response.ends.query_ids)}
    first = 0
    for row, (query_id, count) in enumerate(zip(query_ids, response.counts, strict=True)):
        hits = slice(first, first + count)
        end = ended.get(query_id) if last[query_id] == row else None
        yield query_id, Chunk(ids[hits], distances[hits], payloads[hits], response.lower_bounds[row], end, sums[row])
        first += count


def _check_lengths(response: search_pb2.SearchResponse, ids: int, distances: int) -> None:
    """Raise :class:`ValueError` if columns that belong together differ in length, so that no hit or end is lost."""
    hits, chunks, ends = sum(response.counts), len(response.query_ids), response.ends
    if not hits == ids == distances:
        raise ValueError(f"{hits} hits have {ids} ids and {distances} distances")
    if not chunks == len(response.counts) == len(response.lower_bounds):
        raise ValueError(f"{chunks} chunks have {len(response.counts)} counts and {len(response.lower_bounds)} bounds")
    if not len(ends.query_ids) == len(ends.reasons):
        raise ValueError(f"{len(ends.query_ids)} ends have {len(ends.reasons)} reasons")
    if not set(ends.query_ids) <= set(response.query_ids):
        raise ValueError("a query ended without a chunk")
