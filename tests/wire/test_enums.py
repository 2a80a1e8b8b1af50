"""The words of the Python API and the values of the enums match one to one."""

from __future__ import annotations

from typing import Any

import pytest

from whamming import InvalidArgumentError
from whamming.v1 import index_pb2, search_pb2, types_pb2
from whamming.wire import enums
from whamming.wire.enums import Words
from whamming.wire.fields import FieldError

PAIRS: list[tuple[Words[Any], Any]] = [
    (enums.BIT_ORDERS, index_pb2.BitOrder),
    (enums.TABLES, index_pb2.Tables),
    (enums.BUCKETS, index_pb2.Buckets),
    (enums.DURABILITIES, index_pb2.Durability),
    (enums.METRICS, index_pb2.Metric),
    (enums.ENCODER_KINDS, index_pb2.EncoderKind),
    (enums.COST_FORMS, search_pb2.CostForm),
    (enums.PLANS, search_pb2.Plan),
]


@pytest.mark.parametrize(("words", "enum"), PAIRS, ids=[enum.DESCRIPTOR.name for _, enum in PAIRS])
def test_words_and_numbers_match_one_to_one(words: Words[Any], enum: Any) -> None:
    numbers = {words.number("x", word) for word in words.words}
    assert numbers | {0} == set(enum.values()), "a value without a word, or a word without a value"
    assert len(numbers) == len(words.words)
    for word in words.words:
        assert words.word("x", words.number("x", word)) == word
        assert enum.Name(words.number("x", word)).endswith(f"_{word.upper()}")


def test_kept_vectors_are_some_of_the_element_types() -> None:
    assert set(enums.KEPT_VECTORS.words) == {"float16", "int8"}
    assert enums.KEPT_VECTORS.number("keep_vectors", "float16") == types_pb2.ELEMENT_TYPE_FLOAT16
    assert enums.KEPT_VECTORS.number("keep_vectors", "int8") == types_pb2.ELEMENT_TYPE_INT8
    with pytest.raises(FieldError):
        enums.KEPT_VECTORS.word("settings.kept_vectors", types_pb2.ELEMENT_TYPE_FLOAT32)


@pytest.mark.parametrize("words", [words for words, _ in PAIRS] + [enums.KEPT_VECTORS])
def test_none_maps_to_zero(words: Words[Any]) -> None:
    assert words.number("x", None) == 0
    assert words.word("x", 0) is None


@pytest.mark.parametrize("words", [words for words, _ in PAIRS] + [enums.KEPT_VECTORS])
@pytest.mark.parametrize("number", [-1, 77, 2**31 - 1])
def test_unknown_numbers_name_their_field(words: Words[Any], number: int) -> None:
    with pytest.raises(FieldError) as caught:
        words.word("options.plan", number)
    assert caught.value.field == "options.plan"
    assert f"options.plan = {number}" in str(caught.value)
    assert all(word in str(caught.value) for word in words.words)


@pytest.mark.parametrize("words", [words for words, _ in PAIRS] + [enums.KEPT_VECTORS])
@pytest.mark.parametrize("word", ["", "unspecified", "Auto", "sweep "])
def test_unknown_words_name_their_argument(words: Words[Any], word: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        words.number("plan", word)
    assert f"plan = {word!r}" in str(caught.value)
    assert all(known in str(caught.value) for known in words.words)
