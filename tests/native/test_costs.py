"""Conversion of costs to integers, and invalid costs."""

from __future__ import annotations

import math
import operator
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import WEIGHT_KINDS, WeightKind, bit_lengths, generated, make_codes, make_table
from tests.native.oracle import Floats, exact_costs, is_accepted
from whamming.native import MAX_BITS, Costs, Index, InvalidArgumentError, WhammingError

MOST = 2.0**1017  # the sum of 64 such costs is still finite
finite = st.floats(-MOST, MOST)


@st.composite
def spans(draw: st.DrawFn, most: int) -> list[float]:
    """Return 1 to ``most`` numbers whose magnitudes differ by a factor of at most 2^60, some of them 0."""
    low = draw(st.integers(-1074, 950))
    sizes = st.floats(math.ldexp(1.0, low), math.ldexp(1.0, low + 60))
    number = st.one_of(st.just(0.0), sizes, sizes.map(operator.neg))
    return draw(st.lists(number, min_size=1, max_size=most))


def tables_in_spans(most: int) -> st.SearchStrategy[Floats]:
    """Return cost tables ``[bits, 2]`` of up to ``most`` bits."""
    return spans(2 * most).map(lambda numbers: np.array(numbers + numbers[:1] * (len(numbers) % 2)).reshape(-1, 2))


def check_conversion(table: Floats, costs: Costs, query: int = 0) -> None:
    integers, exponent = exact_costs(table)
    scale = costs.scales[query]
    ones = np.unpackbits(costs.optimum[query], bitorder="little").tolist()
    assert scale["exponent"] == exponent
    assert costs.floors[query] == sum(map(min, integers))
    steps, rests = costs.deltas[query].tolist(), costs.rests[query].tolist()
    shift = int(scale["shift"])
    assert [(step << shift) + rest for step, rest in zip(steps, rests, strict=True)] == [
        abs(one - zero) for zero, one in integers
    ]
    assert sum(steps) < 2**63
    assert max(rests) < 2**shift
    assert shift == 0 or sum(abs(one - zero) for zero, one in integers) >> shift >= 2**62
    assert ones[: costs.bits] == [one < zero for zero, one in integers]
    assert not any(ones[costs.bits :])
    largest = max(abs(costs.floors[query]), abs(sum(map(max, integers))))
    assert scale["rounded"] == (largest.bit_length() > 53)


# -- conversion --------------------------------------------------------------------------------------------------------


@generated(300)
@given(table=tables_in_spans(40))
def test_costs_become_integers_without_rounding(table: Floats) -> None:
    check_conversion(table, Costs.table(table))


