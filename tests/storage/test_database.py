"""Databases: opening, names of indexes, readers next to a writer, closing, and invalid arguments."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import whamming
from tests.storage.conftest import STORES, Place
from tests.storage.filled import BITS, codes, fill
from tests.storage.model import Model, check_items
from tests.storage.twin import wait_until
from whamming import InvalidArgumentError, StorageError, WhammingError
from whamming.storage import (
    AlreadyExistsError,
    ClosedError,
    FormatError,
    IndexSettings,
    NotFoundError,
    ReadOnlyError,
    SegmentedStore,
    Snapshot,
    WriterBusyError,
)
from whamming.storage.files.records import MANIFEST_KEY, pack_manifest, unpack_manifest

# -- indexes by name -------------------------------------------------------------------------------------------------


def test_indexes_are_created_listed_and_dropped(place: Place) -> None:
    with place.open() as database:
        assert database.list_indexes() == []
        models = {name: fill(database, name, n) for name, n in (("b", 10), ("a", 20), ("c.d-e_F", 5))}
        assert database.list_indexes() == ["a", "b", "c.d-e_F"]
        for name, model in models.items():
            assert database.index(name) is database.index(name)
            check_items(database.index(name).snapshot(), model)
        database.drop_index("a")
        assert database.list_indexes() == ["b", "c.d-e_F"]
        with pytest.raises(NotFoundError, match=r"no index 'a'.* b, c\.d-e_F"):
            database.index("a")
        again = database.create_index("a", 64)
        assert (len(again), again.settings.bits) == (0, 64)
    if place.persistent:
        with place.open() as database:
            assert database.list_indexes() == ["a", "b", "c.d-e_F"]
            check_items(database.index("b").snapshot(), models["b"])


def test_an_unknown_index_is_a_key_error_without_extra_quotes(place: Place) -> None:
    with place.open() as database:
        for use in (database.index, database.drop_index):
            with pytest.raises(NotFoundError) as raised:
                use("docs")
            assert isinstance(raised.value, KeyError)
            assert str(raised.value).startswith("there is no index 'docs'")


def test_an_existing_index_is_not_created_again(place: Place) -> None:
    with place.open() as database:
        index = database.create_index("docs", BITS, tables="multi")
        assert database.create_index("docs", BITS, tables="multi", exist_ok=True) is index
        with pytest.raises(AlreadyExistsError, match=r"'docs' already exists, with .*tables = 'multi'") as caught:
            database.create_index("docs", BITS)
        assert "IndexSettings" not in str(caught.value)
        assert re.search(r"; .*db\.index\('docs'\).*exist_ok=True", str(caught.value))
        with pytest.raises(AlreadyExistsError) as caught:
            database.create_index("docs", BITS, tables="single", durability="async", exist_ok=True)
        differences = "tables = 'multi', not 'single' and durability = 'fsync', not 'async'"
        assert str(caught.value).startswith(f"the index 'docs' already exists, with {differences}; ")
        assert "exist_ok" not in str(caught.value)


def test_a_dropped_index_says_so(place: Place) -> None:
    with place.open() as database:
        for again in (False, True):
            index = database.create_index("docs", 8)
            database.drop_index("docs")
            if again:
                database.create_index("docs", 8)
            uses: list[Callable[[], object]] = [
                lambda index=index: len(index),  # type: ignore[misc]
                lambda index=index: index.upsert([1], np.zeros((1, 1), np.uint8)),  # type: ignore[misc]
                lambda index=index: index.search(np.zeros(1, np.uint8)),  # type: ignore[misc]
                index.stats,
                index.seal,
                index.verify,
            ]
            for use in uses:
                with pytest.raises(ClosedError, match="index was dropped"):
                    use()


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "/a", "-a", "a b", "ü", "a\n", "x" * 129, 7, None])
def test_an_invalid_name_is_refused(place: Place, name: Any) -> None:
    with place.open() as database:
        uses: list[Callable[[], object]] = [
            lambda: database.create_index(name, 8),
            lambda: database.index(name),
            lambda: database.drop_index(name),
        ]
        for use in uses:
            with pytest.raises(InvalidArgumentError, match="1 to 128 letters, digits") as raised:
                use()
            assert repr(name) in str(raised.value)
        assert database.list_indexes() == []


class LongName(str):
    """A name whose repr must not be made, because it is long."""

    def __repr__(self) -> str:
        raise AssertionError("the whole name is shown")


def test_an_error_shows_the_beginning_of_a_long_name(place: Place) -> None:
    """A client of a server can send 16 MiB. Their repr has 64 MiB, and making it stopped all threads."""
    with place.open() as database, pytest.raises(InvalidArgumentError, match=r"^index name '(\\x01){256}'\.\.\.; use"):
        database.index(LongName("\1" * 100_000))


def test_long_names_and_names_of_other_files(persistent: Place) -> None:
    with persistent.open() as database:
        database.create_index("x" * 128, 8)
        for name in ("whamming.json", "writer.lock"):
            with pytest.raises(AlreadyExistsError, match=f"{name} exists but is not"):
                database.create_index(name, 8)
        assert database.list_indexes() == ["x" * 128]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 0}, "bits = 0; .*1 to 4096"),
        ({"bits": 4097}, "bits = 4097; .*1 to 4096"),
        ({"bits": -1}, "bits = -1"),
        ({"bits": 8.0}, r"bits = 8\.0;"),
        ({"bits": "8"}, "bits = '8';"),
        ({"bits": 8, "bit_order": "middle"}, "bit_order = 'middle'; .*'little', 'big'"),
        ({"bits": 8, "tables": "double"}, "tables = 'double'; .*'single', 'multi', 'none'"),
        ({"bits": 8, "buckets": "slow"}, "buckets = 'slow'; .*'compact', 'fast'"),
        ({"bits": 8, "durability": "never"}, "durability = 'never'; .*'fsync', 'async'"),
    ],
)
def test_invalid_settings_are_refused(place: Place, settings: dict[str, Any], message: str) -> None:
    with place.open() as database:
        with pytest.raises(InvalidArgumentError, match=message):
            database.create_index("docs", **settings)
        assert database.list_indexes() == []


def test_bits_may_be_a_numpy_integer(place: Place) -> None:
    with place.open() as database:
        assert database.create_index("docs", int(np.int64(64))).settings == IndexSettings(64)
        assert database.create_index("more", np.int64(64)).settings == IndexSettings(64)  # type: ignore[arg-type]
    if place.persistent:
        with place.open() as database:
            assert database.index("more").settings == IndexSettings(64)


def test_threads_create_and_drop_indexes(place: Place) -> None:
    errors: list[BaseException] = []
    with place.open() as database:

        def work(number: int) -> None:
            try:
                for step in range(5):
                    index = database.create_index(f"own{number}.{step}", 8)
                    index.upsert([number], np.array([[number]], dtype=np.uint8))
                    shared = database.create_index("shared", 8, exist_ok=True)
                    shared.upsert([number * 100 + step], np.array([[number]], dtype=np.uint8))
                    if step:
                        database.drop_index(f"own{number}.{step - 1}")
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert database.list_indexes() == [*(f"own{number}.4" for number in range(4)), "shared"]
        assert len(database.index("shared")) == 20


@pytest.mark.parametrize("work", ["open", "drop", "close"])
def test_an_open_index_is_found_while_another_is_opened_dropped_or_closed(
    persistent: Place, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with persistent.open() as database:
        fill(database, "slow")
        fill(database, "quick")
    entered, go_on = threading.Event(), threading.Event()
    load, close = SegmentedStore.__init__, SegmentedStore.close

    def slowly(step: Callable[..., None]) -> Callable[..., None]:
        def run(*arguments: Any, **options: Any) -> None:
            entered.set()
            assert go_on.wait(20)
            step(*arguments, **options)

        return run

    with persistent.open() as database, ThreadPoolExecutor(3) as threads:
        quick = database.index("quick")
        if work != "open":
            slow = database.index("slow")
        with monkeypatch.context() as patched:
            if work == "open":
                patched.setattr(SegmentedStore, "__init__", slowly(load))
                steps: list[Callable[[], object]] = [lambda: database.index("slow"), lambda: database.index("slow")]
            else:
                patched.setattr(SegmentedStore, "close", slowly(close))
                last = partial(database.drop_index, "slow") if work == "drop" else partial(database.index, "slow")
                steps = [slow.close, last]
            running = [threads.submit(steps[0])]
            assert entered.wait(20)
            running.append(threads.submit(steps[1]))
            try:
                assert threads.submit(database.index, "quick").result(10) is quick
                if work == "drop":
                    wait_until(lambda: database.list_indexes() == ["quick"])
                else:
                    assert database.list_indexes() == ["quick", "slow"]
                assert not any(step.done() for step in running)
            finally:
                go_on.set()
            results = [step.result(20) for step in running]
        if work == "open":
            assert results[0] is results[1]
        if work == "drop":
            assert database.list_indexes() == ["quick"]
        else:
            assert len(database.index("slow")) == len(quick)


def test_closing_a_database_waits_for_an_index_that_is_being_opened(
    persistent: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another process could write to the directory while the index is still being opened."""
    with persistent.open() as database:
        model = fill(database)
    entered, go_on = threading.Event(), threading.Event()
    load = SegmentedStore.__init__

    def slowly(*arguments: Any, **options: Any) -> None:
        entered.set()
        assert go_on.wait(20)
        load(*arguments, **options)

    database = persistent.open()
    with ThreadPoolExecutor(2) as threads:
        with monkeypatch.context() as patched:
            patched.setattr(SegmentedStore, "__init__", slowly)
            opening = threads.submit(database.index, "docs")
            assert entered.wait(20)
            closing = threads.submit(database.close)
            try:
                wait_until(lambda: repr(database).endswith("closed)"))
                with pytest.raises(ClosedError):
                    database.index("docs")
                with pytest.raises(WriterBusyError):
                    persistent.open()
                assert not closing.done()
            finally:
                go_on.set()
            closing.result(20)
        assert opening.result(20).closed
    with persistent.open() as database:
        check_items(database.index("docs").snapshot(), model)


