"""Runs every command once, each in its own process, and checks its JSON output."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import whamming
from tests.clients.commands import Target, run

BITS = 13


def write_items(path: Path, count: int = 500) -> None:
    texts = [f"text {i}".encode() for i in range(count)]
    np.savez(
        path,
        ids=np.arange(count, dtype=np.uint64) + 1000,
        codes=np.random.default_rng(1).integers(0, 256, (count, 2), dtype=np.uint8)
        & np.array([255, 31], dtype=np.uint8),
        payload_ends=np.cumsum([len(text) for text in texts], dtype=np.uint64),
        payload_data=np.frombuffer(b"".join(texts), dtype=np.uint8),
    )


def test_every_command_once(target: Target, name: str, tmp_path: Path) -> None:
    file = tmp_path / "items.npz"
    write_items(file)

    def whamming_json(*args: str | Path) -> list[dict[str, object]]:
        return run(*args, *target, "--json").ok().records

    (made,) = whamming_json("create", name, "--bits", str(BITS), "--buckets", "fast", "--durability", "async")
    assert (made["name"], made["bits"], made["bit_order"]) == (name, BITS, "little")
    assert (made["tables"], made["buckets"], made["durability"]) == ("single", "fast", "async")
    (done,) = whamming_json("import", name, file, "--batch", "99")
    assert (done["rows"], done["resumed_at"], done["file"]) == (500, 0, str(file))
    assert [path.name for path in tmp_path.glob("items*")] == ["items.npz"]

    listed = {record["name"]: record for record in whamming_json("list")}
    assert (listed[name]["items"], listed[name]["bits"]) == (500, BITS)

    (sealed,) = whamming_json("seal", name)
    assert (sealed["segments"], sealed["delta_rows"]) == (1, 0)

    hits = whamming_json("search", name, "--like", "1007", "-k", "5", "--payloads")
    assert (hits[0]["id"], hits[0]["distance"], hits[0]["payload"]) == (1007, 0.0, "text 7")
    assert len(hits) == 5

    got = whamming_json("get", name, "1007", "1010-1012")
    codes = np.load(file)["codes"]
    assert [item["id"] for item in got] == [1007, 1010, 1011, 1012]
    assert [item["code"] for item in got] == [codes[row].tobytes().hex() for row in (7, 10, 11, 12)]
    assert got[1]["payload"] == "text 10"

    assert whamming_json("delete", name, "1000-1099") == [{"name": name, "ids": 100, "deleted": 100}]
    (compacted,) = whamming_json("compact", name)
    assert (compacted["items"], compacted["segments"], compacted["dead_rows"]) == (400, 1, 0)
    (held,) = whamming_json("stats", name)
    assert (held["items"], held["tables"], held["sealed_rows"]) == (400, "single", 400)

    (exported,) = whamming_json("export", name, tmp_path / "out.npz")
    assert exported == {"name": name, "file": str(tmp_path / "out.npz"), "items": 400}
    assert sorted(np.load(tmp_path / "out.npz")["ids"].tolist()) == list(range(1100, 1500))

    (bench,) = whamming_json("bench", name, "--seconds", "0.2", "-k", "3", "--queries", "20")
    assert (bench["items"], bench["bits"], bench["k"]) == (400, BITS, 3)
    assert 0 < bench["first_p50_ms"] <= bench["p50_ms"] <= bench["p99_ms"]  # type: ignore[operator]
    assert bench["queries_per_second"] > 0  # type: ignore[operator]

    assert whamming_json("drop", name, "--yes") == [{"name": name, "dropped": True}]
    assert name not in [record["name"] for record in whamming_json("list")]


def test_backup_restore_verify(directory: Path, tmp_path: Path) -> None:
    copy, back = tmp_path / "copy", tmp_path / "back"
    done = run("backup", "--data", directory, copy, "--json").ok()
    assert done.record == {"from": str(directory), "to": str(copy), "indexes": ["docs"]}
    done = run("restore", copy, back, "--json").ok()
    assert done.record == {"from": str(copy), "to": str(back), "indexes": ["docs"]}
    report = run("verify", "--data", back, "--json").ok().record
    assert (report["name"], report["ok"], report["problems"]) == ("docs", True, [])
    assert report["bytes_checked"] > 20_000 * 8
    with whamming.open(back, mode="r") as database:
        assert len(database.index("docs")) == 20_000
