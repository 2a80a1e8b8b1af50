"""Cases for the fuzz: what a client that is wrong, odd, hasty or hostile sends to each rpc.

A case is a method and what is done with one call of it. The cases of a seed are numbered, and each can be made again
without the others. Messages are made in three ways: bytes of no meaning; messages of the right shape whose values are
odd; and mostly right ones with a fault, in a field or in the bytes.
"""

from __future__ import annotations

import functools
import json
import math
import random
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from whamming.server.app import SERVICES
from whamming.storage.vectors.fitting import fit
from whamming.v1 import index_pb2, item_pb2, search_pb2

METHODS: Final[dict[str, MethodDescriptor]] = {
    f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods
}
"""Ours, by path."""
FOREIGN: Final = (
    "/grpc.health.v1.Health/Check",
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
)
"""Served by gRPC's own packages."""
UNKNOWN: Final = ("/whamming.v1.SearchService/Nothing", "/whamming.v2.SearchService/Search", "/")

CONTROLS: Final = {"control": 40, "control-big": 13}
"""Indexes that no case writes to, and their bits."""
VICTIMS: Final = {"fuzz-a": 64, "fuzz-b": 1, "fuzz-c": 20, "fuzz-d": 8, "fuzz-e": 128, "fuzz-v": 24}
"""Indexes that cases write to, drop and make anew, and the bits that they mostly have."""
ENCODED: Final = "fuzz-v"
"""The one of them that has an encoder, mostly."""
DIMENSION: Final = 8
"""Of its vectors."""

MAX_MESSAGE: Final = 1 << 20
"""Bytes that the server is told to take."""
MAX_BATCH: Final = 80
"""Queries that the server is told to take in a batch and on a stream."""
MAX_PAYLOAD: Final = 65_536

Verb = Literal["send", "read", "yield", "close", "cancel"]
Step = tuple[Verb, Any]
"""``send`` bytes; let so many responses be ``read``; ``yield`` so many times to others; ``close`` the sending side;
``cancel`` the call."""