# -- opening ---------------------------------------------------------------------------------------------------------


def test_a_store_is_found_by_its_entry_point(thirdparty: Path, tmp_path: Path) -> None:
    with whamming.open(tmp_path / "db", store="journal") as database:
        index = database.create_index("docs", 8)
        index.upsert([7], np.array([[1]], dtype=np.uint8))
        assert isinstance(index.store, SegmentedStore)
        assert type(index.store._journal).__module__ == "whamming_journal"
        assert Path(sys.modules["whamming_journal"].__file__ or "").parent == thirdparty
    assert sorted(path.name for path in (tmp_path / "db" / "docs").iterdir()) == [
        "dead-0.npz",
        "log-0",
        "manifest.json",
    ]
    with whamming.open(tmp_path / "db", store="journal", mode="r") as database:
        assert len(database.index("docs")) == 1


def test_a_store_may_be_installed_later_and_is_looked_up_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="store = 'later'"):
        whamming.open(store="later")
    installed = tmp_path / "later-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: later\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[whamming.stores]\nlater = whamming.storage.store.ram:backend\n")
    monkeypatch.syspath_prepend(tmp_path)
    with whamming.open(store="later") as database:
        assert len(database.create_index("docs", 8)) == 0
    shutil.rmtree(installed)
    with whamming.open(store="later") as database:
        assert database.list_indexes() == []


