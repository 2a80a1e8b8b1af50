"""Checks of the chunks of one query: order, bounds, end, and the oracle's answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from tests.native.oracle import Truth
from tests.server.answers import BUDGET, COMPLETE, EXHAUSTED, FAILED, Chunk, End, Place, in_order
from tests.server.fuzz_oracle import Control, Expected, places_of
from tests.server.fuzz_statuses import UnsoundError, check_query_error, expect
from whamming.v1 import error_pb2, search_pb2


def check_query(
    batch: search_pb2.QueryBatch, row: int, expected: Expected, chunks: Sequence[Chunk], control: Control | None
) -> bool:
    """Check all chunks of a query. Returns whether they were compared with the oracle."""
    query_id, options = batch.query_ids[row], batch.options
    bound = -math.inf
    hits: list[tuple[float, int]] = []
    ended = None
    for chunk in chunks:
        expect(ended is None, f"query {query_id}: a chunk after its end")
        expect(len(chunk.ids) <= (options.chunk_size or 4096), "a chunk that is too large")
        expect(chunk.ids or chunk.end is not None, "an empty chunk")
        if options.payloads:
            expect(chunk.payloads is not None or not chunk.ids, "payloads were requested")
        else:
            expect(not any(chunk.payloads or ()), "payloads were not requested")
        expect(not math.isnan(chunk.lower_bound), "a bound is NaN")
        expect(all(distance >= bound for distance in chunk.distances), f"a hit below the bound {bound}")
        hits += zip(chunk.distances, chunk.ids, strict=True)
        ended = chunk.end
        if options.rerank and not (ended is not None and ended.exact):
            expect(chunk.lower_bound == -math.inf, f"a bound of {chunk.lower_bound}, but not all items were examined")
        elif ended is None or ended.reason in (COMPLETE, BUDGET):
            bound = chunk.lower_bound
            expect(not hits or bound >= hits[-1][0], f"a bound of {bound} after a hit at {hits[-1:]}")
    expect(all(in_order(a, *b) for a, b in itertools.pairwise(hits)), "hits out of order")
    places = places_of(batch)
    after = None if places is None else places[row]
    if after is not None and hits and len(after) == 2:  # a sum says more than the distance
        expect(in_order(after, *hits[0]), "a hit that is not after the token")
    if ended is not None:
        last = [chunk.last for chunk in chunks if chunk.ids][-1:]
        _check_end(options, hits, last[0] if last else after, ended)
    if control is None or not expected.is_certain:
        return False
    if expected.whole is None:
        expect(not hits, f"query {query_id}: hits of an invalid query")
        expect(ended is None or not ended.exact, "an exact answer to an invalid query")
        return False
    if ended is not None and ended.error is not None and ended.error.reason == error_pb2.ERROR_REASON_OVERLOADED:
        return False
    expect(ended is None or ended.error is None, f"refused: {ended and ended.error}")
    found = Truth(np.array([i for _, i in hits], np.uint64), np.array([d for d, _ in hits], np.float64) + 0.0)
    wanted = expected.whole if ended is not None and ended.exact else expected.whole[: len(found)]
    if found.ids.tolist() != wanted.ids.tolist() or (found.distances != wanted.distances).any():
        raise UnsoundError(f"query {query_id}: {hits}, but the oracle says {wanted}")
    if len(found) < len(expected.whole) and bound > expected.whole.distances[len(found)]:
        raise UnsoundError(f"query {query_id}: a bound of {bound}, but the oracle has {expected.whole[len(found) :]}")
    if options.payloads:
        known = dict(zip(control.ids.tolist(), control.payloads, strict=True))
        payloads = [payload for chunk in chunks for payload in chunk.payloads or ()]
        expect(payloads == [known[i] for _, i in hits], "payloads of other items")
    return True


def _check_end(
    options: search_pb2.QueryOptions, hits: Sequence[tuple[float, int]], last: Place | None, end: End
) -> None:
    """Check an end. ``last``: the position of the last hit, or that after which the query was to continue."""
    complete = end.reason == COMPLETE
    finished = complete or end.reason == EXHAUSTED
    expect(end.reason in search_pb2.EndReason.values() and end.reason, f"an invalid end reason: {end.reason}")
    expect(end.exact == finished or options.rerank, f"exact = {end.exact}, but the reason is {end.reason}")
    if options.HasField("k"):
        expect(len(hits) + len(end.guess) <= options.k, f"{len(hits)} hits, {len(end.guess)} guesses, k = {options.k}")
        expect(finished <= (complete == (len(hits) == options.k)), f"reason {end.reason} after {len(hits)} hits")
    expect(not (finished and end.resume), "a resume token although nothing is left")
    if not finished and hits and not options.rerank and not options.rerank_exactly:
        expect(end.resume is not None and end.resume[:2] == hits[-1], "the resume token must be the last hit")
    if end.resume is not None:
        expect(end.resume == last, "a wrong resume token")
    expect(not end.guess or end.reason == BUDGET, "a guess without a budget")
    expect((end.reason == FAILED) == (end.error is not None), "errors and END_REASON_FAILED must come together")
    if end.error is not None:
        check_query_error(end.error)
    expect(end.statistics["engine_seconds"] >= 0, "negative seconds")
    expect(end.statistics["elapsed_seconds"] >= 0, "negative seconds")
