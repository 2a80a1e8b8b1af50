"""Tests of ``whamming import``: file types, interruptions, checkpoints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.clients.commands import (
    COMMAND,
    PATIENCE,
    Cli,
    Done,
    Target,
    environment,
    finish,
    run,
    run_on_terminal,
    start,
    wait_until,
)

N, BITS = 300, 24
VECTORS = np.random.default_rng(3).standard_normal((N, BITS)).astype(np.float32)
PACKED = np.packbits(VECTORS > 0, axis=1, bitorder="little")


def write(path: Path, form: str) -> Path:
    """Write the vectors or their codes to a file of some form. Returns its path."""
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
    """Return the codes in an index by id."""
    with whamming.open(data, mode="r") as database:
        return {
            id_: code.tobytes()
            for rows in database.index(name).scan()
            for id_, code in zip(rows.ids.tolist(), rows.codes, strict=True)
        }


@pytest.mark.parametrize("form", ["packed", "booleans", "floats", "npz", "fvecs", "bvecs"])
def test_every_file_type(cli: Cli, form: str, tmp_path: Path) -> None:
    data, file = tmp_path / "data", write(tmp_path / "codes", form)
    cli("create", "docs", "--bits", str(BITS), "--data", data).ok()
    (done,) = cli.json("import", "docs", file, "--first-id", "70", "--batch", "64", "--data", data)
    assert (done["rows"], done["resumed_at"]) == (N, 0)
    assert done["rows_per_second"] > 0
    assert stored(data) == {70 + row: PACKED[row].tobytes() for row in range(N)}


def test_ids_from_a_second_file_and_export(cli: Cli, target: Target, name: str, tmp_path: Path) -> None:
    ids = np.arange(N, dtype=np.uint64) * 3 + 2**63
    file = write(tmp_path / "codes", "packed")
    np.save(tmp_path / "codes.ids.npy", ids)
    cli("create", name, "--bits", str(BITS), *target).ok()
    assert "300 rows imported" in cli("import", name, file, *target).ok().out
    for suffix in (".npy", ".npz"):
        assert "300 items" in cli("export", name, tmp_path / f"out{suffix}", *target).ok().out
    out, out_ids = np.load(tmp_path / "out.npy"), np.load(tmp_path / "out.ids.npy")
    assert out[np.argsort(out_ids)].tolist() == PACKED.tolist()
    assert sorted(np.load(tmp_path / "out.npz")["ids"].tolist()) == ids.tolist()


def test_rows_with_the_same_id_are_one_item(cli: Cli, target: Target, name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "codes.npz", codes=PACKED[:4], ids=[1, 2, 2, 3])
    cli("create", name, "--bits", str(BITS), *target).ok()
    out = cli("import", name, tmp_path / "codes.npz", *target).ok().out
    assert "4 rows imported" in out
    assert "3 items" in out
    assert cli.json("import", name, tmp_path / "codes.npz", *target)[0]["items"] == 3


def test_a_full_disk_says_how_many_rows_are_done(cli: Cli, codes: Path, tmp_path: Path) -> None:
    """A limit on the size of files has the same effect, and running the command again completes the import."""
    data = tmp_path / "data"
    cli("create", "docs", "--bits", "64", "--data", data).ok()
    command = [*COMMAND, "import", "docs", str(codes), "--batch", "1000", "--data", str(data)]
    limited = ["sh", "-c", 'ulimit -f 300; exec "$@"', "sh", *command]
    ran = subprocess.run(limited, capture_output=True, text=True, env=environment(), timeout=PATIENCE)
    done = Done(ran.returncode, ran.stdout, ran.stderr)
    checkpoint = codes.with_name(f"{codes.name}.docs.checkpoint")
    rows = json.loads(checkpoint.read_text())["rows"]
    assert 0 < rows < 20_000
    done.refused(1, "no space", f"{rows:,} of 20,000 rows are on disk", "run the same command again")
    resumed = cli("import", "docs", codes, "--data", data, "--json").record
    assert (resumed["resumed_at"], resumed["items"]) == (rows, 20_000)


def interrupt_import(file: Path, name: str, target: Target, how: int) -> tuple[Any, Path, int]:
    """Interrupt an import after a few small batches. Returns its result, its checkpoint, and the rows in that."""
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
def test_an_interrupted_import_resumes(cli: Cli, target: Target, name: str, codes: Path, how: signal.Signals) -> None:
    cli("create", name, "--bits", "64", *target).ok()
    done, checkpoint, rows = interrupt_import(codes, name, target, how)
    if how == signal.SIGINT:
        (line,) = done.err.splitlines()
        assert (done.code, f"{rows:,} of 20,000 rows" in line) == (130, True), line
    (held,) = cli.json("stats", name, *target)
    assert held["items"] >= rows
    cli("delete", name, "1", *target).ok()  # a row that the second run does not check
    done = run("import", name, codes, *target, "--json")
    (line,) = done.err.splitlines()
    assert (done.code, f"row {rows:,} of 20,000" in line, "--restart" in line) == (0, True, True), line
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
    """Return a directory with some rows of an import, the import's checkpoint, and the values in it."""
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


