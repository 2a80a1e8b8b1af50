"""Indexes with an encoder: writing and searching vectors, on every store."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import whamming
from tests.storage.conftest import Place
from whamming.native import Index, InvalidArgumentError
from whamming.storage import (
    AlreadyExistsError,
    CorruptStoreError,
    Encoder,
    FormatError,
    IndexSettings,
    KeptVectors,
    Kind,
    StorageFullError,
    export_items,
    fit,
    import_items,
    load_encoder,
)
from whamming.storage.vectors import encoder_file
from whamming.storage.vectors.kept import pack_vectors, unpack_vectors

DIM, BITS = 24, 20


def make_vectors(rows: int = 400, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, DIM)).astype(np.float32) + 1


@pytest.mark.parametrize("kind", ["sign", "lsh", "itq"])
@pytest.mark.parametrize("bit_order", ["little", "big"])
def test_vectors_are_searched_by_their_codes(place: Place, kind: Kind, bit_order: Any) -> None:
    vectors, queries = make_vectors(), make_vectors(5, 1)
    with place.open() as db:
        docs = db.create_index("docs", bits=BITS, encoder=kind, dim=DIM, train=vectors, bit_order=bit_order)
        encoder = fit(kind, vectors, bits=BITS)
        assert docs.encoder is not None
        assert docs.encoder.fingerprint == encoder.fingerprint == docs.settings.encoder
        docs.upsert(np.arange(300), vectors=vectors[:300], payloads=[b"%d" % i for i in range(300)])
        docs.seal()
        docs.upsert(np.arange(300, 400), vectors=vectors[300:])
        reference = Index.build(encoder.encode(vectors), BITS)
        for form in ("asymmetric", "inner", "symmetric", None):
            expected = reference.search(encoder.costs(queries, form), k=7)
            answer = docs.search_batch(vectors=queries, costs=form, k=7)
            assert answer.ids.tolist() == expected.ids.tolist()
            assert answer.distances.tolist() == expected.distances.tolist()
            hits = list(docs.search(vector=queries[2], costs=form, k=7))
            assert [hit.id for hit in hits] == expected.ids[2].tolist()
        weights = np.linspace(0, 1, BITS)
        expected = reference.search(encoder.costs(queries, "symmetric", weights=weights), k=7)
        weighted = docs.search_batch(vectors=queries, costs="symmetric", weights=weights, k=7)
        assert weighted.ids.tolist() == expected.ids.tolist()
        ones = np.unpackbits(encoder.encode(vectors[7]), count=BITS, bitorder="little")
        assert np.array_equal(docs.get([7]).codes[0], np.packbits(ones, bitorder=bit_order))
        assert docs.get([7]).payloads == [b"7"]
        assert docs.get([7]).vectors is None


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "uint8"])
def test_vectors_of_every_type_are_accepted(dtype: str) -> None:
    vectors = np.abs(make_vectors() * 20).astype(dtype)
    with whamming.open() as db:
        docs = db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        docs.upsert(np.arange(400), vectors=vectors)
        assert docs.encoder is not None
        assert np.array_equal(docs.get(np.arange(400)).codes, docs.encoder.encode(vectors))
        assert next(docs.search(vector=vectors[9], costs="symmetric", k=1)).distance == 0


# -- keeping the encoder -----------------------------------------------------------------------------------------------


def test_the_encoder_is_loaded_when_the_index_is_reopened(persistent: Place) -> None:
    vectors = make_vectors()
    with persistent.open() as db:
        docs = db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        db.create_index("plain", bits=8)
        docs.upsert(np.arange(400), vectors=vectors)
        expected = docs.search_batch(vectors=vectors[:5], k=3)
        made = docs.encoder
    assert made is not None
    for mode in ("w", "r"):
        with whamming.open(persistent.directory / "db", mode=mode) as db:
            docs = db.index("docs")
            assert docs.encoder is not None
            assert docs.encoder.to_bytes() == made.to_bytes()
            assert docs.encoder.training == made.training
            assert docs.search_batch(vectors=vectors[:5], k=3).ids.tolist() == expected.ids.tolist()
            assert db.index("plain").encoder is None


def test_an_encoder_can_be_used_for_another_index(place: Place, tmp_path: Path) -> None:
    vectors = make_vectors()
    with place.open() as db:
        one = db.create_index("one", encoder="itq", bits=BITS, train=vectors)
        assert one.encoder is not None
        one.encoder.save(tmp_path / "exported")
        other = db.create_index("other", encoder=load_encoder(tmp_path / "exported"))
        assert other.settings == one.settings
        for index in (one, other):
            index.upsert([1], vectors=vectors[:1])
        assert one.get([1]).codes.tolist() == other.get([1]).codes.tolist()
        codes_made_elsewhere = load_encoder(tmp_path / "exported").encode(vectors[1:2])
        other.upsert([2], codes_made_elsewhere)
        assert next(other.search(vector=vectors[1], costs="symmetric")).id == 2


def test_backups_include_the_encoder(place: Place, tmp_path: Path) -> None:
    vectors = make_vectors()
    with place.open() as db:
        docs = db.create_index("docs", encoder="itq", bits=BITS, train=vectors, keep_vectors="int8")
        docs.upsert(np.arange(400), vectors=vectors, payloads=[b"%d" % i for i in range(400)])
        db.backup(tmp_path / "backup")
        expected = docs.search_batch(vectors=vectors[:5], k=3, rerank=2)
    whamming.restore(tmp_path / "backup", tmp_path / "restored")
    for name in ("backup", "restored"):
        with whamming.open(tmp_path / name) as db:
            docs = db.index("docs")
            assert docs.verify().ok
            again = docs.search_batch(vectors=vectors[:5], k=3, rerank=2)
            assert again.ids.tolist() == expected.ids.tolist()
            assert again.distances.tolist() == expected.distances.tolist()
            assert docs.get([5]).payloads == [b"5"]
            docs.upsert([1000], vectors=vectors[:1])


def test_a_damaged_or_missing_encoder_is_detected(persistent: Place, tmp_path: Path) -> None:
    vectors = make_vectors()
    with persistent.open() as db:
        db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        db.create_index("other", encoder="lsh", bits=BITS, train=vectors)
        plain = db.create_index("plain", bits=8)
        before = db.index("docs").verify()
        path = persistent.directory / "db" / "docs" / encoder_file.ENCODER_FILE
        good = path.read_bytes()
        assert before.ok
        assert before.bytes_checked >= len(good)

        bad = bytearray(good)
        bad[len(bad) // 2] ^= 1
        path.write_bytes(bad)
        report = db.verify()["docs"]
        assert not report.ok
        assert "checksum" in report.problems[-1]
        assert db.verify()["other"].ok
        db.backup(tmp_path / "copy")
        shutil.copy(path, tmp_path / "copy" / "docs" / encoder_file.ENCODER_FILE)
    with pytest.raises(whamming.StorageError, match=r"docs.* is damaged"):
        whamming.restore(tmp_path / "copy", tmp_path / "restored")
    with persistent.open() as db:
        with pytest.raises(CorruptStoreError, match="checksum"):
            db.index("docs")
        path.unlink()
        with pytest.raises(CorruptStoreError, match="encoder is missing"):
            db.index("docs")
        shutil.copy(path.parents[1] / "other" / encoder_file.ENCODER_FILE, path)
        with pytest.raises(CorruptStoreError, match=r"fingerprint \w+, .* encoder \w+;"):
            db.index("docs")
        assert plain.name in db.list_indexes()
        path.write_bytes(good)
        assert db.index("docs").encoder is not None


def test_an_incomplete_index_is_never_visible(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the encoder cannot be written, there is no index. The same holds for a crash before the index is renamed."""
    vectors = make_vectors()
    with disk.open() as db:

        def full(self: Encoder, path: Path) -> None:
            raise StorageFullError("no space")

        with monkeypatch.context() as patch:
            patch.setattr(Encoder, "save", full)
            with pytest.raises(StorageFullError):
                db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        assert db.list_indexes() == []
        assert sorted(p.name for p in (disk.directory / "db").iterdir()) == ["whamming.json", "writer.lock"]
        db.create_index("docs", encoder="itq", bits=BITS, train=vectors)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("kind", ["sign", "lsh"])
