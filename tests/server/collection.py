"""Indexes on a server, written through raw stubs, with a model that knows the right answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.native.examples import WeightKind, make_codes
from tests.native.oracle import Codes, Ids, Truth, truth
from tests.server.columns import pack_ids, pack_payloads
from tests.server.questions import Form, Question, ask_about
from tests.serving import Stubs
from tests.storage.model import Model
from whamming.storage import BitOrder, IndexSettings
from whamming.v1 import index_pb2, item_pb2
from whamming.wire.descriptions import settings_message


class Collection:
    """An index on a server, and a model of its contents."""

    def __init__(self, stubs: Stubs, name: str, settings: IndexSettings) -> None:
        self.stubs = stubs
        self.name = name
        self.model = Model(settings)
        self.settings = settings
        self._packed: tuple[Ids, Codes] | None = None
        message = settings_message(
            settings.bits,
            settings.keep_vectors,
            bit_order=settings.bit_order,
            tables=settings.tables,
            buckets=settings.buckets,
            durability=settings.durability,
        )
        stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name=name, settings=message))

    @classmethod
    def uniform(
        cls,
        stubs: Stubs,
        name: str,
        n: int,
        bits: int,
        *,
        seed: int = 0,
        bit_order: BitOrder = "little",
        sealed: bool = False,
    ) -> Collection:
        """Create an index of ``n`` random codes with ids 0, 1, ..."""
        self = cls(stubs, name, IndexSettings(bits, bit_order))
        codes = make_codes("uniform", n, bits, np.random.default_rng(seed))
        self.upsert(np.arange(n, dtype=np.uint64), codes)
        if sealed:
            self.seal()
        return self

    def upsert(self, ids: Ids, codes: Codes, payloads: Sequence[bytes] = ()) -> None:
        """Write items to the index and the model."""
        self.model.upsert(ids, codes, payloads or None)
        self._packed = None
        size = 20_000
        requests = []
        for first in range(0, len(ids), size):
            rows = slice(first, first + size)
            items = item_pb2.ItemBatch(ids=pack_ids(ids[rows]), codes=codes[rows].tobytes())
            if payloads:
                items.payloads.CopyFrom(pack_payloads(payloads[rows]))
            requests.append(item_pb2.UpsertRequest(index=self.name, sequence=first, items=items))
        done = list(self.stubs.items.Upsert(iter(requests)))
        assert [one.sequence for one in done] == [one.sequence for one in requests]
        assert [one.count for one in done] == [len(one.items.ids.uint64) // 8 for one in requests]

    def delete(self, ids: Sequence[int]) -> None:
        """Delete items from the index and the model."""
        self.model.delete(ids)
        self._packed = None
        self.stubs.items.Delete(item_pb2.DeleteRequest(index=self.name, ids=pack_ids(ids)))

    def seal(self) -> None:
        *_, last = self.stubs.indexes.SealIndex(index_pb2.SealIndexRequest(name=self.name))
        assert last.progress == 1

    def drop(self) -> None:
        self.stubs.indexes.DeleteIndex(index_pb2.DeleteIndexRequest(name=self.name))

    def packed(self) -> tuple[Ids, Codes]:
        """All ids and codes, in little bit order."""
        if self._packed is None:
            self._packed = self.model.packed("little")
        return self._packed

    def near(self, rng: np.random.Generator) -> Codes:
        """A code similar to one of the items, in little bit order."""
        _, codes = self.packed()
        if not len(codes):
            codes = make_codes("uniform", 1, self.settings.bits, rng)
        flips = np.packbits(rng.random(8 * codes.shape[1]) < rng.choice([0.0, 0.05, 0.3]), bitorder="little")
        found: Codes = np.bitwise_xor(codes[rng.integers(len(codes))], flips)
        return found

    def question(self, form: Form = "table", kind: WeightKind = "random", seed: int = 0, query_id: int = 0) -> Question:
        """Return a query near one of the items."""
        rng = np.random.default_rng([seed, query_id])
        return ask_about(form, kind, self.near(rng), self.settings, rng, query_id)

    def truth(self, question: Question) -> Truth:
        """Return the exact answer to a query."""
        ids, codes = self.packed()
        assert question.costs is not None
        return truth(codes, question.costs, ids)

    def payloads(self, ids: Sequence[int]) -> list[bytes]:
        """Return the payloads of items."""
        return [self.model.items[id_][1] for id_ in ids]
