"""Vectors on the command line: indexes with an encoder, fitted or brought along, and answers as the library gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.clients.commands import Cli, Target, run
from whamming import StoredIndex
from whamming.storage import fit, load_encoder, read_vectors

N, DIM, BITS = 3000, 24, 16
rng = np.random.default_rng(11)
VECTORS = (rng.standard_normal((N, DIM)) @ rng.standard_normal((DIM, DIM)) + 0.5).astype(np.float32)
QUERIES = VECTORS[:3] + np.float32(0.1)
FITTED = ("--encoder", "itq", "--bits", str(BITS), "--sample", "1000", "--seed", "5")


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A file of vectors."""
    path = tmp_path / "vectors.npy"
    np.save(path, VECTORS)
    return path


@pytest.fixture
def queries(tmp_path: Path) -> Path:
    """A file of queries."""
    path = tmp_path / "queries.npy"
    np.save(path, QUERIES)
    return path


def twin(**options: Any) -> StoredIndex:
    """An index in memory that holds what the command line was to store."""
    index = whamming.open(":memory:").create_index("docs", **options)
    index.upsert(np.arange(N), vectors=VECTORS)
    return index


def twin_of_fitted(vectors: Path, **options: Any) -> StoredIndex:
    """The same, of what ``FITTED`` makes."""
    encoder = fit("itq", read_vectors(vectors).sample(1000, seed=5), bits=BITS, seed=5)
    return twin(encoder=encoder, **options)


def hits(index: StoredIndex, **search: Any) -> list[tuple[int, float]]:
    return [(hit.id, hit.distance) for hit in index.search(**{"k": 10, **search})]


def found(cli: Cli, *args: str | Path) -> list[tuple[int, float]]:
    return [(record["id"], record["distance"]) for record in cli.json("search", *args)]


def components(row: int) -> str:
    return "--vector=" + ",".join(repr(float(x)) for x in QUERIES[row])


# -- making, filling, searching ----------------------------------------------------------------------------------------


def test_an_index_made_for_a_file(cli: Cli, target: Target, name: str, vectors: Path, queries: Path) -> None:
    kept = ("--keep-vectors", "float16")
    done = cli("import", name, vectors, *FITTED, *kept, *target)
    twin = twin_of_fitted(vectors, keep_vectors="float16")
    assert twin.encoder is not None
    training = twin.encoder.training
    assert (done.code, done.err) == (
        0,
        f"whamming: made index {name}: itq from 24 components to 16 bits, centred, fitted on 1,000 samples of 3,000; "
        f"error {training.errors[0]:.4f}, after {training.rounds} rounds {training.errors[-1]:.4f}\n",
    )
    assert "3,000 rows imported" in done.out

    by_file: tuple[str | Path, ...] = (name, "--vector-file", queries, "--row", "1", *target)
    for form in ("asymmetric", "inner", "symmetric"):
        answer = hits(twin, vector=QUERIES[1], costs=form)
        assert found(cli, *by_file, "--costs", form) == answer
        assert found(cli, name, components(1), "--costs", form, *target) == answer
    assert found(cli, *by_file) == hits(twin, vector=QUERIES[1])
    assert found(cli, *by_file, "--radius", "9") == hits(twin, vector=QUERIES[1], k=None, radius=9)
    for rerank in (3, "exact"):
        answer = hits(twin, vector=QUERIES[1], rerank=rerank, k=5)
        assert found(cli, *by_file, "--rerank", str(rerank), "-k", "5") == answer
    assert answer[0][0] == 1
    (bound,) = {record["lower_bound"] for record in cli.json("search", *by_file, "--rerank", "2", "-k", "4")}
    assert bound is None  # nothing is known of the others

    weights = queries.with_name("weights.npy")
    np.save(weights, np.arange(BITS))
    weighted = found(cli, *by_file[:3], "--costs", "symmetric", "--weights", weights, *target)
    assert weighted == hits(twin, vector=QUERIES[0], costs="symmetric", weights=np.arange(BITS))
    single = queries.with_name("single.npy")
    np.save(single, QUERIES[2])
    assert found(cli, name, "--vector-file", single, *target) == hits(twin, vector=QUERIES[2])

    cli("import", name, vectors, *FITTED, *kept, *target).ok()  # as often as one likes
    cli("import", name, vectors, "--first-id", "3000", *target).ok()
    assert cli.json("stats", name, *target)[0]["items"] == 2 * N
    cli("import", name, vectors, "--encoder", "lsh", *target).refused(1, "exists with encoder itq, not lsh")
    cli("import", name, vectors, "--encoder", "itq", "--bits", "8", *target).refused(1, "exists with bits 16, not 8")


