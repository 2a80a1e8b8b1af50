"""``search_batch`` gives the same answers in every kind of database."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clients.shared.places import NONE, AnyDatabase, Twin, check_hits
from tests.native.examples import make_codes
from whamming import Budget


@pytest.mark.parametrize("form", ["code", "weights", "common weights", "table"])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_batches(database: AnyDatabase, name: str, form: str, k: int) -> None:
    """Answers are ``[q, k]``, padded. There are more queries than fit into one message."""
    twin = Twin(database, name, 20, bit_order="big")
    twin.fill(100)
    rng = np.random.default_rng(0)
    codes = make_codes("uniform", 300, 20, rng)
    weights = (
        rng.random((300, 20)) if form == "weights" else rng.random(20) if form == "common weights" else np.ones(20)
    )
    bits = np.unpackbits(codes, axis=1, count=20, bitorder="big").astype(bool)
    tables = np.stack([np.where(bits, weights, 0.0), np.where(bits, 0.0, weights)], axis=2)
    if form == "table":
        answer = twin.index.search_batch(table=tables, k=k)
    else:
        answer = twin.index.search_batch(codes, None if form == "code" else weights, k=k)
    ids, distances = answer
    assert (ids.shape, distances.shape) == ((300, k), (300, k))
    assert answer.exact.all()
    found = min(k, 100)
    assert answer.counts.tolist() == answer.proven.tolist() == [found] * 300
    assert (ids[:, found:] == NONE).all()
    assert np.isinf(distances[:, found:]).all()
    for row in range(0, 300, 7):
        check_hits((ids[row, :found], distances[row, :found]), twin.model.answer(tables[row])[:found])
    assert len(answer.stats) == 300
    assert answer.stats[299].candidates > 0
    assert len(answer.stats[10:20]) == 10


def test_a_batch_with_a_radius_and_an_empty_batch(twin: Twin) -> None:
    table = np.random.default_rng(0).random((3, 13, 2))
    radius = float(twin.model.answer(table[1]).distances[4])
    answer = twin.index.search_batch(table=table, k=50, radius=radius)
    for row in range(3):
        expected = twin.model.answer(table[row]).within(radius)[:50]
        assert answer.counts[row] == len(expected)
        check_hits((answer.ids[row, : len(expected)], answer.distances[row, : len(expected)]), expected)
    empty = twin.index.search_batch(np.empty((0, 2), dtype=np.uint8), k=5)
    assert empty.ids.shape == empty.distances.shape == (0, 5)
    assert len(empty.stats) == 0


def test_long_codes_in_large_batches(database: AnyDatabase, name: str) -> None:
    """The costs of a query take 64 KiB, so the queries do not fit into one message."""
    twin = Twin(database, name, 4096)
    twin.fill(10)
    tables = np.random.default_rng(0).normal(size=(270, 4096, 2))
    answer = twin.index.search_batch(table=tables, k=3)
    for row in (0, 150, 269):
        check_hits((answer.ids[row], answer.distances[row]), twin.model.answer(tables[row])[:3])


def test_a_budget_limits_how_far_a_sweep_goes(database: AnyDatabase, name: str) -> None:
    """On a server, the sweep used to run to its end."""
    index = database.create_index(name, 64)
    codes = np.random.default_rng(0).integers(0, 256, (500_000, 8), dtype=np.uint8)
    index.upsert(np.arange(len(codes)), codes)
    answer = index.search_batch(codes[:2], k=3, plan="sweep", budget=Budget(candidates=1000))
    assert not answer.exact.any()
    assert all(1000 <= stats.compared < 250_000 for stats in answer.stats)  # a slice of 131,072, and a few more


def test_an_answer_with_a_budget_says_which_hits_are_proven(database: AnyDatabase, name: str) -> None:
    twin = Twin(database, name, 64)
    twin.fill(4000)
    twin.index.seal()
    tables = np.random.default_rng(0).random((20, 64, 2))
    answer = twin.index.search_batch(table=tables, k=30, plan="probe", budget=Budget(candidates=60))
    assert not answer.exact.all()
    for row in range(20):
        whole = twin.model.answer(tables[row])
        proven, count = int(answer.proven[row]), int(answer.counts[row])
        assert proven <= count <= 30
        check_hits((answer.ids[row, :proven], answer.distances[row, :proven]), whole[:proven])
        distances = dict(zip(whole.ids.tolist(), whole.distances.tolist(), strict=True))
        guessed = answer.ids[row, proven:count].tolist()
        assert [distances[id_] for id_ in guessed] == answer.distances[row, proven:count].tolist()
        assert len({*answer.ids[row, :count].tolist()}) == count
        assert bool(answer.exact[row]) == (proven == 30)
    enough = twin.index.search_batch(table=tables, k=30, budget=Budget(candidates=10**9, seconds=3600.0))
    assert enough.exact.all()
    assert np.array_equal(enough.ids, twin.index.search_batch(table=tables, k=30).ids)
