"""One suite for a database in this process and on a server: same verbs, same answers, same errors."""

from __future__ import annotations

import concurrent.futures
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.clients.asyncio_database import AioDatabase, AioIndex, AioSearch
from tests.conftest import Cases
from tests.native.examples import LAYOUTS, WEIGHT_KINDS, WeightKind, datasets, generated, make_codes, make_table
from tests.native.oracle import Codes, Floats, Truth
from tests.serving import ServerProcess
from tests.storage.model import Model, check_items
from whamming import (
    Budget,
    Database,
    Hit,
    InvalidArgumentError,
    RemoteDatabase,
    RemoteIndex,
    RemoteSearch,
    StorageError,
    StoredIndex,
)
from whamming.native import Plan
from whamming.storage import AlreadyExistsError, ClosedError, IndexSettings, NotFoundError, Search

AnyDatabase = Database | RemoteDatabase | AioDatabase
AnyIndex = StoredIndex | RemoteIndex | AioIndex
AnySearch = Search | RemoteSearch | AioSearch

KINDS = ("ram", "lmdb", "remote-ram", "remote-lmdb", "aio")
NONE = np.iinfo(np.uint64).max
_names = (f"shared-{number}" for number in itertools.count())


class Place:
    """Opens databases of one kind: each time a new one in this process, or the one of a server."""

    def __init__(self, kind: str, directory: Path, address: str | None) -> None:
        self.kind = kind
        self._paths = (directory / f"db-{number}" for number in itertools.count())
        self._address = address

    def open(self) -> AnyDatabase:
        if self.kind == "aio":
            return AioDatabase(self.address)
        if self._address is not None:
            return whamming.connect(self._address)
        return whamming.open(":memory:" if self.kind == "ram" else next(self._paths))

    @property
    def address(self) -> str:
        assert self._address is not None
        return self._address


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    directory = tmp_path_factory.mktemp("data")
    if request.param in ("ram", "lmdb"):
        yield Place(request.param, directory, None)
        return
    with ServerProcess(directory / "db" if request.param == "remote-lmdb" else ":memory:") as server:
        yield Place(request.param, directory, server.address)
        server.check_log()


@pytest.fixture
def database(place: Place) -> Iterator[AnyDatabase]:
    with place.open() as database:
        yield database


@pytest.fixture
def name() -> str:
    """A name that no other index has."""
    return next(_names)


class Twin:
    """An index, and its model that is told the same."""

    def __init__(self, database: AnyDatabase, name: str, bits: int = 13, **options: Any) -> None:
        self.index: AnyIndex = database.create_index(name, bits, **options)
        self.model = Model(self.index.settings)

    def upsert(self, ids: Any, codes: Codes, payloads: list[bytes | None] | None = None, **options: Any) -> None:
        self.index.upsert(ids, codes, payloads, **options)
        self.model.upsert(ids, codes, payloads)

    def delete(self, ids: Any, **options: Any) -> None:
        self.index.delete(ids, **options)
        self.model.delete(ids)

    def fill(self, n: int, seed: int = 0) -> None:
        payloads: list[bytes | None] = [b"p%d" % i if i % 3 else None for i in range(n)]
        codes = make_codes("uniform", n, self.index.settings.bits, np.random.default_rng(seed))
        self.upsert(np.arange(n), codes, payloads)

    def check(self) -> None:
        """The index holds the model's items, and finds them."""
        check_items(self.index, self.model)
        for seed in range(2):
            table = np.random.default_rng(seed).normal(size=(self.index.settings.bits, 2))
            check_hits(self.index.search(table=table, k=20).all(), self.model.answer(table)[:20])


@pytest.fixture
def twin(database: AnyDatabase, name: str) -> Twin:
    """An index of 13 bits with something in it."""
    twin = Twin(database, name)
    twin.fill(90)
    return twin


@pytest.fixture(scope="module")
def untouched(place: Place) -> Iterator[tuple[AnyDatabase, Twin]]:
    """A database and an index that no test changes."""
    with place.open() as database:
        twin = Twin(database, next(_names))
        twin.fill(90)
        yield database, twin


def check_hits(found: Any, expected: Truth) -> None:
    ids, distances = found
    assert ids.dtype == np.uint64
    assert distances.dtype == np.float64
    assert (ids.tobytes(), distances.tobytes()) == expected.bytes()


