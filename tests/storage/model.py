"""A model of an index: a dict of its items. Every store is compared with it, item by item and answer by answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, Self

import numpy as np

from tests.native.oracle import Codes, Floats, Ids, Truth, truth
from whamming.native import Costs, Plan, View
from whamming.storage import BitOrder, IndexSettings, Items, Rows, Snapshot

ABSENT = np.array([7777, 2**33 + 1, 2**63 + 1, 2**64 - 2], dtype=np.uint64)
"""Ids that no test writes."""


class Model:
    """The items of an index by id: their bits, one per byte, and their payloads."""

    def __init__(self, settings: IndexSettings) -> None:
        self.settings = settings
        self.items: dict[int, tuple[bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self.items)

    def copy(self) -> Self:
        other = type(self)(self.settings)
        other.items = dict(self.items)
        return other

    def upsert(self, ids: Iterable[int], codes: Codes, payloads: Sequence[bytes | None] | None = None) -> None:
        bits = np.unpackbits(codes, axis=1, count=self.settings.bits, bitorder=self.settings.bit_order)
        for row, id_ in enumerate(ids):
            payload = payloads[row] if payloads is not None else None
            self.items[int(id_)] = bits[row].tobytes(), payload or b""

    def delete(self, ids: Iterable[int]) -> None:
        for id_ in ids:
            self.items.pop(int(id_), None)

    def packed(self, order: BitOrder) -> tuple[Ids, Codes]:
        ids = np.fromiter(self.items, dtype=np.uint64, count=len(self))
        bits = np.frombuffer(b"".join(code for code, _ in self.items.values()), dtype=np.uint8)
        width = (self.settings.bits + 7) // 8
        codes = np.packbits(bits.reshape(len(self), self.settings.bits), axis=1, bitorder=order)
        return ids, codes.reshape(len(self), width)

    def answer(self, table: Floats) -> Truth:
        """Return all items in order of (distance, id), for costs ``[bits, 2]``."""
        ids, codes = self.packed("little")
        return truth(codes, table, ids)


class Holder(Protocol):
    """A snapshot, or an index in this process or on a server."""

    def __len__(self) -> int: ...
    def get(self, ids: Ids, /) -> Items: ...
    def scan(self, size: int = ..., /, *, after: int | None = ...) -> Iterator[Rows]: ...


def check_items(snapshot: Holder, model: Model) -> None:
    """Check that a snapshot holds exactly the model's items, by ``get`` and by ``scan``."""
    ids, codes = model.packed(model.settings.bit_order)
    order = np.random.default_rng(len(ids)).permutation(len(ids) + len(ABSENT))
    wanted = np.concatenate([ids, ABSENT])[order]
    items = snapshot.get(wanted)
    expected = np.zeros((len(wanted), model.settings.code_bytes), dtype=np.uint8)
    expected[: len(ids)] = codes
    assert len(snapshot) == len(model)
    assert items.ids.tolist() == wanted.tolist()
    assert items.found.tolist() == (order < len(ids)).tolist()
    assert items.codes.tolist() == expected[order].tolist()
    assert items.payloads == [model.items.get(int(id_), (b"", b""))[1] for id_ in wanted]
    scanned: dict[int, tuple[bytes, bytes]] = {}
    for rows in snapshot.scan(7):
        assert 0 < len(rows) <= 7
        for row, id_ in enumerate(rows.ids.tolist()):
            assert id_ not in scanned
            scanned[id_] = rows.codes[row].tobytes(), rows.payloads[row] if rows.payloads is not None else b""
    rowed = {int(id_): (code.tobytes(), model.items[int(id_)][1]) for id_, code in zip(ids, codes, strict=True)}
    assert scanned == rowed
    assert list(scanned) == sorted(scanned)
    for after in {0, *list(scanned)[:: max(1, len(scanned) // 3)]}:
        rest = [id_ for rows in snapshot.scan(5, after=after) for id_ in rows.ids.tolist()]
        assert rest == [id_ for id_ in scanned if id_ > after]


def plans_of(view: View) -> tuple[Plan, ...]:
    return ("auto", "sweep", "probe") if view.can_probe else ("auto", "sweep")


def check_answers(snapshot: Snapshot, model: Model, table: Floats, k: int, inside: float | None = None) -> int:
    """Check that searches give the oracle's answers, with every plan, at once and step by step. Returns how many.

    ``inside``: use a radius that this fraction of all items lies within.
    """
    everything = model.answer(table)
    radius = None
    if inside is not None and len(everything):
        radius = float(everything.distances[int(inside * (len(everything) - 1))])
    expected = everything.within(radius)[:k].bytes()
    plans = plans_of(snapshot.view)
    for plan in plans:
        found = snapshot.view.search(Costs.table(table), k, radius, plan)
        assert (found.ids.tobytes(), found.distances.tobytes()) == expected, plan
        with snapshot.view.cursor(Costs.table(table), None, radius, plan) as cursor:
            head = cursor.next(min(k, 3))
            tail = cursor.next(k)
        ids, distances = (np.concatenate(pair)[:k] for pair in zip(head, tail, strict=True))
        assert (ids.tobytes(), distances.tobytes()) == expected, plan
    return 2 * len(plans)
