"""Writes that a client sends again, because it has lost its connection, do not undo what others have written since."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import grpc
import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess, details_of, wait_until
from whamming.v1 import index_pb2, item_pb2
from whamming.wire.columns import id_column

OLD, NEW = np.array([[5]], dtype=np.uint8), np.array([[6]], dtype=np.uint8)


class Proxy:
    """Forwards connections to a server. On request it swallows the server's answers, and then cuts all connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self.muted = False

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Close all connections, and let answers through on new ones."""
        self.muted = False
        while self._open:
            with contextlib.suppress(OSError):
                self._open.pop().shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                theirs, _ = self._listener.accept()
                try:
                    ours = socket.create_connection(self._target)
                except OSError:  # the server is restarting
                    theirs.close()
                    continue
                self._open += theirs, ours
                for source, sink, answers in ((theirs, ours, False), (ours, theirs, True)):
                    threading.Thread(target=self._forward, args=(source, sink, answers), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not (answers and self.muted):
                    sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_an_automatic_retry_does_not_undo_a_newer_write(workers: int, restart: bool, tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path / "db", workers=workers) as server,
        Proxy(server.address) as proxy,
        whamming.connect(proxy.address, timeout=60) as unlucky,
        whamming.connect(server.address, timeout=60) as other,
    ):
        ours = unlucky.create_index("docs", 8)
        theirs = other.index("docs")
        ours.upsert([1, 2], np.concatenate([NEW, NEW]))

        def lose_the_answer(write: Callable[[], object], is_done: Callable[[], bool]) -> object:
            """Write. Once it is done, let the other client write, break the connection, and let the first one retry."""
            results: list[object] = []
            proxy.muted = True
            thread = threading.Thread(target=lambda: results.append(write()))
            thread.start()
            wait_until(is_done, "the write")
            theirs.upsert([1], NEW)
            if restart:
                server.kill()
                server.start()
            proxy.cut()
            thread.join()
            (result,) = results
            assert theirs.get([1]).codes[0] == NEW[0], "the newer write is still there"
            return result

        def is_old() -> bool:
            return bool(theirs.get([1]).codes[0] == OLD[0])

        lose_the_answer(lambda: ours.upsert([1], OLD), is_old)
        removed = lose_the_answer(lambda: ours.delete([1, 2]), lambda: not theirs.get([1]).found[0])
        assert removed == (0 if restart else 2)
        assert theirs.get([1, 2]).found.tolist() == [True, False]


def test_batches_of_a_stream_are_recognised(tmp_path: Path) -> None:
    """Even if they are sent in another stream, after a crash, or after they were sealed."""

    def batch(number: int) -> item_pb2.UpsertRequest:
        items = item_pb2.ItemBatch(ids=id_column(np.array([number], dtype=np.uint64)), codes=bytes([number]))
        return item_pb2.UpsertRequest(index="docs", sequence=number, items=items, request_id=b"request %d" % number)

    with ServerProcess(tmp_path / "db") as server, whamming.connect(server.address, timeout=60) as database:
        docs = database.create_index("docs", 8)
        for step in range(3):
            with server.stubs() as stubs:  # those of earlier steps are repeats
                answers = list(stubs.items.Upsert(map(batch, range(10 * step + 10))))
            assert [answer.count for answer in answers] == [1] * (10 * step + 10)
            assert len(docs) == 10
            assert docs.delete(np.arange(10 * step, 10 * step + 10)) == 10
            if step == 0:
                docs.seal()
            else:
                server.kill()
                server.start()


def test_a_batch_without_items_is_acknowledged() -> None:
    with ServerProcess() as server, server.stubs() as stubs:
        stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name="docs", settings={"bits": 8}))
        requests = [item_pb2.UpsertRequest(index="docs", sequence=sequence) for sequence in (0, 7)]
        answers = list(stubs.items.Upsert(iter(requests)))
        assert [(answer.sequence, answer.count) for answer in answers] == [(0, 0), (7, 0)]


@pytest.mark.parametrize("size", [1, 7, 65])
def test_request_ids_of_other_lengths_are_refused(size: int) -> None:
    with ServerProcess() as server, server.stubs() as stubs, whamming.connect(server.address) as database:
        database.create_index("docs", 8)
        items = item_pb2.ItemBatch(ids=id_column(np.array([1], dtype=np.uint64)), codes=b"x")
        calls: list[Callable[[], object]] = [
            lambda: list(
                stubs.items.Upsert(iter([item_pb2.UpsertRequest(index="docs", items=items, request_id=bytes(size))]))
            ),
            lambda: stubs.items.Delete(item_pb2.DeleteRequest(index="docs", request_id=bytes(size))),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            details = details_of(caught.value)
            assert (details.reason, details.field) == ("INVALID_ARGUMENT", "request_id")
            assert f"{size} bytes" in details.message
