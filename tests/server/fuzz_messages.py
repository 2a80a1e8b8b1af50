"""Messages for fuzzing: mostly valid ones for each rpc."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from google.protobuf import message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message

from tests.server.fuzz_faults import Faults
from tests.server.fuzz_values import (
    BITS,
    DIMENSION,
    ENCODED,
    FLOATS,
    MAX_BATCH,
    MAX_MESSAGE,
    ODD_NAMES,
    ODD_REAL,
    ODD_WHOLE,
    fitted_encoder,
)
from whamming.v1 import index_pb2, item_pb2, search_pb2

NO_SUM: Final = bytes(15) + b"\x80"
"""What stands for an exact distance that a query does not have."""


class Messages(Faults):
    """Generates messages."""

    def message(self, method: MethodDescriptor) -> bytes:
        """A message for a method, or invalid bytes."""
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

    # -- indexes ----------------------------------------------------------------------------------------------------

    def settings(self, name: str) -> index_pb2.IndexSettings:
        """Settings of a new index."""
        rng = self.rng
        bits = BITS.get(name, 64) if self.chance(0.8) else rng.choice((1, 7, 9, 64, 65, 256, 4096, 0, 4097, 2**32 - 1))
        message = index_pb2.IndexSettings(bits=bits)
        if self.chance(0.5):
            choices: list[Any] = list(message.DESCRIPTOR.fields[1:5])
            for field in choices:
                setattr(message, field.name, rng.randint(0, len(field.enum_type.values) - 1))
        return message

    def encoder(self, message: index_pb2.CreateIndexRequest) -> None:
        """Give a new index an encoder, either new or exported."""
        rng = self.rng
        message.settings.kept_vectors = self.number((0, 0, 2, 3, 1, 4, 5) if self.chance(0.1) else (0, 2, 3))
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
        """A message for a method that needs only the name of an index."""
        message = message_factory.GetMessageClass(method.input_type)()
        name = self.name(writes=method.name == "DeleteIndex")
        if method.name == "GetEncoder" and self.chance(0.5):
            name = ENCODED
        setattr(message, message.DESCRIPTOR.fields[0].name, name)
        return message

    def create_index(self) -> Message:
        """For CreateIndex."""
        name = self.name(writes=not self.chance(0.05))
        message = index_pb2.CreateIndexRequest(name=name, settings=self.settings(name), exist_ok=self.chance(0.6))
        if self.chance(0.8 if name == ENCODED else 0.05):
            self.encoder(message)
        return message

    def list_indexes(self) -> Message:
        """For ListIndexes."""
        rng = self.rng
        token = rng.choice(("", "", "control", "fuzz-c", "zzz", rng.choice(ODD_NAMES)))
        size = rng.choice((0, 1, 2, 1000, 1001, 2**32 - 1))
        return index_pb2.ListIndexesRequest(page_size=size, page_token=token, names_only=self.chance(0.3))

    # -- items ------------------------------------------------------------------------------------------------------

    def upsert(self) -> Message:
        """For Upsert."""
        rng = self.rng
        name = self.name(writes=True)
        width = (BITS.get(name, 64) + 7) // 8
        count = rng.choice((0, 1, 1, 2, 3, 5, 10, 30, 100))
        if self.chance(0.01):  # close to the maximum size of a message
            count = MAX_MESSAGE // (width + 8) - rng.choice((0, 1, 2, 3, 10))
        message = item_pb2.UpsertRequest(
            index="" if self.chance(0.2) else name,
            sequence=self.whole(),
            durability=self.number((0, 0, 0, 1, 2)),
            request_id=rng.randbytes(rng.choice((0, 0, 8, 16, 64))),
        )
        items = message.items
        items.ids.uint64 = self.torn(self.ids(count))
        items.codes = self.torn(rng.randbytes(count * width), 0.07)
        if self.chance(0.7 if name == ENCODED else 0.02) and count <= 100:
            items.vectors.CopyFrom(self.vectors(count))
            if self.chance(0.95):
                items.codes = b""
        if count <= 100 and self.chance(0.3):
            items.payloads.CopyFrom(self.payloads(count))
        return message

    def some_ids(self) -> bytes:
        """A column of a few ids."""
        return self.torn(self.ids(self.rng.choice((0, 1, 2, 5, 20, 60))))

    def delete(self) -> Message:
        """For Delete."""
        message = item_pb2.DeleteRequest(index=self.name(writes=True), durability=self.number((0, 0, 1, 2)))
        message.ids.uint64 = self.some_ids()
        message.request_id = self.rng.randbytes(self.rng.choice((0, 0, 8, 16, 64)))
        return message

    def get(self) -> Message:
        """For Get."""
        message = item_pb2.GetRequest(index=self.name())
        ids = self.some_ids()
        if ids and self.chance(0.02):
            ids *= (MAX_MESSAGE - 100) // len(ids)
        message.ids.uint64 = ids
        return message

    def scan(self) -> Message:
        """For Scan."""
        size = self.rng.choice((0, 0, 20, 75, 100, 100_000, 100_001, 2**32 - 1))
        after = self.rng.choice((0, 7, 500, 2**63, 2**64 - 1)) if self.chance(0.3) else None
        return item_pb2.ScanRequest(index=self.name(), batch_size=size, after_id=after)

    # -- queries ----------------------------------------------------------------------------------------------------

    def options(self) -> search_pb2.QueryOptions:
        """Options of queries."""
        rng = self.rng
        message = search_pb2.QueryOptions(payloads=self.chance(0.2), statistics=self.chance(0.5))
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

    def rerank(self, options: search_pb2.QueryOptions) -> None:
        """Ask for re-ranking."""
        rng = self.rng
        options.Clear()
        options.k = rng.choice((1, 3, 10, 100, 2**31 - 1))
        options.payloads = self.chance(0.2)
        if self.chance(0.7):
            options.rerank = rng.choice((1, 2, 5, 100) if self.chance(0.9) else (1_000_001, 2**32 - 1))
        else:
            options.rerank_exactly = True

    def numbers(self, count: int) -> list[float]:
        """Weights or costs: normal ones, very large or small ones, or a special value among normal ones."""
        rng = self.rng
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

    def costs(self, count: int, columns: int) -> list[float]:
        """Weights or costs of several queries, rarely with a special value."""
        rows = [number for _ in range(min(count, 4)) for number in self.numbers(columns)]
        return (rows * (count // 4 + 1))[: count * columns]

    def queries(self) -> search_pb2.QueryBatch:
        """A batch of queries of one form, rarely with columns of two forms."""
        rng = self.rng
        name = self.name()
        bits = BITS.get(name, 64)
        count = rng.choice((1, 1, 1, 2, 3, 6)) if self.chance(0.97) else rng.choice((0, MAX_BATCH - 1, MAX_BATCH))
        if self.chance(0.005):
            count = MAX_BATCH + 1
        batch = search_pb2.QueryBatch(index=name)
        batch.query_ids.extend(range(self.next_id + 1, self.next_id + count + 1))
        self.next_id += count
        if count and self.chance(0.02):
            batch.query_ids[-1] = rng.choice((0, 1, 2, 2**64 - 1))
        form = rng.choices(("hamming", "weights", "tables", "mixed"), (30, 40, 25, 5))[0]
        if form in ("hamming", "weights") or (form == "mixed" and self.chance(0.5)):
            batch.codes = self.torn(rng.randbytes(count * ((bits + 7) // 8)))
        if form == "weights" or (form == "mixed" and self.chance(0.5)):
            rows = 1 if self.chance(0.3) else count
            batch.weights.CopyFrom(self.matrix(self.costs(rows, bits), bits, tuple(FLOATS)))
        if form == "tables" or (form == "mixed" and self.chance(0.5)):
            batch.tables.CopyFrom(self.matrix(self.costs(count, 2 * bits), 2 * bits, tuple(FLOATS)))
        if self.chance(0.8):
            batch.options.CopyFrom(self.options())
        if self.chance(0.6 if name == ENCODED else 0.01):
            self.by_vectors(batch, count)
        if self.chance(0.1):
            self.resume(batch, count)
        return batch

    def by_vectors(self, batch: search_pb2.QueryBatch, count: int) -> None:
        """Turn the batch into queries by vector, possibly with re-ranking."""
        if self.chance(0.95):
            for field in ("codes", "weights", "tables"):
                batch.ClearField(field)
        batch.vectors.CopyFrom(self.vectors(count))
        batch.form = self.number((0, 0, 0, 1, 2, 3) if self.chance(0.97) else (4, -1))
        if batch.form == search_pb2.COST_FORM_SYMMETRIC and self.chance(0.3):
            bits = BITS.get(batch.index, 64)
            batch.weights.CopyFrom(self.matrix(self.costs(1, bits), bits, tuple(FLOATS)))
        if self.chance(0.5):
            self.rerank(batch.options)

    def resume(self, batch: search_pb2.QueryBatch, count: int) -> None:
        """Add resume tokens to all or some queries."""
        rng = self.rng
        batch.after_distances.extend(rng.uniform(-1, 30) for _ in range(count))
        if count and self.chance(0.5):
            batch.after_distances[rng.randrange(count)] = -math.inf if self.chance(0.6) else self.real()
        if self.chance(0.05):
            batch.after_distances.append(1.0)
        if self.chance(0.97):
            batch.after_ids.uint64 = self.torn(self.ids(count))
        if self.chance(0.2):
            sums = [rng.randbytes(16) if self.chance(0.7) else NO_SUM for _ in range(count + (self.chance(0.05)))]
            batch.after_sums = self.torn(b"".join(sums))

    def search_once(self) -> Message:
        """For SearchOnce."""
        rng = self.rng
        name = self.name()
        bits = BITS.get(name, 64)
        message = search_pb2.SearchOnceRequest(index=name, options=self.options())
        form = rng.choices(("hamming", "weights", "table", "mixed"), (30, 40, 25, 5))[0]
        if form in ("hamming", "weights") or (form == "mixed" and self.chance(0.5)):
            message.code = rng.randbytes((bits + 7) // 8 if self.chance(0.95) else rng.choice((0, 1, 7, 9, 600)))
        if form == "weights" or (form == "mixed" and self.chance(0.5)):
            message.weights.extend(self.numbers(self.length(bits)))
        if form == "table" or (form == "mixed" and self.chance(0.5)):
            message.table.extend(self.numbers(self.length(2 * bits)))
        if self.chance(0.6 if name == ENCODED else 0.01):
            if self.chance(0.95):
                for field in ("code", "weights", "table"):
                    message.ClearField(field)
            message.vector.extend(byte / 64 - 2 for byte in rng.randbytes(self.length(DIMENSION)))
            if message.vector and self.chance(0.05):
                message.vector[0] = rng.choice((math.nan, math.inf, 3e38, 1e-45))
            message.form = self.number((0, 0, 0, 1, 2, 3) if self.chance(0.97) else (4, -1))
            if self.chance(0.5):
                self.rerank(message.options)
        if self.chance(0.1):
            message.after.distance = self.real() if self.chance(0.3) else rng.uniform(-1, 30)
            message.after.id = struct.unpack("<Q", self.ids(1))[0]
        return message

    def length(self, count: int) -> int:
        """The length of a list, mostly the right one."""
        return count if self.chance(0.95) else self.rng.choice((0, 1, count - 1, count + 1, 2 * count))

    def search(self) -> Message:
        """For Search."""
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
        return search_pb2.SearchRequest(queries=self.queries())

    def known_ids(self) -> Sequence[int]:
        """Ids of queries, most of which were sent."""
        ids = [self.rng.randint(0, self.next_id + 1) for _ in range(self.rng.choice((0, 1, 1, 2, 5)))]
        return [*ids, self.rng.choice(ODD_WHOLE)] if self.chance(0.2) else ids


_BUILDERS: Final[dict[str, Callable[[Messages], Message]]] = {
    "CreateIndex": Messages.create_index,
    "ListIndexes": Messages.list_indexes,
    "Upsert": Messages.upsert,
    "Delete": Messages.delete,
    "Get": Messages.get,
    "Scan": Messages.scan,
    "Search": Messages.search,
    "SearchOnce": Messages.search_once,
}
