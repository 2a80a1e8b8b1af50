"""Tests of the demo's texts and sentence encoder: they load, are small, and sentences find what they describe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files

import numpy as np
import pytest

import whamming
from whamming.demo.texts import BITS, CONSTANT, Glosses, SentenceEncoder, load, split, words

Find = Callable[[str], list[str]]


@pytest.fixture(scope="module")
def glosses() -> Glosses:
    return load()


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    return SentenceEncoder.load()


@pytest.fixture(scope="module")
def find(glosses: Glosses, encoder: SentenceEncoder) -> Iterator[Find]:
    """A function that returns the ten texts nearest to a sentence."""
    with whamming.open(":memory:") as db:
        index = db.create_index("glosses", bits=BITS)
        index.upsert(glosses.ids, glosses.codes)

        def nearest(sentence: str) -> list[str]:
            vector = encoder.encode(sentence)
            code = np.packbits(vector > 0, bitorder="little")
            return [glosses.texts[hit.id] for hit in index.search(code, weights=np.abs(vector), k=10)]

        yield nearest


def test_the_files_are_small_and_have_a_licence() -> None:
    folder = files("whamming.demo")
    sizes = [len(folder.joinpath(name).read_bytes()) for name in ("glosses.npz", "words.npz")]
    assert max(sizes) < 2 << 20
    assert sum(sizes) < 2_000_000
    assert "WordNet 3.0 Copyright 2006 by Princeton University." in folder.joinpath("LICENSE.wordnet").read_text()


def test_every_text_has_a_code_and_an_id(glosses: Glosses) -> None:
    count = len(glosses.texts)
    assert 10_000 <= count <= 12_000
    assert (glosses.codes.shape, str(glosses.codes.dtype)) == ((count, BITS // 8), "uint8")
    assert (glosses.ids.tolist(), str(glosses.ids.dtype)) == (list(range(count)), "uint64")


def test_texts_are_a_name_and_an_explanation_that_fit_a_terminal(glosses: Glosses) -> None:
    assert all(": " in text and len(text) <= 125 and text.isprintable() and text.isascii() for text in glosses.texts)
    assert len(set(glosses.texts)) == len(glosses.texts)


def test_codes_are_balanced_and_distinct(glosses: Glosses) -> None:
    ones = np.unpackbits(glosses.codes, axis=1, bitorder="little").mean(axis=0)
    varying = np.delete(ones, CONSTANT)
    assert varying.min() > 0.4
    assert varying.max() < 0.6
    assert len(np.unique(glosses.codes, axis=0)) == len(glosses.codes)


def test_constant_bits_cost_nothing(glosses: Glosses, encoder: SentenceEncoder) -> None:
    ones = np.unpackbits(glosses.codes, axis=1, bitorder="little").mean(axis=0)
    assert np.flatnonzero(ones == 0).tolist() == list(CONSTANT)
    largest = np.max([np.abs(encoder.encode(text)) for text in glosses.texts[::100]], axis=0)
    assert np.flatnonzero(largest == 0).tolist() == list(CONSTANT)


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("a person who studies the stars", "astronomer"),
        ("a feeling of great happiness", "joy"),
        ("where airplanes land", "airfield"),
        ("a musician who plays the piano", "keyboardist"),
        ("a short sleep in the afternoon", "snooze"),
        ("a venomous snake", "copperhead"),
    ],
)
def test_a_sentence_finds_what_it_describes(find: Find, sentence: str, found: str) -> None:
    assert any(found in words(text) for text in find(sentence)), find(sentence)


def test_most_texts_are_found_by_their_explanation(find: Find, glosses: Glosses) -> None:
    some = glosses.texts[::100]
    assert sum(text in find(text.split(": ", 1)[1]) for text in some) >= 0.95 * len(some)


def test_a_vector_has_length_one_and_is_reproducible(encoder: SentenceEncoder) -> None:
    vector = encoder.encode("a bird that cannot fly")
    assert (vector.shape, str(vector.dtype)) == ((BITS,), "float32")
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert np.array_equal(vector, SentenceEncoder.load().encode("a bird that cannot fly"))


def test_case_accents_punctuation_and_order_do_not_matter(encoder: SentenceEncoder) -> None:
    plain = encoder.encode("a cafe by the sea")
    assert np.allclose(encoder.encode("By the SEA: a Café!"), plain, atol=1e-6)
    assert not np.allclose(encoder.encode("a cafe by the river"), plain, atol=0.1)


def test_unknown_words_are_split_into_pieces(encoder: SentenceEncoder) -> None:
    for word in ("qzxqzxqzx", "photomegaastronomical", "x" * 10_000):
        assert np.linalg.norm(encoder.encode(word)) == pytest.approx(1, abs=1e-5)
    made_up = encoder.encode("astronomerology")
    assert made_up @ encoder.encode("astronomer") > made_up @ encoder.encode("butter")


def test_a_word_is_split_into_its_longest_known_pieces() -> None:
    known = {"^a", "^sun", "^sunfl", "flow", "flower", "s", "e", "r"}
    assert list(split("sunflowers", known - {"^sunfl"})) == ["^sun", "flower", "s"]
    assert list(split("sunflowers", known)) == ["^sunfl", "e", "r", "s"]
    assert list(split("bees", known)) == ["e", "e", "s"]
    assert list(split("", known)) == []


@pytest.mark.parametrize("sentence", ["", "  \n", "?!", "1984", "星を研究する人", "\0"])
def test_a_sentence_without_words_is_zeros_and_finds_the_first_ids(
    find: Find, glosses: Glosses, encoder: SentenceEncoder, sentence: str
) -> None:
    assert not encoder.encode(sentence).any()
    assert find(sentence) == glosses.texts[:10]