def test_invalid_arguments_are_refused(thirdparty: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="store = 'papyrus' .*: " + ", ".join(sorted(STORES))):
        whamming.open(tmp_path / "db", store="papyrus")
    with pytest.raises(InvalidArgumentError, match="store = 'lmdb' needs a directory"):
        whamming.open(store="lmdb")
    with pytest.raises(InvalidArgumentError, match=r"store = 'ram' .*; open ':memory:' instead"):
        whamming.open(tmp_path / "db", store="ram")
    with pytest.raises(InvalidArgumentError, match=r"mode = 'a'; .*'w', 'r'"):
        whamming.open(tmp_path / "db", mode="a")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="mode = 'r' with ':memory:'"):
        whamming.open(mode="r")


@pytest.mark.parametrize("mode", ["w", "r"])
def test_an_empty_path_is_not_the_working_directory(mode: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidArgumentError, match="path of the database is empty"):
        whamming.open("", mode=mode)
    assert list(tmp_path.iterdir()) == []


def test_reading_does_not_create_a_database(tmp_path: Path) -> None:
    for options, remedy in (
        ({"mode": "r"}, "open it with mode='w' to create one"),
        ({"create": False}, "open it without create=False to create one"),
        ({"mode": "r", "create": False}, "open it with mode='w' and without create=False to create one"),
    ):
        with pytest.raises(NotFoundError, match=rf"no database at .*; {remedy}$"):
            whamming.open(tmp_path / "db", **options)
        assert not (tmp_path / "db").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError):
        whamming.open(tmp_path / "empty", mode="r")
    with whamming.open(str(tmp_path / "a" / "b" / "db")) as database:
        database.create_index("docs", 8)
    with whamming.open(tmp_path / "a" / "b" / "db", create=False) as database:
        assert database.list_indexes() == ["docs"]