# -- indexes ---------------------------------------------------------------------------------------------------------


def test_indexes_come_and_go(database: AnyDatabase) -> None:
    names = [f"{next(_names)}-{letter}" for letter in "cab"]
    for bits, name in enumerate(names, start=5):
        index = database.create_index(name, bits)
        assert (index.name, index.settings, len(index)) == (name, IndexSettings(bits), 0)
        assert name in repr(index)
    mine = set(names)
    assert [name for name in database.list_indexes() if name in mine] == sorted(names)
    assert database.index(names[1]).settings.bits == 6
    database.drop_index(names[1])
    assert [name for name in database.list_indexes() if name in mine] == sorted(mine - {names[1]})
    with pytest.raises(NotFoundError, match=names[1]):
        database.index(names[1])
    assert database.create_index(names[1], 77).settings.bits == 77


@pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)
def test_settings_are_kept(database: AnyDatabase, name: str, tables: Any, buckets: Any) -> None:
    wanted = IndexSettings(100, "big", tables, buckets, "async")
    options: dict[str, Any] = {"bit_order": "big", "tables": tables, "buckets": buckets, "durability": "async"}
    assert database.create_index(name, 100, **options).settings == wanted
    assert database.index(name).settings == wanted
    assert database.create_index(name, 100, **options, exist_ok=True).settings == wanted
    with pytest.raises(AlreadyExistsError, match=name):
        database.create_index(name, 100, **options)
    with pytest.raises(AlreadyExistsError, match=name):
        database.create_index(name, 99, **options, exist_ok=True)


def test_many_indexes_are_listed(database: AnyDatabase) -> None:
    names = [next(_names) for _ in range(40)]
    for name in names:
        database.create_index(name, 8)
    listed = database.list_indexes()
    assert listed == sorted(listed)
    assert set(names) <= set(listed)
    for name in names:
        database.drop_index(name)
    assert not set(names) & set(database.list_indexes())


# -- items -----------------------------------------------------------------------------------------------------------


def test_items_come_and_go(twin: Twin) -> None:
    twin.check()
    twin.upsert(
        [5, 91, 2**64 - 1, 2**63], make_codes("uniform", 4, 13, np.random.default_rng(5)), [b"", b"x", None, b"y"]
    )
    twin.check()
    twin.delete([0, 5, 12345, 5])
    twin.check()
    twin.index.seal()
    twin.delete(list(range(50)))
    twin.upsert([3], make_codes("uniform", 1, 13, np.random.default_rng(6)), durability="async")
    twin.check()
    twin.index.compact()
    twin.check()
    twin.delete(np.array(list(twin.model.items), dtype=np.uint64), durability="fsync")
    twin.check()
    assert len(twin.index) == 0


def test_of_an_id_that_repeats_the_last_item_counts(twin: Twin) -> None:
    codes = make_codes("uniform", 4, 13, np.random.default_rng(9))
    twin.upsert([70, 71, 70, 70], codes, [b"a", b"b", b"c", None])
    twin.check()
    assert twin.index.get([70, 71]).payloads == [b"", b"b"]


def test_nothing_is_written_and_looked_up(twin: Twin) -> None:
    twin.index.upsert([], [])
    twin.index.delete([])
    assert len(twin.index.get([])) == 0
    twin.check()


def test_large_payloads_and_batches(database: AnyDatabase, name: str) -> None:
    """More than goes into one message, in and out."""
    twin = Twin(database, name, 8)
    n = 150
    payloads: list[bytes | None] = [bytes([i % 256]) * 65_536 for i in range(n)]
    twin.upsert(np.arange(n), make_codes("uniform", n, 8, np.random.default_rng(0)), payloads)
    assert twin.index.get([n - 1, 3]).payloads == [payloads[n - 1], payloads[3]]
    assert twin.index.get(np.arange(n)).payloads == payloads
    table = np.random.default_rng(0).normal(size=(8, 2))
    answer = twin.model.answer(table)
    hits = list(twin.index.search(table=table, payloads=True))
    assert [(hit.id, hit.payload) for hit in hits] == [(id_, payloads[id_]) for id_ in answer.ids.tolist()]
    scanned = [(rows.ids.tolist(), rows.payloads) for rows in twin.index.scan(n)]
    found = {id_: kept[row] for ids, kept in scanned if kept is not None for row, id_ in enumerate(ids)}
    assert found == dict(enumerate(payloads))


