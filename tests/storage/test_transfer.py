"""Importing and exporting items as files: every format is restored exactly, and invalid files are refused."""

from __future__ import annotations

import io
import os
import pty
import termios
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

import whamming
from tests.native.examples import make_codes
from tests.storage.conftest import Place
from tests.storage.model import Model, check_items
from whamming import Database, InvalidArgumentError, StorageError, StoredIndex
from whamming.storage import BitOrder, IndexSettings, ItemsIndex, Rows, export_items, import_items, read_codes
from whamming.storage.transfer.columns import ids_path

BITS = 13
IDS = np.array([5, 2**64 - 1, 0, 2**33, *range(100, 121)], dtype=np.uint64)
N = len(IDS)


def codes(n: int = N, bits: int = BITS) -> Any:
    return make_codes("uniform", n, bits, np.random.default_rng(n + bits))


class ListIndex:
    """Another kind of index: items in a list. ``scan`` may return more or fewer items than ``len`` says."""

    def __init__(self, settings: IndexSettings, late: int = 0) -> None:
        self.name = "elsewhere"
        self.settings = settings
        self.pieces: list[Rows] = []
        self.late = late
        self.model = Model(settings)

    def __len__(self) -> int:
        return sum(map(len, self.pieces)) + self.late

    def scan(self, size: int = 10_000) -> Iterator[Rows]:
        assert size >= max(map(len, self.pieces), default=0)
        yield from self.pieces

    def upsert(self, ids: ArrayLike, codes: ArrayLike, payloads: Sequence[bytes | None] | None = None) -> int:
        self.model.upsert(np.asarray(ids).tolist(), np.asarray(codes), payloads)
        return len(self.model)


def filled(database: Database, bit_order: BitOrder = "little", *, payloads: bool = True) -> tuple[StoredIndex, Model]:
    """Return an index with a segment, dead items and recent writes."""
    index = database.create_index("docs", BITS, bit_order=bit_order)
    model = Model(index.settings)
    kept: list[bytes | None] | None = [b"%d\0" % i if i % 3 else None for i in range(N)] if payloads else None
    for ids, own, data in ((IDS, codes(), kept), (IDS[3:9], codes(6), None)):
        index.upsert(ids, own, data)
        model.upsert(ids.tolist(), own, data)
        if data is not None:
            index.seal()
    index.delete(IDS[:2])
    model.delete(IDS[:2])
    return index, model


@pytest.mark.parametrize("bit_order", ["little", "big"])
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_exported_items_can_be_imported(place: Place, bit_order: BitOrder, suffix: str, tmp_path: Path) -> None:
    with place.open() as database:
        index, model = filled(database, bit_order)
        assert export_items(index, tmp_path / f"items{suffix}") == len(model)
    if suffix == ".npy":
        model.items = {id_: (code, b"") for id_, (code, _) in model.items.items()}
    with place.open("other") as database:
        other = database.create_index("copy", BITS, bit_order=bit_order)
        assert import_items(other, str(tmp_path / f"items{suffix}"), batch=7) == len(model)
        check_items(other.snapshot(), model)
    assert not list(tmp_path.glob(".items*"))


def test_exported_files_are_plain_numpy_files(place: Place, tmp_path: Path) -> None:
    with place.open() as database:
        index, model = filled(database)
        export_items(index, tmp_path / "items.npz")
        export_items(index, tmp_path / "items.npy")
    columns = np.load(tmp_path / "items.npz")
    mapped, ids = np.load(tmp_path / "items.npy", mmap_mode="r"), np.load(tmp_path / "items.ids.npy")
    assert (mapped.dtype, mapped.shape, ids.dtype) == (np.uint8, (len(model), 2), np.uint64)
    for own_ids, own in ((columns["ids"], columns["codes"]), (ids, mapped)):
        copy = Model(model.settings)
        copy.upsert(own_ids.tolist(), own)
        assert {id_: code for id_, (code, _) in copy.items.items()} == {i: c for i, (c, _) in model.items.items()}
    with whamming.open(":memory:") as database:
        export_items(filled(database, payloads=False)[0], tmp_path / "plain.npz")
    assert set(np.load(tmp_path / "plain.npz")) == {"ids", "codes"}


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_an_empty_index_is_exported_as_no_rows(place: Place, suffix: str, tmp_path: Path) -> None:
    with place.open() as database:
        index = database.create_index("docs", BITS)
        assert export_items(index, tmp_path / f"none{suffix}") == 0
        assert import_items(index, tmp_path / f"none{suffix}") == 0
        assert len(index) == 0


