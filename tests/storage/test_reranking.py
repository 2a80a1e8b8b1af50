"""Hits re-ranked by their vectors, compared with comparing the query with every vector."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import whamming
from tests.native.examples import generated
from whamming import Budget, StoredIndex
from whamming.native import InvalidArgumentError
from whamming.storage import Database, KeptVectors, Kind, Metric, Rerank
from whamming.storage.vectors.kept import measure


def filled(
    db: Database, vectors: NDArray[np.float32], kind: Kind = "itq", bits: int = 12, **options: Any
) -> StoredIndex:
    options = {"keep_vectors": "float16"} | options
    docs = db.create_index("docs", encoder=kind, bits=bits, train=vectors, **options)
    docs.upsert(np.arange(len(vectors)), vectors=vectors, payloads=[b"%d" % i for i in range(len(vectors))])
    return docs


def make_vectors(rows: int, dim: int, seed: int, spread: float = 1.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((2 + rows // 20, dim))
    return np.asarray(
        centres[rng.integers(0, len(centres), rows)] + spread * rng.standard_normal((rows, dim)), np.float32
    )


def truth(docs: StoredIndex, query: NDArray[np.float32]) -> list[tuple[float, int]]:
    """Return all items by (distance, id), from comparing the query with every kept vector."""
    ids = np.arange(len(docs), dtype=np.uint64)
    vectors = docs.get(ids).vectors
    assert vectors is not None
    return sorted(zip(measure(docs.settings.metric, query, vectors).tolist(), ids.tolist(), strict=True))


@generated(60)
@given(
    kind=st.sampled_from(["sign", "lsh", "itq"]),
    kept=st.sampled_from(["float16", "int8"]),
    rows=st.integers(1, 300),
    spread=st.sampled_from([0.0, 0.01, 1.0]),
    seed=st.integers(0, 999),
    k=st.integers(0, 30),
)
def test_exact_reranking_is_exact(kind: Kind, kept: KeptVectors, rows: int, spread: float, seed: int, k: int) -> None:
    vectors = make_vectors(rows + 20, 16, seed, spread)
    with whamming.open() as db:
        docs = filled(db, vectors, kind, keep_vectors=kept)
        queries = vectors[:3] + np.float32(0.01)
        answer = docs.search_batch(vectors=queries, k=k, rerank="exact")
        for row, query in enumerate(queries):
            expected = truth(docs, query)[:k]
            found = list(zip(answer.distances[row].tolist(), answer.ids[row].tolist(), strict=True))
            assert found == expected + [(math.inf, 2**64 - 1)] * (k - len(expected))
            hits = docs.search(vector=query, k=k, rerank="exact", payloads=True)
            assert [(hit.distance, hit.id, hit.payload) for hit in hits] == [(d, i, b"%d" % i) for d, i in expected]
        assert answer.exact.all()
        assert answer.proven.tolist() == answer.counts.tolist() == [min(k, rows + 20)] * 3


@generated(30)
@given(kind=st.sampled_from(["sign", "lsh", "itq"]), seed=st.integers(0, 999))
def test_the_bound_holds_at_every_step(kind: Kind, seed: int) -> None:
    vectors = make_vectors(200, 16, seed, 0.3)
    with whamming.open() as db:
        docs = filled(db, vectors, kind)
        expected = truth(docs, vectors[0])
        search = docs.search(vector=vectors[0], rerank="exact")
        for done, (distance, i) in enumerate(expected):
            assert search.lower_bound <= distance
            hit = next(search)
            assert (hit.distance, hit.id) == (distance, i)
            if done % 50 == 0:
                assert search.stats.seconds >= 0
        assert search.lower_bound == math.inf
        assert list(search) == []


@generated(30)
@given(k=st.integers(0, 30), rows=st.integers(0, 40), seed=st.integers(0, 999), rerank=st.sampled_from(["exact", 1000]))
def test_the_bound_holds_for_the_items_beyond_k(k: int, rows: int, seed: int, rerank: Rerank) -> None:
    vectors = make_vectors(rows + 1, 16, seed, 0.3)
    with whamming.open() as db:
        docs = filled(db, vectors, "lsh")
        distances = [distance for distance, _ in truth(docs, vectors[0])] + [math.inf]
        search = docs.search(vector=vectors[0], k=k, rerank=rerank)
        count = len(list(search))
        assert count == min(k, rows + 1)
        assert search.lower_bound <= distances[count]
        if k > rows:
            assert search.lower_bound == math.inf
        elif k:
            assert search.lower_bound >= distances[count - 1]


def test_near_duplicates_are_proven_without_looking_at_all_items() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((20_000, 32)).astype(np.float32)
    vectors[1:6] = vectors[0] + rng.standard_normal((5, 32)).astype(np.float32) * 0.01
    with whamming.open() as db:
        docs = filled(db, vectors, bits=32)
        looked_at: list[int] = []
        snapshot = type(docs.snapshot())
        inner = snapshot.vectors

        def spy(self: Any, ids: NDArray[np.uint64]) -> NDArray[np.float32]:
            looked_at.append(len(ids))
            return inner(self, ids)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(snapshot, "vectors", spy)
            hits = list(docs.search(vector=vectors[0], k=6, rerank="exact"))
        assert {hit.id for hit in hits} == set(range(6))
        assert sum(looked_at) < 1000


@generated(40)
@given(
    metric=st.sampled_from(["l2", "cosine", "inner"]),
    factor=st.integers(1, 40),
    k=st.integers(0, 30),
    seed=st.integers(0, 999),
    form=st.sampled_from([None, "asymmetric", "inner", "symmetric"]),
)
def test_a_factor_reranks_that_many_of_the_nearest_codes(
    metric: Metric, factor: int, k: int, seed: int, form: Any
) -> None:
    vectors = make_vectors(300, 16, seed)
    with whamming.open() as db:
        docs = filled(db, vectors, metric=metric)
        queries = make_vectors(3, 16, seed + 1)
        answer = docs.search_batch(vectors=queries, k=k, rerank=factor, costs=form)
        near, _ = docs.search_batch(vectors=queries, k=k * factor, costs=form)
        for row, query in enumerate(queries):
            allowed = set(near[row].tolist())
            expected = [(d, i) for d, i in truth(docs, query) if i in allowed][:k]
            assert list(zip(answer.distances[row].tolist(), answer.ids[row].tolist(), strict=True)) == expected
            search = docs.search(vector=query, k=k, rerank=factor, costs=form)
            hits = list(search)
            assert [(hit.distance, hit.id) for hit in hits] == expected
            if k * factor < 300:
                assert search.lower_bound == -math.inf
        assert answer.exact.tolist() == [k * factor >= 300] * 3
        assert answer.proven.tolist() == [k if k * factor >= 300 else 0] * 3


def test_reranking_finds_neighbours_that_codes_alone_miss() -> None:
    vectors = make_vectors(3000, 32, 0)
    queries = vectors[:100] + 0.3 * make_vectors(100, 32, 1)
    with whamming.open() as db:
        docs = filled(db, vectors, bits=24)
        expected = [{i for _, i in truth(docs, query)[:10]} for query in queries]

        def recall(**options: Any) -> float:
            ids, _ = docs.search_batch(vectors=queries, k=10, **options)
            return float(np.mean([len(set(row.tolist()) & mine) for row, mine in zip(ids, expected, strict=True)])) / 10

        assert recall() < recall(rerank=4) - 0.2 < recall(rerank=50) - 0.2
        assert recall(rerank="exact") == 1.0


def test_a_search_continues_after_its_budget_ran_out() -> None:
    vectors = make_vectors(5000, 16, 0)
    with whamming.open() as db:
        docs = filled(db, vectors)
        expected = [i for _, i in truth(docs, vectors[3])[:500]]
        reranks: tuple[Rerank, ...] = ("exact", 20)
        for rerank in reranks:
            search = docs.search(vector=vectors[3], k=500, rerank=rerank)
            found: list[int] = []
            while len(found) < 500:
                ids, _ = search.next(500 - len(found), budget=Budget(candidates=50))
                found += ids.tolist()
            assert found == expected
            search.close()
        with pytest.raises(InvalidArgumentError, match="a budget with rerank = 'exact'"):
            docs.search_batch(vectors=vectors[:2], rerank="exact", budget=Budget(candidates=1))


@pytest.mark.parametrize(("k", "bytes_each"), [(10, 1), (None, 40)])
def test_the_memory_of_a_reranked_search_is_bounded(k: int | None, bytes_each: int) -> None:
    """It keeps the nearest k items that it has looked at. Without k, it keeps all, in 16 bytes each."""
    count, vectors = 60_000, make_vectors(60_000, 4, 0)
    query = np.full(4, 1e-6, dtype=np.float32)  # so near to all bits' borders that the bound proves nothing
    with whamming.open() as db:
        docs = filled(db, vectors, "lsh", bits=4)
        with docs.search(vector=query, k=k, rerank="exact") as search:
            search.next(1, budget=Budget(candidates=1))
            tracemalloc.start()
            try:
                hit = next(search)
                used, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert used <= bytes_each * count
            assert k is not None or used >= 16 * count, "the bound proved a hit before all items were looked at"
            assert peak <= 2 * bytes_each * count + (2 << 20)
            assert (hit.distance, hit.id) == truth(docs, query)[0]


def test_an_empty_index_has_no_hits() -> None:
    vectors = make_vectors(50, 16, 0)
    with whamming.open() as db:
        docs = db.create_index("docs", encoder="itq", bits=12, train=vectors, keep_vectors="int8")
        reranks: tuple[Rerank, ...] = ("exact", 3)
        for rerank in reranks:
            assert list(docs.search(vector=vectors[0], k=3, rerank=rerank)) == []
            answer = docs.search_batch(vectors=vectors[:2], k=3, rerank=rerank)
            assert answer.counts.tolist() == [0, 0]
            assert answer.ids.shape == (2, 3)
        assert docs.search_batch(vectors=vectors[:0], k=3, rerank=2).ids.shape == (0, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rerank": 0, "k": 3}, "rerank = 0; .*1 to 1000000, .*'exact'"),
        ({"rerank": 1.5, "k": 3}, r"rerank = 1\.5;"),
        ({"rerank": "all", "k": 3}, "rerank = 'all';"),
        ({"rerank": 2}, "rerank = 2 without k"),
        ({"rerank": 2, "k": -1}, "k = -1;"),
        ({"rerank": 2, "k": 3, "radius": 1.0}, "rerank works with a vector"),
        ({"rerank": 2, "k": 3, "after": (1.0, 1)}, "rerank works with a vector"),
        ({"rerank": 2, "k": 3, "vector": None}, "rerank works with a vector"),
        ({"rerank": 2, "k": 3, "vector": np.ones((2, 16))}, "one query, not a batch of 2"),
        ({"rerank": 2, "k": 3, "vector": np.ones(5)}, "5 components, .* takes 16"),
        ({"rerank": "exact", "vector": np.full(16, np.nan)}, "component 0 of the vector is nan"),
        ({"rerank": "exact", "costs": "inner"}, "rerank = 'exact' with costs = 'inner'"),
    ],
)
def test_invalid_arguments_of_reranking_are_refused(options: dict[str, Any], message: str) -> None:
    vectors = make_vectors(50, 16, 0)
    with whamming.open() as db:
        docs = filled(db, vectors)
        with pytest.raises(InvalidArgumentError, match=message):
            docs.search(**({"vector": vectors[0]} | options))


def test_reranking_needs_kept_vectors_and_exact_reranking_needs_l2() -> None:
    vectors = make_vectors(50, 16, 0)
    with whamming.open() as db:
        bare = db.create_index("bare", encoder="itq", bits=12, train=vectors)
        with pytest.raises(InvalidArgumentError, match="the index 'bare' keeps no vectors"):
            bare.search(vector=vectors[0], k=3, rerank=2)
        with pytest.raises(InvalidArgumentError, match="keeps no vectors"):
            bare.snapshot().vectors(np.array([1], dtype=np.uint64))
        docs = filled(db, vectors, metric="cosine")
        with pytest.raises(InvalidArgumentError, match="rerank = 'exact' with metric = 'cosine'"):
            docs.search_batch(vectors=vectors, rerank="exact")
