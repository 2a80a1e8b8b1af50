"""How a server starts and stops, its health and reflection services, and several processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import whamming
from tests.native.examples import make_codes
from tests.server.answers import COMPLETE, SHUTDOWN
from tests.server.collection import Collection
from tests.server.columns import pack_ids
from tests.server.conversation import Conversation, end_of, reason_of
from tests.server.questions import Options
from tests.serving import COMPLAINTS, PATIENCE, ServerProcess, details_of, wait_until
from whamming import InvalidArgumentError
from whamming.remote.channel import OPTIONS
from whamming.server import Config, Server, serve
from whamming.server.app import SERVICES, server_options
from whamming.server.listening import ListenError
from whamming.storage import IndexSettings, WriterBusyError
from whamming.v1.index_pb2 import CompactIndexRequest, GetIndexRequest, ListIndexesRequest
from whamming.v1.item_pb2 import GetRequest, ItemBatch, UpsertRequest

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


# -- health and reflection ---------------------------------------------------------------------------------------------


def health_stub(channel: Any) -> Any:
    return health_pb2_grpc.HealthStub(channel)


def test_health(server: ServerProcess) -> None:
    with server.stubs() as stubs:
        health = health_stub(stubs.channel)
        for name in ("", *(service.full_name for service in SERVICES)):
            assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == SERVING
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="absent"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND


def test_reflection(server: ServerProcess) -> None:
    """Reflection lists all services and returns the same descriptors as the protos."""
    with server.stubs() as stubs:
        stub = reflection_pb2_grpc.ServerReflectionStub(stubs.channel)
        ask = reflection_pb2.ServerReflectionRequest
        names = [service.full_name for service in SERVICES]
        requests = [ask(list_services=""), *(ask(file_containing_symbol=name) for name in names)]
        listed, *files = stub.ServerReflectionInfo(iter(requests))
        served = {service.name for service in listed.list_services_response.service}
        assert served == {*names, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
        for service, answer in zip(SERVICES, files, strict=True):
            found = [
                descriptor_pb2.FileDescriptorProto.FromString(data)
                for data in answer.file_descriptor_response.file_descriptor_proto
            ]
            expected = descriptor_pb2.FileDescriptorProto()
            service.file.CopyToProto(expected)
            assert expected in found


# -- starting ----------------------------------------------------------------------------------------------------------


async def test_embedded_server_serves_its_own_or_a_given_database(tmp_path: Path) -> None:
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", 8)
        index.upsert([1], np.zeros((1, 1), dtype=np.uint8))
        async with (
            Server(Config(listen="127.0.0.1:0"), database) as server,
            await whamming.aio.connect(server.address) as client,
        ):
            assert await client.list_indexes() == ["docs"]
            assert await (await client.index("docs")).count() == 1
        assert len(index) == 1, "the server does not close a database that it was given"
    data = str(tmp_path / "db")
    async with Server(Config(listen="127.0.0.1:0", data=data)):
        with pytest.raises(WriterBusyError):
            await asyncio.to_thread(whamming.open, data)
    whamming.open(data).close()


class UnluckyServer(Server):
    """A step of its housekeeping fails each time, and the health check the first three times."""

    refreshes = checks = 0

    async def _refresh(self) -> None:
        self.refreshes += 1
        raise OSError("unlucky")

    async def _check_files(self) -> None:
        self.checks += 1
        if self.checks <= 3:
            raise RuntimeError("unhealthy")
        await super()._check_files()


async def test_housekeeping_goes_on_after_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = str(tmp_path / "db")
    async with UnluckyServer(Config(listen="127.0.0.1:0", data=data, snapshot_seconds=0.1)) as server:
        async with asyncio.timeout(PATIENCE):
            while server.checks < 6 or server.refreshes < 6:
                await asyncio.sleep(0.01)
    errors = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert sorted(errors) == ["unhealthy", "unlucky"], "each is logged once"
    whamming.open(data).close()


class BrokenServer(Server):
    async def _do_housekeeping(self) -> None:
        raise RuntimeError("broken")


async def test_stopping_closes_the_database_whatever_the_housekeeping_raised(tmp_path: Path) -> None:
    data = str(tmp_path / "db")
    async with BrokenServer(Config(listen="127.0.0.1:0", data=data)):
        await asyncio.sleep(0)
    whamming.open(data).close()


async def test_listening_on_an_address_in_use_fails(tmp_path: Path) -> None:
    async with Server(Config(listen="127.0.0.1:0", data=":memory:")) as server:
        data = str(tmp_path / "db")
        with pytest.raises(ListenError, match=rf"{server.address} is in use.*--listen"):
            await Server(Config(listen=server.address, data=data)).start()
        whamming.open(data).close()


async def test_servers_with_several_processes_do_not_share_a_port(tmp_path: Path) -> None:
    """Not even if they start at the same time, so that each could find the port free before the other listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    servers = [Server(Config(listen=address, data=str(tmp_path / name), workers=2)) for name in "ab"]
    results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
    try:
        (refused,) = (result for result in results if result is not None)
        assert isinstance(refused, ListenError)
        assert f"{address} is in use" in str(refused)
        with pytest.raises(ListenError, match=f"{address} is in use"):  # nor if the first one has started long ago
            await Server(Config(listen=address, data=str(tmp_path / "c"), workers=2)).start()
    finally:
        for server, result in zip(servers, results, strict=True):
            if result is None:
                await server.stop()


