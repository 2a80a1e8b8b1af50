"""TLS: real certificates, real servers, and clients that should and should not be able to connect."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme

import whamming
from tests.clients.commands import run
from tests.serving import PATIENCE, ServerProcess, Stubs, wait_until
from whamming import InvalidArgumentError, Tls, UnavailableError
from whamming.server import Config
from whamming.server.config import OptionError
from whamming.server.tls import Certificates, is_open
from whamming.v1 import index_pb2

SOON = 1.0
"""Seconds that a rejected client waits."""


@dataclass(frozen=True)
class Authority:
    """A certificate authority, with its certificate in a file."""

    directory: Path
    issuer: trustme.CA

    @classmethod
    def at(cls, directory: Path) -> Authority:
        directory.mkdir()
        authority = cls(directory, trustme.CA())
        authority.issuer.cert_pem.write_to_path(str(authority.ca))
        return authority

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def issue(self, name: str, *identities: str) -> tuple[Path, Path]:
        """Write a certificate and its key. Existing files of the same name are replaced."""
        issued = self.issuer.issue_cert(*identities)
        cert, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        issued.private_key_pem.write_to_path(str(key))
        cert.write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
        return cert, key


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.at(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.at(tmp_path_factory.mktemp("tls") / "theirs")


@pytest.fixture(scope="module")
def server(ours: Authority) -> Iterator[ServerProcess]:
    """A server with a certificate that does not require client certificates."""
    cert, key = ours.issue("server", "127.0.0.1", "localhost")
    with ServerProcess(tls_cert=cert, tls_key=key) as server:
        yield server
        server.check_log()


@pytest.fixture(scope="module")
def guarded(ours: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with two processes that requires client certificates."""
    cert, key = ours.issue("guarded", "127.0.0.1")
    data = tmp_path_factory.mktemp("guarded") / "db"
    with ServerProcess(data, tls_cert=cert, tls_key=key, tls_client_ca=ours.ca, workers=2) as server:
        yield server
        server.check_log()


def check_served(address: str, tls: Tls, name: str) -> None:
    """Check that writes and searches work over TLS."""
    with whamming.connect(address, tls=tls) as database:
        index = database.create_index(name, 64)
        codes = np.random.default_rng(0).integers(0, 256, (1000, 8), dtype=np.uint8)
        index.upsert(np.arange(1000), codes)
        assert [hit.id for hit in index.search(codes[7], k=1)] == [7]
        assert index.search_batch(codes[:50], k=1).ids[:, 0].tolist() == list(range(50))
        assert len(list(index.search(codes[0]))) == 1000


def check_refused(address: str, tls: Tls | bool, *, names: str = "", cause: str = "") -> None:
    with pytest.raises(UnavailableError, match=f"{address}{names} within {SOON:g} s{cause}"):
        whamming.connect(address, tls=tls, timeout=SOON)


# -- connecting --------------------------------------------------------------------------------------------------------


def test_a_client_that_trusts_the_ca_is_served(server: ServerProcess, ours: Authority) -> None:
    check_served(server.address, Tls(ours.ca), "docs")
    port = server.address.rpartition(":")[2]
    with whamming.connect(f"localhost:{port}", tls=Tls(str(ours.ca))) as database:
        assert "docs" in database.list_indexes()


def test_the_asyncio_client_uses_tls(server: ServerProcess, ours: Authority) -> None:
    async def ask() -> int:
        async with await whamming.aio.connect(server.address, tls=Tls(ours.ca)) as database:
            index = await database.create_index("aio", 8)
            await index.upsert([1, 2], np.zeros((2, 1), dtype=np.uint8))
            return sum([1 async for _ in index.search(np.zeros(1, dtype=np.uint8))])

    assert asyncio.run(ask()) == 2


def test_a_client_that_does_not_trust_the_ca_cannot_connect(server: ServerProcess, theirs: Authority) -> None:
    check_refused(server.address, Tls(theirs.ca), names=" over TLS", cause=r" .*certificate was refused: .*issuer")
    check_refused(server.address, True, names=" over TLS")


def test_a_client_without_tls_is_told_to_use_it(server: ServerProcess, guarded: ServerProcess) -> None:
    for address in (server.address, guarded.address):
        check_told_at_once(address, False, f"{address} requires TLS")


