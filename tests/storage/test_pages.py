"""Files that LMDB wrote pass the check. Damaged files are refused or harmless, as liblmdb shows in a child process."""

from __future__ import annotations

import itertools
import random
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lmdb
import pytest

from whamming.storage.files.pages import PageError, PageReport, check_pages

PAGE = 4096
META = 152
TXNID, LAST_PGNO, FREE, MAIN, ROOT = 144, 136, 40, 88, 40
"""Offsets in a meta page; ROOT is one in the record of a database."""

Records = list[tuple[bytes, bytes]]


def open_env(folder: Path, **options: Any) -> Any:
    return lmdb.open(str(folder), map_size=1 << 26, lib_version=0, sync=False, **options)


def read_all(env: Any) -> Records:
    with env.begin() as txn:
        return list(txn.cursor())


def put(env: Any, records: dict[bytes, bytes]) -> None:
    with env.begin(write=True) as txn:
        for key, value in records.items():
            txn.put(key, value)


def churn(env: Any, rng: random.Random, commits: int, changes: int, key_bytes: int, value_bytes: int) -> Iterator[int]:
    """Put and delete at random. Yields the number of records after each commit."""
    model: dict[bytes, bytes] = {}
    for _ in range(commits):
        deletes = rng.choice([0.2, 0.5, 0.9])
        with env.begin(write=True) as txn:
            for _ in range(rng.randint(1, changes)):
                if model and rng.random() < deletes:
                    key = rng.choice(list(model))
                    assert txn.delete(key)
                    del model[key]
                else:
                    again = model and rng.random() < 0.2
                    key = rng.choice(list(model)) if again else rng.randbytes(rng.randint(1, key_bytes))
                    model[key] = rng.randbytes(rng.randint(0, value_bytes))
                    txn.put(key, model[key])
        assert read_all(env) == sorted(model.items())
        yield len(model)


# -- files to damage -------------------------------------------------------------------------------------------------


def empty(env: Any, rng: random.Random) -> None:
    """Nothing was ever committed."""


def few(env: Any, rng: random.Random) -> None:
    for commit in range(3):
        put(env, {b"key %d" % commit: rng.randbytes(20 + commit)})


def deep_tree(env: Any, rng: random.Random) -> None:
    put(env, {rng.randbytes(rng.randint(300, 511)): rng.randbytes(9) for _ in range(160)})
    assert env.stat()["depth"] == 3


def small_records(env: Any, rng: random.Random) -> None:
    for _ in range(3):
        put(env, {rng.randbytes(8): rng.randbytes(rng.randint(0, 30)) for _ in range(300)})
    assert env.stat()["depth"] == 2


def big_values(env: Any, rng: random.Random) -> None:
    for _ in range(4):
        put(
            env, {rng.randbytes(rng.randint(1, 30)): rng.randbytes(rng.choice([8, 2100, 4080, 4081])) for _ in range(9)}
        )
    put(env, {b"a": rng.randbytes(20_000)})
    with env.begin(write=True) as txn:
        txn.put(b"b", rng.randbytes(20_000))
        txn.put(b"b", rng.randbytes(20))


def long_free_list(env: Any, rng: random.Random) -> None:
    """One commit frees so many pages that their list takes overflow pages."""
    put(env, {b"small": b"value", b"big": bytes(260 * PAGE)})
    with env.begin(write=True) as txn:
        txn.delete(b"big")
    put(env, {b"other": rng.randbytes(50)})


def many_free_lists(env: Any, rng: random.Random) -> None:
    """A reader keeps every commit's free pages from being used, so the free database gets branch pages."""
    with env.begin():
        for _ in range(110):
            put(env, {rng.randbytes(2): rng.randbytes(20)})


def many_commits(env: Any, rng: random.Random) -> None:
    for _ in churn(env, rng, 40, 30, 40, 3000):
        pass


MAKERS = (empty, few, deep_tree, small_records, big_values, long_free_list, many_free_lists, many_commits)


