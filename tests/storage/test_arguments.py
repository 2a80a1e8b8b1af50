"""Arguments of searches and writes: numbers of any type are accepted, everything else is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from whamming import Budget, InvalidArgumentError, StoredIndex

BITS = 13
N = 40
CODES = make_codes("uniform", N, BITS, np.random.default_rng(0))


@pytest.fixture(scope="module")
def index() -> Iterator[StoredIndex]:
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), CODES)
        yield index


@pytest.mark.parametrize("k", [1.5, 3.0, "3", b"3", [3], np.float64(3), 3j])
def test_k_is_a_whole_number(index: StoredIndex, k: Any) -> None:
    for search in (lambda: index.search(CODES[0], k=k), lambda: index.search_batch(CODES, k=k)):
        with pytest.raises(InvalidArgumentError) as raised:
            search()
        assert str(raised.value).startswith(f"k = {k!r};")


@pytest.mark.parametrize("radius", ["3", "x", b"3", [3.0, 4.0], 3j, float("nan"), np.float32("nan"), 10**400, {}])
def test_a_radius_is_a_number(index: StoredIndex, radius: Any) -> None:
    for search in (
        lambda: index.search(CODES[0], radius=radius),
        lambda: index.search_batch(CODES, radius=radius),
        lambda: index.search_batch(CODES, radius=radius, budget=Budget(candidates=5)),
    ):
        with pytest.raises(InvalidArgumentError) as raised:
            search()
        assert str(raised.value).startswith(f"radius = {radius!r};")


@pytest.mark.parametrize("n", [2.5, 2.0, "2", None, [2]])
def test_the_number_of_hits_is_an_integer(index: StoredIndex, n: Any) -> None:
    with index.snapshot().view.cursor(whamming.native.Costs.hamming(CODES[0], BITS)) as cursor:
        for ask in (cursor.next, cursor.guess, index.search(CODES[0]).next):
            with pytest.raises(InvalidArgumentError) as raised:
                ask(n)
            assert str(raised.value).startswith(f"n = {n!r};")
        assert len(cursor.next(N)[0]) == N, "nothing was lost"


@pytest.mark.parametrize(
    "after",
    [
        3,
        3.0,
        "ab",
        (),
        (1.0,),
        (1.0, 2, 3),
        ("1", 2),
        (1.0, 2.5),
        (1.0, "2"),
        (1.0, -1),
        (1.0, 2**64),
        (None, 1),
        {1: 2},
    ],
)
def test_after_is_a_distance_and_an_id(index: StoredIndex, after: Any) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        index.search(CODES[0], after=after)
    assert str(raised.value).startswith(f"after = {after!r};")


@pytest.mark.parametrize("threads", [1.0, "2", 0, 257])
def test_threads_is_an_integer(index: StoredIndex, threads: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"threads = {threads!r};"):
        index.search_batch(CODES, threads=threads)


@pytest.mark.parametrize("size", [0, -1, 2.5, "7"])
def test_the_size_of_pieces_is_a_positive_integer(index: StoredIndex, size: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"size = {size!r};"):
        index.scan(size)


def test_numbers_of_other_types_are_accepted(index: StoredIndex) -> None:
    expected = [(hit.id, hit.distance) for hit in index.search(CODES[0], k=5, radius=4.0)]
    assert len(expected) == 5
    for k in (np.int64(5), np.uint8(5)):
        for radius in (4, np.float32(4), np.int16(4), Decimal(4)):
            found: Any = index.search(CODES[0], k=k, radius=radius)  # type: ignore[arg-type]
            assert [(hit.id, hit.distance) for hit in found] == expected
            answer = index.search_batch(CODES[:1], k=k, radius=radius, threads=np.int32(1))  # type: ignore[arg-type]
            assert answer.ids.tolist() == [[id_ for id_, _ in expected]]
    last = expected[1]
    rest = index.search(CODES[0], k=3, after=(np.float64(last[1]), np.uint64(last[0])))  # type: ignore[arg-type]
    assert [hit.id for hit in rest] == [id_ for id_, _ in expected[2:]]
    count: Any = np.int64(2)
    first = index.search(CODES[0]).next(count, budget=Budget(candidates=2**70))[0]
    assert first.tolist() == [id_ for id_, _ in expected[:2]]


def test_payloads_in_an_array_that_drops_zero_bytes_are_refused(index: StoredIndex) -> None:
    """numpy pads these arrays with zero bytes, and removes all of them when reading."""
    payloads: list[bytes | None] = [b"a\0", b"bc"]
    lossy: Any = np.array(payloads)
    assert lossy.tolist() == [b"a", b"bc"]
    with pytest.raises(InvalidArgumentError, match=r"numpy array of \|S2"):
        index.upsert([1, 2], CODES[:2], lossy)
    assert index.get([1, 2]).payloads == [b"", b""]
    kept: Any = np.array(payloads, dtype=object)
    index.upsert([1, 2], CODES[1:3], kept)
    assert index.get([1, 2]).payloads == payloads
    index.upsert([1, 2], CODES[1:3])


@pytest.mark.parametrize(
    ("ids", "codes", "payloads", "message"),
    [
        ([[1], [2, 3]], CODES[:2], None, "ids .*inhomogeneous"),
        ([1, 2], [[1, 2], [3]], None, "codes .*inhomogeneous"),
        ([1], CODES[:1], 5, "payloads are a int"),
        ([1], CODES[:1], iter([b"x"]), "payloads are a list_iterator"),
    ],
)
def test_what_is_not_a_list_is_refused(index: StoredIndex, ids: Any, codes: Any, payloads: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        index.upsert(ids, codes, payloads)


@pytest.mark.parametrize("plan", ["fast", ["auto"], None, 1])
def test_a_plan_is_one_of_three(index: StoredIndex, plan: Any) -> None:
    for search in (lambda: index.search(CODES[0], plan=plan), lambda: index.search_batch(CODES, plan=plan)):
        with pytest.raises(InvalidArgumentError, match=r"plan = .*'auto', 'probe', 'sweep'") as raised:
            search()
        assert repr(plan) in str(raised.value)