def check_told_at_once(address: str, tls: Tls | bool, text: str) -> None:
    """Check that the client fails at once instead of waiting for its timeout."""
    start = time.monotonic()
    with pytest.raises(UnavailableError, match=text):
        whamming.connect(address, tls=tls, timeout=10 * PATIENCE)
    assert time.monotonic() - start < PATIENCE


def test_a_certificate_for_another_name_is_rejected(ours: Authority) -> None:
    cert, key = ours.issue("elsewhere", "elsewhere.example")
    with ServerProcess(tls_cert=cert, tls_key=key) as server:
        check_refused(server.address, Tls(ours.ca), names=" over TLS", cause=r" .*another name")
        server.check_log()


def test_a_tls_client_rejects_a_server_without_tls(ours: Authority) -> None:
    with ServerProcess() as server:
        for tls in (Tls(ours.ca), True):
            check_told_at_once(server.address, tls, f"{server.address} does not use TLS")
        server.check_log()


def test_client_certificates_are_required(guarded: ServerProcess, ours: Authority, theirs: Authority) -> None:
    mine = ours.issue("me", "me@client.example")
    for number in range(4):  # so that both processes are likely to answer
        check_served(guarded.address, Tls(ours.ca, *mine), f"docs{number}")
    stranger = theirs.issue("stranger", "me@client.example")
    for tls in (Tls(ours.ca), Tls(ours.ca, *stranger)):
        # The client's handshake ends before the server checks its certificate, so it may seem to be connected.
        with (
            pytest.raises(UnavailableError),
            whamming.connect(guarded.address, tls=tls, timeout=SOON, retry_seconds=0) as database,
        ):
            database.list_indexes()


def test_the_command_line_uses_tls(guarded: ServerProcess, ours: Authority) -> None:
    cert, key = ours.issue("operator", "operator@client.example")
    where = ("--server", guarded.address, "--tls-ca", ours.ca, "--tls-cert", cert, "--tls-key", key)
    run("create", "cli", "--bits", "16", *where).ok()
    assert "cli" in run("list", *where).ok().out
    run("list", "--server", guarded.address, "--tls-ca", ours.ca, "--tls-cert", cert).refused(
        2, "--tls-cert requires --tls-key"
    )
    run("list", "--server", guarded.address, "--timeout", "0.5").refused(3, "requires TLS")
    run("list", "--server", guarded.address, "--tls", "--timeout", "0.5").refused(3, "over TLS", "authority you trust")
    run("list", "--data", "somewhere", "--tls").refused(2, "--tls", "--data")


# -- renewal -----------------------------------------------------------------------------------------------------------


def test_renewed_certificates_are_used_without_a_restart(tmp_path: Path) -> None:
    first, second = Authority.at(tmp_path / "first"), Authority.at(tmp_path / "second")
    cert, key = first.issue("server", "127.0.0.1")
    options = [("grpc.use_local_subchannel_pool", 1)]
    server = ServerProcess(tls_cert=cert, tls_key=key, log_level="info")

    def answers(authority: Authority, seconds: float = PATIENCE) -> bool:
        credentials = grpc.ssl_channel_credentials(authority.ca.read_bytes())
        with grpc.secure_channel(server.address, credentials, options=options) as channel:
            try:
                grpc.channel_ready_future(channel).result(timeout=seconds)
            except grpc.FutureTimeoutError:
                return False
            return True

    with server:
        assert answers(first)
        with whamming.connect(server.address, tls=Tls(first.ca)) as before:
            other_cert, other_key = second.issue("server", "127.0.0.1")
            cert.write_bytes(other_cert.read_bytes())  # the certificate does not match the key for now
            assert answers(first)
            assert "keeping the old ones" in server.log()
            os.replace(other_key, key)
            assert answers(second)
            assert "reloaded the certificates" in server.log()
            assert not answers(first, SOON)
            assert before.list_indexes() == [], "existing connections are kept"
        server.check_log()


