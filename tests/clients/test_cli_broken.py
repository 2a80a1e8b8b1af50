"""``whamming list``, ``stats`` and ``drop`` with an index that cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import whamming
from tests.clients.commands import Cli, Target
from tests.serving import ServerProcess
from tests.storage.broken import NAME, SOUND, WAYS, make_indexes


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with whamming.open(tmp_path / "db") as database:
        make_indexes(database)
    WAYS["a newer format"][0](tmp_path / "db" / NAME)
    return tmp_path / "db"


@pytest.fixture(params=["directory", "server"])
def damaged(request: pytest.FixtureRequest, data: Path) -> Iterator[Target]:
    """The options for a database with one broken index and two sound ones."""
    if request.param == "directory":
        yield ("--data", str(data))
        return
    with ServerProcess(data) as server:
        yield ("--server", server.address, "--timeout", "30")


def test_list_shows_broken_indexes(cli: Cli, damaged: Target) -> None:
    done = cli("list", *damaged)
    assert done.code == 1
    assert [line.split()[:2] for line in done.out.splitlines()] == [
        ["NAME", "ITEMS"],
        [SOUND[0], "2"],
        [NAME, "broken"],
        [SOUND[1], "2"],
    ]
    reason, error = done.err.splitlines()
    assert NAME in reason
    assert "format 99" in reason
    assert "1 index is broken" in error


def test_list_as_json_has_a_record_per_index(cli: Cli, damaged: Target) -> None:
    done = cli("list", "--json", *damaged)
    assert done.code == 1
    assert [record["name"] for record in done.records] == [SOUND[0], NAME, SOUND[1]]
    assert ["error" in record for record in done.records] == [False, True, False]
    assert "format 99" in done.records[1]["error"]
    assert done.records[2]["items"] == 2


def test_names_include_broken_indexes(cli: Cli, damaged: Target) -> None:
    assert cli("list", "--names", *damaged).ok().out.split() == [SOUND[0], NAME, SOUND[1]]


def test_stats_goes_on_after_a_broken_index(cli: Cli, damaged: Target) -> None:
    done = cli("stats", "--json", *damaged)
    assert done.code == 1
    assert [record["name"] for record in done.records] == list(SOUND)
    assert "format 99" in done.err
    cli("stats", NAME, *damaged).refused(1, "format 99")


def test_a_broken_index_is_dropped(cli: Cli, damaged: Target) -> None:
    cli("drop", NAME, "--yes", *damaged).ok()
    assert [record["name"] for record in cli("list", "--json", *damaged).ok().records] == list(SOUND)


def test_a_backup_counts_only_what_it_copies(cli: Cli, data: Path, tmp_path: Path) -> None:
    cli("drop", NAME, "--yes", "--data", data).ok()
    (data / "notes.txt").write_text("mine")
    assert cli("backup", "--data", data, tmp_path / "copy", "--json").ok().record["indexes"] == list(SOUND)


def test_a_backup_goes_on_after_a_broken_index(cli: Cli, data: Path, tmp_path: Path) -> None:
    done = cli("backup", "--data", data, tmp_path / "copy", "--json")
    assert (done.code, done.record["indexes"]) == (1, list(SOUND))
    (error,) = done.err.splitlines()
    assert all(text in error for text in (str(tmp_path / "copy"), "not complete", NAME, "format 99"))


def test_restoring_an_incomplete_backup_fails_after_copying_the_rest(cli: Cli, data: Path, tmp_path: Path) -> None:
    cli("backup", "--data", data, tmp_path / "copy")
    done = cli("restore", tmp_path / "copy", tmp_path / "restored", "--json")
    assert (done.code, done.record["indexes"]) == (1, list(SOUND))
    (error,) = done.err.splitlines()
    assert all(text in error for text in (str(tmp_path / "copy"), "not complete", NAME))