def test_many_items_are_looked_up_and_deleted_at_once(database: AnyDatabase, name: str) -> None:
    twin = Twin(database, name, 256)
    n = 120_000
    codes = make_codes("uniform", n, 256, np.random.default_rng(0))
    twin.index.upsert(np.arange(n), codes)
    items = twin.index.get(np.arange(n))
    assert items.found.all()
    assert np.array_equal(items.codes, codes)
    assert len(twin.index) == n
    twin.index.delete(np.arange(n))
    assert len(twin.index) == 0


def test_pieces_of_a_scan(twin: Twin) -> None:
    for size in (1, 7, 90, 10**9):
        pieces = [len(rows) for rows in twin.index.scan(size)]
        assert sum(pieces) == 90
        assert max(pieces) <= size


# -- searching -------------------------------------------------------------------------------------------------------


def arguments(form: str, table: Floats, settings: IndexSettings, code: Codes) -> tuple[dict[str, Any], Floats]:
    """A query around a code, lowest bit first, in one of three forms, and the costs that it stands for."""
    if form == "table":
        return {"table": table}, table
    bits = np.unpackbits(code, count=settings.bits, bitorder="little").astype(bool)
    weights = np.ones(settings.bits) if form == "code" else table.sum(axis=1)
    given: dict[str, Any] = {"code": settings.from_engine(code)}
    if form == "weights":
        given["weights"] = weights
    return given, np.stack([np.where(bits, weights, 0.0), np.where(bits, 0.0, weights)], axis=1)


def walk(search: AnySearch, expected: Truth, everything: Truth) -> list[Hit]:
    """Iterate to the end; the bound is true and grows."""
    hits: list[Hit] = []
    last = -math.inf
    for hit in search:
        hits.append(hit)
        bound = search.lower_bound
        assert bound >= last
        last = bound
        if len(hits) < len(everything):
            assert bound <= everything.distances[len(hits)]
    assert [hit.id for hit in hits] == expected.ids.tolist()
    assert np.array([hit.distance for hit in hits]).tobytes() == expected.distances.tobytes()
    assert list(search) == []
    return hits