@dataclass(frozen=True)
class Case:
    """One call."""

    method: str
    steps: tuple[Step, ...]
    timeout: float | None = None
    """Seconds that the client gives the call; None: as long as it takes."""

    @property
    def sent(self) -> list[bytes]:
        """The messages."""
        return [value for verb, value in self.steps if verb == "send"]

    @property
    def cancels(self) -> bool:
        """The client gives up, or may."""
        return any(verb == "cancel" for verb, _ in self.steps)

    def to_json(self) -> str:
        """Write it down, to be read by :meth:`from_json`."""
        steps = [[verb, value.hex() if verb == "send" else value] for verb, value in self.steps]
        return json.dumps({"method": self.method, "steps": steps, "timeout": self.timeout})

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Read a case."""
        values = json.loads(text)
        steps = tuple((verb, bytes.fromhex(value) if verb == "send" else value) for verb, value in values["steps"])
        return cls(values["method"], steps, values["timeout"])


def make_case(seed: int, number: int) -> Case:
    """Return a case of a seed: the same one every time."""
    return _Maker(random.Random(f"{seed}/{number}")).case()


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
_WEIGHTS: Final = {  # how often each method is called; 3 where nothing is said
    "Search": 34,
    "SearchOnce": 12,
    "Upsert": 12,
    "Delete": 5,
    "Get": 5,
    "Scan": 4,
    "CreateIndex": 7,
    "GetIndex": 4,
    "DeleteIndex": 2,
}
_BITS: Final = {**CONTROLS, **VICTIMS}


class _Maker:
    """Makes one case."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.next_id = 0

    def case(self) -> Case:
        rng = self.rng
        if self.chance(0.03):
            return self.foreign()
        path = rng.choices(list(METHODS), [_WEIGHTS.get(method.name, 3) for method in METHODS.values()])[0]
        method = METHODS[path]
        if method.client_streaming:
            steps = self.conversation(method)
        elif self.chance(0.01):  # not what the method takes
            steps = [("send", self.message(method)) for _ in range(rng.choice((0, 2, 3)))]
        else:
            steps = [("send", self.message(method))]
        if self.chance(0.06):
            steps.insert(rng.randint(0, len(steps)), ("cancel", None))
            steps.insert(steps.index(("cancel", None)), ("yield", rng.choice((0, 1, 2, 5, 20))))
        timeout = rng.choice((0.0, 0.001, 0.003, 0.01, 0.1)) if self.chance(0.02) else None
        if not steps or (not method.client_streaming and not any(verb == "send" for verb, _ in steps)):
            timeout = 0.2  # gRPC waits for the message that has to come, for as long as it is told to
        return Case(path, tuple(steps), timeout)

    def foreign(self) -> Case:
        """A call of what is not ours."""
        path = self.rng.choice((*FOREIGN, *UNKNOWN))
        data = self.rng.choice((b"", b"\x0a\x00", b"\x0a\x17whamming.v1.ItemService", self.junk(), self.wire()))
        steps: list[Step] = [("send", data)]
        if path.endswith("Watch"):
            steps += [("yield", 3), ("cancel", None)]
        return Case(path, tuple(steps))

    # -- conversations ----------------------------------------------------------------------------------------------

    def conversation(self, method: MethodDescriptor) -> list[Step]:
        """What is done on a stream: messages, and pauses in which responses are read or not."""
        rng = self.rng
        steps: list[Step] = []
        eager = self.chance(0.7)
        if eager:
            steps.append(("read", 10**9))
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3, 6))):
            if self.chance(0.3):
                steps.append(("yield", rng.choice((1, 3, 10))))
            if not eager and self.chance(0.3):
                steps.append(("read", rng.randint(1, 3)))
            steps.append(("send", self.message(method)))
        if self.chance(0.2):
            steps.append(("yield", rng.choice((1, 10, 30))))
        steps.append(("close", None))
        return steps

    # -- messages ---------------------------------------------------------------------------------------------------

    def message(self, method: MethodDescriptor) -> bytes:
        """A message for a method, or what pretends to be one."""
        rng = self.rng
        fate = rng.random()
        if fate < 0.05:
            return self.junk()
        if fate < 0.12:
            return self.wire()
        message = _BUILDERS[method.name](self) if method.name in _BUILDERS else self.any_message(method)
        if fate < 0.25:
            for _ in range(rng.choice((1, 1, 2, 4))):
                self.poke(message)
        data = message.SerializeToString()
        if 0.25 <= fate < 0.37:
            for _ in range(rng.choice((1, 1, 2, 4))):
                data = self.damage(data)
        elif fate < 0.40:
            data += self.unknown_field()
        return data

    def junk(self) -> bytes:
        """Bytes of no meaning."""
        return self.rng.randbytes(self.rng.choice((1, 2, 3, 5, 8, 13, 64, 300, 4000)))

    def wire(self) -> bytes:
        """Fields of any number and kind, in protobuf's encoding."""
        return b"".join(self.field(self.rng.randint(0, 9)) for _ in range(self.rng.choice((1, 2, 4, 9))))

    def field(self, number: int, depth: int = 0) -> bytes:
        """One field of any kind."""
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
        """A field that no message of ours has."""
        number = self.rng.choice((50, 1000, 19_000, 2**29 - 1))
        return varint(number << 3) + varint(self.whole()) + varint(number << 3 | 2) + b"\x03abc"

    def damage(self, data: bytes) -> bytes:
        """A message with a fault in its bytes."""
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
        """Make one field of a message, or of one inside of it, odd."""
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
        """An odd value for a field."""
        rng, kind = self.rng, field.cpp_type
        if field.enum_type is not None:
            return rng.choice((*range(len(field.enum_type.values) + 2), -1, 2**31 - 1, -(2**31)))
        if kind == field.CPPTYPE_BOOL:
            return self.chance(0.5)
        if kind == field.CPPTYPE_STRING:
            if field.type == field.TYPE_STRING:
                return rng.choice(ODD_NAMES)
            return rng.randbytes(rng.choice((0, 1, 7, 8, 9, 13, 75, 76)))
        if kind == field.CPPTYPE_DOUBLE:
            return self.real()
        if kind == field.CPPTYPE_FLOAT:
            return self.rng.choice((0.0, -0.0, 1.0, math.nan, math.inf, 1e-45, 3e38))
        if kind == field.CPPTYPE_UINT32:
            return self.whole() % 2**32
        return self.whole()

    # -- values -----------------------------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def number(self, numbers: Sequence[int]) -> Any:
        """The number of an enum's value, if it has such a one."""
        return self.rng.choice(numbers)

    def whole(self) -> int:
        return self.rng.choice(ODD_WHOLE) if self.chance(0.7) else self.rng.getrandbits(self.rng.randint(1, 64))

    def real(self) -> float:
        if self.chance(0.5):
            return self.rng.choice(ODD_REAL)
        return float(struct.unpack("<d", self.rng.randbytes(8))[0])

    def name(self, *, writes: bool = False) -> str:
        """The name of an index, that there may be."""
        if self.chance(0.06):
            return self.rng.choice(ODD_NAMES)
        if not writes and self.chance(0.5):
            return self.rng.choice(list(CONTROLS))
        return self.rng.choice(list(VICTIMS))

    def ids(self, count: int) -> list[int]:
        """Ids of items: mostly of few, so that items are met again."""
        ids = list(self.rng.randbytes(min(count, 100)))
        if ids and self.chance(0.2):
            ids[0] = self.rng.choice((2**64 - 1, self.rng.getrandbits(64)))
        left = count - len(ids)
        return [*ids, *struct.unpack(f"<{left}Q", self.rng.randbytes(8 * left))]

    def some_ids(self) -> list[int]:
        return self.ids(self.rng.choice((0, 1, 2, 5, 20, 60)))

    def settings(self, name: str) -> index_pb2.IndexSettings:
        rng = self.rng
        bits = _BITS.get(name, 64) if self.chance(0.8) else rng.choice((1, 7, 9, 64, 65, 256, 4096, 0, 4097, 2**32 - 1))
        message = index_pb2.IndexSettings(bits=bits)
        if self.chance(0.5):
            choices: list[Any] = list(message.DESCRIPTOR.fields[1:5])
            for field in choices:
                setattr(message, field.name, rng.randint(0, len(field.enum_type.values) - 1))
        return message

    def vectors(self, count: int) -> index_pb2.VectorBatch:
        """Vectors: plain numbers of any type, sometimes with a strange one among them, or of another length."""
        rng = self.rng
        kind: Any = rng.choice((0, 1, 2, 3))
        dimension = DIMENSION if self.chance(0.95) else rng.choice((0, 1, 7, 65_536, 65_537, 2**32 - 1))
        numbers = [byte / 64 - 2 for byte in rng.randbytes(count * DIMENSION)]
        if numbers and self.chance(0.05):
            numbers[0] = rng.choice((math.nan, math.inf, -math.inf, 6e-8, 65_504.0))
        if kind == 3:
            return index_pb2.VectorBatch(dimension=dimension, type=kind, data=rng.randbytes(count * DIMENSION))
        data = struct.pack(f"<{len(numbers)}{'e' if kind == 2 else 'f'}", *numbers)
        return index_pb2.VectorBatch(dimension=dimension, type=kind, data=data if self.chance(0.97) else data[:-1])

    def encoder(self, message: index_pb2.CreateIndexRequest) -> None:
        """Give a new index an encoder: one to be made, or one that was exported."""
        rng = self.rng
        message.settings.kept_vectors = self.number((0, 0, 2, 3, 1, 4) if self.chance(0.1) else (0, 2, 3))
        message.settings.metric = self.number((0, 1, 2, 3))
        if self.chance(0.15):
            exported = fitted_encoder()
            message.fitted_encoder = exported if self.chance(0.5) else self.damage(exported)
            return
        message.encoder.kind = self.number((2, 2, 2, 1, 3, 0, 4))
        message.encoder.dimension = DIMENSION if self.chance(0.9) else rng.choice((0, 1, 65_537, 2**32 - 1))
        message.encoder.seed = self.whole()
        if message.encoder.kind != 2 and message.settings.bits > DIMENSION:
            message.settings.bits = rng.choice((0, 1, 5, DIMENSION))
        if message.encoder.kind == 3 or self.chance(0.2):
            message.encoder.sample.CopyFrom(self.vectors(rng.choice((0, 1, 9, 40))))
        if self.chance(0.1):
            message.encoder.centred = self.chance(0.5)

    def any_message(self, method: MethodDescriptor) -> Message:
        """A message for a method that needs but the name of an index."""
        message = message_factory.GetMessageClass(method.input_type)()
        name = self.name(writes=method.name == "DeleteIndex")
        if method.name == "GetEncoder" and self.chance(0.5):
            name = ENCODED
        setattr(message, message.DESCRIPTOR.fields[0].name, name)
        return message

    def create_index(self) -> Message:
        name = self.name(writes=not self.chance(0.05))
        message = index_pb2.CreateIndexRequest(name=name, settings=self.settings(name), exist_ok=self.chance(0.6))
        if self.chance(0.8 if name == ENCODED else 0.05):
            self.encoder(message)
        return message

    def list_indexes(self) -> Message:
        rng = self.rng
        token = rng.choice(("", "", "control", "fuzz-c", "zzz", rng.choice(ODD_NAMES)))
        return index_pb2.ListIndexesRequest(page_size=rng.choice((0, 1, 2, 1000, 1001, 2**32 - 1)), page_token=token)

    def upsert(self) -> Message:
        rng = self.rng
        name = self.name(writes=True)
        width = (_BITS.get(name, 64) + 7) // 8
        count = rng.choice((0, 1, 1, 2, 3, 5, 10, 30, 100))
        if self.chance(0.01):  # about as large as a message may be
            count = MAX_MESSAGE // (width + 8) - rng.choice((0, 1, 2, 3, 10))
        ids = self.ids(count)
        codes = rng.randbytes(count * width + (0 if self.chance(0.93) else rng.choice((-1, 1, width, 64)) % 4096))
        message = item_pb2.UpsertRequest(
            index="" if self.chance(0.2) else name,
            sequence=self.whole(),
            items=item_pb2.ItemBatch(ids=ids, codes=codes),
            durability=self.number((0, 0, 0, 1, 2)),
        )
        if self.chance(0.7 if name == ENCODED else 0.02) and count <= 100:
            message.items.vectors.CopyFrom(self.vectors(count))
            if self.chance(0.95):
                message.items.codes = b""
        if count <= 100 and self.chance(0.3):
            sizes = (0, 1, 9, 200, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1)
            few = count if self.chance(0.95) else max(0, count + rng.choice((-1, 1)))
            message.items.payloads.extend(
                b"p" * rng.choices(sizes, (5, 9, 9, 3, 0.01, 0.1, 0.03))[0] for _ in range(few)
            )
        return message

    def delete(self) -> Message:
        durability: Any = self.rng.choice((0, 0, 1, 2))
        return item_pb2.DeleteRequest(index=self.name(writes=True), ids=self.some_ids(), durability=durability)

    def get(self) -> Message:
        ids = self.some_ids()
        if ids and self.chance(0.02):
            ids *= (MAX_MESSAGE - 100) // (8 * len(ids))
        return item_pb2.GetRequest(index=self.name(), ids=ids)

    def scan(self) -> Message:
        size = self.rng.choice((0, 0, 20, 75, 100, 100_000, 100_001, 2**32 - 1))
        return item_pb2.ScanRequest(index=self.name(), batch_size=size)

    def options(self) -> search_pb2.QueryOptions:
        rng = self.rng
        message = search_pb2.QueryOptions(payloads=self.chance(0.2))
        if self.chance(0.8):
            message.k = rng.choice(ODD_WHOLE) if self.chance(0.1) else rng.choice((1, 2, 5, 10, 100, 1000))
        if self.chance(0.25):
            message.radius = self.real() if self.chance(0.3) else rng.uniform(-5, 40)
        if self.chance(0.4):
            message.plan = self.number((0, 1, 2, 3) if self.chance(0.9) else (4, -1, 2**31 - 1))
        if self.chance(0.3):
            message.chunk_size = rng.choice((0, 1, 2, 7, 100, 65_536, 65_537, 2**32 - 1))
        if self.chance(0.15):
            message.credit = rng.choice((1, 5, 20, 10**6, 2**63, 2**64 - 1)) if self.chance(0.93) else 0
        if self.chance(0.15):
            message.budget.candidates = rng.choice((0, 1, 10, 100, 2**63, 2**64 - 1))
            message.budget.seconds = rng.choice((0.0, 0.0, -0.0, 5e-324, 1e-9, 1e-3, 1e300, rng.choice(ODD_REAL)))
        return message

    def query(self, name: str) -> search_pb2.Query:
        rng = self.rng
        bits = _BITS.get(name, 64)
        self.next_id += 1
        message = search_pb2.Query(id=self.next_id if self.chance(0.98) else rng.choice((0, 1, 2, 2**64 - 1)))
        form = rng.choices(("hamming", "weights", "table", "mixed"), (30, 40, 25, 5))[0]
        if form != "table" and not (form == "mixed" and self.chance(0.5)):
            message.code = rng.randbytes((bits + 7) // 8 if self.chance(0.95) else rng.choice((0, 1, 7, 9, 600)))
        if form in ("weights", "mixed") and (form == "weights" or self.chance(0.5)):
            message.weights.extend(self.numbers(bits))
        if form == "table" or (form == "mixed" and self.chance(0.5)):
            message.table.extend(self.numbers(2 * bits))
        if self.chance(0.6 if name == ENCODED else 0.01):
            self.by_vector(message)
        if self.chance(0.1):
            message.after.distance = self.real() if self.chance(0.3) else rng.uniform(-1, 30)
            message.after.id = self.ids(1)[0]
        if self.chance(0.3):
            message.options.CopyFrom(self.options())
        return message

    def by_vector(self, message: search_pb2.Query) -> None:
        """Make it a query by vector, whose hits may be ranked again."""
        rng = self.rng
        if self.chance(0.95):
            for field in ("code", "weights", "table"):
                message.ClearField(field)
        count = DIMENSION if self.chance(0.95) else rng.choice((0, 1, DIMENSION + 1))
        message.vector.extend(byte / 64 - 2 for byte in rng.randbytes(count))
        if count and self.chance(0.05):
            message.vector[0] = rng.choice((math.nan, math.inf, 3e38, 1e-45))
        message.form = rng.choice((0, 0, 0, 1, 2, 3) if self.chance(0.97) else (4, -1))  # type: ignore[assignment]
        if self.chance(0.5):
            message.options.k = rng.choice((1, 3, 10, 100, 2**31 - 1))
            if self.chance(0.7):
                message.options.rerank = rng.choice((1, 2, 5, 100) if self.chance(0.9) else (1_000_001, 2**32 - 1))
            else:
                message.options.rerank_exactly = True

    def numbers(self, count: int) -> list[float]:
        """Weights or costs: plain ones, ones of a strange size, or a strange one among plain ones."""
        rng = self.rng
        if self.chance(0.05):
            count = rng.choice((0, 1, count - 1, count + 1, 2 * count))
        kind = rng.random()
        if kind < 0.3:
            return [float(byte % 13 - 3) for byte in rng.randbytes(count)]
        if kind < 0.35:
            return [rng.choice(ODD_REAL)] * count
        size = 1.0 if kind < 0.8 else 10.0 ** rng.randint(-320, 300)
        numbers = [size * (byte / 200 - 0.2) for byte in rng.randbytes(count)]
        if numbers and self.chance(0.05):
            numbers[rng.randrange(count)] = rng.choice(ODD_REAL)
        return numbers

    def search_once(self) -> Message:
        name = self.name()
        query = self.query(name)
        if not query.HasField("options"):
            query.options.CopyFrom(self.options())
        return search_pb2.SearchOnceRequest(index=name, query=query)

    def search(self) -> Message:
        rng = self.rng
        kind = rng.random()
        if kind < 0.2:
            return search_pb2.SearchRequest(cancel=search_pb2.CancelQueries(query_ids=self.known_ids()))
        if kind < 0.4:
            query_id = rng.choice(self.known_ids() or [0])
            hits = rng.choice((0, 1, 5, 1000, 2**63, 2**64 - 1))
            return search_pb2.SearchRequest(grant=search_pb2.GrantCredit(query_id=query_id, hits=hits))
        if kind < 0.41:
            return search_pb2.SearchRequest()
        name = self.name()
        count = rng.choice((0, 1, 1, 1, 2, 3, 6))
        batch = search_pb2.QueryBatch(index=name)
        if self.chance(0.01):
            count = rng.choice((MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1))
        batch.queries.extend(self.query(name) for _ in range(min(count, 6)))
        while 0 < len(batch.queries) < count:  # many like one
            batch.queries.append(batch.queries[0])
            self.next_id += 1
            batch.queries[-1].id = self.next_id
        if self.chance(0.8):
            batch.options.CopyFrom(self.options())
        return search_pb2.SearchRequest(batch=batch)

    def known_ids(self) -> Sequence[int]:
        """Ids of queries that were sent, and of some that were not."""
        ids = [self.rng.randint(0, self.next_id + 1) for _ in range(self.rng.choice((0, 1, 1, 2, 5)))]
        return [*ids, self.rng.choice(ODD_WHOLE)] if self.chance(0.2) else ids


_BUILDERS: Final[dict[str, Callable[[_Maker], Message]]] = {
    "CreateIndex": _Maker.create_index,
    "ListIndexes": _Maker.list_indexes,
    "Upsert": _Maker.upsert,
    "Delete": _Maker.delete,
    "Get": _Maker.get,
    "Scan": _Maker.scan,
    "Search": _Maker.search,
    "SearchOnce": _Maker.search_once,
}


@functools.cache
def fitted_encoder() -> bytes:
    """Return an encoder as a server would export it."""
    return fit("lsh", bits=VICTIMS[ENCODED], dim=DIMENSION).to_bytes()


def varint(number: int) -> bytes:
    """Return a number in protobuf's encoding."""
    data = bytearray()
    while number > 127:
        data.append(number & 127 | 128)
        number >>= 7
    data.append(number)
    return bytes(data)
