"""Data and model of the demo: 12,000 WordNet glosses with binary codes, and an encoder for sentences you type.

A text looks like ``gardener: someone employed to work in a garden``. Its embedding is a vector of 384 numbers from a
sentence transformer (MiniLM). Its code is the sign bits of the embedding, after subtracting the mean. The transformer
itself is not included. Instead, the vector of a sentence is a sum of vectors of word pieces, which ridge regression has
fitted to the transformer's output. With weights ``abs(vector)``, the weighted Hamming distance ranks texts like the
inner product of the vector with the codes' signs::

    glosses, encoder = load(), SentenceEncoder.load()
    index.upsert(glosses.ids, glosses.codes)
    vector = encoder.encode("a person who studies the stars")
    for hit in index.search(np.packbits(vector > 0, bitorder="little"), weights=abs(vector), k=10):
        print(glosses.texts[hit.id])

``tests/demo/make_texts.py`` creates both data files and reports their quality. The glosses come from WordNet; their
licence is in ``LICENSE.wordnet``.
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
"""Components of a sentence's vector, and bits of a text's code."""

CONSTANT = (127, 223, 319)
"""Bits that are 0 in every code, because these components are 0 in every embedding. The other 381 bits vary.

The encoder also returns exactly 0 for these components, so they cost nothing in a search.
"""

START = "^"
"""Marks a piece that is at the start of a word."""

LONGEST_PIECE = 24
"""Maximum length of a piece in characters, including ``START``."""


@dataclass(frozen=True)
class Glosses:
    """The texts, with the id and code of each one."""

    texts: list[str]
    codes: NDArray[np.uint8]
    """``[n, 48]``; bit i is byte ``i >> 3``, mask ``1 << (i & 7)``: ``bit_order="little"``."""
    ids: NDArray[np.uint64]
    """0 to n - 1, so the text of a hit is ``texts[hit.id]``."""


def load() -> Glosses:
    """Read the texts and their codes (20 ms)."""
    arrays = _read("glosses.npz")
    texts = arrays["texts"].tobytes().decode().split("\n")
    return Glosses(texts, arrays["codes"], np.arange(len(texts), dtype=np.uint64))


class SentenceEncoder:
    """Approximates the embedding of a sentence. Immutable and thread-safe."""

    def __init__(
        self,
        pieces: Sequence[str],
        numbers: NDArray[np.int8],
        steps: NDArray[np.floating],
        basis: NDArray[np.floating],
    ) -> None:
        """Take one vector per word piece: ``steps[p] * numbers[p] @ basis`` for piece p.

        ``numbers`` is ``[pieces, d]`` and ``basis`` is ``[d, 384]``.
        """
        self._rows = {piece: row for row, piece in enumerate(pieces)}
        self._numbers = numbers
        self._steps = steps.astype(np.float32)
        self._basis = basis.astype(np.float32)

    @classmethod
    def load(cls) -> SentenceEncoder:
        """Read the encoder (40 ms)."""
        arrays = _read("words.npz")
        basis = arrays["basis"] * arrays["basis_steps"].astype(np.float32)[:, np.newaxis]
        numbers = np.ascontiguousarray(arrays["numbers"].T)  # stored by dimension, which compresses better
        return cls(arrays["pieces"].tobytes().decode().split("\n"), numbers, arrays["steps"], basis)

    def encode(self, sentence: str) -> NDArray[np.float32]:
        """Return the sentence's vector: 384 components, scaled to length 1.

        Case, accents, punctuation, digits and word order do not matter. An unknown word is split into its longest known
        pieces, down to single letters. A sentence without Latin letters gives a vector of zeros. All texts have the
        same distance from it, so a search returns them in the order of their ids.
        """
        counts = Counter(piece for word in words(sentence) for piece in split(word, self._rows))
        rows = [self._rows[piece] for piece in counts]
        weights = np.sqrt(np.array(list(counts.values()), np.float32)) * self._steps[rows]
        vector = weights @ self._numbers[rows].astype(np.float32) @ self._basis
        return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-9), np.float32)


def words(sentence: str) -> list[str]:
    """Return the words of a sentence: runs of Latin letters, in lower case, without accents."""
    parts = unicodedata.normalize("NFKD", sentence.lower())
    return re.findall(r"[a-z]+", "".join(part for part in parts if not unicodedata.combining(part)))


def split(word: str, known: Container[str]) -> Iterator[str]:
    """Split a word greedily: yield the longest known prefix, then the longest known prefix of the rest, and so on."""
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
