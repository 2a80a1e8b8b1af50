"""What the peers are asked: the codes and queries, the true answer, and the ways in which a system can be asked."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

import datasets

LOAD_BATCH = 20_000
"""Codes per request while loading: 5 MB as floats, which every peer's default limits allow."""

Ids = NDArray[np.int64]
Bytes = datasets.Bytes
Floats = datasets.Floats


@dataclass(frozen=True)
class Way:
    """How a system is asked: what the rows of the report say of it."""

    name: str
    notes: tuple[str, ...]
    knob: str = ""
    settings: tuple[int, ...] = (0,)


class Peer(Protocol):
    """One system, asked in one way, behind a server.

    ``start``, ``load``, any number of searches, ``stop``; ``stop`` is safe at any time.
    """

    way: Way
    requires: tuple[str, ...]
    """Distributions that have to be installed."""

    @property
    def server(self) -> subprocess.Popen[bytes] | None:
        """The server's process; None if we did not start it. Peers may share it."""

    def version(self) -> str:
        """Name the versions at work; valid once started."""

    def start(self, directory: Path) -> None:
        """Start the server, with its data below an empty directory, and connect."""

    def load(self, codes: Bytes, bits: int) -> None:
        """Store the codes, with their row numbers as ids, and return when they are indexed and served."""

    def search_one(self, code: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        """Return the ids of the k nearest of one query, nearest first."""

    def search_batch(self, codes: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        """Return the ids ``[q, k]`` of several queries, by the peer's best way to ask many at once."""

    def stop(self) -> None:
        """Disconnect and end the server."""


@dataclass(frozen=True)
class Job:
    """Codes, queries as codes and weights, and the exact answers."""

    data: datasets.Dataset
    k: int
    codes: Bytes
    weights: Floats
    truth: Ids
    """The right ids, ``[q, k]``, ordered by (distance, id)."""
    tables: NDArray[np.int64]
    """The integer costs of every value of every byte, ``[q, bytes, 256]``."""
    columns: Bytes
    """The data's codes, byte by byte: ``[bytes, n]``."""

    @classmethod
    def make(cls, data: datasets.Dataset, queries: int, k: int) -> Job:
        """Turn cost tables into codes and weights (which differ from the costs by a constant per query) and solve."""
        delta = data.costs[:queries, :, 1] - data.costs[:queries, :, 0]
        codes, weights = datasets.pack(delta < 0), np.abs(delta)
        scale = 2.0 ** np.floor(61 - np.log2(weights.sum(axis=1)))  # sums stay below 2^62
        costs = np.rint(weights * scale[:, None]).astype(np.int64)
        width = codes.shape[1]
        costs = np.pad(costs, ((0, 0), (0, width * 8 - data.bits))).reshape(queries, width, 8)
        values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        differ = values[None, None] ^ datasets.unpack(codes, width * 8).reshape(queries, width, 1, 8)
        tables = np.einsum("qbvi,qbi->qbv", differ.astype(np.int64), costs)
        truth, columns = np.zeros((queries, k), np.int64), np.ascontiguousarray(data.codes.T)
        job = cls(data, k, codes, weights, truth, tables, columns)
        for query in range(queries):
            distances = job.distances(query, slice(None))
            near = np.flatnonzero(distances <= np.partition(distances, k - 1)[k - 1])
            job.truth[query] = near[np.lexsort((near, distances[near]))][:k]
        return job

    def distances(self, query: int, rows: Ids | slice) -> NDArray[np.int64]:
        """Return the exact distances of some rows, in the query's integer unit."""
        columns = self.columns[:, rows]
        total = np.zeros(columns.shape[1], np.int64)
        for table, column in zip(self.tables[query], columns, strict=True):
            total += np.take(table, column)
        return total

    def score(self, answers: list[tuple[int, Ids]]) -> Recall:
        """Compare answers, each after its query's number, with the truth."""
        by_id, by_distance, whole = [], [], []
        for query, ids in answers:
            truth = self.truth[query]
            found = np.unique(ids[ids >= 0])
            by_id.append(len(np.intersect1d(found, truth)) / self.k)
            last = self.distances(query, truth[-1:])[0]
            by_distance.append(np.count_nonzero(self.distances(query, found) <= last) / self.k)
            whole.append(np.array_equal(ids, truth))
        return Recall(float(np.mean(by_id)), float(np.mean(by_distance)), float(np.mean(whole)))


@dataclass(frozen=True)
class Recall:
    """What share of the hits, and of the whole answers, was right."""

    by_id: float
    by_distance: float
    whole: float
    """Answers with the right ids in the right order."""


def as_floats(codes: Bytes, bits: int) -> NDArray[np.float32]:
    """Turn bits into -1 and +1."""
    return datasets.unpack(codes, bits).astype(np.float32) * 2 - 1


def as_float_queries(codes: Bytes, weights: Floats) -> NDArray[np.float32]:
    """Turn weighted queries into vectors whose inner product with ``as_floats`` falls as the distance grows."""
    return as_floats(codes, weights.shape[1]) * weights.astype(np.float32)


def padded(answers: list[list[int]], k: int) -> Ids:
    """Put answers into one array; -1 stands for hits that are missing."""
    out = np.full((len(answers), k), -1, np.int64)
    for row, ids in zip(out, answers, strict=True):
        row[: len(ids)] = ids
    return out


def rescore(codes: Bytes, weights: Floats, code: Bytes, ids: Ids, k: int) -> Ids:
    """Sort fetched candidates by (weighted distance, id) and keep k."""
    bits = len(weights)
    distances = (datasets.unpack(codes, bits) ^ datasets.unpack(code[None], bits)) @ weights
    return ids[np.lexsort((ids, distances))][:k]
