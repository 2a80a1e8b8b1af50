"""Tests of ``repr`` and of the HTML tables that notebooks show."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from tests.serving import ServerProcess
from whamming import Hit
from whamming.native import Costs, Stats
from whamming.storage import VerifyReport, read_codes

MAX_LINE = 200
CODES = np.arange(180, dtype=np.uint8).reshape(90, 2)


class Cells(HTMLParser):
    """Parses the cells of an HTML table, row by row."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == [], "a tag is not closed"

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess() as server:
        yield server
        server.check_log()


@pytest.fixture(params=["local", "remote"])
def database(request: pytest.FixtureRequest) -> Iterator[Any]:
    if request.param == "local":
        with whamming.open() as database:
            yield database
    else:
        with whamming.connect(request.getfixturevalue("server").address) as remote:
            yield remote
            remote.drop_index("docs")


@pytest.fixture
def index(database: Any) -> Any:
    index = database.create_index("docs", 13)
    index.upsert(np.arange(90), CODES, [b"<b>%d</b>" % row for row in range(90)])
    return index


def check_line(thing: object, *facts: str) -> None:
    line = repr(thing)
    assert "\n" not in line
    assert len(line) <= MAX_LINE
    assert "object at 0x" not in line
    for fact in facts:
        assert fact in line, line


def test_databases_and_indexes(database: Any, index: Any) -> None:
    check_line(database, "Database(")
    check_line(index, "Index('docs'", "13 bits")
    check_line(index.stats(), "items=90")
    index.close()
    check_line(index, "closed")
    if isinstance(database, whamming.Database):
        check_line(database, ":memory:")
    else:
        check_line(database, database.address)
        check_line(index, database.address)
        database.index("docs")


def test_searches_and_hits(index: Any) -> None:
    search = index.search(CODES[0], payloads=True)
    check_line(search, "Search(", "lower bound")
    hit = next(search)
    check_line(hit, "Hit(id=0, distance=0.0", "<b>0</b>")
    search.close()
    check_line(search, "Search(")
    assert Cells(hit._repr_html_()).rows == [["id", "distance", "payload"], ["0", "0", "b'<b>0</b>'"]]


def test_a_long_payload_is_shortened() -> None:
    check_line(Hit(1, 2.5, bytes(65_536)), "id=1", "2.5", "65536 bytes")
    assert repr(Hit(1, 2.5)) == "Hit(id=1, distance=2.5)"
    assert len(Hit(1, 2.5, bytes(65_536))._repr_html_()) < 1000


def test_answers(index: Any) -> None:
    answer = index.search_batch(CODES[:30], k=7)
    check_line(answer, "30 queries", "210 hits", "30 exact")
    rows = Cells(answer._repr_html_()).rows
    assert rows[0] == ["query", "hit 1", "hit 2", "hit 3", "hit 4", "hit 5"]
    assert rows[4][:2] == ["3", f"{answer.ids[3, 0]} ({answer.distances[3, 0]:g})"]
    assert len(rows) == 21, "a large answer is shortened"
    single = index.search_batch(CODES[0], k=3)
    check_line(single, "3 hits", "exact")
    assert len(Cells(single._repr_html_()).rows) == 4
    few = index.search_batch(CODES[:1], k=4, radius=0.0)
    found = int(few.counts[0])
    assert found < 4
    assert [cell != "" for cell in Cells(few._repr_html_()).rows[1]] == [True] * (1 + found) + [False] * (4 - found)
    check_line(index.search_batch(CODES[:0], k=3), "0 queries")
    check_line(answer.stats, "30")


def test_statistics(index: Any) -> None:
    search = index.search(CODES[0], k=3)
    list(search)
    rows = Cells(search.stats._repr_html_()).rows
    assert [row[0] for row in rows[1:]] == list(Stats._fields)
    stored = dict(Cells(index.stats()._repr_html_()).rows)
    assert (stored["items"], stored["segments"]) == ("90", "0")


def test_items(index: Any) -> None:
    check_line(index.get([1, 2, 12_345]), "3 ids", "2 found")
    (rows,) = index.scan()
    check_line(rows, "90 items", "payloads")
    check_line(rows.payloads, "90", "bytes")


def test_objects_of_local_databases(tmp_path: Path) -> None:
    with whamming.open(tmp_path / "data") as database:
        check_line(database, "Database(", "data")
        index = database.create_index("docs", 13)
        index.upsert(np.arange(90), CODES)
        check_line(index.snapshot(), "90 items", "13 bits")
        check_line(index.snapshot().view, "90 items")
        check_line(index.batch([1], CODES[:1], deletes=[2, 3]), "1 upsert", "2 deletes")
        check_line(index.verify(), "ok", "bytes")
        encoded = database.create_index("vectors", encoder="sign", dim=8)
        check_line(encoded.encoder, "sign", "dim=8")
    check_line(database, "closed")
    with whamming.open(tmp_path / "data", mode="r") as reader:
        check_line(reader, "read-only")
    check_line(VerifyReport(("page 7 is torn", "more"), 10, 1), "2 problems", "page 7 is torn")
    check_line(Costs.hamming(CODES[:3], 13), "3", "13 bits")
    np.save(tmp_path / "codes.npy", CODES)
    check_line(read_codes(tmp_path / "codes.npy", 13), "CodesFile(", "90 rows")
