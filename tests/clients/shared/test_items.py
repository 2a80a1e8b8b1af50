"""Writing, looking up and scanning items work the same in every kind of database."""

from __future__ import annotations

import numpy as np

from tests.clients.shared.places import AnyDatabase, Twin
from tests.native.examples import make_codes


def test_upsert_and_delete_items(twin: Twin) -> None:
    twin.check()
    twin.upsert(
        [5, 91, 2**64 - 1, 2**63], make_codes("uniform", 4, 13, np.random.default_rng(5)), [b"", b"x", None, b"y"]
    )
    twin.check()
    twin.delete([0, 5, 12345, 5])
    twin.check()
    twin.index.seal()
    twin.delete(list(range(50)))
    twin.upsert([3], make_codes("uniform", 1, 13, np.random.default_rng(6)), durability="async")
    twin.check()
    twin.index.compact()
    twin.check()
    twin.delete(np.array(list(twin.model.items), dtype=np.uint64), durability="fsync")
    twin.check()
    assert len(twin.index) == 0


def test_the_last_item_wins_if_an_id_repeats(twin: Twin) -> None:
    codes = make_codes("uniform", 4, 13, np.random.default_rng(9))
    twin.upsert([70, 71, 70, 70], codes, [b"a", b"b", b"c", None])
    twin.check()
    assert twin.index.get([70, 71]).payloads == [b"", b"b"]


def test_empty_writes_and_lookups(twin: Twin) -> None:
    twin.index.upsert([], [])
    twin.index.delete([])
    assert len(twin.index.get([])) == 0
    twin.check()


def test_large_payloads_and_batches(database: AnyDatabase, name: str) -> None:
    """They do not fit into one message, in either direction."""
    twin = Twin(database, name, 8)
    n = 150
    payloads: list[bytes | None] = [bytes([i % 256]) * 65_536 for i in range(n)]
    twin.upsert(np.arange(n), make_codes("uniform", n, 8, np.random.default_rng(0)), payloads)
    assert twin.index.get([n - 1, 3]).payloads == [payloads[n - 1], payloads[3]]
    assert twin.index.get(np.arange(n)).payloads == payloads
    table = np.random.default_rng(0).normal(size=(8, 2))
    answer = twin.model.answer(table)
    hits = list(twin.index.search(table=table, payloads=True))
    assert [(hit.id, hit.payload) for hit in hits] == [(id_, payloads[id_]) for id_ in answer.ids.tolist()]
    scanned = [(rows.ids.tolist(), rows.payloads) for rows in twin.index.scan(n)]
    found = {id_: kept[row] for ids, kept in scanned if kept is not None for row, id_ in enumerate(ids)}
    assert found == dict(enumerate(payloads))


def test_look_up_and_delete_many_items_at_once(database: AnyDatabase, name: str) -> None:
    twin = Twin(database, name, 256)
    n = 120_000
    codes = make_codes("uniform", n, 256, np.random.default_rng(0))
    twin.index.upsert(np.arange(n), codes)
    items = twin.index.get(np.arange(n))
    assert items.found.all()
    assert np.array_equal(items.codes, codes)
    assert len(twin.index) == n
    twin.index.delete(np.arange(n))
    assert len(twin.index) == 0


def test_a_scan_respects_the_batch_size(twin: Twin) -> None:
    for size in (1, 7, 90, 10**9):
        pieces = [len(rows) for rows in twin.index.scan(size)]
        assert sum(pieces) == 90
        assert max(pieces) <= size
