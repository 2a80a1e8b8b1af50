"""Parse requests in bounded memory.

A parsed request takes little more memory than its bytes, at most about three times as much, with one exception:
protobuf allocates a new message each time that the bytes switch to another message of a oneof. 16 MiB of such switches
take 530 MiB. So a request with such a
oneof may have few fields at its top level. Only the top level is checked, because no message within a request has such
a oneof.
"""

from __future__ import annotations

import functools
from typing import Final, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from whamming.wire.fields import FieldError

MAX_FIELDS: Final = 100
"""Fields that a request with a oneof may have at its top level. A client sends one, and a newer one perhaps a few."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_SIZES: Final = {_FIXED64: 8, _FIXED32: 4}

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    """Return the request with these bytes. Raises :class:`FieldError` if they are not valid."""
    described = kind.DESCRIPTOR
    if has_oneof_of_messages(described) and _has_more_fields(data, MAX_FIELDS):
        raise FieldError(
            "request",
            f"a {described.full_name} of {len(data)} bytes has more than {MAX_FIELDS} fields, or groups; it needs one",
        )
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise FieldError("request", f"{len(data)} bytes are not a valid {described.full_name}: {error}") from error


@functools.cache
def has_oneof_of_messages(described: Descriptor) -> bool:
    """Return whether a message has a oneof with a message in it."""
    return any(field.message_type for oneof in described.oneofs for field in oneof.fields)


def _has_more_fields(data: bytes, most: int) -> bool:
    """Return whether a message has more than so many fields at its top level. If it has a group, return True.

    If the bytes are malformed, count the fields before the fault, where the parser will stop.
    """
    at, count = 0, 0
    while at < len(data):
        count += 1
        if count > most:
            return True
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            _, at = _varint(data, at)
        elif kind == _BYTES:
            size, at = _varint(data, at)
            at += size
        elif kind in _SIZES:
            at += _SIZES[kind]
        else:
            return True
    return False


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at a place, and the place after it. A number that is cut off, or too long, ends the data."""
    value = 0
    for shift, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * shift
        if byte < 128:
            return value, at + shift + 1
    return 0, len(data)
