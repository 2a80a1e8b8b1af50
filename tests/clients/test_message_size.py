"""Tests of servers that accept only small messages: the client learns the limit and splits what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming import InvalidArgumentError, ServiceError
from whamming.remote.message_size import ASSUMED_BYTES, OVERHEAD, MessageSize

MIB = 1 << 20


@pytest.fixture(params=[{"workers": 1}, {"workers": 2}], scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that accepts messages of 1 MiB."""
    with ServerProcess(tmp_path_factory.mktemp("data") / "db", max_message_mb=1, **request.param) as server:
        yield server
        server.check_log()


def test_writes_and_reads_are_split(server: ServerProcess) -> None:
    count = 300_000
    codes = np.random.default_rng(0).integers(0, 256, (count, 8), dtype=np.uint8)
    with whamming.connect(server.address) as db:
        docs = db.create_index("split", bits=64)
        docs.upsert(np.arange(count), codes)
        assert (docs.get(np.arange(count)).codes == codes).all()
        ids, distances = docs.search_batch(codes[:300], np.ones((300, 64)), k=1)
        assert not distances.any()
        assert (codes[ids[:, 0].astype(np.int64)] == codes[:300]).all()
        assert docs.delete(np.arange(count)) == count


def test_a_batch_of_cost_tables_is_split(server: ServerProcess) -> None:
    with whamming.connect(server.address) as db:
        wide = db.create_index("wide", bits=4096)
        wide.upsert([3], np.zeros((1, 512), dtype=np.uint8))
        answer = wide.search_batch(table=np.ones((40, 4096, 2)), k=1)  # 64 KiB each
        assert (answer.ids == 3).all()


def test_a_sample_is_reduced(server: ServerProcess) -> None:
    sample = np.random.default_rng(0).standard_normal((20_000, 32)).astype(np.float32)  # 2.4 MiB
    with whamming.connect(server.address) as db:
        docs = db.create_index("trained", encoder="itq", bits=32, train=sample)
        encoder = docs.encoder
        assert encoder is not None
        assert encoder.training.samples == (MIB - OVERHEAD) // (4 * 32)


def test_a_sample_that_would_become_too_small_is_refused(server: ServerProcess) -> None:
    sample = np.zeros((400, 1024), dtype=np.float32)  # a message has room for 255 of these vectors
    with whamming.connect(server.address) as db:
        with pytest.raises(InvalidArgumentError, match=r"400 vectors of 1024 .*1\.6 MiB.* 255 .*300 bits.* 301"):
            db.create_index("learned", encoder="itq", bits=300, train=sample)
        assert "learned" not in db.list_indexes()


def test_an_encoder_that_is_too_large_is_refused_before_it_is_sent(server: ServerProcess) -> None:
    encoder = whamming.fit_encoder("lsh", bits=1024, dim=512)  # 2 MiB
    with whamming.connect(server.address) as db:
        with pytest.raises(InvalidArgumentError, match=r"2\.0 MiB.*1\.0 MiB.*--max-message-mb"):
            db.create_index("large", encoder=encoder)
        assert "large" not in db.list_indexes()


def test_a_message_that_is_too_large_names_the_option(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "db") as server, whamming.connect(server.address) as db:
        docs = db.create_index("docs", bits=64)
        server.stop()
        server.options["max_message_mb"] = 1
        server.start()
        with pytest.raises(ServiceError, match=r"accepts 1048576.*--max-message-mb"):
            docs.upsert(np.arange(300_000), np.zeros((300_000, 8), dtype=np.uint8))


def test_the_limit_of_an_older_server_is_assumed() -> None:
    size = MessageSize()
    size.learn(0)
    assert (size.is_known, size.limit, size.room(1 << 40)) == (False, ASSUMED_BYTES, ASSUMED_BYTES - OVERHEAD)
    size.learn(MIB)
    assert (size.is_known, size.room(1 << 40), size.room(100)) == (True, MIB - OVERHEAD, 100)
