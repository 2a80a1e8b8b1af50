"""Creating, listing and dropping indexes work the same in every kind of database."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.shared.places import AnyDatabase, fresh_names
from tests.native.examples import LAYOUTS
from whamming.storage import AlreadyExistsError, IndexSettings, NotFoundError


def test_create_list_and_drop_indexes(database: AnyDatabase) -> None:
    names = [f"{next(fresh_names)}-{letter}" for letter in "cab"]
    for bits, name in enumerate(names, start=5):
        index = database.create_index(name, bits)
        assert (index.name, index.settings, len(index)) == (name, IndexSettings(bits), 0)
        assert name in repr(index)
    mine = set(names)
    assert [name for name in database.list_indexes() if name in mine] == sorted(names)
    infos = [info for info in database.describe_indexes() if info.name in mine]
    assert [(info.name, info.settings, info.error) for info in infos] == [
        (name, IndexSettings(5 + names.index(name)), None) for name in sorted(names)
    ]
    assert [info.stats.items for info in infos if info.stats is not None] == [0, 0, 0]
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
    names = [next(fresh_names) for _ in range(40)]
    for name in names:
        database.create_index(name, 8)
    listed = database.list_indexes()
    assert listed == sorted(listed)
    assert set(names) <= set(listed)
    for name in names:
        database.drop_index(name)
    assert not set(names) & set(database.list_indexes())
