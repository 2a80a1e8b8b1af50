"""Faults for fuzzing: random bytes, unusual field values, and damaged messages."""

from __future__ import annotations

import math
import struct
from typing import Any

from google.protobuf.message import Message

from tests.server.fuzz_values import ODD_NAMES, Values, varint


class Faults(Values):
    """Generates and damages messages."""

    def junk(self) -> bytes:
        """Random bytes."""
        return self.rng.randbytes(self.rng.choice((1, 2, 3, 5, 8, 13, 64, 300, 4000)))

    def wire(self) -> bytes:
        """Random fields in the protobuf encoding."""
        return b"".join(self.field(self.rng.randint(0, 9)) for _ in range(self.rng.choice((1, 2, 4, 9))))

    def field(self, number: int, depth: int = 0) -> bytes:
        """One random field."""
        rng = self.rng
        kind = rng.choice((0, 0, 1, 2, 2, 2, 3, 5))
        tag = varint(number << 3 | kind)
        if kind == 0:
            return tag + rng.choice((varint(self.whole()), b"\xff" * rng.randint(1, 11) + b"\x01", b"\x80\x80\x00"))
        if kind == 1:
            return tag + struct.pack("<d", self.real())
        if kind == 5:
            return tag + rng.randbytes(4)
        if kind == 3:
            inside = b"" if depth > 3 else self.field(number, depth + 1) * rng.choice((0, 1, 1, 200))
            return tag + inside[:5000] + varint(number << 3 | 4)
        inside = rng.choice((b"", b"fuzz-a", rng.randbytes(rng.randint(0, 40)), b"\xff\xfe", b"\0" * 9))
        if depth < 4 and self.chance(0.4):
            inside = b"".join(self.field(rng.randint(1, 7), depth + 1) for _ in range(rng.randint(1, 4)))
        length = len(inside) if self.chance(0.95) else rng.choice((len(inside) + 1, 2**31 - 1, 2**32, 2**63))
        return tag + varint(length) + inside

    def unknown_field(self) -> bytes:
        """A field that none of our messages has."""
        number = self.rng.choice((50, 1000, 19_000, 2**29 - 1))
        return varint(number << 3) + varint(self.whole()) + varint(number << 3 | 2) + b"\x03abc"

    def damage(self, data: bytes) -> bytes:
        """Return a message with one fault in its bytes."""
        rng = self.rng
        if not data:
            return self.junk()
        place = rng.randrange(len(data))
        fault = rng.randrange(7)
        if fault == 0:
            return data[:place]
        if fault == 1:
            return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]
        if fault == 2:
            return data[:place] + rng.randbytes(rng.randint(1, 9)) + data[place:]
        if fault == 3:
            return data[:place] + data[place + rng.randint(1, 9) :]
        if fault == 4:
            return data + data
        if fault == 5:
            return data[:place] + b"\xff" * rng.choice((1, 4, 10)) + data[place + 1 :]
        return data[place:] + data[:place]

    def poke(self, message: Message) -> None:
        """Give an unusual value to one field of a message or of a nested message."""
        rng = self.rng
        fields: list[Any] = list(message.DESCRIPTOR.fields)
        if not fields:
            return
        field = rng.choice(fields)
        value = getattr(message, field.name)
        repeated = hasattr(value, "extend")
        if field.message_type is not None:
            if repeated:
                if not value or self.chance(0.2):
                    value.add()
                value = rng.choice(value)
            elif self.chance(0.1):
                message.ClearField(field.name)
                return
            value.SetInParent()
            self.poke(value)
        elif repeated:
            if value and self.chance(0.3):
                del value[rng.randrange(len(value)) :]
            elif value and self.chance(0.5):
                value[rng.randrange(len(value))] = self.odd(field)
            else:
                value.extend(self.odd(field) for _ in range(rng.choice((1, 2, 9))))
        elif self.chance(0.1):
            message.ClearField(field.name)
        elif field.name not in ("name", "index") or self.chance(0.2):
            setattr(message, field.name, self.odd(field))

    def odd(self, field: Any) -> Any:
        """An unusual value for a field."""
        rng, kind = self.rng, field.cpp_type
        if field.enum_type is not None:
            return rng.choice((*range(len(field.enum_type.values) + 2), -1, 2**31 - 1, -(2**31)))
        if kind == field.CPPTYPE_BOOL:
            return self.chance(0.5)
        if kind == field.CPPTYPE_STRING:
            if field.type == field.TYPE_STRING:
                return rng.choice(ODD_NAMES)
            return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 13, 16, 64, 75, 76)))
        if kind == field.CPPTYPE_DOUBLE:
            return self.real()
        if kind == field.CPPTYPE_FLOAT:
            return self.rng.choice((0.0, -0.0, 1.0, math.nan, math.inf, 1e-45, 3e38))
        if kind == field.CPPTYPE_UINT32:
            return self.whole() % 2**32
        if kind == field.CPPTYPE_INT32:
            return self.whole() % 2**31
        return self.whole()
