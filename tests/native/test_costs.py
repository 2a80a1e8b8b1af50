"""Rounding of costs, and invalid costs."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import WEIGHT_KINDS, WeightKind, bit_lengths, generated, make_codes, make_table
from tests.native.oracle import Floats, round_costs
from whamming.native import MAX_BITS, Costs, Index, InvalidArgumentError, WhammingError

MOST = 2.0**1017  # the sum of 64 such costs is still finite
finite = st.floats(-MOST, MOST)


def tables(costs: Costs, query: int = 0) -> tuple[NDArray[np.int64], int]:
    """Return the rounded cost table of a query, less the cheaper cost of each bit, and the sum of those: the floor."""
    ones = np.unpackbits(costs.optimum[query], count=costs.bits, bitorder="little").astype(np.int64)
    deltas = costs.deltas[query].astype(np.int64)
    return np.stack([deltas * ones, deltas * (1 - ones)], axis=1), int(costs.floors[query])


def check_rounding(table: Floats, costs: Costs, query: int = 0) -> None:
    integers, exponent = round_costs(table)
    cheapest = integers.min(axis=1)
    above, floor = tables(costs, query)
    assert costs.exponents[query] == exponent
    assert floor == int(cheapest.sum())
    assert np.array_equal(above, integers - cheapest[:, None])
    equal = integers[:, 0] == integers[:, 1]
    ones = np.unpackbits(costs.optimum[query], bitorder="little")
    assert not ones[: costs.bits][equal].any()
    assert not ones[costs.bits :].any()


# -- rounding ----------------------------------------------------------------------------------------------------------


@generated(300)
@given(table=st.lists(st.tuples(finite, finite), min_size=1, max_size=40))
def test_any_finite_table_is_rounded_as_documented(table: list[tuple[float, float]]) -> None:
    array = np.array(table)
    check_rounding(array, Costs.table(array))


@generated(60)
@given(bits=bit_lengths(), kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 2**32 - 1))
def test_every_kind_of_weights_is_rounded_as_documented(bits: int, kind: WeightKind, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = make_table(kind, make_codes("uniform", 1, bits, rng)[0], bits, rng)
    check_rounding(table, Costs.table(table))


@generated(100)
@given(table=st.lists(st.tuples(finite, finite), min_size=1, max_size=16))
def test_the_oracle_rounds_like_fractions(table: list[tuple[float, float]]) -> None:
    """Compare the oracle's integers with Python's own rounding of fractions, half to even."""
    array = np.array(table)
    integers, exponent = round_costs(array)
    assert integers.tolist() == [[round(Fraction(c) * Fraction(2) ** exponent) for c in row] for row in table]
    assert (np.abs(integers).sum() <= 2**54).all()
    if array.any():
        largest = Fraction(float(np.abs(array).max())) * Fraction(2) ** exponent
        assert 2**52 <= largest * 2 ** (len(table) - 1).bit_length() < 2**53


@generated(150)
@given(table=st.lists(st.tuples(finite, finite), min_size=1, max_size=12), seed=st.integers(0, 999))
def test_a_distance_is_an_integer_divided_by_a_power_of_two(table: list[tuple[float, float]], seed: int) -> None:
    """Distances are not rounded again, not even with denormal costs or the largest costs whose sums are finite."""
    array = np.array(table)
    bits = len(table)
    integers, exponent = round_costs(array)
    codes = make_codes("uniform", 20, bits, np.random.default_rng(seed))
    ids, distances = Index.build(codes, bits).search(Costs.table(array), k=20)
    for row, distance in zip(ids.tolist(), distances.tolist(), strict=True):
        ones = np.unpackbits(codes[row], count=bits, bitorder="little")
        exact = sum(int(integers[i, ones[i]]) for i in range(bits))
        assert Fraction(distance) == Fraction(exact) / Fraction(2) ** exponent


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_costs_whose_sum_overflows_are_rejected(sign: float) -> None:
    """Sums beyond the largest double would all be infinite: not comparable, and useless for resuming."""
    with pytest.raises(InvalidArgumentError, match="distance"):
        Costs.weights(np.zeros(2, dtype=np.uint8), np.full(16, sign * 1.7e308))


def test_ties_round_to_even() -> None:
    """The unit is 2^-exponent. Halves of it round to the even neighbour, on both sides of zero."""
    unit = 2.0**-52  # for one bit with a largest cost of 1.5 < 2^1: exponent 53 - 1 - 0
    for halves, rounded in [(1, 0), (3, 2), (5, 2), (7, 4)]:
        for sign in (1, -1):
            costs = Costs.table([[1.5, sign * halves * unit / 2]])
            assert costs.exponents[0] == 52
            assert costs.floors[0] == sign * rounded


# -- short forms -------------------------------------------------------------------------------------------------------


FIELDS = ("optimum", "deltas", "floors", "exponents")


def same(a: Costs, b: Costs) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name)) for name in ("optimum", "deltas", "floors", "exponents")
    )


@generated(60)
@given(bits=bit_lengths(), q=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_weights_equal_the_table_of_mismatch_costs(bits: int, q: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = make_codes("uniform", q, bits, rng)
    weights = rng.normal(size=(q, bits))
    ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little").astype(bool)
    table = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
    batch = Costs.weights(codes, weights)
    assert same(batch, Costs.table(table))
    assert len(batch) == q
    assert not batch.single
    for i in range(q):
        one = Costs.weights(codes[i], weights[i])
        assert one.single
        assert same(one, batch[i])
        assert same(Costs.table(table[i]), batch[i])
    assert same(Costs.weights(codes, weights[0]), Costs.weights(codes, np.broadcast_to(weights[0], (q, bits))))
    assert same(Costs.weights(codes[0], weights), Costs.weights(np.broadcast_to(codes[0], codes.shape), weights))


@generated(300)
@given(
    weights=st.lists(
        st.one_of(finite, st.sampled_from([0.0, -0.0, 5e-324, -1e-310, 1.0, -1.0])), min_size=1, max_size=40
    ),
    data=st.data(),
)
def test_any_finite_weights_round_like_their_table(weights: list[float], data: st.DataObject) -> None:
    bits = len(weights)
    code = np.frombuffer(data.draw(st.binary(min_size=-(-bits // 8), max_size=-(-bits // 8))), dtype=np.uint8)
    ones = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
    table = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
    assert same(Costs.weights(code, weights), Costs.table(table))


@generated(100)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=2, max_size=40))
def test_float32_rounds_like_float64(numbers: list[float]) -> None:
    """Arrays are read in place at any alignment."""
    narrow = np.array(numbers[: len(numbers) // 2 * 2], dtype=np.float32)
    wide = narrow.astype(np.float64)
    code = np.arange(-(-len(narrow) // 8), dtype=np.uint8) * 37
    unaligned = np.frombuffer(b"x" + narrow.tobytes(), dtype=np.float32, offset=1)
    unaligned_wide = np.frombuffer(b"x" + wide.tobytes(), dtype=np.float64, offset=1)
    for array in (narrow, unaligned, unaligned_wide, narrow.astype(">f4"), narrow.astype(np.longdouble)):
        assert same(Costs.weights(code, array), Costs.weights(code, wide))
        assert same(Costs.table(array.reshape(-1, 2)), Costs.table(wide.reshape(-1, 2)))


def test_join_concatenates_costs_in_order() -> None:
    one = Costs.weights(np.array([5], dtype=np.uint8), np.arange(8.0))
    two = Costs.table(np.arange(32.0).reshape(2, 8, 2))
    joined = Costs.join([one, two, one])
    assert len(joined) == 4
    assert not joined.single
    assert [same(joined[i], each) for i, each in enumerate((one, two[0], two[1], one))] == [True] * 4
    with pytest.raises(InvalidArgumentError, match=r"\[4, 8\]"):
        Costs.join([one, Costs.table(np.ones((4, 2)))])
    with pytest.raises(InvalidArgumentError, match="at least one"):
        Costs.join([])


@generated(40)
@given(bits=bit_lengths(), seed=st.integers(0, 2**32 - 1))
def test_hamming_counts_differing_bits(bits: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    codes = make_codes("uniform", 9, bits, rng)
    query = make_codes("uniform", 1, bits, rng)[0]
    ids, distances = Index.build(codes, bits).search(Costs.hamming(query, bits), k=9)
    differing = np.unpackbits(codes ^ query, axis=1, count=bits, bitorder="little").sum(axis=1)
    assert distances.tolist() == sorted(differing.tolist())
    assert differing[ids.astype(np.int64)].tolist() == distances.tolist()
    assert same(Costs.hamming(query, bits), Costs.weights(query, np.ones(bits)))


def test_hamming_uses_8_bits_per_byte_by_default() -> None:
    assert Costs.hamming(np.zeros(3, dtype=np.uint8)).bits == 24
    assert len(Costs.hamming(np.zeros((5, 3), dtype=np.uint8), 17)) == 5


def test_a_batch_is_indexed_like_a_sequence() -> None:
    costs = Costs.table(np.arange(12.0).reshape(3, 2, 2))
    assert len(costs) == 3
    assert same(costs[-1], costs[2])
    assert costs[0].single
    assert not same(costs[0], costs[2])
    with pytest.raises(IndexError):
        costs[3]
    assert repr(costs) == "Costs(3 x 2 bits)"


def test_integers_lists_and_strided_arrays_are_accepted() -> None:
    assert same(Costs.table([[0, 1], [2, -3]]), Costs.table(np.array([[0.0, 1.0], [2.0, -3.0]])))
    assert same(Costs.table(np.ones((4, 2), dtype=np.float32)), Costs.table(np.ones((4, 2))))
    assert same(Costs.table(np.ones((4, 2), order="F")), Costs.table(np.ones((4, 2))))
    assert same(Costs.table(np.ones((8, 4))[::2, ::2]), Costs.table(np.ones((4, 2))))


# -- invalid costs: messages have the value, the limit and the remedy --------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_costs_must_be_finite(bad: float) -> None:
    table = np.zeros((2, 5, 2))
    table[1, 3, 1] = bad
    with pytest.raises(InvalidArgumentError, match=rf"bit 3 = 1 .*query 1 .*{bad}"):
        Costs.table(table)
    weights = np.zeros(9)
    weights[8] = bad
    with pytest.raises(InvalidArgumentError, match=rf"bit 8 .*query 0 .*{bad}"):
        Costs.weights(np.zeros(2, dtype=np.uint8), weights)
    with pytest.raises(InvalidArgumentError, match=rf"bit 8 .*query 1 .*{bad}"):
        Costs.weights(np.zeros(2, dtype=np.uint8), np.stack([np.ones(9), weights]))


@pytest.mark.parametrize("shape", [(), (2,), (4, 3), (4, 1), (2, 4, 3), (1, 2, 4, 2)])
def test_a_table_must_have_two_costs_per_bit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Costs.table(np.zeros(shape))
    assert str(shape) in str(caught.value)
    assert "[bits, 2] or [q, bits, 2]" in str(caught.value)


@pytest.mark.parametrize("bits", [0, MAX_BITS + 1])
def test_bits_must_be_1_to_4096(bits: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"bits = {bits}; .* 1 to 4096"):
        Costs.table(np.zeros((bits, 2)))
    with pytest.raises(InvalidArgumentError, match=f"bits = {bits}; .* 1 to 4096"):
        Costs.hamming(np.zeros(4, dtype=np.uint8), bits)
    assert Costs.table(np.zeros((MAX_BITS, 2))).bits == MAX_BITS


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (1, 2, 3)])
def test_weights_must_have_one_number_per_bit(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Costs.weights(np.zeros(1, dtype=np.uint8), np.zeros(shape))
    assert str(shape) in str(caught.value)
    assert "[bits] or [q, bits]" in str(caught.value)


@pytest.mark.parametrize("shape", [(1,), (3,), (2, 1), (1, 2, 2)])
def test_query_codes_must_fit_the_weights(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"query codes .*9 bits.*\[n, 2\]"):
        Costs.weights(np.zeros(shape, dtype=np.uint8), np.ones(9))


def test_query_codes_and_weights_must_have_as_many_rows() -> None:
    with pytest.raises(InvalidArgumentError, match=r"2 rows .*3 queries"):
        Costs.weights(np.zeros((3, 1), dtype=np.uint8), np.ones((2, 8)))


@pytest.mark.parametrize("dtype", [np.int64, np.float64, np.bool_, np.int8])
def test_query_codes_must_be_packed_bytes(dtype: type) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{np.dtype(dtype)}, not uint8; .*np.packbits"):
        Costs.weights(np.zeros(1, dtype=dtype), np.ones(8))


def test_invalid_argument_error_is_a_value_error_and_a_whamming_error() -> None:
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(InvalidArgumentError, WhammingError)
