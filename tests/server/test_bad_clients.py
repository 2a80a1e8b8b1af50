"""Clients that read slowly, stall, cancel or disappear: other clients are served, and resources are freed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

import whamming
from tests.server.answers import CANCELLED, COMPLETE, EXHAUSTED
from tests.server.collection import Collection
from tests.server.conversation import Conversation, reason_of
from tests.server.questions import Options
from tests.serving import PATIENCE, ServerProcess, Stubs, Usage, wait_until
from whamming.server.rpc.scan import MESSAGE_BYTES, PAYLOAD_BYTES
from whamming.v1.item_pb2 import ScanRequest
from whamming.wire.columns import ids_of

BITS, N = 64, 100_000
BUFFER = 256 << 10
"""Size of a call's send buffer in bytes: the server's default."""
CURSOR = 2 << 20
"""Maximum bytes that a running query holds in addition."""
SCAN = 1 << 20
"""Maximum bytes that a scan holds for a client that does not read."""
SPARE = 48 << 20
"""Bytes that the allocator may keep after many clients have left."""
OWN_CONNECTION = {"grpc.use_local_subchannel_pool": 1}
READER = """
import sys
from tests.server.conversation import Conversation
from tests.server.questions import Question
from tests.serving import Stubs
import grpc
stubs = Stubs(grpc.insecure_channel(sys.argv[1]))
with Conversation(stubs.search) as talk:
    talk.ask("docs", [Question(1, bytes(8)), Question(2, bytes([255] * 8))])
    for number, _ in enumerate(talk.responses()):
        print(number, flush=True)
        if number == int(sys.argv[2]):
            sys.stdin.read()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("hardship") / "db") as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def docs(server: ServerProcess) -> Iterator[Collection]:
    with server.stubs() as stubs:
        docs = Collection.uniform(stubs, "docs", N, BITS, sealed=True)
        check_served(docs)
        yield docs


@pytest.fixture
def before(server: ServerProcess, docs: Collection) -> Usage:
    """What the server uses with one idle client."""
    check_idle(server)
    return server.usage()


def check_served(docs: Collection, stubs: Stubs | None = None) -> None:
    """Check that another client gets the right answer."""
    question = docs.question()
    with Conversation((stubs or docs.stubs).search) as talk:
        talk.ask(docs.name, [question], Options(k=50))
        account = talk.finish()[0]
    assert reason_of(account) == COMPLETE
    assert account.bytes == docs.truth(question)[:50].bytes()


def check_idle(server: ServerProcess) -> None:
    """Wait until the server uses almost no CPU time."""

    def is_idle() -> bool:
        used = server.cpu_seconds()
        time.sleep(0.25)
        return server.cpu_seconds() - used < 0.05

    wait_until(is_idle, "the end of the work")


def read_slowly(talk: Conversation, pause: float) -> None:
    """Read all messages, with a pause after each."""
    for _ in talk.responses():
        time.sleep(pause)


# -- slow --------------------------------------------------------------------------------------------------------------


def test_a_slow_reader_gets_all_hits_and_delays_nobody(server: ServerProcess, docs: Collection) -> None:
    question = docs.question("weights")
    with Conversation(docs.stubs.search) as talk:
        talk.ask(docs.name, [question])
        for number, _ in enumerate(talk.responses()):
            if number < 5:
                check_idle(server)  # the server waits for this reader
                check_served(docs)
            if talk.accounts[0].end is not None:
                break
        account = talk.finish()[0]
    assert reason_of(account) == EXHAUSTED
    assert account.bytes == docs.truth(question).bytes()


def test_stalled_readers_use_bounded_memory(server: ServerProcess, docs: Collection, before: Usage) -> None:
    count = 200
    with contextlib.ExitStack() as stack:
        talks = []
        for number in range(count):
            stubs = stack.enter_context(server.stubs(**OWN_CONNECTION))
            talk = stack.enter_context(Conversation(stubs.search, timeout=4 * PATIENCE))
            talk.ask(docs.name, [docs.question(query_id=number)])
            talks.append(talk)
        for talk in talks:
            next(talk.responses())
        check_idle(server)
        grown = server.usage().rss - before.rss
        assert grown <= count * (BUFFER + CURSOR), f"{grown / count / 1e6:.2f} MB for each"
        check_served(docs)
        for talk in talks[:3]:  # and they can continue later
            assert reason_of(talk.finish()[int(next(iter(talk.accounts)))]) == EXHAUSTED
    server.settled(before, SPARE)
    check_idle(server)


