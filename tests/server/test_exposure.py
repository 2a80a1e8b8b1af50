"""Warnings at the start of a server: files that others can read, and certificates that expire."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from tests.serving import ServerProcess
from whamming.server import Config
from whamming.server.exposure import warnings_of
from whamming.wire.pem import earliest_expiry

NOW = datetime(2030, 6, 15, tzinfo=UTC)


def issue(directory: Path, end: datetime) -> tuple[Path, Path]:
    """Write a certificate that expires at a given time, and its private key."""
    issued = trustme.CA().issue_cert("127.0.0.1", not_before=datetime(2020, 1, 1, tzinfo=UTC), not_after=end)
    cert, key = directory / "server.pem", directory / "server.key"
    key.write_bytes(issued.private_key_pem.bytes())
    key.chmod(0o600)
    cert.write_bytes(issued.cert_chain_pems[0].bytes())
    return cert, key


def test_a_new_private_data_directory_is_fine(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir(mode=0o700)
    assert list(warnings_of(Config(data=str(tmp_path / "db")))) == []
    assert list(warnings_of(Config(data=":memory:"))) == []


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_data_directory_that_others_can_access(tmp_path: Path, mode: int) -> None:
    (tmp_path / "db").mkdir()
    (tmp_path / "db").chmod(mode)
    (text,) = warnings_of(Config(data=str(tmp_path / "db")))
    assert str(tmp_path / "db") in text
    assert f"{mode:04o}" in text


@pytest.mark.parametrize(("mode", "count"), [(0o600, 0), (0o400, 0), (0o644, 1), (0o604, 1)])
def test_a_key_that_others_can_read(tmp_path: Path, mode: int, count: int) -> None:
    cert, key = issue(tmp_path, NOW + timedelta(days=90))
    key.chmod(mode)
    found = list(warnings_of(Config(data=":memory:", tls_cert=str(cert), tls_key=str(key)), NOW))
    assert len(found) == count
    assert all(str(key) in text for text in found)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files to other users")
@pytest.mark.parametrize(("owner", "count"), [(0, 0), (65_534, 1)])
def test_a_group_may_read_only_keys_of_root(tmp_path: Path, owner: int, count: int) -> None:
    cert, key = issue(tmp_path, NOW + timedelta(days=90))
    key.chmod(0o640)
    os.chown(key, owner, -1)
    assert len(list(warnings_of(Config(data=":memory:", tls_cert=str(cert), tls_key=str(key)), NOW))) == count


@pytest.mark.parametrize(
    ("days", "words"), [(-1, "expired on 2030-06-14"), (13, "expires on 2030-06-28"), (15, None), (40_000, None)]
)
def test_certificates_that_expire(tmp_path: Path, days: int, words: str | None) -> None:
    end = NOW + timedelta(days=days)
    cert, key = issue(tmp_path, end)
    assert earliest_expiry(cert) == end
    found = list(warnings_of(Config(data=":memory:", tls_cert=str(cert), tls_key=str(key)), NOW))
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_the_first_certificate_of_a_chain_to_expire_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    late, _ = issue(tmp_path, NOW + timedelta(days=90))
    early, _ = issue(tmp_path / "a", NOW + timedelta(days=3))
    chain = tmp_path / "chain.pem"
    chain.write_bytes(late.read_bytes() + b"a comment\n" + early.read_bytes())
    assert earliest_expiry(chain) == NOW + timedelta(days=3)


@pytest.mark.parametrize("text", ["", "rubbish", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_date_has_no_expiry(tmp_path: Path, text: str) -> None:
    (tmp_path / "odd.pem").write_text(text)
    assert earliest_expiry(tmp_path / "odd.pem") is None


def test_serve_logs_the_warnings(tmp_path: Path) -> None:
    cert, key = issue(tmp_path, datetime.now(UTC) - timedelta(days=2))
    key.chmod(0o644)
    (tmp_path / "db").mkdir()
    (tmp_path / "db").chmod(0o755)
    with ServerProcess(tmp_path / "db", tls_cert=cert, tls_key=key) as server:
        lines = [line for line in server.log().splitlines() if "WARNING" in line]
    assert len(lines) == 3
    for line, words in zip(lines, ("access the data in", "private key", "expired on"), strict=True):
        assert words in line


def test_serve_creates_a_private_directory_without_a_warning(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "db") as server:
        assert server.log() == ""
