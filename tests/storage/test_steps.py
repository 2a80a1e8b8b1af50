"""Long computations in short steps: the stretch of an encoder, projections, and re-ranking with a budget."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.native.examples import generated
from whamming import Budget, Encoder, StoredIndex
from whamming.storage.vectors import encoders
from whamming.storage.vectors.steps import Stepwise, finish
from whamming.storage.vectors.stretch import stretch_of


def counted(steps: Any) -> tuple[Any, int]:
    """Return the result of some steps, and their number."""
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value, count
        count += 1


@generated(60)
@given(
    dim=st.integers(1, 300),
    bits=st.integers(1, 300),
    rank=st.integers(1, 300),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    seed=st.integers(0, 999),
)
def test_the_stretch_is_an_upper_bound_and_close(dim: int, bits: int, rank: int, scale: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rank = min(rank, dim, bits)
    matrix = (rng.standard_normal((dim, rank)) @ rng.standard_normal((rank, bits))).astype(np.float32)
    matrix *= np.float32(scale / np.abs(matrix).max())
    true = float(np.linalg.norm(matrix.astype(np.float64), 2))
    found = finish(stretch_of(matrix))
    assert true <= found <= 1.2 * true


def test_the_stretch_of_directions_at_right_angles_is_one() -> None:
    turned, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 150)))
    assert 1.0 <= finish(stretch_of(turned.astype(np.float32))) < 1.02
    assert finish(stretch_of(np.zeros((3, 2), dtype=np.float32))) == 1.0


def test_the_stretch_is_shared_and_found_in_many_steps() -> None:
    encoder = whamming.fit_encoder("lsh", dim=1024, bits=1024)
    assert counted(encoder._find_stretch())[1] > 40
    encoder = whamming.fit_encoder("lsh", dim=1024, bits=1024)
    first, second = encoder.stretch, encoder.stretch
    assert first is second
    assert not first.run(0.0), "one step is not enough"
    rounds = 1
    while not second.run(0.0):
        rounds += 1
    assert rounds > 40
    assert first.done
    assert first.run(0.0)
    del first, second
    assert encoder.stretch.run(0.0), "the encoder remembers the result"


def test_an_abandoned_stretch_leaves_nothing_behind() -> None:
    encoder = whamming.fit_encoder("lsh", dim=512, bits=512)
    begun = encoder.stretch
    left = weakref.ref(begun)
    assert not begun.run(0.0)
    del begun
    assert left() is None
    assert not encoder.stretch.run(0.0)


def test_an_error_is_raised_for_everyone() -> None:
    def failing() -> Any:
        yield
        raise MemoryError

    steps: Stepwise[None] = Stepwise(failing())
    assert not steps.run(0.0)
    for _ in range(2):
        with pytest.raises(MemoryError):
            steps.run(math.inf)


@generated(30)
@given(dim=st.integers(1, 60), bits=st.integers(1, 60), cells=st.integers(1, 200), count=st.integers(1, 3))
def test_projections_do_not_depend_on_the_steps(dim: int, bits: int, cells: int, count: int) -> None:
    rng = np.random.default_rng(dim)
    encoder = whamming.fit_encoder("lsh", dim=dim, bits=bits)
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    whole = encoder.project(vectors)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "STEP_CELLS", cells)
        found, steps = counted(encoder.projecting(vectors))
    assert np.array_equal(found, whole)
    assert steps == count * -(-dim // max(1, cells // bits))


def large_encoder() -> Encoder:
    """Return an encoder of 16,384 x 256 numbers. Fitting one would take longer."""
    matrix = np.random.default_rng(0).standard_normal((16_384, 256), dtype=np.float32)
    return Encoder("lsh", 16_384, 256, False, matrix, np.zeros(256, dtype=np.float32), None)


def test_a_large_projection_takes_many_steps_and_little_memory() -> None:
    encoder = large_encoder()
    vector = np.ones(encoder.dim, dtype=np.float32)
    _, steps = counted(encoder.costing(vector))
    assert steps >= 64


@pytest.fixture
def empty() -> Any:
    with whamming.open() as database:
        yield database.create_index("docs", encoder=large_encoder(), keep_vectors="int8")


def test_reranking_an_empty_index_does_not_compute_the_stretch(empty: StoredIndex) -> None:
    """It ran a singular value decomposition of all its numbers."""
    encoder = empty.encoder
    assert encoder is not None
    vector = np.ones(encoder.dim, dtype=np.float32)
    assert list(empty.search(vector=vector, rerank="exact")) == []
    assert empty.search_batch(vectors=[vector], k=3, rerank="exact").counts.tolist() == [0]
    assert "_known_stretch" not in vars(encoder)


def test_a_budget_and_a_cancel_interrupt_the_stretch() -> None:
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((300, 2048)).astype(np.float32)
    encoder = whamming.fit_encoder("lsh", dim=2048, bits=1024)
    with whamming.open() as database:
        docs = database.create_index("docs", encoder=encoder, keep_vectors="int8")
        docs.upsert(np.arange(len(vectors)), vectors=vectors)
        found: list[int] = []
        cursor: Any = docs.search(vector=vectors[7], k=5, rerank="exact")._cursor
        calls = 0
        while len(found) < 5:
            ids, _ = cursor.next(5 - len(found), budget=Budget(seconds=1e-6))
            found += ids.tolist()
            assert cursor.stop == ("budget" if len(found) < 5 else "exhausted")
            calls += 1
        assert calls > 40, "each call runs a step"
        expected = search_fully(docs, vectors, 7)
        assert found == expected[:5]

        fresh = database.create_index("fresh", encoder=Encoder.from_bytes(encoder.to_bytes()), keep_vectors="int8")
        fresh.upsert(np.arange(len(vectors)), vectors=vectors)
        cursor = fresh.search(vector=vectors[7], k=5, rerank="exact")._cursor
        cursor.cancel()
        assert cursor.next(5)[0].tolist() == []
        assert cursor.stop == "cancelled"
        assert fresh.encoder is not None
        assert "_known_stretch" not in vars(fresh.encoder)


def search_fully(docs: StoredIndex, vectors: Any, row: int) -> list[int]:
    """Return all ids by their distance to one of the vectors, by comparing it with all of them."""
    kept = docs.get(np.arange(len(vectors))).vectors
    assert kept is not None
    distances = np.linalg.norm(kept.astype(np.float64) - vectors[row], axis=1)
    return list(map(int, np.argsort(distances, kind="stable")))


def test_chunks_of_long_vectors_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 8192 vectors of 16,384 components takes half a gigabyte, and a second."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((500, 16_384)).astype(np.float32)
    with whamming.open() as database:
        docs = database.create_index("docs", encoder="lsh", dim=16_384, bits=64, keep_vectors="int8")
        docs.upsert(np.arange(len(vectors)), vectors=vectors)
        sizes: list[int] = []
        snapshot = type(docs.snapshot())
        inner = snapshot.vectors

        def spy(self: Any, ids: Any) -> Any:
            sizes.append(len(ids))
            return inner(self, ids)

        monkeypatch.setattr(snapshot, "vectors", spy)
        assert len(list(docs.search(vector=vectors[3], k=400, rerank="exact"))) == 400
        assert sum(sizes) >= 400
        assert max(sizes) * 16_384 <= 1 << 19


@pytest.mark.parametrize("kind", ["lsh", "sign"])
def test_encoding_in_small_pieces_gives_the_same_codes(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 256 vectors of a large encoder took more than a second, in one step."""
    encoder = whamming.fit_encoder(kind, dim=64, bits=64)
    vectors = np.random.default_rng(3).standard_normal((50, 64)).astype(np.float32)
    whole = encoder.encode(vectors)
    for rows in (3, 0):
        monkeypatch.setattr(encoders, "PIECE_PRODUCTS", rows * encoder.dim * encoder.bits)
        codes, steps = counted(encoder.encoding(vectors))
        assert np.array_equal(whole, codes)
        assert kind == "sign" or steps >= len(vectors) // max(1, rows)
