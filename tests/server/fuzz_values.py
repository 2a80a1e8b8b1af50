"""Values for fuzzing: unusual names, numbers and ids, and the indexes that cases use."""

from __future__ import annotations

import functools
import math
import random
import struct
import sys
from collections.abc import Sequence
from typing import Any, Final

from whamming.storage.vectors.fitting import fit
from whamming.v1 import types_pb2

CONTROLS: Final = {"control": 40, "control-big": 13}
"""Indexes that no case writes to, with their code lengths."""
VICTIMS: Final = {"fuzz-a": 64, "fuzz-b": 1, "fuzz-c": 20, "fuzz-d": 8, "fuzz-e": 128, "fuzz-v": 24}
"""Indexes that cases write to, drop and recreate, with their usual code lengths."""
ENCODED: Final = "fuzz-v"
"""The index that usually has an encoder."""
DIMENSION: Final = 8
"""The dimension of its vectors."""
BITS: Final = {**CONTROLS, **VICTIMS}

MAX_MESSAGE: Final = 1 << 20
"""The server's maximum message size in bytes."""
MAX_BATCH: Final = 80
"""The server's maximum number of queries per batch and per stream."""
MAX_PAYLOAD: Final = 65_536

ODD_WHOLE: Final = (0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**63 - 1, 2**63, 2**64 - 1)
ODD_REAL: Final = (
    *(0.0, -0.0, 1.0, -1.0, 0.1, math.nan, math.inf, -math.inf, 5e-324, -5e-324, sys.float_info.min, 1e-300),
    *(sys.float_info.max, -sys.float_info.max, 1e300, 2.0**53, -1e-3),
)
ODD_NAMES: Final = (
    *("", "/", ".", "..", "../control", "control/", "fuzz-a/data.mdb", ".hidden", "-x", "\0", "fuzz-a\0", "fuzz-a\n"),
    *(" fuzz-a", "FUZZ-A", "ünï", "名前", "\u202efuzz", "🦀" * 1000, "a" * 128, "a" * 129, "x" * 100_000, "%s%n%x"),
    *(
        "whamming.json",
        "writer.lock",
        "data.mdb",
        "a.b_c-d",
        "0",
        "\\",
        "~",
        "fuzz-a;drop",
        "\U0010ffff",
        "\x7f\x1b[2J",
    ),
)
FLOATS: Final = {types_pb2.ELEMENT_TYPE_FLOAT32: "f", types_pb2.ELEMENT_TYPE_FLOAT64: "d"}
"""Valid element types of weights and tables, with their ``struct`` formats."""
NUMBERS: Final = {
    **FLOATS,
    types_pb2.ELEMENT_TYPE_FLOAT16: "e",
    types_pb2.ELEMENT_TYPE_INT8: "b",
    types_pb2.ELEMENT_TYPE_UINT8: "B",
}
"""Valid element types of vectors."""


class Values:
    """Generates random values."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next_id = 0
        """The last query id that was used."""

    def chance(self, share: float) -> bool:
        """Return True with the given probability."""
        return self.rng.random() < share

    def number(self, numbers: Sequence[int]) -> Any:
        """One of some enum numbers, which need not be valid."""
        return self.rng.choice(numbers)

    def whole(self) -> int:
        """An unsigned 64-bit integer, often an unusual one."""
        return self.rng.choice(ODD_WHOLE) if self.chance(0.7) else self.rng.getrandbits(self.rng.randint(1, 64))

    def real(self) -> float:
        """A float, often an unusual one."""
        if self.chance(0.5):
            return self.rng.choice(ODD_REAL)
        return float(struct.unpack("<d", self.rng.randbytes(8))[0])

    def name(self, *, writes: bool = False) -> str:
        """The name of an index, which may not exist."""
        if self.chance(0.06):
            return self.rng.choice(ODD_NAMES)
        if not writes and self.chance(0.5):
            return self.rng.choice(list(CONTROLS))
        return self.rng.choice(list(VICTIMS))

    def ids(self, count: int) -> bytes:
        """A column of item ids, mostly from a small range, so that ids repeat."""
        ids = list(self.rng.randbytes(min(count, 100)))
        if ids and self.chance(0.2):
            ids[0] = self.rng.choice((2**64 - 1, self.rng.getrandbits(64)))
        return struct.pack(f"<{len(ids)}Q", *ids) + self.rng.randbytes(8 * (count - len(ids)))

    def torn(self, data: bytes, share: float = 0.03) -> bytes:
        """A column, sometimes with bytes missing or added."""
        if not self.chance(share):
            return data
        return (
            data[: -self.rng.choice((1, 3, 4, 8))]
            if self.chance(0.5)
            else data + self.rng.randbytes(self.rng.choice((1, 4, 8, 64)))
        )

    def matrix(self, numbers: Sequence[float], columns: int, kinds: Sequence[int]) -> types_pb2.Matrix:
        """A matrix, rarely with a wrong width, type or length."""
        rng = self.rng
        kind = rng.choice(kinds)
        letter = NUMBERS[kind]  # type: ignore[index]
        if letter in "bB":
            low, high = (-128, 127) if letter == "b" else (0, 255)
            data = bytes(int(0 if math.isnan(n) else min(max(n, low), high)) & 255 for n in numbers)
        else:
            most = {"e": 65_504.0, "f": 3.4e38, "d": sys.float_info.max}[letter]
            fitting = [n if not math.isfinite(n) else min(max(n, -most), most) for n in numbers]
            data = struct.pack(f"<{len(fitting)}{letter}", *fitting)
        if self.chance(0.03):
            columns = rng.choice((0, 1, columns - 1, columns + 1, 2 * columns, 65_537, 2**31, 2**32 - 1)) % 2**32
        if self.chance(0.03):
            kind = self.number((0, 1, 2, 3, 4, 5, 6, -1, 2**31 - 1))
        return types_pb2.Matrix(type=kind, columns=columns, data=self.torn(data))  # type: ignore[arg-type]

    def vectors(self, count: int) -> types_pb2.Matrix:
        """Vectors of any element type, sometimes with a special value."""
        numbers = [byte / 64 - 2 for byte in self.rng.randbytes(count * DIMENSION)]
        if numbers and self.chance(0.05):
            numbers[0] = self.rng.choice((math.nan, math.inf, -math.inf, 6e-8, 65_504.0, 3e38))
        return self.matrix(numbers, DIMENSION, tuple(NUMBERS))

    def payloads(self, count: int) -> types_pb2.PayloadColumn:
        """Payloads of all lengths, rarely with wrong lengths."""
        rng = self.rng
        sizes = (0, 1, 9, 200, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1)
        lengths = [rng.choices(sizes, (5, 9, 9, 3, 0.01, 0.1, 0.03))[0] for _ in range(count)]
        data = b"p" * sum(lengths)
        if lengths and self.chance(0.05):
            lengths[rng.randrange(len(lengths))] = rng.choice((0, 2, 2**31, 2**32 - 1))
        if lengths and self.chance(0.03):
            lengths = rng.choice((lengths[1:], [*lengths, 0]))
        packed = struct.pack(f"<{len(lengths)}I", *lengths)
        return types_pb2.PayloadColumn(lengths=self.torn(packed, 0.01), data=self.torn(data, 0.01))


@functools.cache
def fitted_encoder() -> bytes:
    """Return an encoder in the format that GetEncoder returns."""
    return fit("lsh", bits=VICTIMS[ENCODED], dim=DIMENSION).to_bytes()


def varint(number: int) -> bytes:
    """Return a number as a protobuf varint."""
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)
