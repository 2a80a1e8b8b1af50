"""Arguments of the wrong type are rejected; the message has the argument's name and its value."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pytest

from whamming.native import Budget, Costs, Index, InvalidArgumentError, Part, View
from whamming.native.lab import Laboratory

BITS: Final = 16
CODES: Final = np.arange(80, dtype=np.uint8).reshape(40, 2)
COSTS: Final = Costs.hamming(CODES[0])
INDEX: Final = Index.build(CODES, BITS)
VIEW: Final = View([Part(INDEX)], BITS)
NOT_INTEGERS: Final = (1.5, "3", np.float64(2.0), [1], b"1", 1j)
NOT_NUMBERS: Final = ("x", "1.0", [1.0], object(), 1j, float("nan"), 10**400)


def check_rejected(name: str, value: Any, call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"{name} = {value!r}")):
        call(value)


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
def test_k_must_be_an_integer(value: Any) -> None:
    for searched in (INDEX, VIEW):
        check_rejected("k", value, lambda k, searched=searched: searched.search(COSTS, k=k))  # type: ignore[misc]
        check_rejected("k", value, lambda k, searched=searched: searched.cursor(COSTS, k=k))  # type: ignore[misc]
    check_rejected("k", value, lambda k: VIEW.batch(COSTS, k))
    lab = Laboratory(CODES, BITS)
    check_rejected("k", value, lambda k: lab.scan(COSTS, k))
    check_rejected("k", value, lambda k: lab.mih_binary(CODES[:1], k))


@pytest.mark.parametrize("k", [-1, 2**31])
def test_k_of_a_batch_must_be_in_range(k: int) -> None:
    check_rejected("k", k, lambda k: VIEW.batch(COSTS, k))


@pytest.mark.parametrize("value", NOT_INTEGERS, ids=repr)
def test_counts_must_be_integers(value: Any) -> None:
    with INDEX.cursor(COSTS) as cursor:
        check_rejected("n", value, cursor.next)
        check_rejected("n", value, cursor.guess)
    check_rejected("candidates", value, lambda candidates: Budget(candidates=candidates))
    check_rejected("threads", value, lambda threads: INDEX.search(COSTS, threads=threads))
    check_rejected("threads", value, lambda threads: Index.build(CODES, BITS, threads=threads))
    check_rejected("substring_bits", value, lambda length: Index.build(CODES, BITS, substring_bits=length))
    check_rejected("bits", value, lambda bits: Index.build(CODES, bits))
    check_rejected("bits", value, lambda bits: Costs.hamming(CODES[0], bits))
    check_rejected("bits", value, lambda bits: Laboratory(CODES, bits))


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: repr(value)[:20])
def test_radius_must_be_a_number(value: Any) -> None:
    check_rejected("radius", value, lambda radius: INDEX.search(COSTS, radius=radius))
    check_rejected("radius", value, lambda radius: INDEX.cursor(COSTS, radius=radius))
    check_rejected("radius", value, lambda radius: VIEW.batch(COSTS, 1, radius))


@pytest.mark.parametrize("value", NOT_NUMBERS, ids=lambda value: repr(value)[:20])
def test_seconds_must_be_a_number(value: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"seconds.*must be positive"):
        Budget(seconds=value)


@pytest.mark.parametrize("given", [{"candidates": -1}, {"candidates": 0}, {"seconds": -1}, {"seconds": 0.0}], ids=repr)
def test_a_budget_is_checked_when_it_is_made(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"Budget\(.*must be positive"):
        Budget(**given)


@pytest.mark.parametrize("value", [5, 0.5, "1s", {"candidates": 5}, Budget], ids=repr)
def test_budget_must_be_a_budget(value: Any) -> None:
    check_rejected("budget", value, lambda budget: INDEX.search(COSTS, budget=budget))
    with INDEX.cursor(COSTS) as cursor:
        check_rejected("budget", value, lambda budget: cursor.next(1, budget=budget))


@pytest.mark.parametrize("value", [5, 0.5, "x", ("x", 1), (0.0, 1.5), (0.0,), (0.0, 1, 2), {}], ids=repr)
def test_after_must_be_a_distance_and_an_id(value: Any) -> None:
    check_rejected("after", value, lambda after: INDEX.cursor(COSTS, after=after))


@pytest.mark.parametrize("value", [CODES[0], "x", [1.0], None], ids=lambda value: type(value).__name__)
def test_costs_must_be_costs(value: Any) -> None:
    check_rejected("costs", value, lambda costs: INDEX.search(costs))
    check_rejected("costs", value, lambda costs: INDEX.cursor(costs))
    check_rejected("costs", value, lambda costs: VIEW.batch(costs, 1))


@pytest.mark.parametrize("two", [2, np.int64(2), np.uint8(2), np.array(2)], ids=repr)
def test_numpy_integers_are_accepted(two: Any) -> None:
    assert len(INDEX.search(COSTS, k=two, threads=two).ids) == 2
    with INDEX.cursor(COSTS, k=two) as cursor:
        assert len(cursor.next(two)[0]) == 2


@pytest.mark.parametrize("one", [1, np.float32(1), Fraction(1), Decimal(1)], ids=repr)
def test_radius_may_be_any_type_of_number(one: Any) -> None:
    expected = INDEX.search(COSTS, k=40, radius=1.0)
    assert 0 < len(expected.ids) < 40
    assert INDEX.search(COSTS, k=40, radius=one).ids.tolist() == expected.ids.tolist()


def test_rows_of_a_batch_are_padded() -> None:
    batch = VIEW.batch(Costs.hamming(CODES[:2]), 100, radius=0.0)
    assert batch.run() == 2
    assert batch.counts.tolist() == [1, 1]
    assert batch.ids.shape == (2, 40)
    assert (batch.ids[:, 1:] == 2**64 - 1).all()
    assert np.isinf(batch.distances[:, 1:]).all()
