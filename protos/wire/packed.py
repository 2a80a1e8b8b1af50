"""Packed fields as numpy arrays, without a Python number for each of theirs.

A packed field is written as its tag, its length and its numbers end to end, little-endian: as they lie in memory. So
numbers go into a message by being merged from bytes, and come out of one by being found in its bytes.
"""

from __future__ import annotations

import functools
from typing import Any, Final

import numpy as np
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message
from numpy.typing import NDArray

FEW: Final = 32
"""So many numbers are faster one by one."""
VARINT, EIGHT_BYTES, BYTES = 0, 1, 2
"""How a field is written: the lowest three bits of its tag."""


def field_bytes(number: int, data: bytes) -> bytes:
    """Return a field as it is written whose contents have a length: bytes, a message, or packed numbers."""
    return field_head(number, len(data)) + data


def field_head(number: int, size: int) -> bytes:
    """Return what such a field begins with; its contents have so many bytes."""
    return _varint(number << 3 | BYTES) + _varint(size)


def pack(message: Message, field: str, numbers: NDArray[Any]) -> None:
    """Add numbers to a packed field; their type must be the field's, which has a fixed size."""
    if len(numbers) <= FEW:
        getattr(message, field).extend(numbers.tolist())
        return
    data = numbers.astype(_stored(numbers.dtype), copy=False).tobytes()
    message.MergeFromString(field_bytes(_number(message.DESCRIPTOR, field), data))


def unpack(message: Message, field: str, dtype: Any) -> NDArray[Any]:
    """Return the numbers of a packed field, whose type has a fixed size."""
    numbers = getattr(message, field)
    count = len(numbers)
    if count > FEW:
        number, stored = _number(message.DESCRIPTOR, field), _stored(dtype)
        data, at = message.SerializeToString(), 0
        while at < len(data):
            tag, at = _read_varint(data, at)
            if tag & 7 == BYTES:
                size, at = _read_varint(data, at)
                if tag >> 3 == number and size == count * stored.itemsize:
                    return np.frombuffer(data, stored, count, at).astype(dtype)
                at += size
            elif tag & 7 == VARINT:
                _, at = _read_varint(data, at)
            elif tag & 7 == EIGHT_BYTES:
                at += 8
            else:  # nothing that stands before a field of ours
                break
    return np.fromiter(numbers, dtype=dtype, count=count)


@functools.cache
def _number(message: Descriptor, field: str) -> int:
    """Return the number of a field."""
    return message.fields_by_name[field].number


@functools.cache
def _stored(dtype: Any) -> np.dtype[Any]:
    """Return the type of numbers as they are written."""
    stored: np.dtype[Any] = np.dtype(dtype).newbyteorder("<")
    return stored


def _varint(number: int) -> bytes:
    """Return a number as 7 bits a byte, the lowest first."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    digits.append(number)
    return bytes(digits)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that is written at a place, and where it ends."""
    number = shift = 0
    while (digit := data[at]) > 127:
        number |= (digit & 127) << shift
        shift += 7
        at += 1
    return number | digit << shift, at + 1
