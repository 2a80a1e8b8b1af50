"""``whamming import``: every form of file, and imports that break off and go on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.clients.commands import Cli, Target, finish, run, run_on_terminal, start, wait_until

N, BITS = 300, 24
VECTORS = np.random.default_rng(3).standard_normal((N, BITS)).astype(np.float32)
PACKED = np.packbits(VECTORS > 0, axis=1, bitorder="little")


def write(path: Path, form: str) -> Path:
    """Write the vectors, or their codes, in some form of file."""
    sizes: dict[str, Any] = {"fvecs": (np.int32(BITS), VECTORS), "bvecs": (np.int32(PACKED.shape[1]), PACKED)}
    arrays: dict[str, Any] = {"packed": PACKED, "booleans": VECTORS > 0, "floats": VECTORS.astype(np.float64)}
    if form in sizes:
        path = path.with_suffix(f".{form}")
        width, rows = sizes[form]
        path.write_bytes(b"".join(width.tobytes() + row.tobytes() for row in rows))
    elif form == "npz":
        path = path.with_suffix(".npz")
        np.savez(path, codes=PACKED)
    else:
        path = path.with_suffix(".npy")
        np.save(path, arrays[form])
    return path


def stored(data: Path, name: str = "docs") -> dict[int, bytes]:
    """The codes in an index, by id."""
    with whamming.open(data, mode="r") as database:
        return {
            id_: code.tobytes()
            for rows in database.index(name).scan()
            for id_, code in zip(rows.ids.tolist(), rows.codes, strict=True)
        }


@pytest.mark.parametrize("form", ["packed", "booleans", "floats", "npz", "fvecs", "bvecs"])
def test_every_form_of_file(cli: Cli, form: str, tmp_path: Path) -> None:
    data, file = tmp_path / "data", write(tmp_path / "codes", form)
    cli("create", "docs", "--bits", str(BITS), "--data", data).ok()
    (done,) = cli.json("import", "docs", file, "--first-id", "70", "--batch", "64", "--data", data)
    assert (done["rows"], done["resumed_at"]) == (N, 0)
    assert done["rows_per_second"] > 0
    assert stored(data) == {70 + row: PACKED[row].tobytes() for row in range(N)}


def test_ids_beside_the_codes_and_back(cli: Cli, target: Target, name: str, tmp_path: Path) -> None:
    ids = np.arange(N, dtype=np.uint64) * 3 + 2**63
    file = write(tmp_path / "codes", "packed")
    np.save(tmp_path / "codes.ids.npy", ids)
    cli("create", name, "--bits", str(BITS), *target).ok()
    assert "300 rows imported" in cli("import", name, file, *target).ok().out
    for suffix in (".npy", ".npz"):
        assert cli("export", name, tmp_path / f"out{suffix}", *target).ok().out.startswith(f"{name}: 300 items in ")
    out, out_ids = np.load(tmp_path / "out.npy"), np.load(tmp_path / "out.ids.npy")
    assert out[np.argsort(out_ids)].tolist() == PACKED.tolist()
    assert sorted(np.load(tmp_path / "out.npz")["ids"].tolist()) == ids.tolist()


def broken_off(file: Path, name: str, target: Target, how: int) -> tuple[Any, Path, int]:
    """Start an import in small batches and end it when it has kept some; returns what it said, its checkpoint, and how
    many rows that counts."""
    checkpoint = file.with_name(f"{file.name}.{name}.checkpoint")

    def rows() -> int:
        return int(json.loads(checkpoint.read_text())["rows"]) if checkpoint.exists() else 0

    with start("import", name, file, "--batch", "2", *target) as process:
        wait_until(lambda: rows() >= 4)
        process.send_signal(how)
        done = finish(process)
    assert 4 <= rows() < 20_000
    return done, checkpoint, rows()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_going_on_where_it_broke_off(cli: Cli, target: Target, name: str, codes: Path, how: signal.Signals) -> None:
    cli("create", name, "--bits", "64", *target).ok()
    done, checkpoint, rows = broken_off(codes, name, target, how)
    if how == signal.SIGINT:
        again = "run the same command again to go on"
        assert (done.code, done.err) == (130, f"whamming: interrupted; {rows:,} of 20,000 rows are in: {again}\n")
    (held,) = cli.json("stats", name, *target)
    assert held["items"] >= rows
    cli("delete", name, "1", *target).ok()  # a row that a second run does not look at
    done = run("import", name, codes, *target, "--json")
    assert (done.code, done.err) == (0, f"whamming: going on at row {rows:,} of 20,000; --restart would begin anew\n")
    assert (done.record["rows"], done.record["resumed_at"]) == (20_000, rows)
    assert not checkpoint.exists()
    assert list(codes.parent.glob("*.new")) == list(codes.parent.glob(".*.new")) == []
    assert cli("get", name, "1", *target).code == 1
    (done,) = cli.json("import", name, codes, *target)
    assert done["resumed_at"] == 0
    assert cli.json("stats", name, *target)[0]["items"] == 20_000
    cli("export", name, codes.with_name("out.npy"), *target).ok()
    order = np.argsort(np.load(codes.with_name("out.ids.npy")))
    assert (np.load(codes.with_name("out.npy"))[order] == np.load(codes)).all()


def prepared(cli: Cli, codes: Path, rows: int = 100) -> tuple[Path, Path, dict[str, Any]]:
    """A directory that has some rows of an import, and the import's checkpoint."""
    data, checkpoint = codes.parent / "data", codes.parent / "here"
    cli("create", "docs", "--bits", "64", "--data", data).ok()
    with whamming.open(data) as database:
        database.index("docs").upsert(np.arange(rows), np.load(codes)[:rows])
    found = codes.stat()
    values = {
        "index": "docs",
        "target": f"directory {data.resolve()}",
        "file": str(codes.resolve()),
        "size": found.st_size,
        "modified": found.st_mtime_ns,
        "first_id": 0,
        "rows": rows,
    }
    checkpoint.write_text(json.dumps(values))
    return data, checkpoint, values