def test_a_checkpoint_in_a_chosen_file(cli: Cli, codes: Path) -> None:
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
def test_a_checkpoint_of_another_import_is_ignored(cli: Cli, codes: Path, change: dict[str, Any]) -> None:
    data, checkpoint, values = prepared(cli, codes)
    checkpoint.write_text(json.dumps({**values, **change}))
    row, said = resumed_at(cli, codes, data, checkpoint)
    assert (row, "another import" in said) == (0, True)
    assert len(stored(data)) == 20_000


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"rows": 5}', "\0\0\0"])
def test_a_damaged_checkpoint_is_ignored(cli: Cli, codes: Path, text: str) -> None:
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


def test_an_index_that_was_recreated_is_detected(cli: Cli, codes: Path) -> None:
    data, checkpoint, _ = prepared(cli, codes)
    cli("drop", "docs", "--yes", "--data", data).ok()
    cli("create", "docs", "--bits", "64", "--data", data).ok()
    words = ("import", "docs", codes, "--data", data, "--checkpoint", checkpoint)
    cli(*words).refused(1, str(checkpoint), "100 rows", "index docs", "--restart")
    assert cli(*words, "--restart").ok()
    assert len(stored(data)) == 20_000


def test_imports_without_a_checkpoint_if_it_cannot_be_written(cli: Cli, codes: Path) -> None:
    data, _, _ = prepared(cli, codes)
    done = cli(
        "import", "docs", codes, "--batch", "1000", "--data", data, "--checkpoint", codes.parent / "no" / "where"
    )
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert "checkpoint cannot be written" in line
    assert len(stored(data)) == 20_000


def test_an_import_with_async_durability_ends_on_disk(cli: Cli, codes: Path) -> None:
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


def test_refused_imports(cli: Cli, codes: Path, tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    cli("import", "docs", codes, *where).refused(1, "no database at", "whamming create NAME --bits N --data")
    cli("create", "docs", "--bits", "24", *where).ok()
    cli("import", "docs", tmp_path / "none.npy", *where).refused(1, "none.npy", "No such file")
    cli("import", "docs", codes, *where).refused(1, "[20000, 8]", "[n, 3]")
    cli("import", "none", codes, *where).refused(1, "no index none", "docs")
    cli("import", "docs", codes, "--batch", "0", *where).refused(2, "--batch", "0", "1 to 1000000")
    cli("import", "docs", codes, "--first-id", "x", *where).refused(2, "--first-id", "x", "whole number")
    cli("import", "docs", codes.rename(tmp_path / "codes.txt"), *where).refused(1, "codes.txt", ".npz")
    file = write(tmp_path / "cut", "fvecs")
    file.write_bytes(file.read_bytes()[:-1])
    cli("import", "docs", file, *where).refused(1, str(file))
    file = write(tmp_path / "nan", "floats")
    np.save(file, np.full((2, BITS), np.nan))
    cli("import", "docs", file, *where).refused(1, "row 0", "column 0")
    assert stored(tmp_path / "data") == {}
