"""Checking vectors, and reading them in blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming.native import InvalidArgumentError
from whamming.storage.vectors import arrays as vectors
from whamming.storage.vectors.arrays import DTYPES, MAX_DIM, as_vectors, blocks, check_dim


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["rows", "columns", "every other"])
def test_blocks_contain_all_rows_as_float32_in_any_layout(
    dtype: str, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors, "BLOCK_CELLS", 1)  # 256 rows per block
    given = np.random.default_rng(0).integers(0, 100, (600, 3)).astype(dtype)
    shown = {"rows": given, "columns": np.asfortranarray(given), "every other": given[::2]}[layout]
    pieces = [(first, block.copy()) for first, block in blocks(shown)]
    assert [first for first, _ in pieces] == list(range(0, len(shown), 256))
    assert all(block.dtype == np.float32 for _, block in pieces)
    assert np.array_equal(np.concatenate([block for _, block in pieces]), shown.astype(np.float32))


@generated(60)
@given(
    rows=st.integers(1, 700),
    dim=st.integers(1, 5),
    value=st.sampled_from([np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    place=st.integers(0, 10**6),
)
def test_the_error_names_the_first_value_that_is_not_finite(
    rows: int, dim: int, value: float, dtype: str, place: int
) -> None:
    given = np.ones((rows, dim), dtype=dtype)
    row, column = divmod(place % given.size, dim)
    given[row, column] = value
    given[-1, -1] = value  # a later one, which is not named
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "BLOCK_CELLS", 1)  # 256 rows per block
        with pytest.raises(InvalidArgumentError, match=rf"what: row {row}, column {column} .*{value}; "):
            list(blocks(given, what="what"))


def test_a_double_beyond_single_precision_is_not_finite() -> None:
    with pytest.raises(InvalidArgumentError, match=r"row 1, column 0 .*1e\+300; .*3\.4e\+38"):
        list(blocks(np.array([[0.0], [1e300]])))


def test_values_whose_squares_overflow_are_finite() -> None:
    ((first, block),) = blocks(np.full((2, 2), 3e38, dtype=np.float32))
    assert first == 0
    assert (block == np.float32(3e38)).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.zeros((2, 3), dtype=np.int64), r"dtype int64; .*float32, .*astype"),
        (np.zeros((2, 3), dtype=bool), "dtype bool; use one of"),
        (np.zeros((2, 3), dtype=complex), "dtype complex128; use one of"),
        (np.array([["a"]]), "use one of"),
        (np.zeros((2, 4), dtype=np.float32), r"4 components, .* 3; .*\[n, 3\]"),
        (np.zeros(2, dtype=np.float32), "have 2 components, .* takes 3"),
        (np.zeros((1, 2, 3), dtype=np.float32), r"shape \(1, 2, 3\); .*\[n, dim\]"),
        (np.float32(1), r"shape \(\);"),
    ],
)
def test_invalid_vectors_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        as_vectors(given, 3)


def test_a_single_vector_is_distinguished_from_several() -> None:
    assert as_vectors([1.0, 2.0], 2)[1]
    assert as_vectors([1.0, 2.0], 2)[0].shape == (1, 2)
    assert not as_vectors([[1.0, 2.0]], 2)[1]


@pytest.mark.parametrize("dim", [0, -1, MAX_DIM + 1])
def test_a_dimension_out_of_range_is_refused(dim: int) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"dim = {dim}; .*1 to {MAX_DIM}"):
        check_dim(dim)
    if dim >= 0:
        with pytest.raises(InvalidArgumentError, match=rf"dim = {dim};"):
            as_vectors(np.zeros((0, dim), dtype=np.int8))
