"""Servers that restart on the same port: clients resume, and nothing is lost or duplicated."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Codes, Truth, truth
from tests.serving import PATIENCE, ServerProcess, wait_until
from whamming import RemoteIndex, UnavailableError
from whamming.storage import NotFoundError

BITS, N = 64, 3000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "db", grace_seconds=0.2) as server:
        yield server


@pytest.fixture
def codes() -> Codes:
    return make_codes("uniform", N, BITS, np.random.default_rng(0))


@pytest.fixture
def index(server: ServerProcess, codes: Codes) -> Iterator[RemoteIndex]:
    with whamming.connect(server.address) as database:
        index = database.create_index("docs", BITS)
        index.upsert(np.arange(N), codes, [b"payload of %d" % id_ for id_ in range(N)])
        yield index


def answer(codes: Codes, code: Codes) -> Truth:
    bits = np.unpackbits(code, count=BITS, bitorder="little").astype(float)
    return truth(codes, np.stack([bits, 1 - bits], axis=1))


def crash(server: ServerProcess) -> None:
    server.kill()
    server.start()


def restart(server: ServerProcess) -> None:
    assert server.stop() == 0
    server.start()


class Meanwhile:
    """Runs a function in another thread."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._value = self._action()
            self._error: BaseException | None = None
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._value


# -- searching ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("away", [crash, restart])
def test_a_search_resumes_after_a_restart(
    server: ServerProcess, index: RemoteIndex, codes: Codes, away: Callable[[ServerProcess], None]
) -> None:
    """Two restarts in one search. With payloads, the server sends at most 256 hits ahead."""
    whole = answer(codes, codes[7])
    search = index.search(codes[7], payloads=True)
    hits = [next(search) for _ in range(10)]
    away(server)
    hits += [next(search) for _ in range(1000)]
    away(server)
    hits += list(search)
    assert [hit.id for hit in hits] == whole.ids.tolist()
    assert [hit.distance for hit in hits] == whole.distances.tolist()
    assert [hit.payload for hit in hits] == [b"payload of %d" % hit.id for hit in hits]
    assert search.lower_bound == np.inf


def test_k_includes_hits_from_before_a_restart(server: ServerProcess, index: RemoteIndex, codes: Codes) -> None:
    search = index.search(codes[7], k=700, payloads=True)
    first, _ = search.next(300)
    crash(server)
    rest, _ = search.all()
    assert [*first.tolist(), *rest.tolist()] == answer(codes, codes[7]).ids[:700].tolist()


def test_a_resumed_search_sees_new_writes(server: ServerProcess, index: RemoteIndex, codes: Codes) -> None:
    search = index.search(codes[7], payloads=True)
    first, distances = search.next(300)
    crash(server)
    index.delete(range(0, N, 2))
    rest, _ = search.all()
    left = answer(codes, codes[7]).after(float(distances[-1]), int(first[-1])).ids
    early = set(rest[:600].tolist())  # these may have arrived before the crash
    assert set(left[left % 2 == 1].tolist()) <= set(rest.tolist())
    assert set(rest.tolist()) - early <= set(left[left % 2 == 1].tolist())


def test_a_batch_survives_a_crash(server: ServerProcess, index: RemoteIndex, codes: Codes) -> None:
    expected = index.search_batch(codes[:2000], k=5)
    asking = Meanwhile(lambda: index.search_batch(codes[:2000], k=5))
    crash(server)
    answered = asking.result()
    assert answered.exact.all()
    assert np.array_equal(answered.ids, expected.ids)
    assert np.array_equal(answered.distances, expected.distances)


def test_reads_are_retried(server: ServerProcess, index: RemoteIndex) -> None:
    server.kill()
    reads = [
        Meanwhile(lambda: len(index)),
        Meanwhile(lambda: index.get([5]).payloads),
        Meanwhile(lambda: index.stats().items),
        Meanwhile(lambda: next(index.search(np.zeros(BITS // 8, dtype=np.uint8))).id),
    ]
    server.start()
    values = [read.result() for read in reads]
    assert values[:3] == [N, [b"payload of 5"], N]


# -- writing -----------------------------------------------------------------------------------------------------------


def test_an_upsert_is_retried_until_it_is_written(server: ServerProcess, index: RemoteIndex) -> None:
    """About 20 MiB in messages of 4 MiB. The server dies after it has written the first one."""
    count = 320
    ids = np.arange(10_000, 10_000 + count)
    codes = make_codes("uniform", count, BITS, np.random.default_rng(1))
    payloads: list[bytes | None] = [bytes([row % 256]) * 65_536 for row in range(count)]
    before = index.stats().writes
    writing = Meanwhile(lambda: index.upsert(ids, codes, payloads))
    wait_until(lambda: index.stats().writes > before, "a write")
    crash(server)
    writing.result()
    items = index.get(ids)
    assert items.found.all()
    assert np.array_equal(items.codes, codes)
    assert items.payloads == payloads
    assert len(index) == N + count


def test_deletes_are_retried(server: ServerProcess, index: RemoteIndex) -> None:
    server.kill()
    deleting = Meanwhile(lambda: index.delete(range(100)))
    server.start()
    deleting.result()
    assert len(index) == N - 100


def test_acknowledged_writes_survive_a_crash(server: ServerProcess, index: RemoteIndex, codes: Codes) -> None:
    for turn in range(3):
        index.upsert([20_000 + turn], codes[turn : turn + 1])
        crash(server)
        assert index.get([20_000 + turn]).found.all()


# -- no server ---------------------------------------------------------------------------------------------------------


def test_a_server_that_stays_down(server: ServerProcess, codes: Codes) -> None:
    with whamming.connect(server.address, retry_seconds=0.3) as database:
        index = database.create_index("brief", BITS)
        index.upsert(np.arange(N), codes, [b"x"] * N)
        search = index.search(codes[0], payloads=True)
        next(search)
        server.kill()
        with pytest.raises(UnavailableError, match="server"):
            search.all()
        with pytest.raises(UnavailableError, match="cannot be reached"):
            len(index)
        with pytest.raises(UnavailableError):
            index.upsert([1], codes[:1])
        with pytest.raises(UnavailableError):
            index.search_batch(codes[:3])
        with pytest.raises(UnavailableError):
            database.create_index("late", 8)
        server.start()

        def is_back() -> bool:
            with contextlib.suppress(UnavailableError):
                return len(index) == N
            return False

        wait_until(is_back, "the connection's recovery")


def test_an_index_that_is_gone_after_a_restart() -> None:
    with ServerProcess() as server, whamming.connect(server.address) as database:
        index = database.create_index("docs", 8)
        index.upsert(range(600), np.zeros((600, 1), dtype=np.uint8), [b"x"] * 600)
        search = index.search(np.zeros(1, dtype=np.uint8), payloads=True)
        next(search)
        crash(server)
        with pytest.raises(NotFoundError, match="no index 'docs'"):
            search.all()


def test_no_server_at_the_address() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=rf"{address} within 0.2 s.*whamming serve"):
            whamming.connect(address, timeout=0.2)
