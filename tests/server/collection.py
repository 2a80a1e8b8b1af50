"""Items on a server with their truth beside them: indexes written by raw stubs, queries in every form of costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.native.examples import WeightKind, make_codes, make_table
from tests.native.oracle import Codes, Floats, Ids, Truth, truth
from tests.serving import Stubs
from tests.storage.model import Model
from whamming.storage import BitOrder, IndexSettings
from whamming.v1 import index_pb2, item_pb2
from whamming.v1.search_pb2 import Query
from whamming.wire.values import settings_message

Form = Literal["code", "weights", "table"]
FORMS: tuple[Form, ...] = ("code", "weights", "table")


@dataclass(frozen=True)
class Question:
    """A query as it goes over the wire, and the costs that it stands for."""

    query: Query
    table: Floats
    """``[bits, 2]``"""


def ask_about(
    form: Form, kind: WeightKind, near: Codes, settings: IndexSettings, rng: np.random.Generator, query_id: int = 0
) -> Question:
    """A query around a code ``[bytes]``, lowest bit first."""
    bits = settings.bits
    code = settings.from_engine(near).tobytes()
    if form == "table":
        table = make_table(kind, near, bits, rng)
        return Question(Query(id=query_id, table=table.ravel().tolist()), table)
    if form == "code":
        table = make_table("equal", near, bits, rng)
        return Question(Query(id=query_id, code=code), np.sign(table))
    if kind == "both":  # no weights give such costs
        kind = "negative"
    table = make_table(kind, near, bits, rng)
    weights = table.sum(axis=1)  # one of the two costs is zero
    return Question(Query(id=query_id, code=code, weights=weights.tolist()), table)


class Collection:
    """An index on a server, and its model."""

    def __init__(self, stubs: Stubs, name: str, settings: IndexSettings) -> None:
        """Create the index."""
        self.stubs = stubs
        self.name = name
        self.model = Model(settings)
        self.settings = settings
        self._packed: tuple[Ids, Codes] | None = None
        request = index_pb2.CreateIndexRequest(name=name, settings=settings_message(settings))
        stubs.indexes.CreateIndex(request)

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
        """So many random codes with ids 0, 1, ..."""
        self = cls(stubs, name, IndexSettings(bits, bit_order))
        codes = make_codes("uniform", n, bits, np.random.default_rng(seed))
        self.upsert(np.arange(n, dtype=np.uint64), codes)
        if sealed:
            self.seal()
        return self

    def upsert(self, ids: Ids, codes: Codes, payloads: Sequence[bytes] = ()) -> None:
        """Write items, in messages of a moderate size."""
        self.model.upsert(ids, codes, payloads or None)
        self._packed = None
        size = 20_000
        requests = [
            item_pb2.UpsertRequest(
                index=self.name,
                sequence=first,
                items=item_pb2.ItemBatch(
                    ids=ids[first : first + size].tolist(),
                    codes=codes[first : first + size].tobytes(),
                    payloads=payloads[first : first + size],
                ),
            )
            for first in range(0, len(ids), size)
        ]
        done = list(self.stubs.items.Upsert(iter(requests)))
        assert [one.sequence for one in done] == [one.sequence for one in requests]
        assert [one.count for one in done] == [len(one.items.ids) for one in requests]

    def delete(self, ids: Sequence[int]) -> None:
        """Remove items."""
        self.model.delete(ids)
        self._packed = None
        self.stubs.items.Delete(item_pb2.DeleteRequest(index=self.name, ids=ids))

    def seal(self) -> None:
        """Give the items tables."""
        *_, last = self.stubs.indexes.SealIndex(index_pb2.SealIndexRequest(name=self.name))
        assert last.progress == 1

    def drop(self) -> None:
        """Remove the index."""
        self.stubs.indexes.DeleteIndex(index_pb2.DeleteIndexRequest(name=self.name))

    def packed(self) -> tuple[Ids, Codes]:
        """All items, lowest bit first."""
        if self._packed is None:
            self._packed = self.model.packed("little")
        return self._packed

    def near(self, rng: np.random.Generator) -> Codes:
        """A code like one of the items, lowest bit first."""
        _, codes = self.packed()
        if not len(codes):
            codes = make_codes("uniform", 1, self.settings.bits, rng)
        flips = np.packbits(rng.random(8 * codes.shape[1]) < rng.choice([0.0, 0.05, 0.3]), bitorder="little")
        found: Codes = np.bitwise_xor(codes[rng.integers(len(codes))], flips)
        return found

    def question(self, form: Form = "table", kind: WeightKind = "random", seed: int = 0, query_id: int = 0) -> Question:
        """A query around one of the items."""
        rng = np.random.default_rng([seed, query_id])
        return ask_about(form, kind, self.near(rng), self.settings, rng, query_id)

    def truth(self, question: Question) -> Truth:
        """All items in order."""
        ids, codes = self.packed()
        return truth(codes, question.table, ids)

    def payloads(self, ids: Sequence[int]) -> list[bytes]:
        """What is kept with items."""
        return [self.model.items[id_][1] for id_ in ids]
