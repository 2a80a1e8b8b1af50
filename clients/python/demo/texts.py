"""The demonstration's data: 12,000 glosses of WordNet with binary embeddings, and vectors of sentences that you type.

A text reads ``gardener: someone employed to work in a garden``. Its code is the sign bits, around their mean, of the
384 numbers that a sentence transformer (MiniLM) gave it. That transformer is not here: a sentence that you type gets
its 384 numbers as a sum of vectors of pieces of words, fitted by ridge regression to what the transformer says.
Against such codes the weighted Hamming distance with weights ``abs(vector)`` ranks like the inner product with the
codes' signs::

    glosses, encoder = load(), SentenceEncoder.load()
    index.upsert(glosses.ids, glosses.codes)
    vector = encoder.encode("a person who studies the stars")
    for hit in index.search(np.packbits(vector > 0, bitorder="little"), weights=abs(vector), k=10):
        print(glosses.texts[hit.id])

Both files are made by ``tests/demo/make_texts.py``, which also says how good they are. The glosses are WordNet's, under
the licence in ``LICENSE.wordnet``.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 384
"""Numbers of a sentence's vector, and bits of a text's code."""

CONSTANT = (127, 223, 319)
"""Bits that are 0 in every code, as those numbers are 0 in every embedding the codes were made from: 381 bits tell.

The encoder gives exactly 0 there too, so they cost nothing in a search.
"""

START = "^"
"""Begins a piece that stands at the start of a word."""

LONGEST_PIECE = 24
"""Characters of a piece, at most."""


@dataclass(frozen=True)
class Glosses:
    """Texts, and row by row what an index holds of them."""

    texts: list[str]
    codes: NDArray[np.uint8]
    """``[n, 48]``; bit i is byte ``i >> 3``, mask ``1 << (i & 7)``: ``bit_order="little"``."""
    ids: NDArray[np.uint64]
    """0 to n - 1: the text of a hit is ``texts[hit.id]``."""


def load() -> Glosses:
    """Read the texts and their codes (20 ms)."""
    arrays = _read("glosses.npz")
    texts = arrays["texts"].tobytes().decode().split("\n")
    return Glosses(texts, arrays["codes"], np.arange(len(texts), dtype=np.uint64))


class SentenceEncoder:
    """Turns a sentence into the vector that the texts' embedding would be likely to give it.

    Immutable: many threads may share one.
    """

    def __init__(
        self,
        pieces: Sequence[str],
        numbers: NDArray[np.int8],
        steps: NDArray[np.floating],
        basis: NDArray[np.floating],
    ) -> None:
        """Make an encoder of one vector per piece of a word.

        That of piece p is ``steps[p] * numbers[p] @ basis``: ``numbers`` is ``[pieces, d]``, ``basis`` ``[d, 384]``.
        """
        self._rows = {piece: row for row, piece in enumerate(pieces)}
        self._numbers = numbers
        self._steps = steps.astype(np.float32)
        self._basis = basis.astype(np.float32)

    @classmethod
    def load(cls) -> SentenceEncoder:
        """Read the encoder that comes with the texts (40 ms)."""
        arrays = _read("words.npz")
        basis = arrays["basis"] * arrays["basis_steps"].astype(np.float32)[:, np.newaxis]
        numbers = np.ascontiguousarray(arrays["numbers"].T)  # in the file by dimension: alike in size, so they compress
        return cls(arrays["pieces"].tobytes().decode().split("\n"), numbers, arrays["steps"], basis)

    def encode(self, sentence: str) -> NDArray[np.float32]:
        """Return the sentence's 384 numbers, as a vector of length 1.

        Case, accents, punctuation and the order of words do not matter, and numbers are ignored. A word that is not
        known is read as the longest pieces of it that are, down to single letters. A sentence without any Latin letter
        gives zeros, to which all texts are equally near: a search then yields them in the order of their ids.
        """
        counts = Counter(piece for word in words(sentence) for piece in split(word, self._rows))
        rows = [self._rows[piece] for piece in counts]
        weights = np.sqrt(np.array(list(counts.values()), np.float32)) * self._steps[rows]
        vector = weights @ self._numbers[rows].astype(np.float32) @ self._basis
        return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-9), np.float32)


def words(sentence: str) -> list[str]:
    """Return a sentence's words: runs of Latin letters, in lower case, without accents."""
    parts = unicodedata.normalize("NFKD", sentence.lower())
    return re.findall(r"[a-z]+", "".join(part for part in parts if not unicodedata.combining(part)))


def split(word: str, known: Container[str]) -> Iterator[str]:
    """Yield the longest known piece at the word's start, then the longest at the start of what is left, and so on."""
    marked, start = START + word, 0
    while start < len(marked):
        longest = min(len(marked), start + LONGEST_PIECE)
        end = next((end for end in range(longest, start, -1) if marked[start:end] in known), start)
        if end > start:
            yield marked[start:end]
        start = max(end, start + 1)


def _read(name: str) -> dict[str, NDArray[Any]]:
    with files(__package__).joinpath(name).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)