def test_a_scan_returns_the_items_at_the_time_of_the_call(place: Place) -> None:
    with place.open() as database:
        index, model = filled(database, "big")
        pieces = index.scan(4)
        index.delete(IDS)
        found = Model(index.settings)
        for rows in pieces:
            assert 0 < len(rows) <= 4
            payloads = None if rows.payloads is None else [rows.payloads[row] for row in range(len(rows))]
            found.upsert(rows.ids.tolist(), rows.codes, payloads)
        assert found.items == model.items
        assert list(index.scan()) == []
        with pytest.raises(InvalidArgumentError, match="size = 0;"):
            index.scan(0)


@pytest.mark.parametrize("late", [-3, 0, 5])
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_any_index_can_be_exported_and_imported(late: int, suffix: str, tmp_path: Path) -> None:
    """An index on a server has no snapshot, so the number of items may change during the export."""
    source = ListIndex(IndexSettings(BITS, "big"), late)
    source.pieces = [Rows(IDS[:11], codes()[:11], None), Rows(IDS[11:], codes()[11:], None)]
    indexes: list[ItemsIndex] = [source, ListIndex(source.settings)]
    assert export_items(indexes[0], tmp_path / f"items{suffix}") == N
    assert import_items(indexes[1], tmp_path / f"items{suffix}", batch=4) == N
    expected = Model(source.settings)
    expected.upsert(IDS.tolist(), codes())
    assert indexes[1].model.items == expected.items  # type: ignore[attr-defined]


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_a_failed_export_leaves_no_incomplete_file(suffix: str, tmp_path: Path) -> None:
    class Broken(ListIndex):
        def scan(self, size: int = 10_000) -> Iterator[Rows]:
            yield from self.pieces
            raise StorageError("the other side is gone")

    broken = Broken(IndexSettings(BITS))
    broken.pieces = [Rows(IDS, codes(), None)]
    with pytest.raises(StorageError, match="the other side is gone"):
        export_items(broken, tmp_path / f"items{suffix}")
    assert list(tmp_path.iterdir()) == []
    whole = ListIndex(broken.settings)
    whole.pieces = [Rows(IDS[:3], codes()[:3], None)]
    export_items(whole, tmp_path / f"items{suffix}")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(StorageError):
        export_items(broken, tmp_path / f"items{suffix}")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    whole.pieces = broken.pieces
    assert export_items(whole, tmp_path / f"items{suffix}") == N
    assert read_codes(tmp_path / f"items{suffix}", BITS).count == N


def test_a_missing_directory_or_file_is_a_storage_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"items\.npy .*No such file"):
        export_items(ListIndex(IndexSettings(BITS)), tmp_path / "missing" / "items.npy")
    with pytest.raises(StorageError, match=r"items\.npy .*No such file"):
        read_codes(tmp_path / "items.npy", BITS)


# -- forms of codes --------------------------------------------------------------------------------------------------


def write_vectors(path: Path, rows: Any) -> None:
    """Write an .fvecs or .bvecs file."""
    with path.open("wb") as file:
        for row in rows:
            file.write(np.int32(len(row)).tobytes() + row.tobytes())


def make_values() -> tuple[Any, Any]:
    """Return floating-point vectors, including zeros of both signs and infinities, and their bits."""
    values = np.random.default_rng(3).standard_normal((N, BITS))
    values[0, :5] = [0.0, -0.0, np.inf, -np.inf, 5e-324]
    return values, values > 0


