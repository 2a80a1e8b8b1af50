"""Columns: round trips, and errors that name the invalid field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.native.examples import generated
from whamming import InvalidArgumentError
from whamming.storage import Payloads
from whamming.v1 import types_pb2
from whamming.v1.types_pb2 import IdColumn, Matrix, PayloadColumn
from whamming.wire.columns import (
    id_column,
    ids_of,
    matrix,
    matrix_of,
    numbers_of,
    payload_column,
    payload_list_column,
    payload_list_of,
    payloads_of,
    sum_column,
    sum_list_of,
)
from whamming.wire.enums import ELEMENT_TYPES
from whamming.wire.fields import FieldError, in_field

TYPES = ["<f4", "<f2", "i1", "<f8", "u1"]


@given(st.lists(st.integers(0, 2**64 - 1)))
@generated(100)
def test_ids(ids: list[int]) -> None:
    for array in (np.array(ids, dtype="<u8"), np.array(ids, dtype=">u8"), np.array(ids + ids, dtype="<u8")[: len(ids)]):
        column = IdColumn.FromString(id_column(array).SerializeToString())
        assert len(column.uint64) == 8 * len(ids)
        assert ids_of(column, "ids").tolist() == ids


def test_ids_are_little_endian() -> None:
    assert id_column(np.array([1, 2**63], dtype=np.uint64)).uint64 == b"\1" + bytes(14) + b"\x80"
    assert len(ids_of(IdColumn(), "ids")) == 0, "an unset column has no ids"


@given(data=st.data(), kind=st.sampled_from(TYPES), rows=st.integers(0, 5), columns=st.integers(1, 7))
@generated(100)
def test_matrices(data: st.DataObject, kind: str, rows: int, columns: int) -> None:
    raw = data.draw(st.binary(min_size=8 * rows * columns, max_size=8 * rows * columns))
    dtype = np.dtype(kind)
    numbers = np.frombuffer(raw, dtype=dtype, count=rows * columns).reshape(rows, columns)
    strided = np.repeat(numbers, 2, axis=1)[:, ::2]
    for given_rows in (numbers, numbers.astype(dtype.newbyteorder(">")), np.asfortranarray(numbers), strided):
        message = Matrix.FromString(matrix(given_rows).SerializeToString())
        assert message.columns == columns
        assert ELEMENT_TYPES[message.type] == dtype
        found = matrix_of(message, "m")
        assert found.dtype == dtype
        assert found.shape == (rows, columns)
        assert np.array_equal(found, numbers, equal_nan=kind.startswith("<f"))


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.bool_, np.longdouble])
def test_numbers_of_other_types_become_float32(dtype: Any) -> None:
    message = matrix(np.array([[0, 1, 1]], dtype=dtype))
    assert message.type == types_pb2.ELEMENT_TYPE_FLOAT32
    assert matrix_of(message, "m").tolist() == [[0.0, 1.0, 1.0]]


def test_every_element_type_has_a_numpy_type() -> None:
    numbers = set(types_pb2.ElementType.values()) - {types_pb2.ELEMENT_TYPE_UNSPECIFIED}
    assert set(ELEMENT_TYPES) == numbers
    for number, dtype in ELEMENT_TYPES.items():
        assert types_pb2.ElementType.Name(number) == f"ELEMENT_TYPE_{dtype.name.upper()}"


def odd_matrix(kind: Any, columns: int, data: bytes = b"") -> Matrix:
    return Matrix(type=kind, columns=columns, data=data)


@pytest.mark.parametrize(
    ("message", "field", "words"),
    [
        (Matrix(), "m.type", "m.type = 0"),
        (odd_matrix(9, 1), "m.type", "m.type = 9"),
        (odd_matrix(-1, 1), "m.type", "m.type = -1"),
        (odd_matrix(1, 0), "m.data", "0 bytes; rows of 0 x float32"),
        (odd_matrix(1, 0, bytes(4)), "m.data", "4 bytes"),
        (odd_matrix(1, 3, bytes(11)), "m.data", "11 bytes; rows of 3 x float32 have 12 each"),
        (odd_matrix(4, 2**32 - 1, bytes(8)), "m.data", "8 bytes"),
    ],
    ids=str,
)
def test_invalid_matrices(message: Matrix, field: str, words: str) -> None:
    with pytest.raises(FieldError) as caught:
        matrix_of(message, "m")
    assert caught.value.field == field
    assert words in str(caught.value)


@pytest.mark.parametrize("size", [1, 7, 9, 15])
def test_columns_of_the_wrong_length(size: int) -> None:
    with pytest.raises(FieldError, match=f"{size} bytes; .*multiple of 8") as caught:
        ids_of(IdColumn(uint64=bytes(size)), "items.ids")
    assert caught.value.field == "items.ids.uint64"
    assert len(numbers_of(bytes(size * 4), "<u4", "x")) == size


@given(st.lists(st.binary(max_size=20)))
@generated(100)
def test_payloads(payloads: list[bytes]) -> None:
    message = PayloadColumn.FromString(payload_list_column(payloads).SerializeToString())
    assert payload_list_of(message, len(payloads)) == payloads
    packed = payloads_of(message, len(payloads), "p")
    assert packed.lengths().tolist() == [len(payload) for payload in payloads]
    assert packed.data.tobytes() == b"".join(payloads)
    assert payload_column(packed) == message
    ends = np.cumsum([len(payload) for payload in payloads], dtype=np.uint64)
    assert payload_column(Payloads(ends, np.frombuffer(b"".join(payloads), dtype=np.uint8))) == message


def test_an_unset_payload_column_means_empty_payloads() -> None:
    assert payload_list_of(PayloadColumn(), 3) == [b""] * 3


@pytest.mark.parametrize(
    ("lengths", "data", "field", "words"),
    [
        ([1, 2], 3, "p.lengths", "2 numbers for 3 rows"),
        ([1, 2, 3, 4], 10, "p.lengths", "4 numbers for 3 rows"),
        ([], 0, "p.lengths", "0 numbers for 3 rows"),
        ([1, 2, 3], 5, "p.data", "5 bytes"),
        ([1, 2, 3], 7, "p.data", "7 bytes"),
        ([2**32 - 1] * 3, 5, "p.data", f" {3 * (2**32 - 1)}"),
    ],
)
def test_invalid_payloads(lengths: list[int], data: int, field: str, words: str) -> None:
    message = PayloadColumn(lengths=np.array(lengths, dtype="<u4").tobytes(), data=bytes(data))
    with pytest.raises(FieldError) as caught:
        payloads_of(message, 3, "p")
    assert caught.value.field == field
    assert words in str(caught.value)


def test_lengths_that_are_not_whole_numbers() -> None:
    with pytest.raises(FieldError) as caught:
        payloads_of(PayloadColumn(lengths=bytes(5)), 1, "p")
    assert caught.value.field == "p.lengths"


@pytest.mark.parametrize("sums", [[], [b""], [b"", b""], [bytes(16)], [b"", b"\xff" * 16, b"", bytes(range(16))]])
def test_exact_distances(sums: list[bytes]) -> None:
    column = sum_column(sums)
    assert len(column) == (16 * len(sums) if any(sums) else 0)
    assert sum_list_of(column, len(sums), "sums") == sums


@pytest.mark.parametrize("size", [1, 15, 16, 31, 33, 48])
def test_invalid_exact_distances(size: int) -> None:
    with pytest.raises(FieldError, match=f"sums has {size} bytes for 2 rows") as caught:
        sum_list_of(bytes(size), 2, "sums")
    assert caught.value.field == "sums"


def test_in_field_adds_a_field_to_errors_without_one() -> None:
    with pytest.raises(FieldError, match="too long") as caught, in_field("weights"):
        raise InvalidArgumentError("too long")
    assert caught.value.field == "weights"
    with pytest.raises(FieldError) as caught, in_field("weights"):
        raise FieldError("weights.type", "odd")
    assert caught.value.field == "weights.type"
    with pytest.raises(KeyError), in_field("weights"):
        raise KeyError
    with in_field("weights"):
        pass