@pytest.mark.parametrize("workers", [1, 2])
def test_sighup_reloads_certificates(workers: int, tmp_path: Path) -> None:
    """All processes reload them. Existing connections are not interrupted."""
    first, second = Authority.at(tmp_path / "first"), Authority.at(tmp_path / "second")
    cert, key = first.issue("server", "127.0.0.1")
    times = os.stat(cert), os.stat(key)
    server = ServerProcess(tmp_path / "db", tls_cert=cert, tls_key=key, log_level="info", workers=workers)

    def read_again() -> bool:
        return server.log().count("reloaded the certificates") == workers

    with server:
        with whamming.connect(server.address, tls=Tls(first.ca)) as before:
            before.create_index("docs", 8)
            for new, old, seen in zip(second.issue("server", "127.0.0.1"), (cert, key), times, strict=True):
                old.write_bytes(new.read_bytes())
                os.utime(old, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # like a copy that preserves times
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(read_again, "reloading the certificates")
            for _ in range(2 * workers):
                with whamming.connect(server.address, tls=Tls(second.ca)) as after:
                    assert after.list_indexes() == ["docs"]
            assert before.list_indexes() == ["docs"], "existing connections are kept"
            cert.write_bytes(b"rubbish")
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(lambda: server.log().count("keeping the old ones") >= workers, "an error in the log")
            with whamming.connect(server.address, tls=Tls(second.ca)) as after:
                assert after.list_indexes() == ["docs"]
        assert server.stop() == 0
        server.check_log()


# -- invalid files and options -----------------------------------------------------------------------------------------


def test_a_certificate_needs_its_key() -> None:
    for name in ("tls_cert", "tls_key", "tls_client_ca"):
        given: dict[str, Any] = {name: "a.pem"}
        with pytest.raises(InvalidArgumentError, match=f"{name} = a.pem;.* certificate.* key") as caught:
            Config(**given)
        assert isinstance(caught.value, OptionError)
        assert caught.value.option == name
    with pytest.raises(InvalidArgumentError, match=r"cert = a.pem, key = None;"):
        Tls(cert="a.pem")


def test_invalid_pem_files_are_refused(ours: Authority, tmp_path: Path) -> None:
    cert, key = ours.issue("good", "127.0.0.1")
    _, other_key = ours.issue("other", "127.0.0.1")
    rubbish, missing = tmp_path / "rubbish", tmp_path / "missing"
    rubbish.write_bytes(b"rubbish")
    pairs = {(cert, other_key): "certificate and private key", (rubbish, key): "rubbish"}
    for (one, two), text in {**pairs, (cert, missing): "missing: No such file"}.items():
        with pytest.raises(InvalidArgumentError, match=text):
            Certificates(Config(tls_cert=str(one), tls_key=str(two)))
        with pytest.raises(InvalidArgumentError, match=text):
            whamming.connect("127.0.0.1:1", tls=Tls(cert=one, key=two))
    for ca, text in {rubbish: "rubbish has no CA", tmp_path: "Is a directory"}.items():
        with pytest.raises(InvalidArgumentError, match=text):
            Certificates(Config(tls_cert=str(cert), tls_key=str(key), tls_client_ca=str(ca)))
        with pytest.raises(InvalidArgumentError, match=text):
            whamming.connect("127.0.0.1:1", tls=Tls(ca))
    words = ("serve", "--data", ":memory:", "--listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", other_key)
    run(*words).refused(1, f"{cert} and {other_key} are not")


def test_which_addresses_are_open() -> None:
    assert not any(map(is_open, ("127.0.0.1:1", "127.3.2.1:0", "localhost:7777", "[::1]:7777")))
    assert all(map(is_open, ("0.0.0.0:1", "[::]:7777", "192.168.1.5:7777", "example.org:1")))


@pytest.mark.parametrize("guard", [False, True])
def test_an_open_server_logs_a_warning(guard: bool, ours: Authority) -> None:
    cert, key = ours.issue("open", "127.0.0.1")
    options = {"tls_cert": cert, "tls_key": key, **({"tls_client_ca": ours.ca} if guard else {})}
    server = ServerProcess(**options)
    server.address = "0.0.0.0:0"
    with server:
        assert ("see --tls-client-ca" in server.log()) != guard


def test_raw_stubs_over_tls(server: ServerProcess, ours: Authority) -> None:
    with grpc.secure_channel(server.address, grpc.ssl_channel_credentials(ours.ca.read_bytes())) as channel:
        assert Stubs(channel).indexes.ListIndexes(index_pb2.ListIndexesRequest(), timeout=PATIENCE) is not None
