"""Statistics, sealing and compacting work the same in every kind of database."""

from __future__ import annotations

import numpy as np
import pytest

from tests.clients.shared.places import Place, Twin
from tests.native.examples import make_codes
from whamming import StoredIndex


def test_statistics_and_maintenance(twin: Twin) -> None:
    before = twin.index.stats()
    assert (before.items, before.delta_rows, before.segments, before.writes) == (90, 90, 0, 1)
    shares: list[float] = []
    twin.index.seal(shares.append)
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    sealed = twin.index.stats()
    assert (sealed.items, sealed.delta_rows, sealed.segments, sealed.sealed_rows, sealed.seals) == (90, 0, 1, 90, 1)
    twin.delete(range(10))
    twin.upsert([95], make_codes("uniform", 1, 13, np.random.default_rng(0)))
    twin.index.compact(shares.append)
    assert shares or isinstance(twin.index, StoredIndex), "a server reports at least the end"
    compacted = twin.index.stats()
    assert (compacted.items, compacted.segments, compacted.sealed_rows, compacted.dead_rows) == (81, 1, 81, 0)
    assert compacted.version > before.version
    assert compacted.used_bytes > 0
    twin.check()


def test_progress_may_use_the_index(place: Place, twin: Twin) -> None:
    """The callback may call methods of the index, unless it runs in an event loop."""
    if place.kind == "aio":
        pytest.skip("a callback in an event loop cannot wait for another call")
    lengths: list[int] = []
    twin.index.seal(lambda share: lengths.append(len(twin.index)))
    assert set(lengths) <= {90}
    assert lengths or isinstance(twin.index, StoredIndex)