@given(data=st.data())
@generated(12)
def test_searches(place: Place, cases: Cases, data: st.DataObject) -> None:
    items = data.draw(datasets(most=200))
    tables, buckets = data.draw(st.sampled_from(LAYOUTS))
    rng = np.random.default_rng(items.seed)
    with place.open() as database:
        name = next(_names)
        order: Any = data.draw(st.sampled_from(["little", "big"]))
        twin = Twin(database, name, items.bits, bit_order=order, tables=tables, buckets=buckets)
        ids = np.arange(items.n, dtype=np.uint64) if items.ids is None else items.ids
        payloads: list[bytes | None] = [b"%d" % id_ * int(rng.integers(0, 3)) for id_ in ids]
        half = items.n // 2
        for part in (slice(0, half), slice(half // 2, None)):
            twin.upsert(ids[part], items.codes[part], payloads[part])
            data.draw(st.sampled_from([lambda: None, twin.index.seal, twin.index.compact]))()
        twin.delete(ids[: items.n // 10])
        plans: tuple[Plan, ...] = ("auto", "sweep") if tables == "none" else ("auto", "probe", "sweep")
        for form, kind in data.draw(queries()):
            code = items.codes[rng.integers(items.n)] if items.n else make_codes("uniform", 1, items.bits, rng)[0]
            query, table = arguments(form, make_table(kind, code, items.bits, rng), twin.index.settings, code)
            whole = twin.model.answer(table)
            plan = data.draw(st.sampled_from(plans))
            k = data.draw(st.sampled_from([1, 3, 50, len(whole) + 1]))
            inside = data.draw(st.sampled_from([0.0, 0.2, 1.0]))
            radius = float(whole.distances[int(inside * (len(whole) - 1))]) if len(whole) else 0.0
            search = twin.index.search
            check_hits(search(**query, k=k, plan=plan).all(), whole[:k])
            check_hits(search(**query, radius=radius, plan=plan).all(), whole.within(radius))
            check_hits(search(**query, k=k, radius=radius, plan=plan).all(), whole.within(radius)[:k])
            hits = walk(search(**query, plan=plan, payloads=True), whole, whole)
            assert [hit.payload for hit in hits] == [twin.model.items[hit.id][1] for hit in hits]
            walk(search(**query, k=k), whole[:k], whole)
            if len(whole):
                place_ = int(rng.integers(len(whole)))
                after = float(whole.distances[place_]), int(whole.ids[place_])
                check_hits(search(**query, after=after, plan=plan).all(), whole[place_ + 1 :])
            with search(**query, plan=plan) as pieces:
                first, second = pieces.next(2), pieces.next(k)
                third = pieces.all()
                assert pieces.stats.candidates >= min(1, len(whole))
            check_hits([np.concatenate(parts) for parts in zip(first, second, third, strict=True)], whole)
            check_hits(
                twin.index.search_batch(query.get("code"), query.get("weights"), table=query.get("table"), k=k),
                whole[:k],
            )
            cases.add(8)
        database.drop_index(name)


def queries() -> st.SearchStrategy[list[tuple[str, WeightKind]]]:
    weighty = st.sampled_from([kind for kind in WEIGHT_KINDS if kind != "both"])
    one = st.one_of(
        st.tuples(st.just("table"), st.sampled_from(WEIGHT_KINDS)),
        st.tuples(st.just("weights"), weighty),
        st.just(("code", WEIGHT_KINDS[0])),
    )
    return st.lists(one, min_size=1, max_size=2)


@pytest.mark.parametrize("form", ["code", "weights", "common weights", "table"])
@pytest.mark.parametrize("k", [1, 10, 200])
def test_batches(database: AnyDatabase, name: str, form: str, k: int) -> None:
    """``[q, k]``, padded; more queries than go into one message."""
    twin = Twin(database, name, 20, bit_order="big")
    twin.fill(100)
    rng = np.random.default_rng(0)
    codes = make_codes("uniform", 300, 20, rng)
    weights = (
        rng.random((300, 20)) if form == "weights" else rng.random(20) if form == "common weights" else np.ones(20)
    )
    bits = np.unpackbits(codes, axis=1, count=20, bitorder="big").astype(bool)
    tables = np.stack([np.where(bits, weights, 0.0), np.where(bits, 0.0, weights)], axis=2)
    if form == "table":
        answer = twin.index.search_batch(table=tables, k=k)
    else:
        answer = twin.index.search_batch(codes, None if form == "code" else weights, k=k)
    ids, distances = answer
    assert (ids.shape, distances.shape) == ((300, k), (300, k))
    assert answer.exact.all()
    found = min(k, 100)
    assert answer.counts.tolist() == answer.proven.tolist() == [found] * 300
    assert (ids[:, found:] == NONE).all()
    assert np.isinf(distances[:, found:]).all()
    for row in range(0, 300, 7):
        check_hits((ids[row, :found], distances[row, :found]), twin.model.answer(tables[row])[:found])
    assert len(answer.stats) == 300
    assert answer.stats[299].candidates > 0
    assert len(answer.stats[10:20]) == 10


def test_a_batch_with_a_radius_and_none_at_all(twin: Twin) -> None:
    table = np.random.default_rng(0).random((3, 13, 2))
    radius = float(twin.model.answer(table[1]).distances[4])
    answer = twin.index.search_batch(table=table, k=50, radius=radius)
    for row in range(3):
        expected = twin.model.answer(table[row]).within(radius)[:50]
        assert answer.counts[row] == len(expected)
        check_hits((answer.ids[row, : len(expected)], answer.distances[row, : len(expected)]), expected)
    nobody = twin.index.search_batch(np.empty((0, 2), dtype=np.uint8), k=5)
    assert nobody.ids.shape == nobody.distances.shape == (0, 5)
    assert len(nobody.stats) == 0


def test_long_codes_in_large_batches(database: AnyDatabase, name: str) -> None:
    """Costs of 64 KiB a query: a few hundred do not go into one message."""
    twin = Twin(database, name, 4096)
    twin.fill(10)
    tables = np.random.default_rng(0).normal(size=(270, 4096, 2))
    answer = twin.index.search_batch(table=tables, k=3)
    for row in (0, 150, 269):
        check_hits((answer.ids[row], answer.distances[row]), twin.model.answer(tables[row])[:3])


def test_a_budget_says_what_is_proven(database: AnyDatabase, name: str) -> None:
    twin = Twin(database, name, 64)
    twin.fill(4000)
    twin.index.seal()
    tables = np.random.default_rng(0).random((20, 64, 2))
    answer = twin.index.search_batch(table=tables, k=30, plan="probe", budget=Budget(candidates=60))
    assert not answer.exact.all()
    for row in range(20):
        whole = twin.model.answer(tables[row])
        proven, count = int(answer.proven[row]), int(answer.counts[row])
        assert proven <= count <= 30
        check_hits((answer.ids[row, :proven], answer.distances[row, :proven]), whole[:proven])
        distances = dict(zip(whole.ids.tolist(), whole.distances.tolist(), strict=True))
        guessed = answer.ids[row, proven:count].tolist()
        assert [distances[id_] for id_ in guessed] == answer.distances[row, proven:count].tolist()
        assert len({*answer.ids[row, :count].tolist()}) == count
        assert bool(answer.exact[row]) == (proven == 30)
    enough = twin.index.search_batch(table=tables, k=30, budget=Budget(candidates=10**9, seconds=3600.0))
    assert enough.exact.all()
    assert np.array_equal(enough.ids, twin.index.search_batch(table=tables, k=30).ids)


def test_no_hits_at_all(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 9)
    code = np.zeros(2, dtype=np.uint8)
    for options in ({}, {"k": 5}, {"radius": 1.0}, {"k": 0}):
        search = index.search(code, **options)
        assert list(search) == []
        assert len(search.all()[0]) == 0
    assert index.search(code).lower_bound <= math.inf
    search = index.search(code)
    assert list(search) == []
    assert search.lower_bound == math.inf
    assert index.search_batch(code[None], k=0).ids.shape == (1, 0)
    assert index.search_batch(code, k=3).ids.shape == (0,)


def test_numbers_of_numpy_will_do(twin: Twin) -> None:
    table = np.random.default_rng(0).random((13, 2))
    whole = twin.model.answer(table)
    found = twin.index.search(table=table, k=np.int64(5), radius=np.float32(100), after=(np.float64(-1), np.uint64(3)))  # type: ignore[arg-type]
    check_hits(found.all(), whole[:5])
    check_hits(twin.index.search_batch(table=table, k=np.uint8(5)), whole[:5])  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"k": 2**31}, {"k": 2**62}, {"radius": math.inf}, {"radius": 1e308}])
def test_limits_beyond_all_items(twin: Twin, options: dict[str, Any]) -> None:
    table = np.random.default_rng(0).random((13, 2))
    check_hits(twin.index.search(table=table, **options).all(), twin.model.answer(table))


def test_a_search_is_left_before_its_end(twin: Twin) -> None:
    code = np.zeros(2, dtype=np.uint8)
    for _ in range(5):
        for hit in twin.index.search(code):
            assert hit.distance >= 0
            break
    search = twin.index.search(code)
    next(search)
    search.close()
    search.close()
    twin.check()


def test_a_snapshot_is_searched(twin: Twin) -> None:
    """What is written while a search is under way does not show."""
    table = np.random.default_rng(0).random((13, 2))
    whole = twin.model.answer(table)
    search = twin.index.search(table=table)
    first = next(search)
    twin.delete(whole.ids[5:20])
    twin.fill(30, seed=9)
    ids, _ = search.all()
    assert [first.id, *ids.tolist()] == whole.ids.tolist()
    twin.check()


def test_threads_share_an_index(twin: Twin) -> None:
    tables = np.random.default_rng(0).random((40, 13, 2))

    def ask(row: int) -> None:
        expected = twin.model.answer(tables[row])
        check_hits(twin.index.search(table=tables[row]).all(), expected)
        check_hits(twin.index.search_batch(table=tables[row], k=7), expected[:7])
        assert twin.index.get([row]).found.all()

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(40)))


