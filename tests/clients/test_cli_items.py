"""Tests of the commands on items and indexes: ids, confirmations, tables, refused commands."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.clients.commands import Cli, Target, run, run_on_terminal
from whamming.cli.items import read_ids


def test_ids_are_numbers_ranges_or_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("5\n 7-8 \n\n18446744073709551615"))
    assert read_ids(["1", "3-4", "-"]).tolist() == [1, 3, 4, 5, 7, 8, 2**64 - 1]
    assert read_ids(["-"]).tolist() == []


def test_get_reports_missing_items(cli: Cli, filled: Target, name: str) -> None:
    done = cli("get", name, "19995-20010", *filled)
    assert [line.split()[0] for line in done.out.splitlines()] == [str(id_) for id_ in range(19995, 20000)]
    done.refused(1, "11 of 16 ids", name, "20000, 20001, 20002, 20003, 20004, ...")
    done = cli("get", name, "3", "20000", "--json", *filled)
    assert [(record["id"], record["found"]) for record in done.records] == [(3, True), (20000, False)]
    assert done.code == 1


def test_get_many_large_payloads(cli: Cli, target: Target, name: str, tmp_path: Path) -> None:
    data = np.zeros(100 * 65_536, dtype=np.uint8)
    ends = np.arange(1, 101, dtype=np.uint64) * 65_536
    np.savez(tmp_path / "items.npz", codes=np.zeros((100, 512), dtype=np.uint8), payload_ends=ends, payload_data=data)
    cli("create", name, "--bits", "4096", *target).ok()
    cli("import", name, tmp_path / "items.npz", *target).ok()
    assert len(cli.json("get", name, "0-99", *target)) == 100


def test_deleting_more_than_a_thousand_ids_needs_confirmation(cli: Cli, filled: Target, name: str) -> None:
    def count() -> int:
        return int(cli.json("stats", name, *filled)[0]["items"])

    done = cli("delete", name, "0-1000", *filled)
    done.refused(2, "--yes", "1,001 ids", name)
    code, seen = run_on_terminal("delete", name, "0-1000", *filled, answer="n\n")
    assert (code, "[y/N]" in seen, "nothing was deleted" in seen, count()) == (1, True, True, 20_000)
    code, seen = run_on_terminal("delete", name, "0-1000", *filled, answer="y\n")
    assert (code, "1,001 ids deleted" in seen, count()) == (0, True, 18_999)
    assert cli("delete", name, "1001-2000", *filled).ok().out == f"{name}: 1,000 ids deleted\n"
    assert cli("delete", name, "2001-4000", "--yes", *filled).ok()
    assert count() == 15_999


def test_delete_counts_only_existing_items(cli: Cli, filled: Target, name: str) -> None:
    assert "0 of 1 id deleted" in cli("delete", name, "99999", *filled).ok().out
    assert cli("delete", name, "7", "7", "8", *filled).ok().out == f"{name}: 2 ids deleted\n"
    assert "2 of 4 ids deleted" in cli("delete", name, "7-10", *filled).ok().out
    assert cli.json("delete", name, "9-12", *filled) == [{"name": name, "ids": 4, "deleted": 2}]
    assert cli.json("stats", name, *filled)[0]["items"] == 20_000 - 6


def test_dropping_an_index_needs_confirmation(cli: Cli, filled: Target, name: str) -> None:
    cli("drop", name, *filled).refused(2, "--yes", name, "20,000 items")
    code, seen = run_on_terminal("drop", name, *filled, answer="\n")
    assert (code, "was not dropped" in seen) == (1, True)
    code, seen = run_on_terminal("drop", name, *filled, answer="yes\n")
    assert (code, f"{name}: dropped" in seen) == (0, True)
    cli("drop", name, "--yes", *filled).refused(1, f"there is no index {name}")


def test_output_without_json(cli: Cli, filled: Target, name: str) -> None:
    head, *rows = cli("list", *filled).ok().out.splitlines()
    assert head.split() == ["NAME", "ITEMS", "BITS", "SIZE"]
    assert [name, "20,000", "64"] in [row.split()[:3] for row in rows]
    lines = [line.split() for line in cli("stats", name, *filled).ok().out.splitlines()]
    assert lines[0] == [name]
    assert ["items", "20,000"] in lines
    assert cli("seal", name, *filled).ok().out.startswith(f"{name}: 20,000 items in 1 segment, ")
    assert cli("compact", name, *filled).ok().out.startswith(f"{name}: 20,000 items in 1 segment, ")
    bench = cli("bench", name, "--seconds", "0.1", *filled).ok().out.splitlines()
    assert bench[0] == f"{name}: 20,000 items of 64 bits, k = 10"
    assert [line.split("  ")[0] for line in bench[1:]] == ["one by one", "first hit", "in batches"]


def test_progress_bars_on_a_terminal(directory: Path, tmp_path: Path) -> None:
    for words, bar in (
        (("compact", "docs", "--data", directory), "compact docs: 100%"),
        (("verify", "--data", directory), "verify: 100%"),
        (("restore", directory, tmp_path / "back"), "check the backup: 100%"),
    ):
        code, seen = run_on_terminal(*words)
        assert (code, bar in seen) == (0, True), seen


def test_creating_an_index_that_exists(cli: Cli, target: Target, name: str) -> None:
    create = ("create", name, "--bits", "64", *target)
    assert "bits 64, bit order little" in cli(*create).ok().out
    cli(*create).refused(1, name, "already exists", "bits 64, bit order little")
    cli(*create, "--exist-ok").ok()
    done = cli(*create, "--exist-ok", "--tables", "none", "--durability", "async")
    done.refused(1, f"index {name} already exists with tables single, not none, and durability fsync, not async;")


def test_refused_commands_on_items_and_indexes(cli: Cli, target: Target, name: str) -> None:
    cli("create", name, "--bits", "0", *target).refused(2, "--bits", "0", "1 to 4096")
    cli("create", name, *target).refused(2, "--bits", "whamming create --help")
    cli("create", "-x", "--bits", "8", *target).refused(2, "NAME")
    cli("create", "a/b", "--bits", "8", *target).refused(1, "'a/b'", "1 to 128")
    cli("create", name, "--bits", "8", "--tables", "some", *target).refused(
        2, "--tables", "single, multi or none", "some"
    )
    cli("create", name, "--bits", "8", *target).ok()
    for bad in ("x", "-5", "5-3", "1.5", str(2**64), "0-", "٣"):
        cli("get", name, bad, *target).refused(2)
    cli("get", name, "0-10000000", *target).refused(2, "10,000,001", "10,000,000")
    cli("delete", name, *target).refused(2, "ID")
    cli("export", name, "x.txt", *target).refused(1, "x.txt", ".npz or .npy")
    cli("export", name, "/none/such/x.npz", *target).refused(1, "/none/such/x.npz", "No such file")
    cli("bench", name, *target).refused(1, name, "no items")
    cli("bench", name, "--seconds", "0", *target).refused(2, "--seconds", "0", "greater than 0")
    for command in ("stats", "seal", "compact", "bench"):
        cli(command, "none-such", *target).refused(1, "no index none-such")


def test_refused_commands_on_directories(cli: Cli, directory: Path, tmp_path: Path) -> None:
    none = tmp_path / "none"
    for words in (("list",), ("stats",), ("seal", "docs"), ("verify",), ("backup", tmp_path / "copy")):
        cli(*words, "--data", none).refused(1, f"no database at {none}", "whamming create")
    assert not none.exists()
    cli("list", "--data", ":memory:").refused(2, "--data :memory:", "--server")
    cli("list", "--data", tmp_path).refused(1, str(tmp_path), "not a Whamming database")
    cli("backup", "--data", directory, directory).refused(1, str(directory), "inside")
    cli("backup", "--data", directory, tmp_path).refused(1, str(tmp_path), "exists")
    cli("restore", none, tmp_path / "back").refused(1, f"no backup at {none}")
    cli("list", "--data", "").refused(2, "--data is empty")
    cli("verify").refused(2, "--data")
    with whamming.open(directory):
        cli("seal", "docs", "--data", directory).refused(1, "another process", str(directory), "--server")
        assert cli.json("list", "--data", directory)[0]["items"] == 20_000


def test_verify_and_restore_detect_damage(cli: Cli, directory: Path, tmp_path: Path) -> None:
    cli("create", "sound", "--bits", "8", "--data", directory).ok()
    file = directory / "docs" / "data.mdb"
    data = bytearray(file.read_bytes())
    half = len(data) // 2
    data[half:] = bytes(255 - byte for byte in data[half:])
    file.write_bytes(data)
    done = run("verify", "--data", directory, "--json")
    done.refused(1, "damaged", "docs", "whamming restore FROM TO")
    docs, sound = done.records
    assert (docs["name"], docs["ok"], sound["name"], sound["ok"]) == ("docs", False, "sound", True)
    assert docs["problems"]
    done = cli("verify", "--data", directory)
    assert done.code == 1
    assert any(line.startswith("docs: damaged") for line in done.out.splitlines())
    assert any(line.startswith("sound: ok") for line in done.out.splitlines())
    cli("restore", directory, tmp_path / "back").refused(1, "docs", "damaged")
    assert not (tmp_path / "back").exists()
