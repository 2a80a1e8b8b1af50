"""Packing results into messages: columns of chunks, and the ends of queries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from google.rpc import code_pb2

from whamming.native import Stats
from whamming.server.failures import failure_of
from whamming.server.search import results
from whamming.server.search.results import CHUNK_BYTES, END_BYTES, End, Results, chunk, ends, response
from whamming.storage import NotFoundError
from whamming.v1 import error_pb2, search_pb2
from whamming.wire.columns import payload_list_of
from whamming.wire.fields import FieldError
from whamming.wire.statistics import NO_STATS, stats_at

STATS = Stats("sweep", True, 3, buckets=2**63, candidates=2**40, blocks=128, seconds=0.25)


def some(query_id: int, count: int, end: End | None = None, *, payloads: bool = False, every: int = 1) -> Results:
    rng = np.random.default_rng(count)
    ids = rng.integers(0, 2**64, count * every, dtype=np.uint64)[::every]
    distances = np.sort(rng.standard_normal(count * every))[::every]
    kept = [bytes(rng.integers(0, 256, i % 5, dtype=np.uint8)) for i in range(count)] if payloads else None
    return chunk(query_id, ids, distances, float(count), kept, end)


@pytest.mark.parametrize(
    "parts",
    [
        [some(0, 0)],
        [some(2**64 - 1, 15), some(1, 16), some(2, 17)],
        [some(1, 2047), some(1, 2048), some(1, 65_536)],
        [some(5, 300, payloads=True)],
        [some(5, 3), some(6, 4, payloads=True), some(7, 5)],
        [some(5, 10, every=3)],
        [some(7, 3, End(7, results.COMPLETE, True, STATS, 1.5)), some(8, 2), ends([End(9, results.CANCELLED)])],
    ],
)
def test_chunks_are_concatenated(parts: list[Results]) -> None:
    message = search_pb2.SearchResponse.FromString(response(parts).SerializeToString())
    assert list(message.query_ids) == [query_id for part in parts for query_id in part.query_ids]
    assert list(message.counts) == [count for part in parts for count in part.counts]
    assert list(message.lower_bounds) == [bound for part in parts for bound in part.bounds]
    assert message.ids.uint64 == b"".join(part.ids for part in parts)
    assert message.distances == b"".join(part.distances for part in parts)
    assert len(message.ids.uint64) == len(message.distances) == 8 * sum(message.counts)
    assert message.HasField("payloads") == any(part.payloads is not None for part in parts)
    expected = [payload for part in parts for payload in part.payloads or [b""] * sum(part.counts)]
    assert payload_list_of(message.payloads, sum(message.counts)) == expected
    assert list(message.ends.query_ids) == [end.query_id for part in parts for end in part.ends]


def test_ends_of_queries_in_a_message() -> None:
    guess = np.arange(3, dtype=np.uint64), np.ones(3)
    ended = [
        End(1, results.COMPLETE, True, STATS, 1.5),
        End(2, results.FAILED, failure=failure_of(NotFoundError("there is no index 'x'"))),
        End(3, results.BUDGET, False, STATS, 0.5, (1.25, 2**64 - 1), None, guess),
        End(4, results.FAILED, resume=(0.0, 0), failure=failure_of(FieldError("options.k", "k = 0"))),
    ]
    message = response([ends(ended)]).ends
    assert list(message.query_ids) == [1, 2, 3, 4]
    assert list(message.reasons) == [end.reason for end in ended]
    assert list(message.exact) == [True, False, False, False]
    assert [stats_at(message.statistics, row) for row in range(4)] == [STATS, NO_STATS, STATS, NO_STATS]
    assert list(message.statistics.elapsed_seconds) == [1.5, 0.0, 0.5, 0.0]
    missing, wrong = message.errors
    assert (missing.query_id, missing.code, missing.field) == (2, code_pb2.NOT_FOUND, "")
    assert missing.reason == error_pb2.ERROR_REASON_INDEX_NOT_FOUND
    assert missing.message == "there is no index 'x'"
    assert (wrong.query_id, wrong.code, wrong.field) == (4, code_pb2.INVALID_ARGUMENT, "options.k")
    assert [(one.query_id, one.token.distance, one.token.id) for one in message.resumes] == [
        (3, 1.25, 2**64 - 1),
        (4, 0.0, 0),
    ]
    (best,) = message.guesses
    assert best.query_id == 3
    assert np.frombuffer(best.ids.uint64, "<u8").tolist() == [0, 1, 2]
    assert np.frombuffer(best.distances, "<f8").tolist() == [1.0] * 3


def test_ends_without_hits_have_no_bound() -> None:
    assert ends([End(1, results.CANCELLED), End(2, results.SHUTDOWN)]).bounds == [-math.inf] * 2


def test_the_message_size_is_estimated() -> None:
    assert some(1, 10).nbytes == 160 + CHUNK_BYTES
    assert some(1, 0, End(1, results.COMPLETE)).nbytes == CHUNK_BYTES + END_BYTES
    kept = some(1, 10, payloads=True)
    assert kept.payloads is not None
    assert kept.nbytes == 160 + CHUNK_BYTES + sum(map(len, kept.payloads)) + 40
    for part in (some(1, 1000), some(1, 1000, payloads=True), ends([End(i, results.CANCELLED) for i in range(50)])):
        size = response([part]).ByteSize()
        assert size <= part.nbytes + 20