def test_an_index_made_without_a_sample(cli: Cli, target: Target, name: str, vectors: Path) -> None:
    options = ("--encoder", "lsh", "--dim", str(DIM), "--bits", "40", "--seed", "3")
    kept = ("--keep-vectors", "int8", "--metric", "cosine")
    (made,) = cli.json("create", name, *options, *kept, *target)
    assert (made["bits"], made["dim"], made["keep_vectors"], made["metric"]) == (40, DIM, "int8", "cosine")
    cli("create", name, *options, *kept, "--exist-ok", *target).ok()
    cli("import", name, vectors, *target).ok()
    index = twin(encoder="lsh", dim=DIM, bits=40, seed=3, keep_vectors="int8", metric="cosine")
    assert found(cli, name, components(0), *target) == hits(index, vector=QUERIES[0])
    assert found(cli, name, components(0), "--rerank", "4", *target) == hits(index, vector=QUERIES[0], rerank=4)
    cli("search", name, components(0), "--rerank", "exact", *target).refused(1, "exact", "l2")
    cli("search", name, components(0), "--costs", "asymmetric", *target).refused(1, "--costs asymmetric", "use inner")


def test_encoders_as_files_and_statistics(cli: Cli, target: Target, name: str, vectors: Path, tmp_path: Path) -> None:
    assert cli("import", name, vectors, *FITTED, *target).code == 0
    file, twin = tmp_path / "it.encoder", twin_of_fitted(vectors)
    assert twin.encoder is not None
    said = "itq from 24 components to 16 bits, centred, fitted on 1,000 samples"
    assert cli("encoder", name, file, *target).ok().out == f"{name}: {said}, in {file}\n"
    assert load_encoder(file).to_bytes() == twin.encoder.to_bytes()
    about = {"bits": BITS, "dim": DIM, "encoder": twin.encoder.fingerprint, "encoder_kind": "itq", "centred": True}
    about |= {"samples": 1000, "rounds": twin.encoder.training.rounds, "error": twin.encoder.training.errors[-1]}
    assert cli.json("encoder", name, file, "--overwrite", *target) == [{"name": name, "file": str(file), **about}]
    (held,) = cli.json("stats", name, *target)
    assert held.items() >= {**about, "items": N}.items()
    assert f"{said} ({twin.encoder.fingerprint})" in cli("stats", name, *target).ok().out

    cli("create", f"{name}-2", "--encoder-file", file, "--bit-order", "big", *target).ok()
    codes = tmp_path / "codes.npz"
    np.savez(codes, codes=np.packbits(np.unpackbits(twin.encoder.encode(VECTORS), axis=1, bitorder="little"), axis=1))
    cli("import", f"{name}-2", codes, "--codes", *target).ok()
    assert found(cli, f"{name}-2", components(2), *target) == hits(twin, vector=QUERIES[2])

    cli("create", f"{name}-3", "--encoder", "sign", "--dim", "7", *target).ok()
    (plain,) = cli.json("stats", f"{name}-3", *target)
    assert (plain["bits"], plain["encoder_kind"], plain["centred"], plain["samples"]) == (7, "sign", False, 0)
    assert "sign from 7 components to 7 bits, not centred, without a sample" in cli("stats", f"{name}-3", *target).out


@pytest.mark.parametrize("form", ["float16", "float64", "int8", "uint8", "fvecs", "bvecs", "npz"])
def test_every_form_of_file(cli: Cli, form: str, tmp_path: Path) -> None:
    dtype = {"fvecs": "float32", "bvecs": "uint8", "npz": "float32"}.get(form, form)
    rows = (VECTORS[:200] if dtype.startswith("float") else VECTORS[:200].astype(np.int8)).astype(dtype)
    ids, payloads, path = np.arange(200) + 9, [b""] * 200, tmp_path / f"rows.{form}"
    if form.endswith("vecs"):
        path.write_bytes(b"".join(np.int32(DIM).tobytes() + row.tobytes() for row in rows))
    elif form == "npz":
        ids, payloads = np.arange(200) * 5, [b"%d" % row for row in range(200)]
        ends, data = np.cumsum([*map(len, payloads)]), np.frombuffer(b"".join(payloads), dtype=np.uint8)
        np.savez(path, vectors=rows, ids=ids, payload_ends=ends, payload_data=data)
    else:
        path = tmp_path / "rows.npy"
        np.save(path, rows)
    where = tmp_path / "data"
    done = cli("import", "docs", path, "--encoder", "sign", "--first-id", "9", "--batch", "64", "--data", where)
    assert done.code == 0, done
    assert "sign from 24 components to 24 bits, centred, fitted on 200 samples of 200" in done.err
    with whamming.open(where, mode="r") as database:
        items = database.index("docs").get(ids)
    assert items.found.all()
    assert items.codes.tolist() == fit("sign", rows).encode(rows).tolist()
    assert [bytes(payload) for payload in items.payloads] == payloads


