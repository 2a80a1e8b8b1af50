"""Convert between enums of the protos and the strings of the Python API: ``PLAN_SWEEP`` is ``"sweep"``."""

from __future__ import annotations

from typing import Any, Final, Generic, TypeVar, get_args

import numpy as np

from whamming.native import Buckets, InvalidArgumentError, Plan, Tables
from whamming.storage import BitOrder, Durability, Form, KeptVectors, Kind, Metric
from whamming.v1 import index_pb2, search_pb2, types_pb2
from whamming.wire.fields import FieldError

Word = TypeVar("Word", bound=str)


class Words(Generic[Word]):
    """The strings of one enum, and their numbers."""

    def __init__(self, enum: Any, words: tuple[Word, ...]) -> None:
        """Map each word to the enum value whose name is the enum's name followed by the word."""
        name = enum.DESCRIPTOR.name
        prefix = "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name)[1:]
        self.words = words
        self._numbers = {word: int(enum.Value(f"{prefix}_{word.upper()}")) for word in words}
        self._words = {number: word for word, number in self._numbers.items()}

    def number(self, argument: str, word: Word | None) -> Any:
        """Return the number of a word, or 0 for None. ``argument`` is the Python argument named in errors."""
        if word is None:
            return 0
        if not isinstance(word, str) or word not in self._numbers:
            raise InvalidArgumentError(f"{argument} = {word!r}; choose one of {', '.join(map(repr, self.words))}")
        return self._numbers[word]

    def word(self, field: str, number: int) -> Word | None:
        """Return the word of a number, or None for 0. ``field`` is the message field named in errors."""
        if number == 0:
            return None
        if number not in self._words:
            known = ", ".join(f"{n} ({word})" for n, word in sorted(self._words.items()))
            raise FieldError(field, f"{field} = {number}; choose one of {known}, or 0 for the default")
        return self._words[number]


BIT_ORDERS: Final = Words[BitOrder](index_pb2.BitOrder, get_args(BitOrder))
TABLES: Final = Words[Tables](index_pb2.Tables, get_args(Tables))
BUCKETS: Final = Words[Buckets](index_pb2.Buckets, get_args(Buckets))
DURABILITIES: Final = Words[Durability](index_pb2.Durability, get_args(Durability))
METRICS: Final = Words[Metric](index_pb2.Metric, get_args(Metric))
ENCODER_KINDS: Final = Words[Kind](index_pb2.EncoderKind, get_args(Kind))
KEPT_VECTORS: Final = Words[KeptVectors](types_pb2.ElementType, get_args(KeptVectors))
COST_FORMS: Final = Words[Form](search_pb2.CostForm, get_args(Form))
PLANS: Final = Words[Plan](search_pb2.Plan, get_args(Plan))

ELEMENT_TYPES: Final[dict[int, np.dtype[Any]]] = {
    types_pb2.ELEMENT_TYPE_FLOAT32: np.dtype("<f4"),
    types_pb2.ELEMENT_TYPE_FLOAT16: np.dtype("<f2"),
    types_pb2.ELEMENT_TYPE_INT8: np.dtype("i1"),
    types_pb2.ELEMENT_TYPE_FLOAT64: np.dtype("<f8"),
    types_pb2.ELEMENT_TYPE_UINT8: np.dtype("u1"),
}
"""The numpy type of each element type."""