@pytest.mark.parametrize(("bits", "payload"), [(2048, b""), (64, bytes(1000))])
def test_scans_that_nobody_reads_hold_little_memory(server: ServerProcess, bits: int, payload: bytes) -> None:
    """Each held about 10 MiB: messages were larger, and there were five copies of each."""
    count, n = 100, 16 * SCAN // (len(payload) or bits // 8)
    with contextlib.ExitStack() as stack, server.stubs() as first:
        name = f"scan-{bits}"
        with whamming.connect(server.address) as database:
            index = database.create_index(name, bits, tables="none")
            index.upsert(range(n), np.zeros((n, bits // 8), np.uint8), payloads=[payload] * n)
        largest = max(response.ByteSize() for response in first.items.Scan(ScanRequest(index=name)))
        assert largest <= MESSAGE_BYTES + PAYLOAD_BYTES + 1000
        check_idle(server)
        before = server.usage().rss
        scans = []
        for number in range(count):
            if number % 50 == 0:
                stubs = stack.enter_context(server.stubs(**OWN_CONNECTION))
            scans.append(stubs.items.Scan(ScanRequest(index=name)))
            next(scans[-1])
        check_idle(server)
        grown = server.usage().rss - before
        assert grown <= count * SCAN + SPARE, f"{grown / count / 1e6:.2f} MB for each"
        assert (
            sum(len(ids_of(response.items.ids, "ids")) for response in first.items.Scan(ScanRequest(index=name))) == n
        )


# -- cancelling --------------------------------------------------------------------------------------------------------


def test_cancelling_two_thousand_queries(server: ServerProcess, docs: Collection, before: Usage) -> None:
    question = docs.question()
    held = Options(credit=N // 2)  # without this limit a query may end before it is cancelled
    with Conversation(docs.stubs.search, timeout=4 * PATIENCE) as talk:
        for query_id in range(2000):
            talk.ask(docs.name, [replace(question, id=query_id)], held if query_id % 4 < 2 else None)
            if query_id % 2:  # cancel between hits, or before the first one
                account = talk.accounts[query_id]
                talk.until(lambda account=account: account.ids or account.end)
            talk.cancel(query_id)
            if query_id % 50 == 49:
                talk.until_ended(*range(query_id - 49, query_id + 1))
        accounts = talk.finish()
        for query_id, account in accounts.items():
            assert reason_of(account) in ({CANCELLED} if query_id % 4 < 2 else {CANCELLED, EXHAUSTED})
    server.settled(before, SPARE)
    check_idle(server)
    check_served(docs)


def test_cancelling_two_thousand_calls(server: ServerProcess, docs: Collection, before: Usage) -> None:
    question = docs.question()
    for number in range(2000):
        with Conversation(docs.stubs.search) as talk:
            talk.ask(docs.name, [question])
            if number % 4 == 0:
                next(talk.responses())
    server.settled(before, SPARE)
    check_idle(server)
    check_served(docs)


def test_abandoning_two_thousand_searches_of_the_python_client(
    server: ServerProcess, docs: Collection, before: Usage
) -> None:
    with whamming.connect(server.address) as database:
        index = database.index(docs.name)
        code = docs.packed()[1][0]
        for _ in range(2000):
            for hit in index.search(code):
                assert hit.distance == 0.0
                break
    server.settled(before, SPARE)
    check_idle(server)


@pytest.mark.parametrize("seconds", [0.001, 0.02, 0.3])
def test_a_deadline_stops_the_search(server: ServerProcess, docs: Collection, before: Usage, seconds: float) -> None:
    for query in range(6):
        with Conversation(docs.stubs.search, timeout=seconds) as talk:
            talk.ask(docs.name, [docs.question(query_id=query)])
            with pytest.raises(grpc.RpcError) as raised:
                read_slowly(talk, seconds)
            assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    server.settled(before, SPARE)
    check_idle(server)
    check_served(docs)


# -- disappearing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("messages", [0, 3])
def test_killed_clients(server: ServerProcess, docs: Collection, before: Usage, messages: int) -> None:
    children = [
        subprocess.Popen(
            [sys.executable, "-c", READER, server.address, str(messages)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )
        for _ in range(3)
    ]
    for child in children:
        assert child.stdout is not None
        for _ in range(messages + 1):
            assert child.stdout.readline()
    for child in children:
        child.kill()
        assert child.wait(PATIENCE) == -signal.SIGKILL
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        child.stdout.close()
    server.settled(before, SPARE)
    check_idle(server)
    check_served(docs)


def test_channels_closed_between_messages(server: ServerProcess, docs: Collection, before: Usage) -> None:
    for number in range(40):
        with server.stubs(**OWN_CONNECTION) as stubs:
            talks = [Conversation(stubs.search) for _ in range(5)]
            for talk in talks:
                talk.ask(docs.name, [docs.question(query_id=number)])
            next(talks[number % 5].responses())
        for talk in talks:
            talk.done()
    server.settled(before, SPARE)
    check_idle(server)
    server.check_log()


def test_invalid_bytes_on_the_port(server: ServerProcess, docs: Collection, before: Usage) -> None:
    host, port = server.address.rsplit(":", 1)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    rubbish = [
        b"",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 10_000,
        os.urandom(100_000),
        preface,
        preface + os.urandom(5000),
    ]
    connections = []
    for data in 5 * rubbish:
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
        with contextlib.suppress(ConnectionError):  # the server may close the connection
            connection.sendall(data)
        connections.append(connection)
    check_served(docs)
    for connection in connections:
        connection.close()
    server.settled(before, SPARE)
    check_idle(server)


def test_all_kinds_of_bad_clients_at_once(server: ServerProcess, docs: Collection, before: Usage) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def go_on(hardship: Callable[[Stubs], None]) -> None:
        try:
            with server.stubs(**OWN_CONNECTION) as stubs:
                while not stop.is_set():
                    hardship(stubs)
        except BaseException as error:
            errors.append(error)

    def cancel(stubs: Stubs) -> None:
        with Conversation(stubs.search) as talk:
            talk.ask(docs.name, [docs.question(query_id=query) for query in range(4)])
            next(talk.responses())
            talk.cancel(0, 1)
            talk.until_ended(0, 1)

    def expire(stubs: Stubs) -> None:
        with Conversation(stubs.search, timeout=0.02) as talk, contextlib.suppress(grpc.RpcError):
            talk.ask(docs.name, [docs.question()])
            for _ in talk.responses():
                pass

    def ask(stubs: Stubs) -> None:
        check_served(docs, stubs)

    threads = [threading.Thread(target=go_on, args=[one]) for one in (cancel, cancel, expire, expire, ask)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        check_served(docs)
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors
    server.settled(before, SPARE)
    check_idle(server)