# -- maintenance -----------------------------------------------------------------------------------------------------


def test_statistics_and_maintenance(twin: Twin) -> None:
    before = twin.index.stats()
    assert (before.items, before.delta_rows, before.segments, before.writes) == (90, 90, 0, 1)
    shares: list[float] = []
    twin.index.seal(shares.append)
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)
    sealed = twin.index.stats()
    assert (sealed.items, sealed.delta_rows, sealed.segments, sealed.sealed_rows, sealed.seals) == (90, 0, 1, 90, 1)
    twin.delete(range(10))
    twin.upsert([95], make_codes("uniform", 1, 13, np.random.default_rng(0)))
    twin.index.compact(shares.append)
    assert shares or isinstance(twin.index, StoredIndex), "a server tells at least of the end"
    compacted = twin.index.stats()
    assert (compacted.items, compacted.segments, compacted.sealed_rows, compacted.dead_rows) == (81, 1, 81, 0)
    assert compacted.version > before.version
    assert compacted.used_bytes > 0
    twin.check()


def test_progress_may_use_the_index(place: Place, twin: Twin) -> None:
    """What hears of progress may ask for more, but not wait inside of an event loop."""
    if place.kind == "aio":
        pytest.skip("a coroutine's callback cannot wait")
    lengths: list[int] = []
    twin.index.seal(lambda share: lengths.append(len(twin.index)))
    assert set(lengths) <= {90}
    assert lengths or isinstance(twin.index, StoredIndex)


