"""Split the responses of Search into chunks and ends, and check that their columns agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.server.columns import read_ids, read_payloads, read_sums
from whamming.native import Position
from whamming.v1 import search_pb2

COMPLETE = search_pb2.END_REASON_COMPLETE
EXHAUSTED = search_pb2.END_REASON_EXHAUSTED
BUDGET = search_pb2.END_REASON_BUDGET
CANCELLED = search_pb2.END_REASON_CANCELLED
SNAPSHOT_EXPIRED = search_pb2.END_REASON_SNAPSHOT_EXPIRED
SHUTDOWN = search_pb2.END_REASON_SHUTDOWN
FAILED = search_pb2.END_REASON_FAILED

Place = Position
"""The distance and id of a hit, and its exact distance if it has one: a position from which a query can resume."""


@dataclass(frozen=True)
class End:
    """How a query ended."""

    reason: int
    exact: bool
    statistics: dict[str, Any]
    error: search_pb2.QueryError | None = None
    resume: Place | None = None
    guess: Sequence[Place] = ()


@dataclass(frozen=True)
class Chunk:
    """Some hits of one query, and its end if they are the last."""

    query_id: int
    ids: Sequence[int]
    distances: Sequence[float]
    payloads: Sequence[bytes] | None
    """None: the message has no payloads."""
    lower_bound: float
    end: End | None = None
    last_sum: bytes = b""

    @property
    def last(self) -> Place:
        """The position of the last hit."""
        return place_of(self.distances[-1], self.ids[-1], self.last_sum)


def place_of(distance: float, id_: int, exact: bytes) -> Place:
    return (distance, id_, exact) if exact else (distance, id_)


def in_order(before: Place, distance: float, id_: int) -> bool:
    """Whether a hit may follow a position. Two hits with equal distances are in any order if these were rounded."""
    return distance > before[0] or (distance == before[0] and id_ != before[1])


def chunks_of(response: search_pb2.SearchResponse) -> list[Chunk]:
    """Split a message into chunks. Fails if its columns have different lengths."""
    counts = list(response.counts)
    assert len(response.query_ids) == len(response.lower_bounds) == len(counts), "columns of chunks differ in length"
    ids, distances = read_ids(response.ids), floats_of(response.distances)
    assert len(ids) == len(distances) == sum(counts), "columns of hits differ in length"
    payloads = None
    if response.HasField("payloads"):
        payloads = read_payloads(response.payloads)
        assert len(payloads) == len(ids), "one payload per hit"
    last_sums = read_sums(response.last_sums, len(counts))
    ends = ends_of(response.ends)
    last = {query_id: chunk for chunk, query_id in enumerate(response.query_ids)}
    assert ends.keys() <= last.keys(), "an end without a chunk"
    chunks, first = [], 0
    for number, (query_id, count, bound) in enumerate(
        zip(response.query_ids, counts, response.lower_bounds, strict=True)
    ):
        rows = slice(first, first + count)
        first = rows.stop
        end = ends.get(query_id) if last[query_id] == number else None
        mine = None if payloads is None else payloads[rows]
        chunks.append(Chunk(query_id, ids[rows], distances[rows], mine, bound, end, last_sums[number]))
    return chunks


def ends_of(ends: search_pb2.QueryEnds) -> dict[int, End]:
    """Return the ends in a message by query id."""
    count = len(ends.query_ids)
    assert len(set(ends.query_ids)) == count, "a query ended twice"
    assert len(ends.reasons) == len(ends.exact) == count, "columns of ends differ in length"
    statistics = statistics_of(ends.statistics, count)
    errors = {error.query_id: error for error in ends.errors}
    tokens = {resume.query_id: resume.token for resume in ends.resumes}
    resumes = {query_id: place_of(token.distance, token.id, token.sum) for query_id, token in tokens.items()}
    guesses = {guess.query_id: guess_of(guess) for guess in ends.guesses}
    for given, parts in ((ends.errors, errors), (ends.resumes, resumes), (ends.guesses, guesses)):
        assert len(parts) == len(given), "two entries for one query"
        assert parts.keys() <= set(ends.query_ids), "an entry of a query that has not ended"
    return {
        query_id: End(reason, exact, spent, errors.get(query_id), resumes.get(query_id), guesses.get(query_id, ()))
        for query_id, reason, exact, spent in zip(ends.query_ids, ends.reasons, ends.exact, statistics, strict=True)
    }


def statistics_of(columns: search_pb2.StatisticsColumns, count: int) -> list[dict[str, Any]]:
    """Return the statistics of each query."""
    values = {field.name: getattr(columns, field.name) for field in columns.DESCRIPTOR.fields}
    lengths = {len(column) for column in values.values()}
    if lengths == {0}:  # not requested
        return [dict.fromkeys(values, 0) for _ in range(count)]
    assert lengths == {count}, "columns of statistics differ in length"
    return [{name: column[row] for name, column in values.items()} for row in range(count)]


def guess_of(guess: search_pb2.QueryGuess) -> list[Place]:
    return list(zip(floats_of(guess.distances), read_ids(guess.ids), strict=True))


def floats_of(data: bytes) -> list[float]:
    numbers: list[float] = np.frombuffer(data, dtype="<f8").tolist()
    return numbers