@dataclass
class Layout:
    """The parts of a sound file, found by a walk that trusts it."""

    metas: list[range] = field(default_factory=lambda: [range(META), range(PAGE, PAGE + META)])
    structure: list[range] = field(default_factory=list)
    """Headers, offsets, node headers, page numbers and free lists."""
    pages: list[range] = field(default_factory=list)
    """Branch and leaf pages."""
    free_branches: int = 0
    end: int = 2 * PAGE
    """The end of the last page in use."""

    @classmethod
    def of(cls, data: bytes) -> Layout:
        layout = cls()
        meta = newest(data)
        for database in (FREE, MAIN):
            (depth,) = struct.unpack_from("<H", data, meta + database + 6)
            (root,) = struct.unpack_from("<Q", data, meta + database + ROOT)
            if depth:
                layout._walk(data, root * PAGE, depth, database)
        return layout

    def _walk(self, data: bytes, page: int, depth: int, database: int) -> None:
        (lower,) = struct.unpack_from("<H", data, page + 12)
        self.pages.append(range(page, page + PAGE))
        self.structure.append(range(page, page + lower))
        self.end = max(self.end, page + PAGE)
        self.free_branches += depth > 1 and database == FREE
        for (offset,) in struct.iter_unpack("<H", data[page + 16 : page + lower]):
            low, high, flags, key = struct.unpack_from("<HHHH", data, page + offset)
            self.structure.append(range(page + offset, page + offset + 8))
            value, size = page + offset + 8 + key, low | high << 16
            if depth > 1:
                self._walk(data, (size | flags << 32) * PAGE, depth - 1, database)
                continue
            if flags == 1:
                self.structure.append(range(value, value + 8))
                run = struct.unpack_from("<Q", data, value)[0] * PAGE
                self.structure.append(range(run, run + 16))
                self.end = max(self.end, run + struct.unpack_from("<I", data, run + 12)[0] * PAGE)
                value = run + 16
            if database == FREE:
                self.structure.append(range(value, value + size))


def newest(data: bytes) -> int:
    """Return the offset of the newest commit's meta page."""
    numbers = [struct.unpack_from("<Q", data, page + TXNID)[0] for page in (0, PAGE)]
    return PAGE if numbers[1] > numbers[0] else 0


@dataclass(frozen=True)
class Original:
    data: bytes
    records: Records
    layout: Layout


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Original]:
    made = {}
    for make in MAKERS:
        folder = tmp_path_factory.mktemp("original")
        with open_env(folder) as env:
            make(env, random.Random(make.__name__))
            records = read_all(env)
        data = (folder / "data.mdb").read_bytes()
        made[make.__name__] = Original(data, records, Layout.of(data))
    assert made["many_free_lists"].layout.free_branches
    return made


# -- damage and its effects ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Damage:
    """Bytes to write at an offset; None cuts the file there."""

    place: int
    patch: bytes | None

    def apply(self, data: bytes) -> bytes:
        if self.patch is None:
            return data[: self.place]
        return data[: self.place] + self.patch + data[self.place + len(self.patch) :]


def flip(data: bytes, place: int, bit: int) -> Damage:
    return Damage(place, bytes([data[place] ^ 1 << bit]))


def difference(before: Records, after: Records) -> str:
    """Classify how records differ: not at all; in a bit, or in the length, of one key or value; or otherwise."""
    if before == after:
        return "same"
    changed = [pair for pair in itertools.zip_longest(before, after, fillvalue=(b"", b"")) if pair[0] != pair[1]]
    if len(changed) > 1:
        return "other"
    short, long = sorted((key + value for key, value in changed[0]), key=len)
    if len(short) < len(long):
        return "length" if short and long.startswith(short) else "other"
    return "bit" if (int.from_bytes(short) ^ int.from_bytes(long)).bit_count() == 1 else "other"


def judge(data: bytes, records: Records, damages: Sequence[Damage], folder: str) -> list[str]:
    """Return for each damage "refused", or what changed for liblmdb, which then writes and must leave a sound file."""
    path = Path(folder) / "data.mdb"
    verdicts = []
    for number, damage in enumerate(damages):
        path.write_bytes(damage.apply(data))
        try:
            check_pages(path)
        except PageError:
            verdicts.append("refused")
            continue
        with open_env(path.parent, lock=False) as env:
            after = read_all(env)
            verdicts.append(difference(records, after))
            rng = random.Random(number)
            put(env, {rng.randbytes(6): rng.randbytes(size) for size in (3, 30, 300, 3000, 30_000)})
            with env.begin(write=True) as txn:
                for key, _ in rng.sample(after, min(len(after), 20)):
                    txn.delete(key)
            kept = len(read_all(env))
        assert check_pages(path).entries == kept, damage
    return verdicts


