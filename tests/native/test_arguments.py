"""Values of the wrong kind are refused with the value and the argument's name, wherever they are passed."""

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
NOT_WHOLE: Final = (1.5, "3", np.float64(2.0), [1], b"1", 1j)
NOT_A_NUMBER: Final = ("x", "1.0", [1.0], object(), 1j, float("nan"), 10**400)


def refused(name: str, value: Any, call: Callable[[Any], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(f"{name} = {value!r}")):
        call(value)


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_k_is_a_whole_number(value: Any) -> None:
    for searched in (INDEX, VIEW):
        refused("k", value, lambda k, searched=searched: searched.search(COSTS, k=k))  # type: ignore[misc]
        refused("k", value, lambda k, searched=searched: searched.cursor(COSTS, k=k))  # type: ignore[misc]
    refused("k", value, lambda k: VIEW.batch(COSTS, k))
    lab = Laboratory(CODES, BITS)
    refused("k", value, lambda k: lab.scan(COSTS, k))
    refused("k", value, lambda k: lab.mih_binary(CODES[:1], k))


@pytest.mark.parametrize("k", [-1, 2**31])
def test_a_batch_s_k_is_in_range(k: int) -> None:
    refused("k", k, lambda k: VIEW.batch(COSTS, k))


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_counts_are_whole_numbers(value: Any) -> None:
    with INDEX.cursor(COSTS) as cursor:
        refused("n", value, cursor.next)
        refused("n", value, cursor.guess)
        refused("candidates", value, lambda candidates: cursor.next(1, budget=Budget(candidates=candidates)))
    refused("threads", value, lambda threads: INDEX.search(COSTS, threads=threads))
    refused("threads", value, lambda threads: Index.build(CODES, BITS, threads=threads))
    refused("substring_bits", value, lambda length: Index.build(CODES, BITS, substring_bits=length))
    refused("bits", value, lambda bits: Index.build(CODES, bits))
    refused("bits", value, lambda bits: Costs.hamming(CODES[0], bits))
    refused("bits", value, lambda bits: Laboratory(CODES, bits))


@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=lambda value: repr(value)[:20])
def test_a_radius_is_a_number(value: Any) -> None:
    refused("radius", value, lambda radius: INDEX.search(COSTS, radius=radius))
    refused("radius", value, lambda radius: INDEX.cursor(COSTS, radius=radius))
    refused("radius", value, lambda radius: VIEW.batch(COSTS, 1, radius))


@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=lambda value: repr(value)[:20])
def test_seconds_are_a_number(value: Any) -> None:
    with INDEX.cursor(COSTS) as cursor, pytest.raises(InvalidArgumentError, match="seconds must be positive"):
        cursor.next(1, budget=Budget(seconds=value))


@pytest.mark.parametrize("value", [5, 0.5, "1s", {"candidates": 5}, Budget], ids=repr)
def test_a_budget_is_a_budget(value: Any) -> None:
    refused("budget", value, lambda budget: INDEX.search(COSTS, budget=budget))
    with INDEX.cursor(COSTS) as cursor:
        refused("budget", value, lambda budget: cursor.next(1, budget=budget))


@pytest.mark.parametrize("value", [5, 0.5, "x", ("x", 1), (0.0, 1.5), (0.0,), (0.0, 1, 2), {}], ids=repr)
def test_a_place_is_a_distance_and_an_id(value: Any) -> None:
    refused("after", value, lambda after: INDEX.cursor(COSTS, after=after))


@pytest.mark.parametrize("value", [CODES[0], "x", [1.0], None], ids=lambda value: type(value).__name__)
def test_costs_are_costs(value: Any) -> None:
    refused("costs", value, lambda costs: INDEX.search(costs))
    refused("costs", value, lambda costs: INDEX.cursor(costs))
    refused("costs", value, lambda costs: VIEW.batch(costs, 1))


@pytest.mark.parametrize("two", [2, np.int64(2), np.uint8(2), np.array(2)], ids=repr)
def test_numpy_s_whole_numbers_are_whole(two: Any) -> None:
    assert len(INDEX.search(COSTS, k=two, threads=two).ids) == 2
    with INDEX.cursor(COSTS, k=two) as cursor:
        assert len(cursor.next(two)[0]) == 2


@pytest.mark.parametrize("one", [1, True, np.float32(1), Fraction(1), Decimal(1)], ids=repr)
def test_every_kind_of_number_is_a_radius(one: Any) -> None:
    expected = INDEX.search(COSTS, k=40, radius=1.0)
    assert 0 < len(expected.ids) < 40
    assert INDEX.search(COSTS, k=40, radius=one).ids.tolist() == expected.ids.tolist()


def test_a_batch_runs_its_own_queries_only() -> None:
    batch = VIEW.batch(Costs.hamming(CODES[:3]), 2)
    for first, last in [(-1, 1), (0, 4), (2, 1), (4, 4)]:
        with pytest.raises(InvalidArgumentError, match="batch of 3"):
            batch.run(first, last)
    batch.run(1, 3)
    assert batch.counts.tolist() == [0, 2, 2]
    assert batch.distances[1:, 0].tolist() == [0.0, 0.0]


def test_rows_of_a_batch_are_padded() -> None:
    batch = VIEW.batch(Costs.hamming(CODES[:2]), 100, radius=0.0)
    batch.run(0, 2)
    assert batch.counts.tolist() == [1, 1]
    assert batch.ids.shape == (2, 40)
    assert (batch.ids[:, 1:] == 2**64 - 1).all()
    assert np.isinf(batch.distances[:, 1:]).all()
