"""Searches over all layers of an index: forms of a query, limits, batches, invalid arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.native.oracle import Codes, Floats
from tests.storage.conftest import Place
from tests.storage.twin import Twin, random_codes
from whamming import Budget, InvalidArgumentError


def weighted(twin: Twin, weights: Floats, seed: int = 0) -> tuple[Codes, Floats]:
    """Return a query code, and its costs as a table."""
    bits = twin.index.settings.bits
    code = random_codes(1, bits, seed)[0]
    ones = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
    return code, np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=1)


def test_a_query_is_a_table_or_a_code_with_or_without_weights(twin: Twin) -> None:
    weights = np.random.default_rng(1).normal(size=13)
    for given in (np.ones(13), weights):
        code, table = weighted(twin, given)
        expected = twin.model.answer(table)
        searches: list[dict[str, Any]] = [{"table": table}, {"code": code, "weights": given}]
        if given is not weights:
            searches.append({"code": code})
        for search in searches:
            ids, distances = twin.index.search(**search).all()
            assert (ids.tobytes(), distances.tobytes()) == expected.bytes()


def test_hits_can_be_fetched_one_by_one_or_in_groups(twin: Twin) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    with twin.index.search(code, payloads=True) as search:
        hits = []
        for hit in search:
            hits.append(hit)
            assert search.lower_bound >= hit.distance
        assert search.lower_bound == np.inf
        assert search.stats.seconds >= 0
    assert [hit.id for hit in hits] == expected.ids.tolist()
    assert [hit.distance for hit in hits] == expected.distances.tolist()
    assert [hit.payload for hit in hits] == [twin.model.items[hit.id][1] for hit in hits]
    assert all(hit.payload == b"" for hit in twin.index.search(code))
    search = twin.index.search(code)
    first = next(search)
    ids, _ = search.next(4, budget=Budget(seconds=60))
    rest, _ = search.all()
    assert [first.id, *ids.tolist(), *rest.tolist()] == expected.ids.tolist()


@pytest.mark.parametrize("k", [0, 1, 5, 1000, 2**31])
def test_k_and_radius(twin: Twin, k: int) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    assert [hit.id for hit in twin.index.search(code, k=k)] == expected.ids[:k].tolist()
    for radius in (-1.0, 0.0, 3.0, 3.5, 1e300, np.inf):
        near = expected.within(radius)
        ids, distances = twin.index.search(code, k=k, radius=radius).all()
        assert (ids.tobytes(), distances.tobytes()) == near[:k].bytes()


def test_a_search_continues_after_any_hit(twin: Twin) -> None:
    code, table = weighted(twin, np.ones(13))
    expected = twin.model.answer(table)
    for cut in range(0, len(expected), 5):
        last = float(expected.distances[cut]), int(expected.ids[cut])
        ids, distances = twin.index.search(code, after=last).all()
        assert (ids.tobytes(), distances.tobytes()) == expected[cut + 1 :].bytes()
        ids, _ = twin.index.search(code, after=last, k=3, radius=5.0).all()
        assert ids.tolist() == expected.after(*last).within(5.0)[:3].ids.tolist()
    last = float(expected.distances[-1]), int(expected.ids[-1])
    assert twin.index.search(code, after=last).all()[0].tolist() == []


def test_a_batch_of_queries(twin: Twin) -> None:
    codes = random_codes(6, 13, seed=4)
    weights = np.random.default_rng(2).normal(size=(6, 13))
    ones = np.unpackbits(codes, axis=1, count=13, bitorder="little").astype(bool)
    tables = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
    for k in (0, 1, 10, len(twin.index)):
        for answer in (
            twin.index.search_batch(codes, weights, k=k),
            twin.index.search_batch(table=tables, k=k, threads=2),
            twin.index.search_batch(codes, weights, k=k, budget=Budget(seconds=60)),
        ):
            ids, distances = answer
            assert ids.shape == distances.shape == (6, k)
            assert answer.exact.all()
            for query in range(6):
                expected = twin.model.answer(tables[query])[:k]
                assert (ids[query].tobytes(), distances[query].tobytes()) == expected.bytes()
    shared = twin.index.search_batch(codes, weights[0], k=3)
    assert (shared.ids[0] == twin.index.search_batch(codes[:1], weights[:1], k=3).ids[0]).all()
    near = twin.index.search_batch(codes, k=7, radius=2.0)
    for query, count in enumerate(near.counts.tolist()):
        assert (near.distances[query, :count] <= 2.0).all()
        assert (near.ids[query, count:] == 2**64 - 1).all()
        assert (near.distances[query, count:] == np.inf).all()
    assert twin.index.search_batch(codes[:0], k=3).ids.shape == (0, 3)


def test_an_answer_says_what_is_proven_when_the_budget_ran_out(place: Place) -> None:
    with place.open() as database:
        twin = Twin.create(database, 64)
        twin.upsert(range(3000), random_codes(3000, 64))
        twin.index.seal()
        code, table = weighted(twin, np.ones(64))
        expected = twin.model.answer(table)
        answer = twin.index.search_batch(code[None], k=500, budget=Budget(candidates=1))
        proven = int(answer.proven[0])
        assert answer.ids[0, :proven].tolist() == expected.ids[:proven].tolist()
        assert bool(answer.exact[0]) == (proven == 500)


def test_an_empty_index_can_be_searched(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", 13)
        assert list(index.search(random_codes(1, 13)[0])) == []
        answer = index.search_batch(random_codes(2, 13), k=5)
        assert answer.counts.tolist() == [0, 0]
        assert answer.exact.all()
        assert index.get([1]).found.tolist() == [False]
        assert list(index.snapshot().scan()) == []
        index.seal()
        index.compact()
        assert index.stats().segments == 0
        assert index.verify().ok


BAD_SEARCHES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, "no query; .*code .*cost table"),
    "narrow code": ({"code": np.zeros(1, dtype=np.uint8)}, r"shape \(1, 1\); 13 bits need"),
    "long code": ({"code": np.zeros(3, dtype=np.uint8)}, r"shape \(1, 3\); 13 bits need"),
    "dtype": ({"code": np.zeros(2)}, "dtype float64, not uint8"),
    "several": ({"code": np.zeros((2, 2), dtype=np.uint8)}, "one query, not a batch of 2; .*search_batch"),
    "few weights": ({"weights": np.ones(12)}, r"shape \(12,\); .*13 bits"),
    "byte weights": ({"weights": np.ones(16)}, r"shape \(16,\); .*13 bits"),
    "one weight": ({"weights": 2.0}, r"shape \(\); .*13 bits"),
    "NaN": ({"weights": [*[1.0] * 4, np.nan, *[1.0] * 8]}, "bit 4 is nan"),
    "infinity": ({"weights": [*[1.0] * 12, np.inf]}, "bit 12 is inf"),
    "short table": ({"code": None, "table": np.ones((12, 2))}, "12 bits; .* 13"),
    "flat table": ({"code": None, "table": np.ones(26)}, r"shape \(26,\); .*\[bits, 2\]"),
    "table of NaN": ({"code": None, "table": np.full((13, 2), np.nan)}, "bit 0 = 0 is nan"),
    "both": ({"table": np.ones((13, 2))}, "both .*cost table .*code or weights"),
    "negative k": ({"k": -1}, "k = -1;"),
    "NaN radius": ({"radius": np.nan}, "radius = nan"),
    "plan": ({"plan": "guess"}, "plan = 'guess'; .*'probe'"),
    "after NaN": ({"after": (np.nan, 1)}, r"after = \(nan, 1\)"),
    "after no id": ({"after": (1.0, 2**64)}, r"after = \(1.0, 18446744073709551616\)"),
}


@pytest.mark.parametrize("what", BAD_SEARCHES)
def test_an_invalid_query_is_refused(what: str, twin: Twin) -> None:
    arguments, message = BAD_SEARCHES[what]
    if arguments:
        arguments = {"code": np.zeros(2, dtype=np.uint8), **arguments}
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.search(**arguments)
    if what in ("several", "after NaN", "after no id"):
        return
    if (code := arguments.pop("code", None)) is not None:
        arguments["codes"] = code
    message = "0 to 2147483647" if what == "negative k" else message
    with pytest.raises(InvalidArgumentError, match=message):
        twin.index.search_batch(**arguments)


def test_limits_of_a_batch(twin: Twin) -> None:
    codes = random_codes(2, 13)
    with pytest.raises(InvalidArgumentError, match=r"k = 2147483648; .*0 to 2147483647"):
        twin.index.search_batch(codes, k=2**31)
    with pytest.raises(InvalidArgumentError, match=r"3 rows .*2 queries"):
        twin.index.search_batch(codes, np.ones((3, 13)))
    with pytest.raises(InvalidArgumentError, match=r"threads = 0; .*1 to 256"):
        twin.index.search_batch(codes, threads=0)
