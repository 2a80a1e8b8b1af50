"""Closing an index abandons the seals and merges that are running. They lose nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from whamming.native import Index
from whamming.storage import ClosedError, StoredIndex

N, BITS = 400_000, 256
CODES = np.random.default_rng(8).integers(0, 256, (N, BITS // 8), dtype=np.uint8)


class StopError(Exception):
    """Raised by a test's progress callback."""


@pytest.mark.parametrize("tables", ["single", "multi", "none"])
@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_the_progress_callback_cancels_a_build(tables: str, threads: int) -> None:
    """At any stage. The thread that builds has ended when the error arrives."""
    seen = {0.0}
    for _ in range(4):
        least = max(seen)

        def stop_later(share: float, least: float = least) -> None:
            seen.add(share)
            if share > least:
                raise StopError

        with pytest.raises(StopError):
            Index.build(CODES, BITS, tables=tables, threads=threads, progress=stop_later)  # type: ignore[arg-type]
        assert not [thread for thread in threading.enumerate() if thread.name == "whamming-build"]
        if max(seen) == 1.0:
            break


def test_closing_abandons_a_merge(disk: Place) -> None:
    with disk.open() as database:
        index = database.create_index("docs", BITS)
        index.upsert(np.arange(N), CODES)
        index.seal()
        index.delete([3])
        index.seal()
        assert index.stats().dead_rows == 1
        reports: list[float] = []
        errors: list[BaseException] = []
        begun = threading.Event()

        def report(share: float) -> None:
            reports.append(share)
            begun.set()

        def compact(index: StoredIndex = index) -> None:
            try:
                index.compact(report)
            except ClosedError as error:
                errors.append(error)

        thread = threading.Thread(target=compact)
        thread.start()
        begun.wait()
        index.close()
        thread.join()
        assert len(errors) == 1, reports
    with disk.open() as database:
        stats = database.index("docs").stats()
        assert (stats.items, stats.dead_rows) == (N - 1, 1), "the merge was not completed"
        assert database.index("docs").verify().ok


def test_dropping_an_index_does_not_wait_for_a_merge(tmp_path: Path) -> None:
    with whamming.open(tmp_path / "db") as database:
        index = database.create_index("docs", BITS)
        index.upsert(np.arange(N), CODES)
        begun = threading.Event()
        ends: list[str] = []

        def seal() -> None:
            with pytest.raises(ClosedError):
                index.seal(lambda share: begun.set())
            ends.append("abandoned")

        thread = threading.Thread(target=seal)
        thread.start()
        begun.wait()
        database.drop_index("docs")
        thread.join()
        assert ends == ["abandoned"]
        assert database.list_indexes() == []
    assert sorted(entry.name for entry in (tmp_path / "db").iterdir()) == ["whamming.json", "writer.lock"]