@pytest.mark.parametrize("bit_order", ["little", "big"])
@pytest.mark.parametrize("form", ["packed", "bool", "f2", "f4", "f8", ">f8", "fortran", "fvecs", "bvecs", "npz bool"])
def test_codes_are_read_in_every_form(form: str, bit_order: BitOrder, tmp_path: Path) -> None:
    values, bits = make_values()
    if form in ("f2", "f4", "fvecs"):
        values[0, 4] = 1.0  # 5e-324 is too small for these types
    packed = np.packbits(bits, axis=1, bitorder=bit_order)
    path = tmp_path / "codes.npy"
    if form == "packed":
        np.save(path, packed)
    elif form == "bool":
        np.save(path, bits)
    elif form == "fortran":
        np.save(path, np.asfortranarray(values))
    elif form == "npz bool":
        path = tmp_path / "codes.npz"
        np.savez(path, codes=bits)
    elif form.endswith("vecs"):
        path = tmp_path / f"codes.{form}"
        write_vectors(path, values.astype(np.float32) if form == "fvecs" else packed)
    else:
        np.save(path, values.astype(form))
    file = read_codes(path, BITS, bit_order, first_id=7)
    assert (file.count, len(file)) == (N, N)
    pieces = list(file.pieces(size=6))
    assert [piece.first_row for piece in pieces] == [0, 6, 12, 18, 24]
    assert np.concatenate([piece.ids for piece in pieces]).tolist() == list(range(7, 7 + N))
    assert np.concatenate([piece.codes for piece in pieces]).tolist() == packed.tolist()
    assert all(piece.codes.dtype == np.uint8 and piece.payloads is None for piece in pieces)


def test_reading_may_start_at_any_row(tmp_path: Path) -> None:
    payloads = [b"%d" % i for i in range(N)]
    ends = np.cumsum([len(p) for p in payloads]).astype(np.uint64)
    data = np.frombuffer(b"".join(payloads), dtype=np.uint8)
    np.savez(tmp_path / "items.npz", ids=IDS, codes=codes(), payload_ends=ends, payload_data=data)
    np.save(tmp_path / "items.npy", codes())
    write_vectors(tmp_path / "items.bvecs", codes())
    for name, ids in (("items.npz", IDS), ("items.npy", np.arange(N) + 50), ("items.bvecs", np.arange(N) + 50)):
        for start in (0, 1, 9, N - 1, N):
            file = read_codes(tmp_path / name, BITS, first_id=50)
            pieces = list(file.pieces(start, 4))
            assert [piece.first_row for piece in pieces] == list(range(start, N, 4))
            assert [id_ for piece in pieces for id_ in piece.ids.tolist()] == ids[start:].tolist()
            assert [row for piece in pieces for row in piece.codes.tolist()] == codes()[start:].tolist()
            if name == "items.npz":
                assert [kept for piece in pieces for kept in piece.payloads or []] == payloads[start:]
            index = ListIndex(IndexSettings(BITS))
            assert import_items(index, tmp_path / name, first_id=50, start=start) == N - start
            assert list(index.model.items) == ids[start:].tolist()
        for start in (-1, N + 1):
            with pytest.raises(InvalidArgumentError, match=rf"start = {start}; .*{name} has {N} rows"):
                file.pieces(start)
        with pytest.raises(InvalidArgumentError, match="size = 0;"):
            file.pieces(size=0)


