"""Tests of ``whamming search``: every form of query gives the answer of the library."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np

import whamming
from tests.clients.commands import Cli, Target, finish, start
from whamming.storage import BitOrder

BITS = 64
rng = np.random.default_rng(5)
QUERIES = rng.standard_normal((3, BITS)).astype(np.float32)
WEIGHTS = np.abs(rng.standard_normal((3, BITS)))
TABLE = rng.standard_normal((BITS, 2))


def expected(codes: Path, **search: Any) -> list[tuple[int, float]]:
    """Return the hits that a database in memory finds."""
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        stored = np.load(codes)
        index.upsert(np.arange(len(stored)), stored)
        return [(hit.id, hit.distance) for hit in index.search(**search)]


def found(cli: Cli, *args: str | Path) -> list[tuple[int, float]]:
    """Return the hits that the command line finds."""
    records = cli.json("search", *args)
    bounds = [record["lower_bound"] for record in records]
    distances = [record["distance"] for record in records]
    times = [record["ms"] for record in records]
    assert all(bound is None or bound >= distance for bound, distance in zip(bounds, distances, strict=True))
    assert all(bound <= after for bound, after in zip(bounds, distances[1:], strict=False))
    assert times == sorted(times)
    return [(record["id"], record["distance"]) for record in records]


def pack(values: Any, bit_order: BitOrder = "little") -> Any:
    return np.packbits(values > 0, axis=-1, bitorder=bit_order)


def test_every_form_of_query(cli: Cli, filled: Target, name: str, codes: Path, tmp_path: Path) -> None:
    floats, booleans, single, weights, table = (tmp_path / f"{kind}.npy" for kind in ("f", "b", "s", "w", "t"))
    np.save(floats, QUERIES)
    np.save(booleans, QUERIES > 0)
    np.save(single, pack(QUERIES[1]))
    np.save(weights, WEIGHTS)
    np.save(table, TABLE)
    code, own = pack(QUERIES[1]), WEIGHTS[1]
    weighted = expected(codes, code=code, weights=own, k=20)
    by_weight = ("--weights", weights, "--row", "1", "-k", "20")
    for form in (("--code-file", floats), ("--code-file", booleans), ("--code-file", single)):
        assert found(cli, name, *form, *by_weight, *filled) == weighted
    assert found(cli, name, "--code", code.tobytes().hex(), *by_weight, *filled) == weighted
    assert found(cli, name, "--code", "0x" + code.tobytes().hex().upper(), *filled) == expected(codes, code=code, k=10)
    for plan in ("probe", "sweep"):
        assert found(cli, name, "--table", table, "--plan", plan, *filled) == expected(codes, table=TABLE, k=10)
    stored = np.load(codes)[77]
    within = expected(codes, code=stored, radius=18.0)
    assert found(cli, name, "--like", "77", "--radius", "18", *filled) == within
    assert found(cli, name, "--like", "77", "--radius", "18", "-k", "3", *filled) == within[:3]
    assert len(found(cli, name, "--like", "77", "-k", "all", *filled)) == 20_000
    assert found(cli, name, "--like", "77", "-k", "0", *filled) == []


def test_queries_use_the_bit_order_of_the_index(cli: Cli, tmp_path: Path, codes: Path) -> None:
    cli("create", "docs", "--bits", "64", "--bit-order", "big", "--data", tmp_path / "data").ok()
    np.save(tmp_path / "codes.npy", QUERIES)
    cli("import", "docs", tmp_path / "codes.npy", "--data", tmp_path / "data").ok()
    for row in range(3):
        np.save(tmp_path / "row.npy", QUERIES[row])
        hits = found(cli, "docs", "--code-file", tmp_path / "row.npy", "-k", "1", "--data", tmp_path / "data")
        assert hits == [(row, 0.0)]
    assert (
        cli.json("get", "docs", "0", "--data", tmp_path / "data")[0]["code"] == pack(QUERIES[0], "big").tobytes().hex()
    )


def test_prints_a_table_and_a_summary(cli: Cli, filled: Target, name: str) -> None:
    done = cli("search", name, "--like", "5", "-k", "2", *filled)
    head, first, second = done.out.splitlines()
    assert head.split() == ["MS", "DISTANCE", "BOUND", "ID"]
    assert first.split()[1::2] == ["0", "5"]
    assert len(second.split()) == 4
    assert done.err.startswith("whamming: 2 hits in ")
    assert "the first after" in done.err


def test_control_characters_in_payloads_are_escaped(cli: Cli, tmp_path: Path) -> None:
    data = tmp_path / "data"
    payloads = ["naïve\n".encode(), b"\x1b[31mred\xff", None]
    with whamming.open(data) as database:
        index = database.create_index("docs", 8)
        index.upsert([0, 1, 2], np.array([[0], [1], [3]], dtype=np.uint8), payloads)
    done = cli("search", "docs", "--code", "00", "--payloads", "--data", data)
    assert [line.split(maxsplit=4)[4:] for line in done.out.splitlines()[1:]] == [
        ["naïve\\n"],
        ["\\x1b[31mred\\xff"],
        [],
    ]
    first, second, third = cli.json("search", "docs", "--code", "00", "--payloads", "--data", data)
    assert (first["payload"], second["payload_hex"], third["payload"]) == ("naïve\n", payloads[1].hex(), "")  # type: ignore[union-attr]
    assert third["lower_bound"] is None
    assert "payload" not in cli.json("search", "docs", "--code", "00", "--data", data)[0]


def test_ctrl_c_stops_the_search(filled: Target, name: str) -> None:
    with start("search", name, "--like", "1", "-k", "all", *filled) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)  # the command is still running: 20,000 hits do not fit into the pipe
        done = finish(process)
    assert (done.code, done.err) == (130, "whamming: interrupted\n")
    assert done.out.count("\n") < 20_000


def test_a_closed_pipe_ends_the_search(filled: Target, name: str) -> None:
    with start("search", name, "--like", "1", "-k", "all", *filled) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait()) == ("", 0)


def test_refused_searches(cli: Cli, filled: Target, name: str, tmp_path: Path) -> None:
    cli("search", name, "--code", "00ff", *filled).refused(1, "--code", "4 hexadecimal digits", "16")
    cli("search", name, "--code", "xy", *filled).refused(1, "--code xy", "0-9 and a-f")
    cli("search", name, "--like", "20000", *filled).refused(1, "--like 20000", name)
    cli("search", name, *filled).refused(2, "--code --code-file --like --table --vector --vector-file")
    cli("search", name, "--like", "1", "--code", "00", *filled).refused(2, "--code", "--like")
    cli("search", name, "--like", "1", "--plan", "hope", *filled).refused(2, "--plan", "auto, probe or sweep", "hope")
    cli("search", name, "--like", "1", "-k", "-1", *filled).refused(2, "-k", "-1", "0 to 2147483647")
    cli("search", name, "--like", "1", "--radius", "nan", *filled).refused(2, "--radius", "nan")
    cli("search", name, "--like", "1", "--radius", "near", *filled).refused(2, "--radius", "near")
    cli("search", "none-such", "--like", "1", *filled).refused(1, "no index none-such")
    cli("search", "../etc", "--like", "1", *filled).refused(1, "'../etc'", "1 to 128")
    path = tmp_path / "x.npy"
    cli("search", name, "--code-file", path, *filled).refused(1, str(path), "No such file")
    np.save(path, QUERIES[:, :5])
    cli("search", name, "--code-file", path, *filled).refused(1, "[3, 5]", "[n, 64]")
    np.save(path, QUERIES[0, :5])
    cli("search", name, "--code-file", path, *filled).refused(1, "5 values", "float32", "64 bits", "8 packed")
    np.save(path, QUERIES)
    cli("search", name, "--code-file", path, "--row", "3", *filled).refused(1, "--row 3", "3 rows")
    cli("search", name, "--like", "1", "--weights", path, "--row", "4", *filled).refused(1, "--row 4", "3 rows")
    cli("search", name, "--table", path, *filled).refused(1, "[3, 64]", "[64, 2]")
    cli("search", name, "--table", path, "--weights", path, *filled).refused(2, "--weights", "--table")
    np.save(path, np.array(["a"]))
    cli("search", name, "--like", "1", "--weights", path, *filled).refused(1, str(path), "str32", "numbers")
    np.save(path, np.ones(63))
    cli("search", name, "--like", "1", "--weights", path, *filled).refused(1, "[63]", "[64]")
    path.write_bytes(b"not numpy")
    cli("search", name, "--like", "1", "--weights", path, *filled).refused(1, str(path), ".npy file")
