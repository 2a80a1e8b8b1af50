"""The settings of an index, which are fixed when it is created."""

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
"""The size limit of a payload in bytes."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHOWN = 256
"""How many characters of an invalid name an error shows. Clients can send names of many megabytes."""
_REVERSED = np.packbits(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1), axis=1, bitorder="little")[:, 0]


def is_name(name: str) -> bool:
    """Return whether a name is valid: a letter or digit, then at most 127 letters, digits, ``.``, ``_`` or ``-``."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(name: str) -> str:
    """Return the name if it is a valid index name. Raises InvalidArgumentError."""
    if not is_name(name):
        shown = f"{name[:_SHOWN]!r}..." if isinstance(name, str) and len(name) > _SHOWN else repr(name)
        raise InvalidArgumentError(
            f"index name {shown}; use 1 to 128 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return name


@dataclass(frozen=True)
class IndexSettings:
    """The settings of an index."""

    bits: int
    """Length of the codes, 1 to 4096."""
    bit_order: BitOrder = "little"
    """The bit order of codes that go in and out. ``little``: bit i is byte ``i >> 3``, mask ``1 << (i & 7)``. ``big``:
    mask ``128 >> (i & 7)``, which is what ``np.packbits`` writes by default. Weights are always in order of i."""
    tables: Tables = "single"
    """Hash tables of sealed segments: ``single``, ``multi`` or ``none``; see :meth:`whamming.native.Index.build`."""
    buckets: Buckets = "compact"
    """``compact``, or ``fast``: faster to probe but larger."""
    durability: Durability = "fsync"
    """The default for writes. ``fsync``: on disk when the write returns. ``async``: on disk shortly afterwards."""
    dim: int | None = None
    """Number of components of the vectors that the encoder takes; None if the index has no encoder and takes codes."""
    encoder: str | None = None
    """The encoder's fingerprint; None if the index has no encoder."""
    keep_vectors: KeptVectors | None = None
    """The format in which vectors are kept for re-ranking; None if they are not kept."""
    metric: Metric = "l2"
    """The metric that re-ranking uses."""

    def __post_init__(self) -> None:
        """Check the values. Raises InvalidArgumentError."""
        object.__setattr__(self, "bits", as_whole("bits", self.bits))
        check_bits(self.bits)
        for name, choices in (("bit_order", BitOrder), ("tables", Tables), ("buckets", Buckets)):
            check_choice(name, getattr(self, name), get_args(choices))
        check_choice("durability", self.durability, get_args(Durability))
        check_choice("metric", self.metric, get_args(Metric))
        if (self.dim is None) != (self.encoder is None):
            raise InvalidArgumentError(
                f"dim = {self.dim} with encoder = {self.encoder!r}; an index has both or neither"
            )
        if self.dim is not None and as_whole("dim", self.dim) < 1:
            raise InvalidArgumentError(f"dim = {self.dim}; it must be at least 1")
        if self.keep_vectors is not None:
            check_choice("keep_vectors", self.keep_vectors, get_args(KeptVectors))
            if self.dim is None:
                raise InvalidArgumentError(
                    f"keep_vectors = {self.keep_vectors!r} without an encoder; codes alone have no vectors to keep"
                )
        elif self.metric != "l2":
            raise InvalidArgumentError(f"metric = {self.metric!r} without keep_vectors; only re-ranking uses a metric")

    @property
    def code_bytes(self) -> int:
        """Size of a packed code in bytes."""
        return (self.bits + 7) // 8

    @property
    def vector_bytes(self) -> int:
        """Size of a kept vector in bytes; 0 if the index keeps none. See :mod:`whamming.storage.vectors.kept`."""
        if self.keep_vectors is None or self.dim is None:
            return 0
        return 2 * self.dim if self.keep_vectors == "float16" else 4 + self.dim

    def to_engine(self, codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Convert codes from the index's bit order to the engine's."""
        return codes if self.bit_order == "little" else _REVERSED[codes]

    from_engine = to_engine
    """The inverse is the same function: reversing the bits of each byte twice restores them."""

    def differences(self, other: IndexSettings, names: tuple[str, ...] = ()) -> str:
        """Return the settings that differ, such as ``bits = 16, not 32``; empty if none does.

        ``names``: compare only these settings. The default is all of them.
        """
        compared = names or tuple(field.name for field in fields(self))
        pairs = [(name, getattr(self, name), getattr(other, name)) for name in compared]
        return " and ".join(f"{name} = {own!r}, not {their!r}" for name, own, their in pairs if own != their)

    def taken(self, name: str, wanted: IndexSettings | None) -> str:
        """Return the message that an index of that name exists with these settings, which are not the ``wanted`` ones.

        None: it is not wanted whatever its settings.
        """
        if wanted is not None:
            remedy = f"open it with db.index({name!r}), or choose another name"
            return f"the index {name!r} already exists, with {self.differences(wanted)}; {remedy}"
        found = ", ".join(f"{key} = {value!r}" for key, value in self.to_json().items())
        remedy = f"open it with db.index({name!r}), or pass exist_ok=True to create it only if it is missing"
        return f"the index {name!r} already exists, with {found}; {remedy}"

    def to_json(self) -> dict[str, Any]:
        """Return the settings as a dict. Without an encoder it has no keys about vectors, as in older files."""
        about_vectors = ("dim", "encoder", "keep_vectors", "metric")
        return {key: value for key, value in asdict(self).items() if self.dim is not None or key not in about_vectors}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> IndexSettings:
        """Read the result of :meth:`to_json`. Raises InvalidArgumentError for unknown keys."""
        unknown = set(values) - {field.name for field in fields(cls)}
        if unknown:
            raise InvalidArgumentError(f"unknown index settings: {', '.join(sorted(unknown))}")
        return cls(**values)


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise InvalidArgumentError if the value is not one of the choices."""
    if value not in choices:
        raise InvalidArgumentError(f"{name} = {value!r}; choose one of {', '.join(map(repr, choices))}")
