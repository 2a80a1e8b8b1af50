"""The sweep on indexes of many blocks, where it lists, skips, cuts its list back and passes again."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tests.native.examples import CODE_KINDS, WEIGHT_KINDS, CodeKind, WeightKind, make_codes, make_table
from tests.native.oracle import Truth, truth
from whamming.native import Budget, Costs, Index, View, available_simd
from whamming.native.view import Part

N = 12_000
KS = (1, 10, 300, 5000)


@pytest.fixture(scope="module", params=CODE_KINDS)
def kind(request: pytest.FixtureRequest) -> CodeKind:
    value: CodeKind = request.param
    return value


@pytest.fixture(scope="module", params=[13, 64, 100, 288])
def index(request: pytest.FixtureRequest, kind: CodeKind) -> Index:
    rng = np.random.default_rng([request.param, CODE_KINDS.index(kind)])
    codes = make_codes(kind, N, request.param, rng)
    return Index.build(codes, request.param, rng.permutation(N).astype(np.uint64), "none")


def queries(index: Index, weights: WeightKind) -> Iterator[tuple[Costs, Truth]]:
    rng = np.random.default_rng([index.bits, WEIGHT_KINDS.index(weights)])
    codes, ids = index.codes_at(), index.ids
    flips = rng.integers(0, 256, codes.shape[1], dtype=np.uint8) & 17
    table = make_table(weights, codes[rng.integers(N)] ^ flips, index.bits, rng)
    yield Costs.table(table), truth(codes, table, ids)


@pytest.mark.parametrize("weights", WEIGHT_KINDS)
def test_a_sweep_of_many_blocks_equals_the_oracle(index: Index, weights: WeightKind) -> None:
    for costs, whole in queries(index, weights):
        for simd in available_simd():
            index.use_simd(simd)
            for k in KS:
                answer = index.search(costs, k, plan="sweep")
                assert (answer.ids.tobytes(), answer.distances.tobytes()) == whole[:k].bytes(), (simd, k)


@pytest.mark.parametrize("weights", ["random", "dominated", "equal"])
@pytest.mark.parametrize("share", [0.3, 0.9, 0.999])
def test_dead_items_near_the_query_do_not_hide_others(index: Index, weights: WeightKind, share: float) -> None:
    """The nearest items are dead, so a pass lists too few that are alive, and there must be another."""
    for costs, whole in queries(index, weights):
        dead = np.zeros(N, dtype=bool)
        nearest = whole.ids[: int(share * N)]
        dead[np.isin(index.ids, nearest)] = True
        view = View([Part(index, np.packbits(dead, bitorder="little"), int(dead.sum()))], index.bits)
        alive = Truth(whole.ids[len(nearest) :], whole.distances[len(nearest) :])
        for k in (1, 10, 300):
            answer = view.search(costs, k, plan="sweep")
            assert (answer.ids.tobytes(), answer.distances.tobytes()) == alive[:k].bytes()


@pytest.mark.parametrize("weights", ["random", "dominated", "equal", "spread"])
def test_a_sweep_resumes_far_from_the_query(index: Index, weights: WeightKind) -> None:
    for costs, whole in queries(index, weights):
        with index.cursor(costs, plan="sweep") as cursor:
            sent = 0
            while not cursor.exhausted:
                ids, distances = cursor.next(3000)
                assert (ids.tobytes(), distances.tobytes()) == whole[sent : sent + len(ids)].bytes()
                sent += len(ids)
            assert sent == N
            assert cursor.stats.rounds > 1


@pytest.mark.parametrize("kind", ["uniform", "clustered", "equal"])
def test_a_sweep_on_several_threads_equals_the_oracle(kind: str) -> None:
    """Threads share the pass over an index of several MB. Equal codes overflow their lists, so the pass is repeated."""
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (150_000, 30), dtype=np.uint8)
    if kind == "clustered":
        codes = codes[rng.integers(0, 3000, len(codes))] ^ (rng.random(codes.shape) < 0.05).astype(np.uint8)
    elif kind == "equal":
        codes[:, 1:] = 0
        codes[:, 0] &= 15
        codes[:, 8] = np.arange(len(codes)) & 255
        codes[:, 9] = np.arange(len(codes)) >> 8 & 255
        codes[:, 10] = np.arange(len(codes)) >> 16
    index = Index.build(codes, 240, tables="none")
    table = make_table("random", codes[7], 240, rng)
    if kind == "equal":
        table[64:] = 0.0  # of the bits in which codes differ, only four count
    whole, costs = truth(codes, table), Costs.table(table)
    for simd in available_simd():
        index.use_simd(simd)
        for k in (1, 10, 2000, 70_000):
            for threads in (2, 3, 7):
                answer = index.search(costs, k, plan="sweep", threads=threads)
                assert (answer.ids.tobytes(), answer.distances.tobytes()) == whole[:k].bytes(), (simd, k, threads)
    cancelled = index.search(costs, 10, plan="sweep", threads=3, budget=Budget(seconds=1e-6))
    assert not cancelled.exact.any() or cancelled.ids.tobytes() == whole[:10].ids.tobytes()


@pytest.mark.parametrize("shape", ["even", "few heavy bits", "log-normal", "one dominant bit"])
def test_about_as_many_codes_are_verified_as_hits_are_wanted(shape: str) -> None:
    rng = np.random.default_rng(1)
    index = Index.build(rng.integers(0, 256, (100_000, 16), dtype=np.uint8), 128, tables="none")
    weights = rng.random((1, 128)) + 0.1
    if shape == "few heavy bits":
        weights[:, 120:] *= 50
    elif shape == "log-normal":
        weights = np.exp(1.5 * rng.normal(size=(1, 128)))
    elif shape == "one dominant bit":
        weights[:, 77] = 1e9
    for k in (1, 10, 100, 1000):
        costs = Costs.weights(rng.integers(0, 256, (1, 16), dtype=np.uint8), weights)
        (stats,) = index.search(costs, k, plan="sweep").stats
        assert k <= stats.verified <= 3 * k + 20
        assert stats.blocks == 1563