# -- errors ----------------------------------------------------------------------------------------------------------

Misuse = Callable[[AnyDatabase, AnyIndex], Any]
ZEROS = np.zeros((2, 2), dtype=np.uint8)
ZERO = ZEROS[0]
MISUSES: dict[str, tuple[Misuse, type[Exception], str]] = {
    "no bits": (lambda db, _: db.create_index("x", 0), InvalidArgumentError, "bits = 0; a code has 1 to 4096 bits"),
    "many bits": (lambda db, _: db.create_index("x", 4097), InvalidArgumentError, "bits = 4097.* 1 to 4096"),
    "half a bit": (lambda db, _: db.create_index("x", 1.5), InvalidArgumentError, "bits = 1.5; .*whole"),  # type: ignore[arg-type]
    "name": (lambda db, _: db.create_index("a/b", 8), InvalidArgumentError, "index name 'a/b'; use 1 to 128"),
    "empty name": (lambda db, _: db.create_index("", 8), InvalidArgumentError, "index name ''; use 1 to 128"),
    "long name": (lambda db, _: db.create_index("n" * 129, 8), InvalidArgumentError, "1 to 128 letters"),
    "bit order": (
        lambda db, _: db.create_index("x", 8, bit_order="middle"),  # type: ignore[arg-type]
        InvalidArgumentError,
        "bit_order = 'middle'; choose one of .*'little', 'big'",
    ),
    "tables": (lambda db, _: db.create_index("x", 8, tables="two"), InvalidArgumentError, "tables = 'two'"),  # type: ignore[arg-type]
    "buckets": (lambda db, _: db.create_index("x", 8, buckets="big"), InvalidArgumentError, "buckets = 'big'"),  # type: ignore[arg-type]
    "durable": (lambda db, _: db.create_index("x", 8, durability="no"), InvalidArgumentError, "durability = 'no'"),  # type: ignore[arg-type]
    "no such index": (lambda db, _: db.index("absent"), NotFoundError, "no index 'absent'"),
    "no such name": (lambda db, _: db.index("a b"), InvalidArgumentError, "index name 'a b'"),
    "no index to drop": (lambda db, _: db.drop_index("absent"), NotFoundError, "no index 'absent'"),
    "narrow codes": (lambda _, i: i.upsert([1], [[1]]), InvalidArgumentError, "codes have dtype int64, not uint8"),
    "few codes": (lambda _, i: i.upsert([1, 2, 3], ZEROS), InvalidArgumentError, "3 ids but 2 codes"),
    "wide codes": (
        lambda _, i: i.upsert([1], np.zeros((1, 3), dtype=np.uint8)),
        InvalidArgumentError,
        r"shape \(1, 3\); 13 bits need \[n, 2\]",
    ),
    "negative id": (lambda _, i: i.upsert([1, -2], ZEROS), InvalidArgumentError, "id -2 of row 1; ids are 0 to"),
    "large id": (lambda _, i: i.upsert([1, 2**64], ZEROS), InvalidArgumentError, "id 18446744073709551616 of row 1"),
    "few payloads": (lambda _, i: i.upsert([1, 2], ZEROS, [b""]), InvalidArgumentError, "1 payloads for 2 items"),
    "long payload": (
        lambda _, i: i.upsert([1, 2], ZEROS, [b"", bytes(65_537)]),
        InvalidArgumentError,
        "row 1 has 65537 bytes; at most 65536",
    ),
    "when": (lambda _, i: i.upsert([1, 2], ZEROS, durability="later"), InvalidArgumentError, "durability = 'later'"),  # type: ignore[arg-type]
    "when to delete": (lambda _, i: i.delete([1], durability="x"), InvalidArgumentError, "durability = 'x'"),  # type: ignore[arg-type]
    "ids to delete": (lambda _, i: i.delete([1, -1]), InvalidArgumentError, "id -1 of row 1"),
    "ids to get": (lambda _, i: i.get([0.5]), InvalidArgumentError, "dtype float64"),
    "no size": (lambda _, i: list(i.scan(0)), InvalidArgumentError, "size = 0; it must be 1 or more"),
    "negative size": (lambda _, i: list(i.scan(-1)), InvalidArgumentError, "size = -1; it must be 1 or more"),
    "half a size": (lambda _, i: list(i.scan(1.5)), InvalidArgumentError, "size = 1.5; .*whole"),  # type: ignore[arg-type]
    "no query": (lambda _, i: list(i.search()), InvalidArgumentError, "give a query code, or a cost table"),
    "two costs": (
        lambda _, i: list(i.search(ZERO, table=np.ones((13, 2)))),
        InvalidArgumentError,
        "a cost table, or a code",
    ),
    "short code": (lambda _, i: list(i.search(ZERO[:1])), InvalidArgumentError, r"query codes .*\(1, 1\); 13 bits"),
    "code of booleans": (lambda _, i: list(i.search(np.zeros(13, bool))), InvalidArgumentError, "dtype bool"),
    "two codes": (lambda _, i: list(i.search(ZEROS)), InvalidArgumentError, "one query, these are 2; use search_batch"),
    "few weights": (
        lambda _, i: list(i.search(ZERO, weights=[1.0])),
        InvalidArgumentError,
        r"weights have shape \(1,\)",
    ),
    "bad weight": (
        lambda _, i: list(i.search(ZERO, weights=[math.nan] * 13)),
        InvalidArgumentError,
        "nan",
    ),
    "words": (
        lambda _, i: list(i.search(ZERO, weights=["heavy"] * 13)),
        InvalidArgumentError,
        "weights are no array of numbers: .*'heavy'",
    ),
    "rows of two lengths": (
        lambda _, i: list(i.search(table=[[0.0, 1.0], [0.0]])),
        InvalidArgumentError,
        "costs are no array of numbers",
    ),
    "many rows of two lengths": (
        lambda _, i: i.search_batch(table=[[[0.0, 1.0], [0.0]]]),
        InvalidArgumentError,
        "costs are no array of numbers",
    ),
    "codes of two lengths": (
        lambda _, i: i.upsert([1, 2], [[1, 2], [3]]),
        InvalidArgumentError,
        "codes are no array of numbers",
    ),
    "endless cost": (lambda _, i: list(i.search(table=np.full((13, 2), math.inf))), InvalidArgumentError, "inf"),
    "table": (lambda _, i: list(i.search(table=np.ones((12, 2)))), InvalidArgumentError, r"12"),
    "negative k": (lambda _, i: list(i.search(ZERO, k=-1)), InvalidArgumentError, "k = -1; it must be 0 or more"),
    "half a k": (lambda _, i: list(i.search(ZERO, k=1.5)), InvalidArgumentError, "k = 1.5; .*whole"),  # type: ignore[arg-type]
    "no radius": (lambda _, i: list(i.search(ZERO, radius=math.nan)), InvalidArgumentError, "radius = nan"),
    "text radius": (lambda _, i: list(i.search(ZERO, radius="far")), InvalidArgumentError, "radius = 'far'"),  # type: ignore[arg-type]
    "plan": (lambda _, i: list(i.search(ZERO, plan="fly")), InvalidArgumentError, "plan = 'fly'; choose one of"),  # type: ignore[arg-type]
    "no place": (lambda _, i: list(i.search(ZERO, after=(math.nan, 1))), InvalidArgumentError, r"after = \(nan, 1\)"),
    "half a place": (lambda _, i: list(i.search(ZERO, after=(1.0,))), InvalidArgumentError, r"after = \(1.0,\)"),  # type: ignore[arg-type]
    "negative n": (lambda _, i: i.search(ZERO).next(-1), InvalidArgumentError, "n = -1; it must be 0 or more"),
    "large k": (
        lambda _, i: i.search_batch(ZEROS, k=2**31),
        InvalidArgumentError,
        "k = 2147483648; it must be 0 to 2147483647",
    ),
    "negative k of many": (lambda _, i: i.search_batch(ZEROS, k=-1), InvalidArgumentError, "k = -1; it must be 0 to"),
    "too wide": (
        lambda _, i: i.search_batch(ZEROS, k=2**31 - 1),
        InvalidArgumentError,
        "k = 2147483647 for 2 queries",
    ),
    "radius of many": (lambda _, i: i.search_batch(ZEROS, radius=math.nan), InvalidArgumentError, "radius = nan"),
    "plan of many": (lambda _, i: i.search_batch(ZEROS, plan="fly"), InvalidArgumentError, "plan = 'fly'"),  # type: ignore[arg-type]
    "no candidates": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(candidates=0)),
        InvalidArgumentError,
        "candidates=0.* must be positive",
    ),
    "negative time": (
        lambda _, i: i.search_batch(ZEROS, budget=Budget(seconds=-1)),
        InvalidArgumentError,
        "seconds=-1.* must be positive",
    ),
    "weights of others": (
        lambda _, i: i.search_batch(ZEROS, np.ones((3, 13))),
        InvalidArgumentError,
        "3",
    ),
}


