"""Convert the settings, encoder and statistics of an index to and from messages."""

from __future__ import annotations

from typing import Any, Final

from whamming.native.arguments import as_whole
from whamming.native.costs import check_bits
from whamming.storage import Encoder, IndexInfo, IndexSettings, KeptVectors, StoreStats
from whamming.v1 import error_pb2, index_pb2
from whamming.wire.enums import (
    BIT_ORDERS,
    BUCKETS,
    DURABILITIES,
    ENCODER_KINDS,
    KEPT_VECTORS,
    METRICS,
    TABLES,
    Words,
)
from whamming.wire.service_errors import error_of

_CHOICES: Final[dict[str, Words[Any]]] = {
    "bit_order": BIT_ORDERS,
    "tables": TABLES,
    "buckets": BUCKETS,
    "durability": DURABILITIES,
    "metric": METRICS,
}
"""The settings whose values are enums in the protos. They have the same names in Python and in the protos."""


def settings_message(bits: int | None, keep_vectors: KeptVectors | None, **choices: str) -> index_pb2.IndexSettings:
    """Pack the settings of an index. If ``bits`` is None, the encoder determines it."""
    numbers = {name: _CHOICES[name].number(name, word) for name, word in choices.items()}
    kept = KEPT_VECTORS.number("keep_vectors", keep_vectors)
    length = 0 if bits is None else check_bits(as_whole("bits", bits))
    return index_pb2.IndexSettings(bits=length, kept_vectors=kept, **numbers)


def choices_of(message: index_pb2.IndexSettings) -> dict[str, Any]:
    """Return the settings of a message, except ``bits`` and unset ones, as arguments of ``create_index``."""
    words = {name: words.word(f"settings.{name}", getattr(message, name)) for name, words in _CHOICES.items()}
    words["keep_vectors"] = KEPT_VECTORS.word("settings.kept_vectors", message.kept_vectors)
    return {name: word for name, word in words.items() if word is not None}


def settings_of(message: index_pb2.Index) -> IndexSettings:
    """Return the settings of an existing index."""
    encoder = message.encoder
    return IndexSettings(
        message.settings.bits,
        **choices_of(message.settings),
        dim=encoder.dimension or None,
        encoder=encoder.fingerprint or None,
    )


def index_message(name: str, settings: IndexSettings, encoder: Encoder | None, stats: StoreStats) -> index_pb2.Index:
    """Return the message that describes an index."""
    choices = {choice: getattr(settings, choice) for choice in _CHOICES}
    return index_pb2.Index(
        name=name,
        settings=settings_message(settings.bits, settings.keep_vectors, **choices),
        encoder=None if encoder is None else _encoder_message(encoder),
        statistics=index_pb2.IndexStatistics(**vars(stats)),
    )


def broken_index_message(name: str, reason: error_pb2.ErrorReason, message: str) -> index_pb2.Index:
    """Return the message for a broken index."""
    return index_pb2.Index(name=name, problem=index_pb2.IndexProblem(reason=reason, message=message))


def info_of(message: index_pb2.Index) -> IndexInfo:
    """Return the entry of a listing."""
    if message.HasField("problem"):
        return IndexInfo(message.name, error=error_of(message.problem.reason, message.problem.message))
    return IndexInfo(message.name, settings_of(message), stats_of(message.statistics))


def stats_of(message: index_pb2.IndexStatistics) -> StoreStats:
    """Return the statistics of an index."""
    return StoreStats(**{field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields})


def _encoder_message(encoder: Encoder) -> index_pb2.Encoder:
    return index_pb2.Encoder(
        kind=ENCODER_KINDS.number("kind", encoder.kind),
        dimension=encoder.dim,
        centred=encoder.centred,
        samples=encoder.training.samples,
        errors=encoder.training.errors,
        converged=encoder.training.converged,
        fingerprint=encoder.fingerprint,
    )
