"""Tests of packing queries into messages: number types and refused arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from whamming import InvalidArgumentError
from whamming.remote.queries import Queries
from whamming.v1 import search_pb2, types_pb2
from whamming.wire.columns import matrix_of

BITS = 16
CODES = np.arange(6, dtype=np.uint8).reshape(3, 2)
NUMBERS = np.random.default_rng(0).random((3, BITS))
TABLES = np.random.default_rng(1).random((3, BITS, 2))
VECTORS = np.random.default_rng(2).random((5, 7)).astype(np.float32)


def message(**given: Any) -> search_pb2.QueryBatch:
    queries = Queries(**{"code": None, "weights": None, "table": None, "vectors": None, "form": None} | given)
    return queries.request("docs", np.arange(len(queries)), search_pb2.QueryOptions()).queries


@pytest.mark.parametrize(
    ("dtype", "sent"),
    [
        (np.float32, types_pb2.ELEMENT_TYPE_FLOAT32),
        (np.float64, types_pb2.ELEMENT_TYPE_FLOAT64),
        (np.float16, types_pb2.ELEMENT_TYPE_FLOAT64),
        (np.int64, types_pb2.ELEMENT_TYPE_FLOAT64),
    ],
)
def test_numbers_keep_their_precision(dtype: Any, sent: int) -> None:
    """float32 is sent as float32, everything else as float64."""
    weights, tables = (100 * NUMBERS).astype(dtype), (100 * TABLES).astype(dtype)
    packed = message(code=CODES, weights=weights).weights
    assert packed.type == sent
    assert np.array_equal(matrix_of(packed, "weights"), weights)
    packed = message(table=tables).tables
    assert packed.type == sent
    assert np.array_equal(matrix_of(packed, "tables"), tables.reshape(3, -1))


@pytest.mark.parametrize(
    "given",
    [
        {"code": CODES, "vectors": VECTORS},
        {"code": CODES[0], "vectors": VECTORS},
        {"code": CODES, "table": TABLES[0]},
        {"table": TABLES, "vectors": VECTORS},
        {"code": CODES, "table": TABLES, "vectors": VECTORS},
    ],
)
def test_several_kinds_of_query_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"code.*cost table.*vector"):
        message(**given)


@pytest.mark.parametrize("given", [{"code": CODES}, {"table": TABLES}, {"vectors": VECTORS[:3]}])
def test_weights_for_another_number_of_queries_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="2 rows for 3 queries"):
        message(weights=NUMBERS[:2], **given)
