"""What an index is, for as long as it lives."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.native import Buckets, InvalidArgumentError, Tables
from whamming.native.arguments import as_whole
from whamming.native.costs import check_bits

BitOrder = Literal["little", "big"]
Durability = Literal["fsync", "async"]
KeptVectors = Literal["float16", "int8"]
Metric = Literal["l2", "cosine", "inner"]

MAX_PAYLOAD = 65_536
"""Bytes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), axis=1, bitorder="little")[:, 0]


def is_name(name: str) -> bool:
    """Tell whether an index may have a name: 1 to 128 letters, digits, ``.``, ``_`` and ``-``, no sign first."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return a name that an index may have."""
    if not is_name(name):
        raise InvalidArgumentError(
            f"index name {name!r}; use 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class IndexSettings:
    """Fixed when the index is created."""

    bits: int
    """Length of the codes, 1 to 4096."""
    bit_order: BitOrder = "little"
    """Of codes going in and out. ``little``: bit i is byte ``i >> 3``, mask ``1 << (i & 7)``; ``big``: mask
    ``128 >> (i & 7)``, which is what ``np.packbits`` writes by default. Weights always go by bit number."""
    tables: Tables = "single"
    """Of sealed segments: ``single``, ``multi`` or ``none``; see :meth:`whamming.native.Index.build`."""
    buckets: Buckets = "compact"
    """``compact``, or ``fast``: larger, and faster to probe."""
    durability: Durability = "fsync"
    """Of writes that do not say. ``fsync``: on disk when the write returns; ``async``: soon after."""
    dim: int | None = None
    """Components of the vectors that the index's encoder takes; None: it has no encoder, codes are made elsewhere."""
    encoder: str | None = None
    """The encoder's fingerprint."""
    keep_vectors: KeptVectors | None = None
    """How the vectors that items were made from are kept, to rank hits again by; None: they are not."""
    metric: Metric = "l2"
    """By which hits are ranked again."""

    def __post_init__(self) -> None:
        """Refuse what no index can be."""
        object.__setattr__(self, "bits", as_whole("bits", self.bits))
        check_bits(self.bits)
        for name, choices in (("bit_order", BitOrder), ("tables", Tables), ("buckets", Buckets)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_choice("durability", self.durability, get_args(Durability))
        check_choice("metric", self.metric, get_args(Metric))
        if (self.dim is None) != (self.encoder is None):
            raise InvalidArgumentError(
                f"dim = {self.dim} with the encoder {self.encoder}; an index has both or neither"
            )
        if self.keep_vectors is not None:
            check_choice("keep_vectors", self.keep_vectors, get_args(KeptVectors))
            if self.dim is None:
                raise InvalidArgumentError(
                    f"keep_vectors = {self.keep_vectors!r} without an encoder; it is vectors that an encoder takes"
                )
        elif self.metric != "l2":
            raise InvalidArgumentError(f"metric = {self.metric!r} without keep_vectors; it is for ranking hits by them")

    @property
    def code_bytes(self) -> int:
        """Bytes of a packed code."""
        return (self.bits + 7) // 8

    @property
    def vector_bytes(self) -> int:
        """Bytes of an item's kept vector; 0: the index keeps none. See :mod:`whamming.storage.vectors.kept`."""
        if self.keep_vectors is None or self.dim is None:
            return 0
        return 2 * self.dim if self.keep_vectors == "float16" else 4 + self.dim

    def to_engine(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Turn codes in the index's bit order into the engine's."""
        return codes if self.bit_order == "little" else _REVERSED[codes]

    from_engine = to_engine
    """The other way round: reversing the bits of each byte is its own inverse."""

    def to_json(self) -> dict[str, Any]:
        """Return a plain dict; of an index without an encoder, as before there were any."""
        about_vectors = ("dim", "encoder", "keep_vectors", "metric")
        return {key: value for key, value in asdict(self).items() if self.dim is not None or key not in about_vectors}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> IndexSettings:
        """Read what :meth:`to_json` gave; keys that this version does not know are refused."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidArgumentError(f"unknown index settings: {', '.join(sorted(unknown))}")
        return cls(**values)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Refuse a value that is not one of the choices."""
    if value not in choices:
        raise InvalidArgumentError(f"{name} = {value!r}; choose one of {choices}")