@pytest.fixture(scope="module")
def judges(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Original, Sequence[Damage]], list[str]]]:
    """Judge damages in child processes. The test fails if one of them dies or hangs."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:

        def call(original: Original, damages: Sequence[Damage]) -> list[str]:
            halves = [damages[: len(damages) // 2], damages[len(damages) // 2 :]]
            futures = [
                pool.submit(judge, original.data, original.records, half, str(tmp_path_factory.mktemp("damaged")))
                for half in halves
            ]
            return [verdict for future in futures for verdict in future.result(timeout=60)]

        yield call


# -- sound files pass ------------------------------------------------------------------------------------------------


def assert_passes(env: Any, path: Path, entries: int) -> PageReport:
    report = check_pages(path)
    assert check_pages(path, deep=False) == report
    stat, info = env.stat(), env.info()
    tree_pages = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    assert report.page_size == stat["psize"]
    assert report.txnid == info["last_txnid"]
    assert report.pages == info["last_pgno"] + 1 == report.used + report.free
    assert report.used >= 2 + tree_pages
    assert report.entries == stat["entries"] == entries
    assert report.file_bytes == path.stat().st_size
    return report


def test_the_first_commits_pass(tmp_path: Path) -> None:
    with open_env(tmp_path) as env:
        for commit in range(6):
            report = assert_passes(env, tmp_path / "data.mdb", commit)
            assert report.txnid == commit
            with env.begin(write=True):
                pass
            assert check_pages(tmp_path / "data.mdb") == report
            put(env, {b"%d" % commit: b"value"})


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("options", [{}, {"meminit": False}, {"writemap": True}], ids=["plain", "meminit", "writemap"])
def test_files_of_all_shapes_pass(
    make: Callable[[Any, random.Random], None], options: dict[str, bool], tmp_path: Path
) -> None:
    with open_env(tmp_path, **options) as env:
        make(env, random.Random(make.__name__))
        assert_passes(env, tmp_path / "data.mdb", len(read_all(env)))
        for compact in (False, True):
            copy = tmp_path / f"copy {compact}"
            copy.mkdir()
            env.copy(str(copy), compact=compact)
            with open_env(copy) as copied:
                assert read_all(copied) == read_all(env)
                assert_passes(copied, copy / "data.mdb", len(read_all(env)))


@pytest.mark.parametrize(
    ("changes", "key_bytes", "value_bytes"),
    [(3, 8, 30), (200, 20, 100), (40, 511, 50), (20, 8, 2100), (8, 500, 60_000), (400, 2, 9)],
)
def test_every_commit_passes(changes: int, key_bytes: int, value_bytes: int, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    rng = random.Random(changes)
    readers: list[Any] = []
    with open_env(tmp_path) as env:
        for entries in churn(env, rng, 60, changes, key_bytes, value_bytes):
            assert_passes(env, path, entries)
            if rng.random() < 0.1:
                readers.append(env.begin())
            if readers and rng.random() < 0.1:
                readers.pop().abort()
        for reader in readers:
            reader.abort()


def test_a_file_shorter_than_its_free_pages_passes(tmp_path: Path) -> None:
    """LMDB does not write pages that a transaction allocates and frees again."""
    path = tmp_path / "data.mdb"
    with open_env(tmp_path) as env:
        put(env, {b"%d" % i: bytes(3000) for i in range(50)})
        for i in range(10):
            put(env, {b"%d" % i: bytes(3001)})
        with env.begin(write=True) as txn:
            txn.put(b"big", bytes(50 * PAGE))
            txn.delete(b"big")
        report = assert_passes(env, path, 50)
        assert report.file_bytes < report.pages * PAGE
        put(env, {b"big": bytes(50 * PAGE)})
        assert_passes(env, path, 51)


WRITER = """
import lmdb, random, sys
rng = random.Random(sys.argv[2])
env = lmdb.open(sys.argv[1], map_size=1 << 28, lib_version=0, sync=False)
for number in range(10**9):
    with env.begin(write=True) as txn:
        txn.put(b"last", b"%d" % number)
        for _ in range(rng.randint(1, 300)):
            key = b"%d" % rng.randint(0, 300)
            if rng.random() < 0.4:
                txn.delete(key)
            else:
                txn.put(key, rng.randbytes(rng.choice([10, 500, 30000])))
    print(env.info()["last_txnid"], flush=True)