@pytest.mark.parametrize("options", [{"mode": "r"}, {"create": False}])
def test_what_is_no_database_cannot_be_read(tmp_path: Path, options: dict[str, Any]) -> None:
    """The error does not advise to give a new directory."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "notes").write_text("mine")
    for name, reason in (("file", "it is a file"), ("theirs", "it has no whamming.json")):
        with pytest.raises(FormatError, match=rf"{name} is not .*: {reason}; give the directory of a database$"):
            whamming.open(tmp_path / name, **options)


@pytest.mark.parametrize("mode", ["w", "r"])
def test_other_files_and_directories_are_left_alone(tmp_path: Path, mode: Any) -> None:
    (tmp_path / "file").write_text("precious")
    with pytest.raises(FormatError, match=r"file is not a Whamming database: it is a file"):
        whamming.open(tmp_path / "file", mode=mode)
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "thesis.doc").write_text("precious")
    with pytest.raises(FormatError, match="theirs is not a Whamming database"):
        whamming.open(tmp_path / "theirs", mode=mode)
    assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["thesis.doc"]


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (b'{"format": 4}', "format 4; .*up to 3: upgrade"),
        (b'{"format": "new"}', "does not name the format"),
        (b"{}", "does not name the format"),
        (b"[1]", "does not name the format"),
        (b"{", "is damaged: .*backup"),
        (b"", "is damaged"),
        (b"\xff\xfe\x00", "is damaged"),
    ],
)
def test_a_marker_file_that_cannot_be_read_is_refused(tmp_path: Path, mark: bytes, message: str, mode: Any) -> None:
    whamming.open(tmp_path / "db").close()
    (tmp_path / "db" / "whamming.json").write_bytes(mark)
    with pytest.raises(FormatError, match=message):
        whamming.open(tmp_path / "db", mode=mode)
    assert (tmp_path / "db" / "whamming.json").read_bytes() == mark


def test_a_database_knows_its_store(persistent: Place) -> None:
    with persistent.open() as database:
        model = fill(database)
        database.backup(persistent.directory / "backup")
    path = persistent.directory / "db"
    assert json.loads((path / "whamming.json").read_text()) == {"format": 3, "store": persistent.store}
    other = next(store for store in STORES if store not in (persistent.store, "ram"))
    with pytest.raises(FormatError, match=f"the store '{persistent.store}', not '{other}'"):
        whamming.open(path, store=other)
    whamming.restore(persistent.directory / "backup", persistent.directory / "restored")
    for name in ("db", "backup", "restored"):
        with whamming.open(persistent.directory / name, mode="r") as database:
            check_items(database.index("docs").snapshot(), model)


HEX = "0123456789abcdef" * 2


def test_leftovers_of_a_crash_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "db"
    path.mkdir()
    (path / f".whamming.json.{HEX}.new").write_text("")
    (path / "lost+found").mkdir()
    with whamming.open(path) as database:
        fill(database)
        assert database.list_indexes() == ["docs"]
        assert database.verify()["docs"].ok
    shutil.copytree(path / "docs", path / f".docs.{HEX}.new")
    shutil.copytree(path / "docs", path / f".docs.{HEX}.dropped")
    with whamming.open(path, mode="r") as database:
        assert database.list_indexes() == ["docs"]
    assert (path / f".docs.{HEX}.new").exists()
    with whamming.open(path) as database:
        assert database.list_indexes() == ["docs"]
    assert sorted(p.name for p in path.iterdir()) == ["docs", "lost+found", "whamming.json", "writer.lock"]


@pytest.mark.parametrize("mode", ["w", "r"])
def test_an_index_without_its_file_is_refused(tmp_path: Path, mode: Any) -> None:
    with whamming.open(tmp_path / "db") as database:
        model = fill(database, "whole")
        database.create_index("hollow", 8)
    (tmp_path / "db" / "hollow" / "data.mdb").unlink()
    with whamming.open(tmp_path / "db", mode=mode) as database:
        with pytest.raises(FormatError, match=r"hollow is not .*data\.mdb"):
            database.index("hollow")
        check_items(database.index("whole").snapshot(), model)
        reports = database.verify()
        assert (reports["whole"].ok, reports["hollow"].ok) == (True, False)


@pytest.mark.parametrize("mode", ["w", "r"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 4}, "format 4; .*format 3: upgrade"),
        ({"format": 1}, "format 1; .*format 3: import"),
        ({"settings": {"bits": 8, "colour": "red"}}, "unknown index settings: colour"),
        (None, "no manifest"),
    ],
)
def test_an_index_of_another_version_is_refused(tmp_path: Path, change: Any, message: str, mode: Any) -> None:
    with whamming.open(tmp_path / "db") as database:
        fill(database)
    with lmdb.open(str(tmp_path / "db" / "docs"), map_size=1 << 40) as env, env.begin(write=True) as txn:
        if change is None:
            txn.delete(MANIFEST_KEY)
        else:
            txn.put(MANIFEST_KEY, pack_manifest({**unpack_manifest(txn.get(MANIFEST_KEY)), **change}))
    with whamming.open(tmp_path / "db", mode=mode) as database:
        with pytest.raises(WhammingError, match=message):
            database.index("docs")
        assert re.search(message, database.verify()["docs"].problems[0])


# -- one writer, any number of readers -------------------------------------------------------------------------------


def test_a_second_writer_is_refused_at_once_or_waits(persistent: Place) -> None:
    database = persistent.open()
    with pytest.raises(WriterBusyError, match=r"this process .* mode='r'"):
        persistent.open()
    with pytest.raises(WriterBusyError):
        persistent.open(wait=0.05)
    timer = threading.Timer(0.1, database.close)
    timer.start()
    with persistent.open(wait=60) as second:
        second.create_index("docs", 8)
    timer.join()


def test_readers_follow_the_writer_in_the_same_process(persistent: Place) -> None:
    with persistent.open() as database:
        model = fill(database)
        index = database.index("docs")
        with persistent.open(mode="r") as first, persistent.open(mode="r") as second:
            kept: list[tuple[Snapshot, Model]] = []
            for step in ("nothing", "upsert", "seal", "delete", "compact", "upsert"):
                match step:
                    case "upsert":
                        index.upsert([7, 80], codes(2, len(kept)))
                        model.upsert([7, 80], codes(2, len(kept)))
                    case "delete":
                        index.delete([4, 80])
                        model.delete([4, 80])
                    case "seal":
                        index.seal()
                    case "compact":
                        index.compact()
                for reader in (first, second):
                    kept.append((reader.index("docs").snapshot(), model.copy()))
                    check_items(*kept[-1])
            first.close()
            check_items(index.snapshot(), model)
            check_items(second.index("docs").snapshot(), model)
        for snapshot, old in kept:
            check_items(snapshot, old)
    with persistent.open() as database:
        check_items(database.index("docs").snapshot(), model)


def test_a_reader_cannot_write(persistent: Place) -> None:
    with persistent.open() as database:
        model = fill(database)
    with persistent.open(mode="r") as database:
        index = database.index("docs")
        uses: list[Callable[[], object]] = [
            lambda: database.create_index("more", 8),
            lambda: database.drop_index("docs"),
            lambda: index.upsert([1], codes(1)),
            lambda: index.delete([1]),
            lambda: index.delete([1], durability="async"),
            index.seal,
            index.compact,
        ]
        for use in uses:
            with pytest.raises(ReadOnlyError, match="mode='w'"):
                use()
        check_items(index.snapshot(), model)
        assert index.verify().ok
        assert index.stats().items == len(model)
        database.backup(persistent.directory / "copy")
    with persistent.open("copy") as database:
        check_items(database.index("docs").snapshot(), model)


def test_a_reader_notices_that_an_index_was_dropped_and_created_again(persistent: Place) -> None:
    with persistent.open() as database, persistent.open(mode="r") as reader:
        old_model = fill(database)
        old = reader.index("docs").snapshot()
        database.drop_index("docs")
        with pytest.raises(NotFoundError, match="'docs'"):
            reader.index("docs")
        new = database.create_index("docs", 64)
        new.upsert([5], np.zeros((1, 8), dtype=np.uint8))
        assert reader.index("docs").settings.bits == 64
        assert len(reader.index("docs")) == 1
        check_items(old, old_model)


def test_threads_open_and_close_the_same_database(persistent: Place) -> None:
    with persistent.open() as database:
        count = len(fill(database))
    counts: list[int | BaseException] = []

    def work() -> None:
        try:
            for _ in range(25):
                with persistent.open(mode="r") as database:
                    snapshot = database.index("docs").snapshot()
                counts.append(len(snapshot))
        except BaseException as error:
            counts.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [count] * 100


def test_a_writer_must_wait_for_a_reader_in_the_same_process(disk: Place) -> None:
    with disk.open() as database:
        model = fill(database)
    with disk.open(mode="r") as reader:
        reader.index("docs")
        with disk.open() as database:
            with pytest.raises(StorageError, match="open for reading in this process"):
                database.index("docs")
            reader.close()
            check_items(database.index("docs").snapshot(), model)


# -- closing ---------------------------------------------------------------------------------------------------------


def test_a_closed_database_refuses_everything(place: Place) -> None:
    database = place.open()
    index = database.create_index("docs", 8)
    database.close()
    database.close()
    uses: list[Callable[[], object]] = [
        database.list_indexes,
        lambda: database.index("docs"),
        lambda: database.create_index("more", 8),
        lambda: database.drop_index("docs"),
        lambda: database.backup(place.directory / "backup"),
        database.verify,
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="database is closed"):
            use()
    with pytest.raises(ClosedError):
        len(index)
    assert not (place.directory / "backup").exists()


def test_a_closed_index_can_be_reopened(persistent: Place) -> None:
    with persistent.open() as database:
        model = fill(database)
        index = database.index("docs")
        snapshot = index.snapshot()
        index.close()
        index.close()
        assert (index.closed, database.list_indexes()) == (True, ["docs"])
        with pytest.raises(ClosedError):
            len(index)
        again = database.index("docs")
        assert again is not index
        assert again is database.index("docs")
        assert not again.closed
        again.upsert([1], codes(1, 5), [b"new"])
        check_items(snapshot, model)
        model.upsert([1], codes(1, 5), [b"new"])
        check_items(again.snapshot(), model)
        again.close()
        assert database.create_index("docs", BITS, exist_ok=True).settings == model.settings
        database.index("docs").close()
        database.backup(persistent.directory / "backup")
        database.index("docs").close()
        assert database.verify()["docs"].ok
        database.index("docs").close()
        database.drop_index("docs")
        assert database.list_indexes() == []
    with persistent.open("backup", mode="r") as database:
        for _ in range(3):
            check_items(database.index("docs").snapshot(), model)
            database.index("docs").close()


def test_an_index_in_memory_is_gone_when_it_is_closed() -> None:
    with whamming.open(":memory:") as database:
        fill(database)
        database.index("docs").close()
        assert database.list_indexes() == []
        for use in (database.index, database.drop_index):
            with pytest.raises(NotFoundError, match="there is no index 'docs'"):
                use("docs")
        index = database.create_index("docs", 64)
        assert (database.index("docs") is index, len(index)) == (True, 0)


def test_threads_close_and_reopen_an_index(persistent: Place) -> None:
    errors: list[BaseException] = []
    with persistent.open() as database:
        fill(database)

        def work(number: int) -> None:
            try:
                for step in range(20):
                    index = database.index("docs")
                    try:
                        index.upsert([1000 + 100 * number + step], codes(1))
                    except ClosedError:  # by another thread
                        database.index("docs")
                    index.close()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert database.index("docs").verify().ok


def test_a_missing_directory_is_a_storage_error(persistent: Place) -> None:
    with persistent.open() as database:
        fill(database)
        (persistent.directory / "db").rename(persistent.directory / "elsewhere")
        uses: list[Callable[[], object]] = [
            database.list_indexes,
            lambda: database.drop_index("docs"),
            lambda: database.create_index("more", 8),
            database.verify,
        ]
        for use in uses:
            with pytest.raises(StorageError, match=r"db was deleted or moved away"):
                use()
        (persistent.directory / "elsewhere").rename(persistent.directory / "db")
        assert len(database.index("docs")) == 49


def test_all_indexes_are_closed_even_if_one_fails(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whamming.storage.store.segmented.ASYNC_SECONDS", 3600)
    database = disk.open()
    for name in ("a", "b", "c"):
        database.create_index(name, 8).upsert([1], np.array([[1]], dtype=np.uint8), durability="async")
    failures = iter([None, OSError("a bad day"), None])

    def hook(name: str) -> None:
        if name == "before commit" and (failure := next(failures)) is not None:
            raise failure

    monkeypatch.setattr("whamming.storage.store.faults.hook", hook)
    with pytest.raises(OSError, match="a bad day"):
        database.close()
    monkeypatch.setattr("whamming.storage.store.faults.hook", None)
    with disk.open() as database:
        assert sorted(len(database.index(name)) for name in ("a", "b", "c")) == [0, 1, 1]


# -- many snapshots --------------------------------------------------------------------------------------------------


def test_sealing_works_when_snapshots_take_all_reader_slots(disk: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with disk.open() as database:
        model = Model(database.create_index("docs", BITS).settings)
    (disk.directory / "db" / "docs" / "lock.mdb").unlink()  # it has a slot for each reader
    monkeypatch.setattr("whamming.storage.files.environment.MAX_READERS", 4)
    monkeypatch.setattr("whamming.storage.files.environment._LOCK_BYTES", 0)
    with disk.open() as database:
        index = database.index("docs")
        kept = []
        for step in range(9):
            index.upsert(range(step, step + 9), codes(9, step))
            model.upsert(range(step, step + 9), codes(9, step))
            index.seal()
            kept.append((index.snapshot(), model.copy()))
        with pytest.raises(StorageError, match="all 4 reader slots"):
            index.verify()
        for snapshot, old in kept:
            check_items(snapshot, old)
        kept.clear()
        del snapshot
        index.compact()
        check_items(index.snapshot(), model)
        assert index.verify().ok
    with disk.open() as database:
        check_items(database.index("docs").snapshot(), model)
