"""Settings, encoders and statistics survive a round trip through messages."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import whamming
from tests.native.examples import generated
from whamming import InvalidArgumentError
from whamming.native import Buckets, Tables
from whamming.storage import BitOrder, Durability, IndexSettings, Metric, StoreStats
from whamming.v1.index_pb2 import Index, IndexStatistics
from whamming.v1.index_pb2 import IndexSettings as Message
from whamming.wire.descriptions import choices_of, index_message, settings_message, settings_of, stats_of
from whamming.wire.fields import FieldError

NO_STATS = StoreStats(**dict.fromkeys([field.name for field in fields(StoreStats)], 0))


@given(
    st.integers(1, 4096),
    st.sampled_from(get_args(BitOrder)),
    st.sampled_from(get_args(Tables)),
    st.sampled_from(get_args(Buckets)),
    st.sampled_from(get_args(Durability)),
)
@generated(60)
def test_settings(bits: int, bit_order: Any, tables: Any, buckets: Any, durability: Any) -> None:
    settings = IndexSettings(bits, bit_order, tables, buckets, durability)
    message = Index.FromString(index_message("docs", settings, None, NO_STATS).SerializeToString())
    assert message.name == "docs"
    assert not message.HasField("encoder")
    assert settings_of(message) == settings


@pytest.mark.parametrize("kind", ["sign", "lsh", "itq"])
@pytest.mark.parametrize("metric", get_args(Metric))
@pytest.mark.parametrize("kept", ["float16", "int8"])
def test_indexes_with_encoders(kind: Any, metric: Any, kept: Any) -> None:
    sample = np.random.default_rng(0).standard_normal((200, 8)).astype(np.float32)
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", 8, encoder=kind, train=sample, keep_vectors=kept, metric=metric)
        message = index_message("docs", index.settings, index.encoder, index.stats())
        assert settings_of(message) == index.settings
        encoder = index.encoder
        assert encoder is not None
        assert (message.encoder.dimension, message.encoder.centred) == (8, encoder.centred)
        assert message.encoder.fingerprint == encoder.fingerprint
        assert message.encoder.samples == encoder.training.samples == 200
        assert list(message.encoder.errors) == list(encoder.training.errors)
        assert message.encoder.converged == encoder.training.converged


def test_statistics() -> None:
    names = [field.name for field in fields(StoreStats)]
    stats = StoreStats(**{name: place + 1 for place, name in enumerate(names)})
    message = index_message("docs", IndexSettings(8), None, stats).statistics
    assert {field.name for field in IndexStatistics.DESCRIPTOR.fields} == set(names)
    assert stats_of(message) == stats


def test_unset_choices_are_omitted() -> None:
    assert choices_of(Message(bits=8)) == {}
    message = settings_message(None, None, tables="none")
    assert message.bits == 0
    assert choices_of(message) == {"tables": "none"}


@pytest.mark.parametrize("field", ["bit_order", "tables", "buckets", "durability", "metric", "kept_vectors"])
def test_unknown_choices_name_their_field(field: str) -> None:
    message = Message(bits=8)
    setattr(message, field, 99)
    with pytest.raises(FieldError) as caught:
        choices_of(message)
    assert caught.value.field == f"settings.{field}"
    assert "= 99" in str(caught.value)


@pytest.mark.parametrize("bits", [0, -1, 4097, 1.5])
def test_invalid_code_lengths(bits: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=str(bits)):
        settings_message(bits, None)


def test_invalid_words_name_their_argument() -> None:
    with pytest.raises(InvalidArgumentError, match="tables = 'many'"):
        settings_message(8, None, tables="many")
    with pytest.raises(InvalidArgumentError, match="keep_vectors = 'float64'"):
        settings_message(8, "float64")  # type: ignore[arg-type]
