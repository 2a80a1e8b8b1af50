"""Queries give their costs as codes, weights, tables or vectors. All forms give exact answers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests.native.examples import make_codes
from tests.native.oracle import Truth
from tests.server import stepped_queries
from tests.server.calls import Bench, answer_of, batch, random_table
from tests.server.query_groups import options, tables
from tests.server.stepped_queries import BITS, N
from whamming import Database, StoredIndex
from whamming.v1 import error_pb2
from whamming.v1.search_pb2 import COST_FORM_INNER, COST_FORM_SYMMETRIC, QueryOptions

database = stepped_queries.database
index = stepped_queries.index
bench = stepped_queries.bench


@pytest.mark.parametrize("grouped", [False, True])
async def test_element_types_give_the_same_answer(bench: Bench, index: StoredIndex, grouped: bool) -> None:
    """The values are the same: float32 numbers are exact in float64."""
    if grouped:
        await bench.learn("docs", BITS)
    rng = np.random.default_rng(3)
    wanted = options(50, payloads=not grouped)
    narrow = rng.random((5, BITS, 2)).astype(np.float32)
    weights = rng.standard_normal((5, BITS)).astype(np.float32)
    codes = make_codes("uniform", 5, BITS, rng)
    call = bench.call()
    for turn, kind in enumerate(("<f4", "<f8", ">f4", ">f8")):
        call.ask(batch("docs", range(10 * turn, 10 * turn + 5), wanted, tables=narrow.astype(kind)))
        ids = range(10 * turn + 5, 10 * turn + 10)
        call.ask(batch("docs", ids, wanted, codes=codes.tobytes(), weights=weights.astype(kind)))
    accounts = await call.finish()
    for row in range(5):
        ones = np.unpackbits(codes[row], bitorder="little", count=BITS)
        costs = np.where(np.stack([ones, 1 - ones], axis=1) == 1, weights[row].astype(np.float64)[:, None], 0.0)
        for turn in range(4):
            assert accounts[10 * turn + row].hits.bytes() == answer_of(index, narrow[row].astype(float))[:50].bytes()
            assert accounts[10 * turn + 5 + row].hits.bytes() == answer_of(index, costs)[:50].bytes()


@pytest.mark.parametrize("grouped", [False, True])
async def test_one_row_of_weights_for_all_queries(bench: Bench, index: StoredIndex, grouped: bool) -> None:
    if grouped:
        await bench.learn("docs", BITS)
    rng = np.random.default_rng(4)
    weights, codes = rng.random((1, BITS)), make_codes("uniform", 6, BITS, rng)
    call = bench.call()
    call.ask(batch("docs", range(6), options(20), codes=codes.tobytes(), weights=weights))
    call.ask(batch("docs", range(6, 12), options(20), codes=codes.tobytes(), weights=np.repeat(weights, 6, axis=0)))
    accounts = await call.finish()
    for row in range(6):
        ones = np.unpackbits(codes[row], bitorder="little", count=BITS)
        costs = np.stack([ones, 1 - ones], axis=1) * weights[0][:, None]
        assert accounts[row].hits.bytes() == accounts[6 + row].hits.bytes() == answer_of(index, costs)[:20].bytes()


async def test_some_queries_of_a_batch_resume_and_others_start(bench: Bench, index: StoredIndex) -> None:
    """Minus infinity in ``after_distances`` means from the beginning."""
    whole = [answer_of(index, random_table(BITS, seed)) for seed in range(3)]
    place = float(whole[1].distances[99]), int(whole[1].ids[99])
    call = bench.call()
    after = [(-math.inf, 0), place, (-math.inf, 77)]
    call.ask(batch("docs", range(3), options(150), tables=tables(3), after=after))
    accounts = await call.finish()
    assert accounts[0].hits.bytes() == whole[0][:150].bytes()
    assert accounts[1].hits.bytes() == whole[1][100:250].bytes()
    assert accounts[2].hits.bytes() == whole[2][:150].bytes()


@pytest.mark.parametrize("place", [(math.inf, 0), (0.0, 2**64 - 1), (1e300, 5), (-1e300, 5)])
async def test_arbitrary_resume_tokens(bench: Bench, index: StoredIndex, place: tuple[float, int]) -> None:
    call = bench.call()
    call.ask(batch("docs", [1], QueryOptions(), tables=tables(1), after=[place]))
    account = (await call.finish())[1]
    assert account.hits.bytes() == answer_of(index, random_table(BITS)).after_item(*place).bytes()


async def test_codes_are_read_in_the_bit_order_of_the_index(database: Database, bench: Bench) -> None:
    index = database.create_index("docs", BITS, bit_order="big")
    codes = make_codes("uniform", 50, BITS, np.random.default_rng(5))
    index.upsert(range(50), codes)
    weights = random_table(BITS)[:, :1].T
    call = bench.call()
    call.ask(batch("docs", [1], options(50), codes=codes[7].tobytes(), weights=weights))
    account = (await call.finish())[1]
    hits = index.search(codes[7], weights=weights[0], k=50).all()
    assert account.hits.bytes() == Truth(*hits).bytes()
    assert account.ids[0] == 7


# -- vectors -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def vectors(database: Database) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Create an index ``vectors`` that keeps its vectors. Returns the vectors."""
    rows = np.random.default_rng(6).standard_normal((N, 16)).astype(np.float32)
    index = database.create_index("vectors", 16, encoder="sign", dim=16, keep_vectors="float16")
    index.upsert(range(N), vectors=rows)
    return rows


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("form", [0, COST_FORM_INNER, COST_FORM_SYMMETRIC])
async def test_vectors_are_encoded(database: Database, bench: Bench, vectors: Any, grouped: bool, form: int) -> None:
    index = database.index("vectors")
    if grouped:
        await bench.learn("vectors", 16)
    words: dict[int, Any] = {0: None, COST_FORM_INNER: "inner", COST_FORM_SYMMETRIC: "symmetric"}
    call = bench.call()
    call.ask(batch("vectors", range(5), options(20), vectors=vectors[:5], form=form))
    call.ask(batch("vectors", range(5, 10), options(20), vectors=vectors[:5].astype(np.float64), form=form))
    weights = random_table(16)[:, 0]
    call.ask(batch("vectors", [10], options(20), vectors=vectors[:1], form=form, weights=weights[None]))
    accounts = await call.finish()
    for row in range(5):
        expected = Truth(*index.search(vector=vectors[row], k=20, costs=words[form]).all()).bytes()
        assert accounts[row].hits.bytes() == accounts[5 + row].hits.bytes() == expected
    if form == COST_FORM_SYMMETRIC:
        expected = Truth(*index.search(vector=vectors[0], k=20, costs="symmetric", weights=weights).all()).bytes()
        assert accounts[10].hits.bytes() == expected
    else:
        assert accounts[10].error.field == "weights"