def test_ids_may_reach_the_largest_one_but_not_exceed_it(tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", codes(3))
    (piece,) = read_codes(tmp_path / "codes.npy", BITS, first_id=2**64 - 3).pieces()
    assert piece.ids.tolist() == [2**64 - 3, 2**64 - 2, 2**64 - 1]
    for first_id in (2**64 - 2, -1):
        with pytest.raises(InvalidArgumentError, match=f"first_id = {first_id} for 3 items"):
            read_codes(tmp_path / "codes.npy", BITS, first_id=first_id)
    np.save(ids_path(tmp_path / "codes.npy"), np.array([1, -2, 3]))
    with pytest.raises(InvalidArgumentError, match="id -2 in row 1"):
        list(read_codes(tmp_path / "codes.npy", BITS).pieces())


# -- invalid files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["items", "items.csv", "items.NPY", "items.ids"])
def test_another_suffix_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(InvalidArgumentError, match=rf"{name} .*suffix .*\.npz, \.npy, \.fvecs"):
        read_codes(tmp_path / name, BITS)
    for out in (name, "items.fvecs", "items.bvecs"):
        with pytest.raises(InvalidArgumentError, match=rf"{out} .*suffix .*\.npz or \.npy"):
            export_items(ListIndex(IndexSettings(BITS)), tmp_path / out)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((3, 3), dtype=np.uint8), r"shape \[3, 3\]; .*\[n, 2\] packed"),
        (np.zeros((3, 13), dtype=np.uint8), r"shape \[3, 13\]; .*\[n, 2\] packed"),
        (np.zeros((3, 12), dtype=bool), r"shape \[3, 12\]; .*\[n, 13\] values"),
        (np.zeros((3, 14), dtype=bool), r"shape \[3, 14\]; .*\[n, 13\] values"),
        (np.zeros((3, 12)), r"shape \[3, 12\]; .*\[n, 13\] values"),
        (np.zeros(13), r"shape \[13\]; .*\[n, 13\] values"),
        (np.zeros(()), r"shape \[\]; .*\[n, 13\] values"),
        (np.zeros((3, 2), dtype=np.int8), "holds int8"),
        (np.zeros((3, 2), dtype=np.complex128), "holds complex128"),
        (np.array(["text"]), "holds str128"),
        (np.array([{}], dtype=object), "is not a file of codes: "),
    ],
)
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_arrays_that_are_not_codes_are_refused(rows: Any, message: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"codes{suffix}"
    if suffix == ".npz":
        np.savez(path, codes=rows)
    else:
        np.save(path, rows)
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        read_codes(path, BITS)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"ids": IDS}, "not a file .*: .*codes"),
        ({"codes": codes(), "ids": IDS[1:]}, rf"{N} codes but ids .*\[{N - 1}\]"),
        ({"codes": codes(), "ids": IDS[None]}, "codes but ids of shape"),
        ({"codes": codes(), "payload_ends": np.zeros(N, dtype=np.uint64)}, "not a file .*: .*payload_data"),
        (
            {"codes": codes(), "payload_ends": np.zeros(3, dtype=np.uint64), "payload_data": np.zeros(3, np.uint8)},
            rf"{N} codes but payload_ends .*\[3\]",
        ),
        (
            {"codes": codes(), "payload_ends": np.zeros(N, dtype=np.uint64), "payload_data": np.zeros(3)},
            "payload_data of float64",
        ),
        *(
            (
                {"codes": codes(3), "payload_ends": np.array(ends), "payload_data": np.zeros(9, dtype=np.uint8)},
                "payloads .* 9 bytes",
            )
            for ends in ([-1, 2, 3], [3, 2, 9], [3, 6, 10])
        ),
    ],
)
def test_columns_that_do_not_match_are_refused(columns: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "items.npz", **columns)
    with pytest.raises(InvalidArgumentError, match=message):
        read_codes(tmp_path / "items.npz", BITS)