@pytest.mark.parametrize("what", MISUSES)
def test_what_makes_no_sense_is_refused_alike(untouched: tuple[AnyDatabase, Twin], what: str) -> None:
    database, twin = untouched
    misuse, kind, message = MISUSES[what]
    with pytest.raises(kind, match=message) as caught:
        misuse(database, twin.index)
    assert type(caught.value).__name__ in (kind.__name__, "FieldError")
    check_items(twin.index, twin.model)


def test_probing_needs_tables(database: AnyDatabase, name: str) -> None:
    index = database.create_index(name, 13, tables="none")
    index.upsert([1, 2], ZEROS)
    for search in (lambda: list(index.search(ZERO, plan="probe")), lambda: index.search_batch(ZEROS, plan="probe")):
        with pytest.raises(InvalidArgumentError, match=r"(?i)plan = '?probe'? needs tables"):
            search()


def test_an_index_that_was_dropped(database: AnyDatabase, twin: Twin) -> None:
    search = twin.index.search(ZERO)
    first = next(search)
    database.drop_index(twin.index.name)
    assert first.distance <= next(search).distance, "searches under way finish"
    uses: list[Callable[[], Any]] = [
        lambda: len(twin.index),
        lambda: twin.index.upsert([1, 2], ZEROS),
        lambda: twin.index.delete([1]),
        lambda: twin.index.get([1]),
        lambda: list(twin.index.scan()),
        lambda: list(twin.index.search(ZERO)),
        lambda: twin.index.search_batch(ZEROS),
        lambda: twin.index.seal(),
        lambda: twin.index.compact(),
        lambda: twin.index.stats(),
    ]
    for use in uses:
        with pytest.raises((ClosedError, NotFoundError)):
            use()


def test_a_database_that_was_closed(place: Place, name: str) -> None:
    with place.open() as database:
        twin = Twin(database, name)
        twin.fill(20)
        search = twin.index.search(ZERO)
        next(search)
    database.close()
    uses: list[Callable[[], Any]] = [
        lambda: database.create_index("x", 8),
        lambda: database.index(name),
        lambda: database.list_indexes(),
        lambda: database.drop_index(name),
        lambda: twin.index.upsert([1, 2], ZEROS),
        lambda: twin.index.delete([1]),
        lambda: twin.index.get([1]),
        lambda: list(twin.index.scan()),
        lambda: list(twin.index.search(ZERO)),
        lambda: twin.index.search_batch(ZEROS),
        lambda: twin.index.seal(),
        lambda: twin.index.stats(),
    ]
    for use in uses:
        with pytest.raises(ClosedError, match="closed"):
            use()
    assert issubclass(ClosedError, StorageError)
    search.close()
