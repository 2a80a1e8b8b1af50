"""Chunks as they go over the wire."""

from __future__ import annotations

import math

import numpy as np
import pytest

from whamming.native import BatchStats, Stats
from whamming.server.search.messages import chunk_message, encode_answers, encode_chunks
from whamming.server.search.queries import NO_STATS, Answers, Chunk, End
from whamming.storage import NotFoundError
from whamming.v1 import search_pb2

STATS = Stats("sweep", True, 3, 2**63, 1, 2**40, 7, 128, 0, 0.25)


def chunk(query_id: int, count: int, end: End | None = None, *, payloads: bool = False, every: int = 1) -> Chunk:
    rng = np.random.default_rng(count)
    ids = rng.integers(0, 2**64, count * every, dtype=np.uint64)[::every]
    distances = np.sort(rng.standard_normal(count * every))[::every]
    kept = [bytes(rng.integers(0, 256, i % 5, dtype=np.uint8)) for i in range(count)] if payloads else ()
    return Chunk(query_id, ids, distances, kept, -math.inf if count == 0 else float(distances[-1]), end)


@pytest.mark.parametrize(
    "chunks",
    [
        [],
        [chunk(0, 0)],
        [chunk(2**64 - 1, 15), chunk(1, 16), chunk(2, 17)],
        [chunk(1, 2047), chunk(1, 2048), chunk(1, 65_536)],
        [chunk(5, 300, payloads=True)],
        [chunk(5, 10, every=3)],
        [chunk(7, 3, End("complete", True, STATS, 1.5))],
        [chunk(7, 0, End("failed", False, NO_STATS, 0.0, (1.25, 2**64 - 1), NotFoundError("there is no index 'x'")))],
        [chunk(7, 2, End("budget", False, STATS, 0.0, guess=(np.arange(3, dtype=np.uint64), np.ones(3))))],
    ],
)
def test_chunks_are_written_as_protobuf_would(chunks: list[Chunk]) -> None:
    expected = search_pb2.SearchResponse(chunks=[chunk_message(one) for one in chunks])
    assert search_pb2.SearchResponse.FromString(encode_chunks(chunks)) == expected
    for one, message in zip(chunks, expected.chunks, strict=True):
        assert list(message.ids) == one.ids.tolist()
        assert list(message.distances) == one.distances.tolist()


EXTREMES = np.array([0, 1, 127, 128, 2**14, 2**32 - 1, 2**63, 2**64 - 1], dtype=np.uint64)


@pytest.mark.parametrize("k", [1, 7, 15, 16, 256, 2049])
@pytest.mark.parametrize("q", [0, 1, 40])
@pytest.mark.parametrize("more", [0, 1])
def test_answers_are_written_as_protobuf_would(q: int, k: int, more: int) -> None:
    """Of queries that want as many hits as their rows have, or more."""
    rng = np.random.default_rng([q, k])
    stats = BatchStats.room(q)
    for name in stats.raw.dtype.names or ():
        wide = stats.raw.dtype[name].itemsize == 8
        stats.raw[name] = rng.choice(EXTREMES if wide else EXTREMES[:6], q)
    stats.raw["plan"] = rng.choice([1, 2], q)
    stats.raw["switched"] = rng.choice([0, 1], q)
    query_ids = rng.choice(EXTREMES, q).tolist()
    ids = rng.integers(0, 2**64, (q, k), dtype=np.uint64)
    distances = np.sort(rng.standard_normal((q, k)), axis=1)
    counts = rng.choice([0, k // 2, k], q).astype(np.uint64)
    distances[:, -1] = rng.choice([0.0, -0.0, 5.0, math.inf], q)
    for elapsed, radius, items in [(0.0, 0.0, k), (1.5, math.inf, k + 1), (0.0, -math.inf, 0), (1e-9, -0.0, 2**64 - 1)]:
        expected = []
        for row, count in enumerate(counts.tolist()):
            end = End("complete" if count == k + more else "exhausted", True, stats[row], elapsed)
            bound = float(distances[row, -1]) if count == k + more else radius if count < items else math.inf
            expected.append(Chunk(query_ids[row], ids[row, :count], distances[row, :count], (), bound, end))
        written = encode_answers(Answers(query_ids, k + more, radius, items, ids, distances, counts, stats, elapsed))
        response = search_pb2.SearchResponse(chunks=[chunk_message(chunk) for chunk in expected])
        assert written == response.SerializeToString()
        assert search_pb2.SearchResponse.FromString(written) == response