def test_an_encoder_with_odd_numbers_leaves_no_index(place: Place, kind: Kind, value: float) -> None:
    """The index got its name, could not be opened, and could not be created again."""
    good = fit(kind, make_vectors(), bits=BITS)
    odd = dataclasses.replace(good, offsets=np.full(BITS, value, dtype=np.float32))
    with place.open() as db:
        with pytest.raises(InvalidArgumentError, match="the encoder"):
            db.create_index("docs", encoder=odd)
        assert db.list_indexes() == []
        db.create_index("docs", encoder=good).upsert([1], vectors=make_vectors(1))


@pytest.mark.parametrize("kind", ["sign", "lsh", "itq"])
@pytest.mark.parametrize("signs", [1, [1, -1]])
def test_a_sample_of_huge_numbers_leaves_no_index(place: Place, kind: Kind, signs: Any) -> None:
    sample = (3e38 * np.resize(signs, (40, DIM)) + np.zeros((40, DIM))).astype(np.float32)
    sample[0] = 2e38
    with place.open() as db:
        with pytest.raises(InvalidArgumentError, match="scale the vectors"):
            db.create_index("docs", bits=BITS, encoder=kind, train=sample)
        assert db.list_indexes() == []


def test_the_encoder_is_read_back_before_the_index_gets_its_name(
    persistent: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save_damaged(self: Encoder, path: Path) -> None:
        path.write_bytes(self.to_bytes()[:-1] + b"x")

    with persistent.open() as db:
        with monkeypatch.context() as patch:
            patch.setattr(Encoder, "save", save_damaged)
            with pytest.raises(CorruptStoreError, match="checksum"):
                db.create_index("docs", encoder="lsh", bits=BITS, dim=DIM)
        assert db.list_indexes() == []
        db.create_index("docs", encoder="lsh", bits=BITS, dim=DIM)


def test_unknown_settings_are_refused() -> None:
    values = IndexSettings(8, dim=3, encoder="x").to_json()
    with pytest.raises(InvalidArgumentError, match="unknown index settings: mode"):
        IndexSettings.from_json(values | {"mode": 1})


# -- creating ----------------------------------------------------------------------------------------------------------


def test_an_existing_index_is_not_fitted_again(place: Place) -> None:
    vectors, others = make_vectors(), make_vectors(seed=9)
    with place.open() as db:
        made = db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        assert db.create_index("docs", encoder="itq", bits=BITS, train=others, exist_ok=True) is made
        assert db.create_index("docs", encoder="itq", bits=BITS, dim=DIM, exist_ok=True) is made
        assert made.encoder is not None
        assert db.create_index("docs", encoder=made.encoder, exist_ok=True) is made
        for different in (
            {"encoder": "itq", "bits": 8, "train": vectors},
            {"encoder": "lsh", "bits": BITS, "train": vectors},
            {"encoder": fit("itq", others, bits=BITS)},
            {"encoder": "itq", "bits": BITS, "keep_vectors": "int8"},
            {"bits": BITS},
        ):
            with pytest.raises(AlreadyExistsError, match="'docs' already exists"):
                db.create_index("docs", exist_ok=True, **different)
        with pytest.raises(AlreadyExistsError):
            db.create_index("docs", encoder=made.encoder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "bits is missing"),
        ({"bits": 8, "dim": DIM}, "dim, train or centre .*encoder"),
        ({"bits": 8, "train": make_vectors()}, "dim, train or centre .*encoder"),
        ({"bits": 8, "encoder": "pca", "dim": DIM}, "encoder = 'pca'"),
        ({"bits": 8, "encoder": "itq", "dim": DIM}, "encoder = 'itq' without a sample"),
        ({"bits": 8, "encoder": "itq", "dim": 3, "train": make_vectors()}, "dim = 3, but .* 24"),
        ({"encoder": fit("sign", dim=3), "bits": 4}, "bits = 4, dim = None .*Encoder"),
        ({"encoder": fit("sign", dim=3), "dim": 4}, "bits = None, dim = 4 .*Encoder"),
        ({"encoder": fit("sign", dim=3), "train": make_vectors()}, "train or centre with Encoder"),
        ({"bits": 8, "keep_vectors": "int8"}, "keep_vectors = 'int8' .*encoder"),
        ({"encoder": "sign", "dim": 8, "metric": "cosine"}, "metric = 'cosine' without keep_vectors"),
        ({"encoder": "sign", "dim": 8, "keep_vectors": "float64"}, "keep_vectors = 'float64'"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with whamming.open() as db:
        with pytest.raises(InvalidArgumentError, match=message):
            db.create_index("docs", **arguments)
        assert db.list_indexes() == []


def test_sign_needs_only_the_dimension() -> None:
    with whamming.open() as db:
        docs = db.create_index("docs", encoder="sign", dim=3)
        docs.upsert([1, 2], vectors=[[1.0, 2.0, -3.0], [-1.0, -2.0, 3.0]])
        assert [hit.id for hit in docs.search(vector=[5.0, 0.0, 0.0])] == [1, 2]


# -- invalid vectors ---------------------------------------------------------------------------------------------------


def test_vectors_need_an_encoder_and_must_match_it() -> None:
    vectors = make_vectors()
    with whamming.open() as db:
        plain = db.create_index("plain", bits=8)
        for call in (
            lambda: plain.upsert([1], vectors=vectors[:1]),
            lambda: plain.search(vector=vectors[0]),
            lambda: plain.search_batch(vectors=vectors),
        ):
            with pytest.raises(InvalidArgumentError, match="the index 'plain' has no encoder"):
                call()
        docs = db.create_index("docs", encoder="itq", bits=BITS, train=vectors)
        codes = np.zeros((1, 3), dtype=np.uint8)
        other: Any = "l2"
        refused: list[tuple[Any, str]] = [
            (lambda: docs.upsert([1], vectors=vectors[:1, :5]), "have 5 components, .* takes 24"),
            (lambda: docs.upsert([1, 2], vectors=vectors[:1]), "2 ids but 1 codes"),
            (lambda: docs.upsert([1], vectors=np.full((1, DIM), np.nan)), "row 0, column 0 is nan"),
            (lambda: docs.upsert([1], codes, vectors=vectors[:1]), "both codes and vectors"),
            (lambda: docs.upsert([1]), "items without codes"),
            (lambda: docs.search(vector=vectors[:2]), "one query, not a batch of 2"),
            (lambda: docs.search(codes[0], vector=vectors[0]), "a vector together with a code"),
            (lambda: docs.search(table=np.ones((BITS, 2)), vector=vectors[0]), "a vector together with a code"),
            (lambda: docs.search(codes[0], costs="inner"), "costs = 'inner' without a vector"),
            (lambda: docs.search(vector=vectors[0], weights=np.ones(BITS)), "costs = 'asymmetric' with weights"),
            (lambda: docs.search(vector=vectors[0], costs=other), "costs = 'l2'"),
            (lambda: docs.search(), "no query"),
        ]
        for call, message in refused:
            with pytest.raises(InvalidArgumentError, match=message):
                call()
        assert len(docs) == 0


# -- kept vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", ["float16", "int8"])
def test_kept_vectors_do_not_affect_payloads_and_exports(place: Place, kept: KeptVectors, tmp_path: Path) -> None:
    vectors = make_vectors()
    payloads = [b"%d" % i if i % 3 else b"" for i in range(400)]
    with place.open() as db:
        docs = db.create_index("docs", encoder="itq", bits=BITS, train=vectors, keep_vectors=kept)
        docs.upsert(np.arange(200), vectors=vectors[:200], payloads=payloads[:200])
        docs.seal()
        docs.upsert(np.arange(200, 300), vectors=vectors[200:300], payloads=payloads[200:300])
        docs.upsert(np.arange(300, 400), vectors=vectors[300:])
        docs.upsert([0, 250], vectors=vectors[[1, 2]], payloads=[b"new", None])
        docs.delete([3, 251])
        known = unpack_vectors(pack_vectors(vectors, kept), kept)

        def check() -> None:
            items = docs.get([0, 1, 3, 201, 250, 251, 350, 10**6])
            assert items.found.tolist() == [True, True, False, True, True, False, True, False]
            assert items.payloads == [b"new", b"1", b"", b"", b"", b"", b"", b""]
            assert items.vectors is not None
            rows = [1, 1, None, 201, 2, None, 350, None]
            for vector, row in zip(items.vectors, rows, strict=True):
                assert np.array_equal(vector, np.zeros(DIM) if row is None else known[row])
            scanned = {
                int(i): b"" if rows.payloads is None else rows.payloads[n]
                for rows in docs.scan(64)
                for n, i in enumerate(rows.ids)
            }
            assert len(scanned) == 398 == len(docs)
            assert scanned[0] == b"new"
            assert all(scanned[i] == payloads[i] for i in scanned if i not in (0, 250) and i < 300)
            hits = list(docs.search(vector=vectors[1], k=2, payloads=True))
            assert {hit.id: hit.payload for hit in hits} == {0: b"new", 1: b"1"}

        check()
        docs.compact()
        check()
        assert docs.verify().ok
        target = tmp_path / "export.npz"
        assert export_items(docs, target, progress=False) == 398
        with np.load(target) as exported:
            assert exported["payload_data"].nbytes == len(b"new") + sum(
                map(len, (payloads[i] for i in range(300) if i not in (0, 3, 250, 251)))
            )
        plain = db.create_index("plain", bits=BITS)
        assert import_items(plain, target, progress=False) == 398
        assert plain.get([1]).payloads == [b"1"]
        with pytest.raises(InvalidArgumentError, match=r"codes .*\(keep_vectors = "):
            import_items(docs, target, progress=False)


def test_codes_are_computed_from_vectors_as_they_are_kept() -> None:
    vectors = make_vectors() * 0.001
    with whamming.open() as db:
        docs = db.create_index("docs", encoder="sign", dim=DIM, keep_vectors="int8")
        docs.upsert(np.arange(400), vectors=vectors)
        assert docs.encoder is not None
        items = docs.get(np.arange(400))
        assert items.vectors is not None
        assert np.array_equal(items.codes, docs.encoder.encode(items.vectors))
        assert not np.array_equal(items.codes, docs.encoder.encode(vectors))  # int8 loses the smallest signs


def test_kept_vectors_survive_reopening(persistent: Place) -> None:
    vectors = make_vectors()
    with persistent.open() as db:
        docs = db.create_index("docs", encoder="lsh", bits=BITS, train=vectors, keep_vectors="float16")
        docs.upsert(np.arange(400), vectors=vectors)
        expected = docs.search_batch(vectors=vectors[:3], k=5, rerank="exact")
    with whamming.open(persistent.directory / "db", mode="r") as db:
        again = db.index("docs").search_batch(vectors=vectors[:3], k=5, rerank="exact")
    assert again.ids.tolist() == expected.ids.tolist()


def test_a_file_that_is_not_an_encoder_is_not_reported_as_damaged(disk: Place) -> None:
    with disk.open() as db:
        db.create_index("docs", encoder="sign", dim=4)
    (disk.directory / "db" / "docs" / encoder_file.ENCODER_FILE).write_text("something else entirely")
    with disk.open() as db, pytest.raises(FormatError, match="not an encoder"):
        db.index("docs")
