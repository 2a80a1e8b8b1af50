"""Random sequences of operations, compared with the model at every step."""

from __future__ import annotations

import shutil
import time

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.conftest import Cases
from tests.native.examples import CODE_KINDS, LAYOUTS, WEIGHT_KINDS, CodeKind, WeightKind, generated, make_codes
from tests.native.examples import make_table as costs_around
from tests.native.oracle import Codes
from tests.storage.conftest import Place
from tests.storage.model import Model, check_answers, check_items
from tests.storage.twin import EDGE_IDS
from whamming import InvalidArgumentError
from whamming.native import Buckets, Tables
from whamming.storage import BitOrder, Durability, Snapshot, WriteBatch

ids_of_items = st.one_of(st.integers(0, 40), st.integers(0, 40), st.sampled_from(EDGE_IDS))


class Life(RuleBasedStateMachine):
    """Operations on an index: writes of all kinds, maintenance, keeping snapshots, reopening."""

    def __init__(self, place: Place, cases: Cases) -> None:
        super().__init__()
        self.place = place
        self.cases = cases
        self.kept: list[tuple[Snapshot, Model]] = []
        self.name = f"life{time.monotonic_ns()}"
        self.database = place.open(self.name)
        self.steps = 0

    @initialize(
        bits=st.sampled_from([1, 7, 8, 13, 64, 100, 257]),
        order=st.sampled_from(["little", "big"]),
        layout=st.sampled_from(LAYOUTS),
        durability=st.sampled_from(["fsync", "async"]),
        kind=st.sampled_from(CODE_KINDS),
    )
    def create(
        self, bits: int, order: BitOrder, layout: tuple[Tables, Buckets], durability: Durability, kind: CodeKind
    ) -> None:
        self.kind = kind
        self.index = self.database.create_index(
            "docs", bits, bit_order=order, tables=layout[0], buckets=layout[1], durability=durability
        )
        self.model = Model(self.index.settings)

    def codes(self, n: int, seed: int) -> Codes:
        return make_codes(self.kind, n, self.model.settings.bits, np.random.default_rng([seed, n]))

    @rule(
        upserts=st.lists(ids_of_items, max_size=12),
        deletes=st.lists(ids_of_items, max_size=6),
        payloads=st.none() | st.lists(st.none() | st.binary(max_size=9), min_size=12, max_size=12),
        seed=st.integers(0, 99),
        durability=st.sampled_from(["fsync", "async", None]),
    )
    def write(
        self,
        upserts: list[int],
        deletes: list[int],
        payloads: list[bytes | None] | None,
        seed: int,
        durability: Durability | None,
    ) -> None:
        codes = self.codes(len(upserts), seed)
        payloads = payloads[: len(upserts)] if payloads is not None else None
        self.index.write(WriteBatch.of(self.index.settings, upserts, codes, payloads, deletes), durability)
        self.model.delete(deletes)
        self.model.upsert(upserts, codes, payloads)

    @rule(first=st.integers(0, 40), count=st.integers(10, 40), seed=st.integers(0, 99))
    def write_many(self, first: int, count: int, seed: int) -> None:
        codes = self.codes(count, seed)
        self.index.upsert(range(first, first + count), codes)
        self.model.upsert(range(first, first + count), codes)

    @rule(good=st.lists(ids_of_items, min_size=1, max_size=5), seed=st.integers(0, 99))
    def write_an_invalid_batch(self, good: list[int], seed: int) -> None:
        with pytest.raises(InvalidArgumentError, match=f"the payload of row {len(good) - 1} "):
            self.index.upsert(good, self.codes(len(good), seed), [b"x"] * (len(good) - 1) + [b"x" * 65_537])

    @rule()
    def seal(self) -> None:
        self.index.seal()

    @rule()
    def compact(self) -> None:
        self.index.compact()
        stats = self.index.stats()
        assert (stats.items, stats.sealed_rows, stats.dead_rows) == (len(self.model), len(self.model), 0)
        assert stats.segments <= 1

    @rule()
    def keep(self) -> None:
        self.kept.append((self.index.snapshot(), self.model.copy()))

    @precondition(lambda self: self.place.persistent)
    @rule(close=st.booleans())
    def reopen(self, close: bool) -> None:
        if close:
            self.index.close()
        self.database.close()
        self.database = self.place.open(self.name)
        self.index = self.database.index("docs")

    @rule(kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 99), k=st.integers(0, 100), inside=st.floats(0, 1.5))
    def search(self, kind: WeightKind, seed: int, k: int, inside: float) -> None:
        self.compare(self.index.snapshot(), self.model, kind, seed, k, inside if inside <= 1 else None)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 9), kind=st.sampled_from(WEIGHT_KINDS), seed=st.integers(0, 99))
    def search_a_kept_snapshot(self, which: int, kind: WeightKind, seed: int) -> None:
        self.compare(*self.kept[which % len(self.kept)], kind, seed, 50, None)

    @rule()
    def look_up(self) -> None:
        check_items(self.index.snapshot(), self.model)

    def compare(
        self, snapshot: Snapshot, model: Model, kind: WeightKind, seed: int, k: int, inside: float | None
    ) -> None:
        table = costs_around(kind, self.codes(1, seed)[0], model.settings.bits, np.random.default_rng(seed))
        self.cases.add(check_answers(snapshot, model, table, k, inside))

    def teardown(self) -> None:
        if hasattr(self, "index"):
            assert self.index.verify().ok
            self.kept.append((self.index.snapshot(), self.model))
        self.database.close()
        for snapshot, model in self.kept:
            check_items(snapshot, model)
            self.compare(snapshot, model, "integers", 1, 20, None)
        self.kept.clear()
        shutil.rmtree(self.place.directory / self.name, ignore_errors=True)


def test_any_sequence_of_operations(place: Place, small: None, cases: Cases) -> None:
    run_state_machine_as_test(
        lambda: Life(place, cases),  # type: ignore[arg-type]
        settings=settings(generated(100), stateful_step_count=16),
    )
