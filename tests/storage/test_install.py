"""Reading a new segment back from the file may fail or be interrupted. Even then, no item is lost or returned twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import whamming
from whamming.storage.files.lmdb_journal import LmdbJournal


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
def test_reading_a_new_segment_back_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException]
) -> None:
    def broken(*_: object) -> None:
        raise kind("now")

    codes = np.random.default_rng(0).integers(0, 256, (500, 4), dtype=np.uint8)
    with whamming.open(tmp_path / "db") as database:
        index = database.create_index("docs", 32)
        index.upsert(range(500), codes)
        index.seal()
        index.upsert(range(250, 600), codes[:350])
        expected = index.search_batch(codes[:5], k=20)
        with monkeypatch.context() as patched:
            patched.setattr(LmdbJournal, "reopen", broken)
            if issubclass(kind, Exception):
                index.seal()
            else:
                with pytest.raises(kind):
                    index.seal()
        found = index.search_batch(codes[:5], k=20)
        assert found.ids.tolist() == expected.ids.tolist()
        assert len(index) == 600
        index.upsert([1000], codes[:1])
        index.compact()
        assert len(index) == 601
        assert index.verify().ok
    with whamming.open(tmp_path / "db", mode="r") as database:
        assert len(database.index("docs")) == 601