def resumed_at(cli: Cli, codes: Path, data: Path, checkpoint: Path, *more: str, named: bool = True) -> tuple[int, str]:
    flags: list[Any] = ["--checkpoint", checkpoint] if named else []
    done = cli("import", "docs", codes, "--data", data, *flags, *more, "--json")
    assert done.code == 0, done
    assert not checkpoint.exists()
    return done.record["resumed_at"], done.err


def test_a_checkpoint_where_one_likes(cli: Cli, codes: Path) -> None:
    data, checkpoint, _ = prepared(cli, codes)
    assert resumed_at(cli, codes, data, checkpoint)[0] == 100
    assert resumed_at(cli, codes, data, checkpoint) == (0, "")


@pytest.mark.parametrize(
    "change",
    [
        {"index": "others"},
        {"target": "server 127.0.0.1:7777"},
        {"size": 1},
        {"modified": 0},
        {"first_id": 1},
        {"rows": -1},
        {"rows": "many"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_checkpoint_of_something_else_does_not_count(cli: Cli, codes: Path, change: dict[str, Any]) -> None:
    data, checkpoint, values = prepared(cli, codes)
    checkpoint.write_text(json.dumps({**values, **change}))
    row, said = resumed_at(cli, codes, data, checkpoint)
    assert (row, "is of another import" in said) == (0, True)
    assert len(stored(data)) == 20_000


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"rows": 5}', "\0\0\0"])
def test_a_damaged_checkpoint_does_not_count(cli: Cli, codes: Path, text: str) -> None:
    data, _, _ = prepared(cli, codes)
    checkpoint = codes.with_name(f"{codes.name}.docs.checkpoint")
    checkpoint.write_text(text)
    assert resumed_at(cli, codes, data, checkpoint, named=False)[0] == 0


def test_restart_and_changed_files(cli: Cli, codes: Path) -> None:
    data, checkpoint, values = prepared(cli, codes)
    assert resumed_at(cli, codes, data, checkpoint, "--restart") == (0, "")
    checkpoint.write_text(json.dumps(values))
    os.utime(codes)
    assert resumed_at(cli, codes, data, checkpoint)[0] == 0


def test_an_index_that_was_made_anew_is_noticed(cli: Cli, codes: Path) -> None:
    data, checkpoint, _ = prepared(cli, codes)
    cli("drop", "docs", "--yes", "--data", data).ok()
    cli("create", "docs", "--bits", "64", "--data", data).ok()
    words = ("import", "docs", codes, "--data", data, "--checkpoint", checkpoint)
    cli(*words).refused(1, "says that 100 rows are in index docs, but item", "is not", "--restart")
    assert cli(*words, "--restart").ok()
    assert len(stored(data)) == 20_000


def test_without_a_place_for_a_checkpoint(cli: Cli, codes: Path) -> None:
    data, _, _ = prepared(cli, codes)
    done = cli(
        "import", "docs", codes, "--batch", "1000", "--data", data, "--checkpoint", codes.parent / "no" / "where"
    )
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.startswith("whamming: no checkpoint can be kept:")
    assert len(stored(data)) == 20_000


def test_a_lazy_index_is_on_disk_in_the_end(cli: Cli, codes: Path) -> None:
    data = codes.parent / "data"
    cli("create", "docs", "--bits", "64", "--durability", "async", "--data", data).ok()
    (done,) = cli.json("import", "docs", codes, "--batch", "500", "--data", data)
    assert done["rows"] == len(stored(data)) == 20_000


def test_progress_on_a_terminal(cli: Cli, codes: Path, target: Target, name: str) -> None:
    cli("create", name, "--bits", "64", *target).ok()
    code, seen = run_on_terminal("import", name, codes, *target)
    assert code == 0
    assert f"import {name}: 100%" in seen
    assert "items/s" in seen
    assert "20,000 rows imported" in seen


def test_refusals(cli: Cli, codes: Path, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    cli("import", "docs", codes, *where).refused(1, "there is no database at", "whamming create NAME --bits N --data")
    cli("create", "docs", "--bits", "24", *where).ok()
    cli("import", "docs", tmp_path / "none.npy", *where).refused(1, "none.npy cannot be used", "No such file")
    cli("import", "docs", codes, *where).refused(1, "shape [20000, 8]; 24 bits need [n, 3] packed bytes")
    cli("import", "none", codes, *where).refused(1, "there is no index none; there are: docs")
    cli("import", "docs", codes, "--batch", "0", *where).refused(2, "--batch 0; it must be 1 to 1000000")
    cli("import", "docs", codes, "--first-id", "x", *where).refused(2, "--first-id x; it must be a whole number")
    cli("import", "docs", codes.rename(tmp_path / "codes.txt"), *where).refused(1, "suffix '.txt'; import from .npz")
    file = write(tmp_path / "cut", "fvecs")
    file.write_bytes(file.read_bytes()[:-1])
    cli("import", "docs", file, *where).refused(1, "is not a file of codes", "it was cut short")
    file = write(tmp_path / "nan", "floats")
    np.save(file, np.full((2, BITS), np.nan))
    cli("import", "docs", file, *where).refused(1, "row 0 of", "column 0")
    assert stored(tmp_path / "data") == {}