"""


def test_a_killed_writer_leaves_a_sound_file_without_leaks(tmp_path: Path) -> None:
    rng = random.Random(0)
    for kill in range(10):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(kill)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            for _ in range(rng.randint(1, 20)):
                done = writer.stdout.readline()
            writer.kill()
            done = [done, *writer.stdout.readlines()][-1]
        assert writer.returncode == -signal.SIGKILL
        assert check_pages(tmp_path / "data.mdb").txnid in (int(done), int(done) + 1)


# -- damaged files are refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [make.__name__ for make in MAKERS])
def test_a_flipped_bit_is_refused_or_harmless(
    name: str, originals: dict[str, Original], judges: Callable[[Original, Sequence[Damage]], list[str]]
) -> None:
    """It may change only one bit of a key or value, or the length of one within the space that it has."""
    original = originals[name]
    layout, rng = original.layout, random.Random(name)
    for ranges, count, least in ((layout.metas, 140, 0.3), (layout.structure, 220, 0.9), (layout.pages, 100, 0.0)):
        places = list(itertools.chain.from_iterable(ranges))
        flips = [flip(original.data, rng.choice(places), rng.randrange(8)) for _ in range(count if places else 0)]
        verdicts = judges(original, flips)
        found = dict(zip(verdicts, flips, strict=True))
        assert set(found) <= {"refused", "same", "bit", "length"}, found
        assert verdicts.count("refused") >= least * len(flips)


@pytest.mark.parametrize("name", [make.__name__ for make in MAKERS])
def test_lost_sectors_and_misplaced_pages_do_not_crash_liblmdb(
    name: str, originals: dict[str, Original], judges: Callable[[Original, Sequence[Damage]], list[str]]
) -> None:
    original = originals[name]
    rng, size = random.Random(name), len(original.data)
    damages = []
    for _ in range(10):
        meta, sector = rng.choice([0, PAGE]), rng.randrange(size // 512) * 512
        page = rng.choice(original.layout.pages or [range(0, PAGE)]).start
        other = rng.randrange(size // PAGE) * PAGE
        damages += [
            Damage(sector, bytes(512)),
            Damage(page + rng.randrange(8) * 512, bytes(512)),
            Damage(page + rng.randrange(8) * 512, rng.randbytes(512)),
            Damage(page, original.data[other : other + PAGE]),
            Damage(page, bytes(PAGE)),
            Damage(meta, original.data[PAGE - meta : 2 * PAGE - meta]),
            Damage(meta + 16 + rng.randrange(META - 16), rng.randbytes(8)),
        ]
    assert set(judges(original, damages)) <= {"refused", "same", "bit", "length", "other"}


@pytest.mark.parametrize("name", [make.__name__ for make in MAKERS])
def test_a_truncated_file_is_refused_if_it_lost_a_page_in_use(
    name: str, originals: dict[str, Original], judges: Callable[[Original, Sequence[Damage]], list[str]]
) -> None:
    original = originals[name]
    rng, size = random.Random(name), len(original.data)
    lengths = [*range(0, size, PAGE), *(rng.randrange(size) for _ in range(40)), 1, original.layout.end - 1]
    verdicts = judges(original, [Damage(length, None) for length in lengths])
    assert verdicts == ["refused" if length < original.layout.end else "same" for length in lengths]


def test_every_flipped_bit_of_a_commit_number_is_detected(tmp_path: Path) -> None:
    """Otherwise liblmdb might silently return to the commit before."""
    path, damaged = tmp_path / "data.mdb", tmp_path / "damaged.mdb"
    with open_env(tmp_path) as env:
        for commit in range(1, 10):
            if commit == 5:  # then only the number of pages distinguishes 6 from 4 and 8
                with env.begin(write=True) as txn:
                    for key, _ in read_all(env):
                        txn.delete(key)
            else:
                put(env, {b"%d" % commit: b"value"})
            data = path.read_bytes()
            assert check_pages(path).txnid == commit
            for page, byte, bit in itertools.product((0, PAGE), range(8), range(8)):
                damaged.write_bytes(flip(data, page + TXNID + byte, bit).apply(data))
                with pytest.raises(PageError):
                    check_pages(damaged, deep=False)


def number(data: bytes, place: int, change: int, size: int = 8) -> Damage:
    """Return a damage that adds ``change`` to a number."""
    value = int.from_bytes(data[place : place + size], "little") + change
    return Damage(place, value.to_bytes(size, "little"))


def test_the_message_says_what_is_wrong_and_where(originals: dict[str, Original], tmp_path: Path) -> None:
    data = originals["big_values"].data
    meta = newest(data)
    (root,) = struct.unpack_from("<Q", data, meta + MAIN + ROOT)
    page, path = root * PAGE, tmp_path / "data.mdb"
    name = f"page {meta // PAGE}: "
    for damage, message in (
        (number(data, 16, 1, 4), "page 0: magic 0xbeefc0df"),
        (number(data, 20, 1, 4), "page 0: format 2"),
        (number(data, FREE, 1, 4), "page 0: page size 4097"),
        (number(data, meta + MAIN + 4, 4, 2), name + "main database with flags 0x4 and pad 0"),
        (number(data, meta + MAIN + 6, 1, 2), "flags 0x2; a branch page should have"),
        (number(data, meta + MAIN + 32, 1), "entries in the main database"),
        (number(data, meta + MAIN + ROOT, 2**40), "the commit has only pages 2 to"),
        (number(data, meta + LAST_PGNO, 2**40), name + "map of 67108864 bytes; should hold pages 0 to"),
        (number(data, meta + LAST_PGNO, 1), "neither used nor free, like 0 others"),
        (number(data, meta + TXNID, 1), name + "commit 7; "),
        (number(data, meta + TXNID, 8), "commits 14 and 5"),
        (
            number(data, page, 1),
            f"page {root}: has number {root + 1} and flags 0x2; a leaf page should have {root} and 0x2",
        ),
        (number(data, page + 12, 1, 2), "should be even, and 16 < lower <= upper < 4096"),
        (number(data, page + 12, 2, 2), f"page {root}: node "),
        (number(data, page + 14, -2, 2), "where the first node begins"),
        (number(data, page + 16, 2, 2), f"page {root}: node 0 "),
        (Damage(len(data) - PAGE, None), "the file was cut short: it has"),
    ):
        path.write_bytes(damage.apply(data))
        with pytest.raises(PageError) as error:
            check_pages(path)
        assert message in str(error.value)


def test_only_a_deep_check_refuses_leaked_pages(originals: dict[str, Original], tmp_path: Path) -> None:
    data, path = originals["many_commits"].data, tmp_path / "data.mdb"
    path.write_bytes(data)
    sound = check_pages(path)
    path.write_bytes(number(data, newest(data) + LAST_PGNO, 3).apply(data))
    with pytest.raises(PageError, match=f"page {sound.pages}: .*like 2 others"):
        check_pages(path)
    report = check_pages(path, deep=False)
    assert (report.pages, report.used, report.free) == (sound.pages + 3, sound.used, sound.free)


def test_values_in_overflow_pages_are_not_read(tmp_path: Path) -> None:
    value = random.Random(0).randbytes(10 * PAGE)
    with open_env(tmp_path) as env:
        put(env, {b"key": value})
    path = tmp_path / "data.mdb"
    report, data = check_pages(path), path.read_bytes()
    path.write_bytes(data.replace(value, bytes(len(value))))
    assert path.read_bytes() != data
    assert check_pages(path) == report


@pytest.mark.parametrize("size", [0, 1, 15, 152, 511, 1024, PAGE, 2 * PAGE, 100_000])
def test_files_that_are_not_lmdb_files_are_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    for data in (bytes(size), random.Random(size).randbytes(size)):
        path.write_bytes(data)
        with pytest.raises(PageError):
            check_pages(str(path))


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_pages(tmp_path / "data.mdb")
    with pytest.raises(PageError, match="not a regular file"):
        check_pages(tmp_path)


def test_a_named_database_is_refused(tmp_path: Path) -> None:
    with open_env(tmp_path, max_dbs=1) as env:
        env.open_db(b"name")
    with pytest.raises(PageError, match=r"node 0 .*flags 0x2"):
        check_pages(tmp_path / "data.mdb")