def test_a_file_of_ids_with_another_number_of_rows_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "codes.npy", codes())
    np.save(tmp_path / "codes.ids.npy", IDS[1:])
    with pytest.raises(InvalidArgumentError, match=rf"{N} codes but ids .*\[{N - 1}\]"):
        read_codes(tmp_path / "codes.npy", BITS)


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", codes())
    np.savez(tmp_path / "whole.npz", codes=codes(), ids=IDS)
    write_vectors(tmp_path / "whole.fvecs", make_values()[0].astype(np.float32))
    write_vectors(tmp_path / "whole.bvecs", codes())
    for whole in sorted(tmp_path.iterdir()):
        assert read_codes(whole, BITS).count == N
        raw = whole.read_bytes()
        for size in (0, 3, 10, len(raw) // 2 + 1, len(raw) - 1):
            short = tmp_path / f"short{whole.suffix}"
            short.write_bytes(raw[:size])
            with pytest.raises(InvalidArgumentError, match=f"short{whole.suffix} is not a file"):
                read_codes(short, BITS)


def test_a_file_whose_format_is_not_that_of_its_suffix_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, codes())
    with (tmp_path / "several.npy").open("wb") as file:
        np.savez(file, codes=codes())
    for name, message in (("one.npz", "it holds one array"), ("several.npy", "it holds several arrays")):
        with pytest.raises(InvalidArgumentError, match=message):
            read_codes(tmp_path / name, BITS)


def test_vectors_of_another_length_are_refused(tmp_path: Path) -> None:
    write_vectors(tmp_path / "a.fvecs", np.ones((3, 12), dtype=np.float32))
    with pytest.raises(InvalidArgumentError, match=r"a\.fvecs .*\[3, 12\]; .*\[n, 13\]"):
        read_codes(tmp_path / "a.fvecs", BITS)
    write_vectors(tmp_path / "a.bvecs", np.ones((3, 13), dtype=np.uint8))
    with pytest.raises(InvalidArgumentError, match=r"rows of 13 bytes; .* 2 bytes"):
        read_codes(tmp_path / "a.bvecs", BITS)
    (tmp_path / "b.fvecs").write_bytes(np.array([-1, 7], dtype="<i4").tobytes())
    with pytest.raises(InvalidArgumentError, match="its first row has -1 components"):
        read_codes(tmp_path / "b.fvecs", BITS)
    rows = np.ones((9, 13), dtype=np.float32)
    write_vectors(tmp_path / "c.fvecs", rows)
    raw = bytearray((tmp_path / "c.fvecs").read_bytes())
    raw[6 * 56] = 12
    (tmp_path / "c.fvecs").write_bytes(raw)
    pieces = read_codes(tmp_path / "c.fvecs", BITS).pieces(size=5)
    assert len(next(pieces).ids) == 5
    with pytest.raises(InvalidArgumentError, match=r"row 6 .*c\.fvecs .*12 components, .* 13"):
        next(pieces)


def test_a_nan_is_refused_because_it_has_no_sign(tmp_path: Path) -> None:
    values = make_values()[0]
    values[8, 3] = np.nan
    np.save(tmp_path / "values.npy", values)
    pieces = read_codes(tmp_path / "values.npy", BITS).pieces(size=5)
    next(pieces)
    with pytest.raises(InvalidArgumentError, match=r"row 8 .*values\.npy .*NaN .*column 3"):
        next(pieces)


# -- progress --------------------------------------------------------------------------------------------------------


def test_progress_is_shown_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = ListIndex(IndexSettings(BITS))
    index.pieces = [Rows(IDS, codes(), None)]
    for progress in (None, False):
        export_items(index, tmp_path / "items.npy", progress=progress)
        import_items(index, tmp_path / "items.npy", progress=progress)
    assert capsys.readouterr() == ("", "")
    export_items(index, tmp_path / "items.npy", progress=True)
    import_items(index, tmp_path / "items.npy", start=5, progress=True)
    out, shown = capsys.readouterr()
    assert out == ""
    assert "export elsewhere: 100%" in shown
    assert "import elsewhere: 100%" in shown
    assert "25.0/25.0" in shown
    assert "20.0/20.0" in shown


def test_progress_is_shown_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = ListIndex(IndexSettings(BITS))
    index.pieces = [Rows(IDS, codes(), None)]
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))
    try:
        with io.TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), write_through=True) as terminal:
            monkeypatch.setattr("sys.stderr", terminal)
            export_items(index, tmp_path / "items.npz")
            assert b"export elsewhere" in os.read(ours, 4096)
    finally:
        os.close(ours)