def test_listening_on_a_privileged_port_fails() -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 1:
        pytest.skip("all users may listen on privileged ports here")
    program = (
        "import os; from whamming.server.listening import ListenError, check_listen\n"
        "check_listen('127.0.0.1:0')  # load what it imports while the files are readable\n"
        "if os.geteuid() == 0: os.seteuid(65534)\n"
        "try: check_listen('127.0.0.1:1')\n"
        "except ListenError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "127.0.0.1:1: this user may not" in done.stdout
    assert "--listen" in done.stdout


def test_grpc_knows_all_channel_options() -> None:
    """gRPC silently ignores unknown options, so a misspelt name would go unnoticed."""
    known = Path(cygrpc.__file__).read_bytes()
    for options in (server_options(Config()), OPTIONS):
        for name, _ in options:
            assert name.encode() + b"\0" in known, name


def test_the_socket_of_a_killed_server_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not that of another server, which is running."""
    with tempfile.TemporaryDirectory() as short:  # the path of a socket has at most 107 bytes
        monkeypatch.setenv("TMPDIR", short)
        with ServerProcess(tmp_path / "a", workers=2) as killed, ServerProcess(tmp_path / "b", workers=2) as running:
            assert len(os.listdir(short)) == 2
            killed.kill()
            killed.start()
            assert len(os.listdir(short)) == 2
            for server in (killed, running):
                with whamming.connect(server.address) as database:
                    database.create_index("docs", 8)
        assert os.listdir(short) == []


def test_several_workers_need_a_directory() -> None:
    with pytest.raises(InvalidArgumentError, match=r"workers = 2; .*in-memory.*directory"):
        serve.run(Config(data=":memory:", workers=2), lambda address: None)


# -- stopping ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopping() -> Iterator[ServerProcess]:
    """A server with a short grace period."""
    with ServerProcess(grace_seconds=0.5) as server:
        yield server
        server.check_log()


def test_sigterm_abandons_a_merge_after_the_grace_period(tmp_path: Path) -> None:
    """It is made again later. The old segments stay until then."""
    count = 400_000
    codes = np.random.default_rng(4).integers(0, 256, (count, 32), dtype=np.uint8)
    with whamming.open(tmp_path / "db") as database:
        index = database.create_index("docs", 256)
        index.upsert(np.arange(count), codes)
        index.seal()
        index.delete([3])
        index.seal()
    with ServerProcess(tmp_path / "db", grace_seconds=0.2) as server, server.stubs() as stubs:
        for _ in stubs.indexes.CompactIndex(CompactIndexRequest(name="docs")):
            break  # it has begun
        assert server.stop() == 0
        server.check_log()
    with whamming.open(tmp_path / "db") as database:
        stats = database.index("docs").stats()
        assert (stats.items, stats.dead_rows) == (count - 1, 1), "the server has not waited for it"


def test_an_idle_server_stops_at_once(stopping: ServerProcess) -> None:
    """Connected clients and streams without queries do not delay it."""
    with stopping.stubs() as stubs, whamming.connect(stopping.address) as database:
        docs = Collection.uniform(stubs, "docs", 20, 8)
        list(database.index("docs").search(np.zeros(1, dtype=np.uint8), k=3))
        with Conversation(stubs.search) as talk:
            talk.ask("docs", [docs.question(query_id=1)], Options(k=1))
            talk.until_ended(1)
            start = time.monotonic()
            assert stopping.stop() == 0
            assert time.monotonic() - start < 0.5 + PATIENCE / 10
            talk.finish_unavailable()


def test_stopped_searches_return_resume_tokens(stopping: ServerProcess) -> None:
    with stopping.stubs() as stubs:
        docs = Collection.uniform(stubs, "docs", 300, 24)
        health = health_stub(stubs.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == SERVING
        questions = [docs.question(query_id=query_id) for query_id in range(4)]
        with Conversation(stubs.search) as talk, Conversation(stubs.search) as stalled:
            talk.ask("docs", questions, Options(credit=10))
            talk.ask("docs", [replace(questions[3], id=9, after=(-1.0, 0))], Options(credit=0))
            talk.until(lambda: all(len(talk.accounts[query_id].ids) == 10 for query_id in range(4)))
            stalled.ask("docs", [questions[0]])  # this call is never read
            os.kill(stopping.process.pid, signal.SIGTERM)
            assert next(health).status == NOT_SERVING
            talk.grant(0, 10_000)  # one query can finish within the grace period
            talk.finish_unavailable()
        whole = [docs.truth(question) for question in questions]
        assert talk.accounts[0].bytes == whole[0].bytes()
        for query_id in (1, 2, 3):
            account = talk.accounts[query_id]
            assert reason_of(account) == SHUTDOWN
            assert account.bytes == whole[query_id][:10].bytes()
        assert reason_of(talk.accounts[9]) == SHUTDOWN
        assert end_of(talk.accounts[9]).resume == (-1.0, 0)
        assert stopping.stop() == 0


def test_a_stopping_server_refuses_new_work(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "db", grace_seconds=20) as server, server.stubs() as stubs:
        docs = Collection.uniform(stubs, "docs", 300, 24)
        question = docs.question(query_id=1)
        health = health_stub(stubs.channel).Watch(health_pb2.HealthCheckRequest())
        assert next(health).status == SERVING
        with Conversation(stubs.search) as talk:
            talk.ask("docs", [question], Options(credit=1))
            talk.until(lambda: talk.accounts[1].ids)
            os.kill(server.process.pid, signal.SIGTERM)
            assert next(health).status == NOT_SERVING
            with pytest.raises(grpc.RpcError) as caught:
                stubs.indexes.GetIndex(GetIndexRequest(name="docs"))
            assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
            details = details_of(caught.value)
            assert details.reason == "SHUTTING_DOWN"
            assert details.retry_seconds > 0
            talk.ask("docs", [replace(docs.question(query_id=2), after=(0.5, 0))])
            talk.until_ended(2)
            assert reason_of(talk.accounts[2]) == SHUTDOWN
            talk.grant(1, 10_000)
            start = time.monotonic()
            assert talk.finish_unavailable()[1].bytes == docs.truth(question).bytes()
            assert server.stop() == 0
            assert time.monotonic() - start < 15, "the server must stop as soon as the last query ends"
        server.check_log()


def test_sigint_stops_the_server(stopping: ServerProcess) -> None:
    os.kill(stopping.process.pid, signal.SIGINT)
    assert stopping.process.wait(PATIENCE) == 0


def test_acknowledged_writes_survive_a_stop(tmp_path: Path) -> None:
    """This includes writes with asynchronous durability."""
    with ServerProcess(tmp_path / "db") as server:
        with server.stubs() as stubs:
            docs = Collection(stubs, "docs", IndexSettings(16, durability="async"))
            docs.upsert(np.arange(100, dtype=np.uint64), make_codes("uniform", 100, 16, np.random.default_rng(0)))
        assert server.stop() == 0
        server.start()
        with server.stubs() as stubs:
            assert all(stubs.items.Get(GetRequest(index="docs", ids=pack_ids(range(100)))).found)


# -- several processes -------------------------------------------------------------------------------------------------


def processes_of(server: ServerProcess) -> list[int]:
    """Return the ids of the server's process and its children."""
    path = Path(f"/proc/{server.process.pid}/task")
    children: list[str] = []
    for task in path.iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            children += (task / "children").read_text().split()
    return [server.process.pid, *map(int, children)]


def connections_of(process: int) -> int:
    """Return the number of open sockets of a process."""
    found = 0
    for file in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(file).startswith("socket:")
    return found


def test_several_processes_share_a_database(tmp_path: Path) -> None:
    """Every process accepts writes, searches all items, and reports errors with details."""
    with ServerProcess(tmp_path / "db", workers=3, threads=1, grace_seconds=0.5) as server:
        processes = processes_of(server)
        assert len(processes) == 3
        before = [connections_of(process) for process in processes]
        with contextlib.ExitStack() as stack:
            options = {"grpc.use_local_subchannel_pool": 1}
            clients = [stack.enter_context(server.stubs(**options)) for _ in range(24)]
            docs = Collection(clients[0], "docs", IndexSettings(16))
            codes = make_codes("uniform", len(clients), 16, np.random.default_rng(0))
            for id_, stubs in enumerate(clients):
                docs.stubs = stubs
                docs.upsert(np.array([id_], dtype=np.uint64), codes[id_ : id_ + 1], [b"payload of %d" % id_])
            busy = [connections_of(process) > had for process, had in zip(processes, before, strict=True)]
            assert sum(busy) >= 2, "all connections went to one process"
            question = docs.question(query_id=1)
            for stubs in clients:
                with Conversation(stubs.search) as talk:
                    talk.ask("docs", [question], Options(k=24, payloads=True))
                    account = talk.finish()[1]
                assert account.bytes == docs.truth(question).bytes()
                assert account.payloads == docs.payloads(account.ids)
                assert reason_of(account) == COMPLETE
                wrong = UpsertRequest(index="docs", items=ItemBatch(ids=pack_ids([1, 2]), codes=b"xyz"))
                with pytest.raises(grpc.RpcError) as caught:
                    list(stubs.items.Upsert(iter([wrong] * 20)))
                assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
                assert details_of(caught.value).field == "items.codes"
        os.kill(processes[1], signal.SIGKILL)
        wait_until(lambda: len(set(processes_of(server)) - set(processes)) == 1, "the restart of a killed process")
        with server.stubs() as stubs:
            assert stubs.indexes.GetIndex(GetIndexRequest(name="docs")).index.statistics.items == 24
        processes = processes_of(server)
        assert server.stop() == 0
        assert not any(Path(f"/proc/{process}").exists() for process in processes), "some processes are still running"


def test_a_reader_is_restarted_once_files_can_be_opened_again(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "db", workers=2, threads=1, grace_seconds=0.5) as server:
        writer, reader = processes_of(server)
        limits = resource.prlimit(writer, resource.RLIMIT_NOFILE)
        resource.prlimit(writer, resource.RLIMIT_NOFILE, (8, limits[1]))  # it has more files open than that
        os.kill(reader, signal.SIGKILL)
        wait_until(lambda: server.log().count("could not be restarted") >= 2, "the second attempt")
        resource.prlimit(writer, resource.RLIMIT_NOFILE, limits)
        wait_until(lambda: len(processes_of(server)) == 2, "the restart")
        with server.stubs() as stubs:
            assert not stubs.indexes.ListIndexes(ListIndexesRequest()).indexes


def test_processes_import_nothing_from_the_working_directory(tmp_path: Path) -> None:
    """Others may be able to write to it, and a module there must not replace an installed one."""
    (tmp_path / "uvloop.py").write_text("raise SystemExit('this file was run')")
    program = shutil.which("whamming", path=Path(sys.executable).parent)
    assert program is not None
    command = [program, "serve", "--listen", "127.0.0.1:0", "--data", "db", "--workers", "2", "--threads", "1"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        server.terminate()
        _, log = server.communicate(timeout=PATIENCE)
    assert line.startswith("listening on "), log


@pytest.mark.parametrize("told", [False, True], ids=["before it was told what to do", "before it was ready"])
def test_a_reader_whose_writer_dies_ends_quietly(told: bool, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "whamming.server.serve"]
    pipe = subprocess.PIPE
    whamming.open(tmp_path / "database").close()
    config = Config(data=str(tmp_path / "database"), listen="127.0.0.1:0", workers=3, grace_seconds=0.1)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stderr is not None
        reader.stdout.close()
        if told:
            reader.stdin.write(json.dumps({"config": asdict(config), "writer": f"unix:{tmp_path}/none"}) + "\n")
        reader.stdin.close()
        log = reader.stderr.read()
        assert reader.wait(PATIENCE) == 0, log
    assert not any(complaint in log for complaint in COMPLAINTS), log


def test_many_threads_search_with_one_client(server: ServerProcess) -> None:
    """The blocking client uses one event loop and one stream for the searches of all threads."""
    with server.stubs() as stubs:
        docs = Collection.uniform(stubs, "threads", 500, 24)
    questions = [docs.question("code", query_id=query_id) for query_id in range(60)]
    wrong: list[int] = []

    def ask(first: int) -> None:
        for question in questions[first::6]:
            code = np.frombuffer(question.code, dtype=np.uint8)
            ids, distances = index.search(code).all()
            if (ids.tobytes(), distances.tobytes()) != docs.truth(question).bytes():
                wrong.append(question.id)

    with whamming.connect(server.address) as database:
        index = database.index("threads")
        threads = [threading.Thread(target=ask, args=(first,)) for first in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
    assert wrong == []
