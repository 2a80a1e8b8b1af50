"""Every method works over the network, or raises LocalOnlyError."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.shared.places import ZERO, ZEROS, AnyDatabase, Place, Twin
from whamming import Budget, InvalidArgumentError, LocalOnlyError


@pytest.mark.parametrize(
    ("what", "remedy"),
    [
        ("backup", "whamming backup"),
        ("verify", "whamming verify"),
        ("index.backup", "whamming backup"),
        ("index.verify", "whamming verify"),
        ("batch", "upsert"),
        ("snapshot", "search"),
        ("budget", "search_batch"),
    ],
)
def test_local_only_methods(
    place: Place, database: AnyDatabase, twin: Twin, tmp_path: Path, what: str, remedy: str
) -> None:
    uses: dict[str, Callable[[], Any]] = {
        "backup": lambda: database.backup(tmp_path / "copy"),
        "verify": database.verify,
        "index.backup": lambda: twin.index.backup(tmp_path / "copy"),
        "index.verify": twin.index.verify,
        "batch": lambda: twin.index.write(twin.index.batch([1, 2], ZEROS)),
        "snapshot": lambda: twin.index.snapshot().get(np.array([1], dtype=np.uint64)),
        "budget": lambda: twin.index.search(ZERO).next(3, budget=Budget(candidates=1)),
    }
    if not place.is_remote:
        uses[what]()
        return
    with pytest.raises(LocalOnlyError, match=rf"network.*{remedy}"):
        uses[what]()
    assert not (tmp_path / "copy").exists()
    twin.check()


def test_flush_after_an_async_write(twin: Twin) -> None:
    twin.upsert([1, 2], ZEROS, durability="async")
    twin.index.flush()
    twin.check()


def test_delete_returns_how_many_items_existed(twin: Twin) -> None:
    assert twin.index.delete([123_456]) == 0
    assert twin.index.delete([]) == 0
    assert twin.index.delete([1, 1, 2, 123_456]) == 2
    assert twin.index.delete([1, 2]) == 0
    twin.index.seal()
    assert twin.index.delete(np.arange(100)) == 88


def test_threads_are_refused_by_servers(place: Place, twin: Twin) -> None:
    if place.is_remote:
        with pytest.raises(InvalidArgumentError, match=r"threads = 2.*--threads"):
            twin.index.search_batch(ZEROS, threads=2)
    else:
        assert twin.index.search_batch(ZEROS, threads=2).ids.shape == (2, 10)


def test_the_encoder_can_be_fetched(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, encoder="lsh", dim=4, bits=16, seed=7)
    assert index.encoder is not None
    assert (index.encoder.kind, index.encoder.dim, index.encoder.bits) == ("lsh", 4, 16)
    assert index.encoder.fingerprint == index.settings.encoder
    assert database.create_index(f"{name}-codes", 8).encoder is None
