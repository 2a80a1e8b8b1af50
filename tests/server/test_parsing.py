"""Requests are parsed in bounded memory: a oneof cannot be switched many times."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.server.fuzz_values import varint
from whamming.server.rpc.parsing import MAX_FIELDS, parse
from whamming.v1.item_pb2 import GetRequest
from whamming.v1.search_pb2 import QueryBatch, SearchRequest
from whamming.wire.fields import FieldError

GRANT, CANCEL, UNKNOWN = b"\x1a\x00", b"\x12\x00", b"\x9a\x06\x00"


def test_a_request_may_have_unknown_fields() -> None:
    request = SearchRequest(queries=QueryBatch(index="docs", query_ids=range(1000), codes=bytes(1000)))
    data = (
        request.SerializeToString() + b"\x9a\x06\x03abc" + b"\x9d\x06four" + b"\x99\x06eightyes" + b"\x98\x06\x81\x01"
    )
    assert parse(SearchRequest, data).queries == request.queries


@pytest.mark.parametrize("field", [CANCEL, UNKNOWN, b"\x9d\x06four", b"\x99\x06eightyes", b"\x98\x06\x81\x01"])
def test_fields_of_any_type_count(field: bytes) -> None:
    assert parse(SearchRequest, GRANT + field * (MAX_FIELDS - 1)).WhichOneof("request") is not None
    with pytest.raises(FieldError, match="has more than 100 fields"):
        parse(SearchRequest, GRANT + field * MAX_FIELDS)


def test_fields_that_follow_groups_count() -> None:
    with pytest.raises(FieldError, match="or groups"):
        parse(SearchRequest, b"\x9b\x06\x9c\x06" + (GRANT + CANCEL) * MAX_FIELDS)


def test_requests_without_a_oneof_may_have_any_number_of_fields() -> None:
    assert parse(GetRequest, b"\x0a\x01a" * 10_000).index == "a"


def switches(parts: list[bytes]) -> bytes:
    return b"".join(parts) + (GRANT + CANCEL) * MAX_FIELDS


odd = st.one_of(
    st.binary(max_size=12),
    st.integers(0, 2**70).map(varint),
    st.sampled_from([GRANT, CANCEL, b"\x92\x00\x00", b"\x12\x80\x00", b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"]),
)


@given(st.lists(odd, max_size=6).map(switches))
@example(switches([b"\xfa\xff\xff\xff\x0f\x00"]))
@example(switches([b"\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x00"]))
def test_nothing_hides_switches_from_the_count(data: bytes) -> None:
    """A request with many switches is refused, whatever precedes them, unless that contains them."""
    try:
        request = parse(SearchRequest, data)
    except FieldError:
        return
    other = parse(SearchRequest, data.removesuffix(CANCEL) + GRANT)
    assert other.WhichOneof("request") == request.WhichOneof("request"), "the last field is a switch"