def test_samples_are_rows_at_random(vectors: Path) -> None:
    file = read_vectors(vectors, DIM)
    assert (file.count, len(file), file.dim) == (N, N, DIM)
    sample = file.sample(500, seed=1)
    assert sample.tolist() == file.sample(500, seed=1).tolist() != file.sample(500, seed=2).tolist()
    rows = {row.tobytes(): number for number, row in enumerate(VECTORS)}
    chosen = [rows[row.tobytes()] for row in sample]
    assert len({*chosen}) == 500
    assert 0.4 < np.mean(chosen) / N < 0.6
    assert file.sample(N + 1).tolist() == VECTORS.tolist()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_refusals(cli: Cli, target: Target, name: str, vectors: Path, tmp_path: Path) -> None:
    few, other, broken, codes = (tmp_path / f"{kind}.npy" for kind in ("few", "other", "broken", "codes"))
    np.save(few, VECTORS[:BITS])
    np.save(other, VECTORS[:, 1:])
    np.save(codes, np.zeros((3, 2), dtype=np.uint8))
    spoilt = VECTORS.copy()
    spoilt[2500, 7] = np.nan
    np.save(broken, spoilt)
    plain, kept = f"{name}-plain", f"{name}-kept"
    sized = ("--bits", str(BITS))

    cli("import", name, few, "--encoder", "itq", *sized, *target).refused(1, "a sample of 16 vectors", "17")
    cli("import", name, vectors, "--encoder", "itq", *target).refused(2, "--encoder itq without --bits")
    cli("import", name, broken, "--encoder", "sign", *target).refused(1, "row 2500 of", "is nan in column 7")
    cli("stats", name, *target).refused(1, f"there is no index {name};")
    cli("import", name, vectors, *sized, *target).refused(2, "--bits without --encoder")
    cli("import", name, vectors, "--encoder", "sign", "--codes", *target).refused(2, "--codes", "not allowed with")
    cli("import", name, codes, "--encoder", "pca", *target).refused(2, "--encoder pca", "sign, lsh or itq")
    cli("create", name, "--encoder", "itq", "--dim", "24", *sized, *target).refused(2, f"whamming import {name} FILE")
    cli("create", name, "--encoder", "lsh", *sized, *target).refused(2, "--encoder lsh without --dim")
    cli("create", name, "--encoder", "sign", "--dim", "8", *sized, *target).refused(2, "--bits 16", "at most 8")
    cli("create", name, "--encoder-file", vectors, *target).refused(1, "not an encoder")
    cli("create", name, *sized, "--keep-vectors", "int8", *target).refused(2, "--keep-vectors without an --encoder")

    cli("create", kept, "--encoder", "sign", "--dim", str(DIM), "--keep-vectors", "int8", *sized, *target).ok()
    cli("import", kept, other, *target).refused(1, "has shape [3000, 23]; vectors of this index are [n, 24]")
    done = cli("import", kept, broken, "--batch", "1000", *target)
    done.refused(1, "row 2500 of", "is nan in column 7; components must be finite")
    cli("import", kept, codes, "--codes", *target).refused(1, "keeps", "vectors")
    cli("search", kept, "--vector", "1,2", *target).refused(1, "2 components", "24")
    cli("search", kept, "--vector", "1,x", *target).refused(2, "--vector has the component x", "0.5,-1,2")
    cli("search", kept, "--vector", ",".join(["nan"] * DIM), *target).refused(2, "--vector has the component nan")
    cli("search", kept, "--vector-file", other, *target).refused(1, "has shape [3000, 23]")
    cli("search", kept, "--vector-file", vectors, "--row", "3000", *target).refused(1, "--row 3000", "3000 rows")
    cli("search", kept, "--vector-file", vectors, "--rerank", "0", *target).refused(
        2, "--rerank 0; it must be 1 or more"
    )
    cli("search", kept, "--code", "0000", "--costs", "inner", *target).refused(2, "--costs inner without a vector")

    cli("create", plain, *sized, *target).ok()
    cli("search", plain, "--vector", "1,2", *target).refused(1, "has no encoder")
    cli("encoder", plain, tmp_path / "none", *target).refused(1, f"index {plain} has no encoder")
    cli("import", plain, vectors, "--encoder", "sign", *target).refused(1, "exists with encoder none, not sign")
    assert not (tmp_path / "none").exists()


def test_in_processes_of_their_own(vectors: Path, queries: Path, target: Target, name: str) -> None:
    done = run("import", name, vectors, *FITTED, *target, "--json")
    assert (done.code, done.record["rows"], "made index" in done.err) == (0, N, True)
    done = run("search", name, "--vector-file", queries, "-k", "1", *target)
    assert (done.code, len(done.out.splitlines())) == (0, 2)
