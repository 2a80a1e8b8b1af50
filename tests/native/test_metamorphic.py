"""Changes of data and query that must not change an answer, or must change it in a known way; no oracle needed."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import LAYOUTS, WEIGHT_KINDS, Data, WeightKind, datasets, generated, plans
from tests.native.oracle import Codes, Floats
from whamming.native import Buckets, Costs, Index, Plan, Tables

every_layout = pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
kinds = st.sampled_from(WEIGHT_KINDS)


def bits_of(codes: Codes, bits: int) -> NDArray[np.uint8]:
    return np.unpackbits(codes, axis=1, count=bits, bitorder="little")


def pack(bits: NDArray[np.uint8]) -> Codes:
    return np.packbits(bits, axis=1, bitorder="little")


def answer(index: Index, data: Data, table: Floats, k: int, plan: Plan) -> tuple[list[int], list[float]]:
    """Return the hits. A probe of millions of keys is replaced by the plan "auto"."""
    chosen = "auto" if plan == "probe" and data.slow_to_probe(index) else plan
    ids, distances = index.search(Costs.table(table), k=k, plan=chosen)
    return ids.tolist(), distances.tolist()


def ranked(index: Index, data: Data, table: Floats, k: int, plan: Plan) -> list[tuple[float, int]]:
    """Return the hits with what orders them: their exact distances, in units if doubles do not hold them, and ids."""
    chosen = "auto" if plan == "probe" and data.slow_to_probe(index) else plan
    with index.cursor(Costs.table(table), k=k, plan=chosen) as cursor:
        ids, distances = cursor.next(k)
        exact = distances.tolist()
        if cursor.sums is not None:
            exact = [int.from_bytes(row.tobytes(), "little", signed=True) for row in cursor.sums[: len(ids)]]
    return list(zip(exact, ids.tolist(), strict=True))


def rebuilt(data: Data, codes: Codes, tables: Tables, buckets: Buckets) -> Index:
    return Data(data.bits, codes, data.ids, data.substring_bits, data.reorder, data.threads, data.seed).build(
        tables, buckets
    )


@every_layout
@generated(25)
@given(data=datasets(), kind=kinds, seed=st.integers(0, 99))
def test_flipping_the_same_bits_of_codes_and_query_keeps_the_answer(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, seed: int
) -> None:
    mask = np.random.default_rng(seed).integers(0, 256, (1, data.codes.shape[1]), dtype=np.uint8)
    table = data.query(kind, seed)
    swapped = np.where(bits_of(mask, data.bits).T == 1, table[:, ::-1], table)
    index, masked = data.build(tables, buckets), rebuilt(data, data.codes ^ mask, tables, buckets)
    for plan in plans(index):
        assert answer(index, data, table, data.n, plan) == answer(masked, data, swapped, data.n, plan)


@every_layout
@generated(25)
@given(data=datasets(), kind=kinds, seed=st.integers(0, 99))
def test_permuting_the_bits_keeps_the_answer(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(data.bits)
    table = data.query(kind, seed)
    permuted = pack(bits_of(data.codes, data.bits)[:, order])
    index, other = data.build(tables, buckets), rebuilt(data, permuted, tables, buckets)
    for plan in plans(index):
        assert answer(index, data, table, data.n, plan) == answer(other, data, table[order], data.n, plan)


@every_layout
@generated(25)
@given(data=datasets(), kind=kinds, power=st.integers(-40, 40))
def test_scaling_costs_by_a_power_of_two_scales_the_distances(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, power: int
) -> None:
    table = data.query(kind, 0)
    scaled = np.ldexp(table, power)
    assume((np.ldexp(scaled, -power) == table).all())  # scaling rounds some denormal weights
    index = data.build(tables, buckets)
    for plan in plans(index):
        ids, distances = answer(index, data, table, data.n, plan)
        scaled_distances = [math.ldexp(distance, power) for distance in distances]
        assert answer(index, data, scaled, data.n, plan) == (ids, scaled_distances)


@every_layout
@generated(25)
@given(data=datasets(), factor=st.integers(1, 1_000_003))
def test_scaling_integer_costs_scales_the_distances(tables: Tables, buckets: Buckets, data: Data, factor: int) -> None:
    table = data.query("integers", 0)
    index = data.build(tables, buckets)
    for plan in plans(index):
        ids, distances = answer(index, data, table, data.n, plan)
        assert answer(index, data, table * factor, data.n, plan) == (ids, [factor * distance for distance in distances])


@every_layout
@generated(25)
@given(data=datasets(), kind=kinds, share=st.floats(0, 1), draw=st.data())
def test_merged_answers_of_two_halves_equal_the_whole_answer(
    tables: Tables, buckets: Buckets, data: Data, kind: WeightKind, share: float, draw: st.DataObject
) -> None:
    cut = round(share * data.n)
    ids = np.arange(data.n, dtype=np.uint64) if data.ids is None else data.ids
    halves = [
        Data(data.bits, data.codes[part], ids[part], data.substring_bits, data.reorder, 1, data.seed)
        for part in (slice(None, cut), slice(cut, None))
    ]
    k = draw.draw(st.integers(0, data.n + 1))
    table = data.query(kind, 0)
    index = data.build(tables, buckets)
    indexes = [half.build(tables, buckets) for half in halves]
    for plan in plans(index):
        parts = [ranked(part, half, table, k, plan) for part, half in zip(indexes, halves, strict=True)]
        assert ranked(index, data, table, k, plan) == list(heapq.merge(*parts))[:k]


@every_layout
@generated(15)
@given(data=datasets(), kind=kinds)
def test_the_layout_does_not_change_the_answer(tables: Tables, buckets: Buckets, data: Data, kind: WeightKind) -> None:
    """Substring length, reordering, build threads and table layout affect speed only."""
    table = data.query(kind, 0)
    index = data.build(tables, buckets)
    plain = Index.build(data.codes, data.bits, data.ids, "none", reorder=False, threads=1)
    expected = answer(plain, data, table, data.n, "sweep")
    for plan in plans(index):
        assert answer(index, data, table, data.n, plan) == expected