@generated(60)
@given(bits=bit_lengths(), kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 2**32 - 1))
def test_every_kind_of_weights_becomes_integers_without_rounding(bits: int, kind: WeightKind, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table = make_table(kind, make_codes("uniform", 1, bits, rng)[0], bits, rng)
    check_conversion(table, Costs.table(table))


@generated(100)
@given(table=tables_in_spans(16))
def test_the_oracle_agrees_with_fractions(table: Floats) -> None:
    integers, exponent = exact_costs(table)
    assert [[Fraction(cost) * Fraction(2) ** exponent for cost in row] for row in integers] == [
        [Fraction(cost) for cost in row] for row in table.tolist()
    ]


@generated(300)
@given(
    table=st.one_of(tables_in_spans(12), st.lists(st.tuples(finite, finite), min_size=1, max_size=12).map(np.array)),
    seed=st.integers(0, 999),
)
def test_the_order_is_that_of_the_real_sums_or_the_costs_are_refused(table: Floats, seed: int) -> None:
    """Compare with fractions. A distance is the nearest double, and a search within it includes its hit."""
    bits = len(table)
    codes = make_codes("uniform", 20, bits, np.random.default_rng(seed))
    sizes = np.abs(table[table != 0])
    if not is_accepted(table):
        assert sizes.max() / 2.0**60 > sizes.min()
        with pytest.raises(InvalidArgumentError, match=r"2\^60"):
            Costs.table(table)
        return
    costs = Costs.table(table)
    ones = np.unpackbits(codes, axis=1, count=bits, bitorder="little")
    sums = [sum((Fraction(table[i, bit]) for i, bit in enumerate(row)), Fraction(0)) for row in ones.tolist()]
    expected = sorted(zip(sums, range(len(codes)), strict=True))
    index = Index.build(codes, bits)
    ids, distances = index.search(costs, k=20)
    assert ids.tolist() == [row for _, row in expected]
    assert distances.tolist() == [float(total) for total, _ in expected]
    for distance in set(distances.tolist()):
        within = index.search(costs, k=20, radius=distance)
        assert within.ids.tolist() == ids[: np.searchsorted(distances, distance, side="right")].tolist()
        below = index.search(costs, k=20, radius=math.nextafter(distance, -math.inf))
        assert below.ids.tolist() == ids[: np.searchsorted(distances, distance)].tolist()


def test_one_dominant_weight_does_not_hide_the_others() -> None:
    """With weights below 1 and one of 1e15, the order of the nearest items depends on the small weights alone."""
    rng = np.random.default_rng(7)
    codes = rng.integers(0, 256, (5000, 32), dtype=np.uint8)
    ones = np.unpackbits(codes ^ codes[0], axis=1, bitorder="little")
    for dominant in (1e12, 1e15, 1e17):
        weights = rng.random(256)
        weights[100] = dominant
        exact = [sum((Fraction(weights[i]) for i in np.flatnonzero(row)), Fraction(0)) for row in ones]
        nearest = sorted(range(len(codes)), key=lambda row: (exact[row], row))[:10]
        ids, distances = Index.build(codes, 256).search(Costs.weights(codes[0], weights), k=10)
        assert ids.tolist() == nearest
        assert distances.tolist() == [float(exact[row]) for row in nearest]


@pytest.mark.parametrize("bits", [1, 64, MAX_BITS])
def test_a_span_of_2_to_the_60_is_always_accepted(bits: int) -> None:
    for low in (-1074, -1022, -30, 900):
        least, most = math.ldexp(1.0, low), math.ldexp(1.0, low + 60)
        numbers = np.full((bits, 2), math.nextafter(most, 0.0))
        numbers[0] = math.nextafter(least, math.inf), -most
        check_conversion(numbers, Costs.table(numbers))


def test_a_span_that_is_too_large_is_refused() -> None:
    weights = np.array([[1.0, 0.5, 0.25], [1.0, 0.25, 1 / 3 * 2.0**-74]])
    with pytest.raises(InvalidArgumentError, match=r"lower the cost of bit 0: any cost above 0\.25, the sum of all"):
        Costs.weights(np.zeros((2, 1), dtype=np.uint8), weights)
    weights[1, 1] = 1.0
    with pytest.raises(InvalidArgumentError, match=r"query 1 .* 1\.76.*e-23 to 1 .*, below 8\.67.*e-19, to 0"):
        Costs.weights(np.zeros((2, 1), dtype=np.uint8), weights)
    Costs.weights(np.zeros((2, 1), dtype=np.uint8), np.where(weights < 8.67e-19, 0.0, weights))
    with pytest.raises(InvalidArgumentError, match="the costs range"):
        Costs.table([[1.0, 1e-300]])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_costs_whose_sum_overflows_are_rejected(sign: float) -> None:
    """Sums beyond the largest double would all be infinite: not comparable, and useless for resuming."""
    with pytest.raises(InvalidArgumentError, match="distance"):
        Costs.weights(np.zeros(2, dtype=np.uint8), np.full(16, sign * 1.7e308))


# -- short forms -------------------------------------------------------------------------------------------------------


def same(a: Costs, b: Costs) -> bool:
    fields = ("optimum", "deltas", "rests", "scales")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in fields)


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
    weights=spans(40),
    data=st.data(),
)
def test_weights_are_converted_like_their_table(weights: list[float], data: st.DataObject) -> None:
    bits = len(weights)
    code = np.frombuffer(data.draw(st.binary(min_size=-(-bits // 8), max_size=-(-bits // 8))), dtype=np.uint8)
    ones = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
    table = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
    assert same(Costs.weights(code, weights), Costs.table(table))


@generated(100)
@given(numbers=st.lists(st.floats(-(2.0**50), 2.0**50, width=32), min_size=2, max_size=40))
def test_float32_is_read_like_float64(numbers: list[float]) -> None:
    """Arrays are read in place at any alignment."""
    narrow = np.array(numbers[: len(numbers) // 2 * 2], dtype=np.float32)
    narrow[np.abs(narrow) < 2.0**-40] = 0
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
    with pytest.raises(InvalidArgumentError, match=rf"bit 8 is {bad}"):
        Costs.weights(np.zeros(2, dtype=np.uint8), weights)
    with pytest.raises(InvalidArgumentError, match=rf"bit 8 .*query 1 .*{bad}"):
        Costs.weights(np.zeros(2, dtype=np.uint8), np.stack([np.ones(9), weights]))


@pytest.mark.parametrize(
    ("large", "normal", "small"),
    [
        (1e30, 1.0, 1e-30),
        (1e30, 1.0, 1e-3),
        (1e30, 0.0, 1e-30),
        (1e20, 3.0, 1e-20),
        (1e40, 1e20, 1e-20),
        (1e300, 0.1, 1e-300),
        (1e300, 0.1, 0.3),
    ],
)
def test_costs_that_follow_the_advice_are_accepted(large: float, normal: float, small: float) -> None:
    """They are in the same order, except for the costs that are set to 0."""
    weights, code = np.full(64, normal), np.zeros(8, dtype=np.uint8)
    weights[5], weights[9] = large, small
    with pytest.raises(InvalidArgumentError, match="cannot be exact") as caught:
        Costs.weights(code, weights)
    advice = str(caught.value)
    lower = re.search(r"any cost above (\S+),", advice)
    below = re.search(r"below (\S+), to 0", advice)
    assert lower or below
    if lower:
        assert float(lower[1]) == pytest.approx(np.delete(weights, 5).sum(), rel=1e-4)
        weights[5] = 1.001 * float(lower[1])
    if below:
        weights[weights < float(below[1])] = 0
    assert (weights > 0).sum() >= (1 if normal == 0 else 63), "only the small cost may be lost"
    Costs.weights(code, weights)


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


# -- numbers of other types --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "weights",
    [
        np.array([1, 2**53, 2**53 + 2, -(2**63)]),
        np.array([0, 2**63, 2**64 - 2048, 7], dtype=np.uint64),
        np.array([0.5, 1, 2, 3], dtype=np.longdouble),
        np.array([0.5, 1, 2, 3], dtype=np.float16),
        np.array([True, False, True, True]),
        [Fraction(1, 2), 3, 2**60, 4],
        [np.int64(3), 2.5, 2**60, np.float32(0.1)],
    ],
    ids=str,
)
def test_numbers_that_doubles_represent_are_taken_as_they_are(weights: list[float]) -> None:
    costs = Costs.weights(np.zeros(1, dtype=np.uint8), weights)
    expected = Costs.weights(np.zeros(1, dtype=np.uint8), [float(weight) for weight in weights])
    for name in ("deltas", "rests", "optimum", "scales"):
        assert (getattr(costs, name) == getattr(expected, name)).all()


@pytest.mark.parametrize(
    "weights",
    [
        [1, 2**53 + 1],
        [0.5, -(2**53) - 1],
        [0.5, np.int64(2**53 + 1)],
        (1, 10**400),
        np.array([1, 2**53 + 1]),
        np.array([1, 2**64 - 1], dtype=np.uint64),
        np.array([1, 1 + np.finfo(np.longdouble).eps], dtype=np.longdouble),
        np.array([1, 10], dtype=np.longdouble) ** 400,
        [1, Fraction(1, 3)],
    ],
    ids=str,
)
def test_numbers_that_a_double_would_round_are_refused(weights: list[float]) -> None:
    if getattr(weights, "dtype", None) == np.longdouble == np.float64:
        pytest.skip("long double is double")
    with pytest.raises(InvalidArgumentError, match=r"weights have .* at \[1\], which no double represents.*scale"):
        Costs.weights(np.zeros(1, dtype=np.uint8), weights)


@pytest.mark.parametrize(
    "weights", [["1", "2"], [1j, 1], [None, 1], [b"1", b"2"], np.array(["2020"], "M8[Y]")], ids=str
)
def test_what_is_not_a_real_number_is_refused(weights: list[float]) -> None:
    with pytest.raises(InvalidArgumentError, match="weights are not an array of real numbers"):
        Costs.weights(np.zeros(1, dtype=np.uint8), weights)
    with pytest.raises(InvalidArgumentError, match="costs are not an array of real numbers"):
        Costs.table([weights])
