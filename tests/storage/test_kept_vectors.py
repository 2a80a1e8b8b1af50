"""Packing vectors into bytes, and distances by each metric."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import generated
from whamming.native import InvalidArgumentError
from whamming.storage.items.payloads import Payloads
from whamming.storage.settings import IndexSettings, KeptVectors, Metric
from whamming.storage.vectors.kept import measure, pack_vectors, unpack_vectors


@generated(60)
@given(
    rows=st.integers(0, 20),
    dim=st.integers(1, 9),
    seed=st.integers(0, 999),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
    dtype=st.sampled_from(["float32", "float16", "float64", "int8", "uint8"]),
    kind=st.sampled_from(["float16", "int8"]),
)
def test_unpacked_vectors_are_as_close_as_the_format_allows(
    rows: int, dim: int, seed: int, scale: float, dtype: str, kind: KeptVectors
) -> None:
    rng = np.random.default_rng(seed)
    given = rng.uniform(-1, 1, (rows, dim)) * scale if dtype.startswith("f") else rng.integers(-128, 128, (rows, dim))
    given[: rows // 4] = 0
    vectors = given.astype(dtype) if dtype != "uint8" else np.abs(given).astype(dtype)
    packed = pack_vectors(vectors, kind)
    settings = IndexSettings(8, dim=dim, encoder="x", keep_vectors=kind)
    assert packed.shape == (rows, settings.vector_bytes)
    back = unpack_vectors(packed, kind)
    assert back.dtype == np.float32
    if kind == "float16":
        assert np.array_equal(back, vectors.astype(np.float32).astype(np.float16).astype(np.float32))
    elif dtype == "int8":
        assert np.array_equal(back, vectors)
    else:
        largest = np.abs(vectors.astype(np.float64)).max(axis=1, initial=0)
        assert (np.abs(back - vectors.astype(np.float64)) <= largest[:, None] * (0.51 / 127) + 1e-45).all()
        assert not back[: rows // 4].any()
    assert np.array_equal(unpack_vectors(pack_vectors(back, kind), kind), back) or kind == "int8"


def test_values_too_large_for_float16_are_refused() -> None:
    vectors = np.ones((3, 2), dtype=np.float32)
    vectors[1, 1] = 1e5
    with pytest.raises(InvalidArgumentError, match=r"row 1, column 1 .*100000\.0; .*65504"):
        pack_vectors(vectors, "float16")
    assert unpack_vectors(pack_vectors(vectors, "int8"), "int8")[1, 1] == pytest.approx(1e5)
    vectors[1, 1] = np.nan
    for kind in ("float16", "int8"):
        with pytest.raises(InvalidArgumentError, match="row 1, column 1 is nan"):
            pack_vectors(vectors, kind)


def test_distances_by_each_metric() -> None:
    query, vectors = np.array([3, 4], dtype=np.float32), np.array([[3, 4], [-6, -8], [0, 0], [4, -3]], dtype=np.float32)
    expected: dict[Metric, list[float]] = {
        "l2": [0, 15, 5, 50**0.5],
        "inner": [-25, 50, 0, 0],
        "cosine": [0, 2, 1, 1],
    }
    for metric, distances in expected.items():
        assert measure(metric, query, vectors).tolist() == pytest.approx(distances)
    assert measure("cosine", np.zeros(2, dtype=np.float32), vectors).tolist() == [1, 1, 1, 1]


@generated(60)
@given(count=st.integers(1, 12), length=st.integers(0, 5), seed=st.integers(0, 99), other=st.booleans())
def test_payloads_of_equal_length_are_taken_in_another_order(count: int, length: int, seed: int, other: bool) -> None:
    rng = np.random.default_rng(seed)
    given = [rng.bytes(length) for _ in range(count)] + ([b"longer one"] if other else [])
    order: NDArray[Any] = rng.integers(0, len(given), 2 * count)
    taken = Payloads.of(given).take(order)
    assert [taken[i] for i in range(len(taken))] == [given[i] for i in order]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keep_vectors": "float32", "dim": 3, "encoder": "x"}, "keep_vectors = 'float32'; .*'float16'"),
        ({"keep_vectors": "int8"}, "keep_vectors = 'int8' .*encoder"),
        ({"metric": "l1", "dim": 3, "encoder": "x"}, "metric = 'l1'; choose one of"),
        ({"metric": "cosine", "dim": 3, "encoder": "x"}, "metric = 'cosine' without keep_vectors"),
        ({"dim": 3}, "dim = 3 with encoder = None"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        IndexSettings(8, **arguments)


def test_settings_without_an_encoder_have_no_keys_about_vectors() -> None:
    plain = IndexSettings(8)
    assert list(plain.to_json()) == ["bits", "bit_order", "tables", "buckets", "durability"]
    full = IndexSettings(8, dim=3, encoder="x", keep_vectors="int8", metric="cosine")
    for settings in (plain, full):
        assert IndexSettings.from_json(settings.to_json()) == settings