@pytest.mark.parametrize("k", [5, 1000])
@pytest.mark.parametrize("wanted", [{"rerank": 4}, {"rerank_exactly": True}], ids=str)
async def test_hits_are_reranked(database: Database, bench: Bench, vectors: Any, wanted: Any, k: int) -> None:
    index = database.index("vectors")
    call = bench.call()
    call.ask(batch("vectors", range(4), options(k, **wanted, chunk_size=3), vectors=vectors[:4]))
    accounts = await call.finish()
    for row in range(4):
        expected = index.search(vector=vectors[row], k=k, rerank="exact" if "rerank_exactly" in wanted else 4)
        assert accounts[row].hits.bytes() == Truth(*expected.all()).bytes()
        assert accounts[row].end.exact == ("rerank_exactly" in wanted or 4 * k >= N)


@pytest.mark.usefixtures("index")
async def test_reranking_needs_vectors(database: Database, bench: Bench, vectors: Any) -> None:
    database.create_index("signs", 16, encoder="sign", dim=16)
    call = bench.call()
    call.ask(batch("vectors", [1], options(rerank=2), codes=bytes(2)))
    call.ask(batch("docs", [2], options(rerank=2), vectors=vectors[:1]))
    call.ask(batch("signs", [3], options(rerank=2), vectors=vectors[:1]))
    call.ask(batch("vectors", [4], options(rerank=2), vectors=vectors[:1], weights=np.ones((1, 16))))
    call.ask(batch("vectors", [5], options(rerank=2), vectors=vectors[:1], after=[(1.0, 1)]))
    call.ask(batch("vectors", [6], options(rerank=2_000_000), vectors=vectors[:1]))
    accounts = await call.finish()
    assert [accounts[i].error.field for i in (1, 4, 5, 6)] == ["options.rerank"] * 4
    assert accounts[2].error.reason == accounts[3].error.reason == error_pb2.ERROR_REASON_NO_ENCODER
