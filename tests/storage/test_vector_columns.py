"""Vectors given as columns of lists, as tables have them: the error says what to do, or which row is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whamming
from whamming import InvalidArgumentError
from whamming.storage import read_vectors
from whamming.storage.vectors.arrays import as_vectors


def column(*rows: Any) -> Any:
    """Return what ``np.asarray`` returns for a column of a table."""
    array = np.empty(len(rows), dtype=object)
    for number, row in enumerate(rows):
        array[number] = row
    return array


ROW = np.arange(3, dtype=np.float32)


@pytest.mark.parametrize(
    ("vectors", "advice"),
    [
        (column(ROW, ROW), r"2 ndarray objects.*np\.stack"),
        (column([1.0, 2.0], [3.0, 4.0]), r"2 list objects.*np\.stack"),
        (column(ROW, ROW, ROW[:2]), "row 2 has 2 .*row 0 .*3"),
        ([[1.0, 2.0], [3.0]], "row 1 has 1 .*row 0 .*2"),
        ([ROW, ROW[:1], ROW], "row 1 has 1 .*row 0 .*3"),
        (column(ROW, None), "row 1 is None"),
        (column(ROW, "a text"), "row 1 is 'a text'"),
        ([[1.0, 2.0], None], "row 1 is None"),
        ([0.5, None, 0.25], "component 1 is None"),
        (None, "NoneType"),
    ],
)
def test_the_error_advises_how_to_convert_a_column(vectors: Any, advice: str) -> None:
    with pytest.raises(InvalidArgumentError, match=advice) as caught:
        as_vectors(vectors)
    assert "object;" not in str(caught.value)


def test_the_advice_works() -> None:
    rows, single = as_vectors(np.stack(column(ROW, ROW)).astype(np.float32), 3)
    assert (rows.shape, single) == ((2, 3), False)


def test_every_use_of_vectors_gives_the_advice() -> None:
    with whamming.open() as database:
        index = database.create_index("docs", encoder="sign", dim=3)
        for use in (
            lambda: index.upsert([1, 2], vectors=column(ROW, ROW)),
            lambda: index.search(vector=column(ROW, ROW)),
            lambda: index.search_batch(vectors=column(ROW, ROW)),
            lambda: database.create_index("more", encoder="itq", train=column(ROW, ROW), bits=2),
        ):
            with pytest.raises(InvalidArgumentError, match=r"np\.stack"):
                use()


def test_a_file_of_lists_is_refused_with_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "vectors.npy", column(ROW, ROW), allow_pickle=True)
    with pytest.raises(InvalidArgumentError, match=r"Python objects.*stack"):
        read_vectors(tmp_path / "vectors.npy")
