"""What the clients of a tortured server write, what the server must then contain, and which hits a search must return.

Several clients share an index. Each has ids of its own, and makes one call at a time. So at any moment, it knows
exactly which of its own items the index contains. Of other clients' items, it only knows that they must be whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.storage.item_checks import BITS, BrokenPromiseError, Ids, Versions, check_whole, codes_of
from whamming.remote.message_size import REQUEST_BYTES

LANES = 6
"""Number of clients."""
UNIVERSE = 240
"""Ids of each client in the shared index."""
DOCS, QUICK = "docs", "quick"
"""The shared indexes: durability fsync, and async."""
QUICK_ITEMS = 20
FIRST_STATIC = 1 << 20
"""The first id of the items that nobody changes."""
LARGE_EVERY = 60
"""Every so many writes have large payloads and take several messages."""
LARGE_ITEMS = 75
_LARGE = 65_536
_NOBODY = -1

Position = tuple[int, int]
"""Where a hit is in an answer: its exact distance and its id."""


def ids_of(lane: int, count: int = UNIVERSE) -> Ids:
    """Return the ids of a client."""
    return np.arange(lane, count * LANES, LANES, dtype=np.uint64)


def lane_of(id_: int) -> int:
    """Return the client that an id belongs to; -1 if nobody changes the item."""
    return _NOBODY if id_ >= FIRST_STATIC else id_ % LANES


def is_large(version: int) -> bool:
    return version % LARGE_EVERY == LARGE_EVERY // 2


def payload_of(version: int) -> bytes:
    """Return the payload of an item: its version, repeated if it is large."""
    return version.to_bytes(8, "little") * (_LARGE // 8 if is_large(version) else 1)


def version_of(payload: bytes) -> int:
    """Return the version in a payload, after checking that the payload is whole."""
    version = int.from_bytes(payload[:8], "little")
    if payload != payload_of(version):
        raise BrokenPromiseError(f"a payload of {len(payload)} bytes that starts with version {version}")
    return version


@dataclass(frozen=True)
class Write:
    """A client's n-th write: an upsert with version n, or a delete."""

    version: int
    ids: Ids
    deletes: bool

    @property
    def codes(self) -> NDArray[np.uint8]:
        return codes_of(self.ids, self.version)

    @property
    def payloads(self) -> list[bytes | None]:
        return [payload_of(self.version)] * len(self.ids)

    def steps(self) -> Iterator[Ids]:
        """Yield the ids of each message. Each message is written completely or not at all."""
        size = 8 + BITS // 8 + 4 + len(payload_of(self.version))
        most = len(self.ids) if self.deletes else REQUEST_BYTES // size
        for first in range(0, len(self.ids), most):
            yield self.ids[first : first + most]


def write_of(seed: int, lane: int, number: int) -> Write:
    """Return the write of a client with a certain number, which starts at 1."""
    rng = np.random.default_rng([seed, lane, number])
    deletes = not is_large(number) and bool(rng.random() < 0.3)
    count = LARGE_ITEMS if is_large(number) else int(rng.integers(1, 40))
    return Write(number, rng.permutation(ids_of(lane))[:count], deletes)


class Model:
    """The versions of one client's items. Version 0: the item does not exist."""

    def __init__(self, lane: int) -> None:
        self.lane = lane
        self.versions: Versions = np.zeros(UNIVERSE, dtype=np.uint64)

    def apply(self, ids: Ids, version: int) -> None:
        self.versions[(ids // LANES).astype(np.int64)] = version

    def apply_write(self, write: Write) -> None:
        self.apply(write.ids, 0 if write.deletes else write.version)

    @property
    def items(self) -> tuple[Ids, Versions]:
        """The ids and versions of the items that exist."""
        there = self.versions > 0
        return ids_of(self.lane)[there], self.versions[there]

    def check(self, found: Versions, when: str) -> None:
        """Check the versions of all ids of the client."""
        wrong = np.flatnonzero(found != self.versions)
        if len(wrong):
            first = wrong[0]
            raise BrokenPromiseError(
                f"client {self.lane}, {when}: {len(wrong)} items are wrong; the first has id "
                f"{ids_of(self.lane)[first]} and version {found[first]}, not {self.versions[first]}"
            )


def match_writes(model: Model, found: Versions, writes: Sequence[Write]) -> int:
    """Find out how many of the last writes are there, which may be unfinished. Updates the model.

    A write of several messages may be there in part, message by message.
    """
    before = model.versions.copy()
    if np.array_equal(found, model.versions):
        return 0
    for number, write in enumerate(writes, 1):
        for step in write.steps():
            model.apply(step, 0 if write.deletes else write.version)
            if np.array_equal(found, model.versions):
                return number
    after, model.versions = model.versions, before
    lost = np.flatnonzero((found != before) & (found != after))
    raise BrokenPromiseError(
        f"client {model.lane}: {len(writes)} unfinished writes do not explain the contents; "
        f"{np.count_nonzero(found != before)} items differ from the acknowledged ones, {len(lost)} also from the "
        f"unfinished ones; versions {found[found != before][:5]}, not {before[found != before][:5]}; "
        f"unfinished are {[(write.version, write.deletes, len(write.ids)) for write in writes]}"
    )


# -- searches ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A query with whole numbers as weights, so that all sums are exact here."""

    code: NDArray[np.uint8]
    high: NDArray[np.int64]
    """Weights above 2^30, as multiples of 2^30. A weight is either high or low."""
    low: NDArray[np.int64]

    @property
    def weights(self) -> NDArray[np.float64]:
        return np.ldexp(self.high.astype(np.float64), 30) + self.low

    @property
    def is_rounded(self) -> bool:
        """Whether distances are too long for a double."""
        return bool(self.high.any())

    def distances(self, ids: Ids, versions: Versions) -> list[int]:
        """Return the exact distances of some items."""
        differing = np.unpackbits(codes_of(ids, versions) ^ self.code, axis=1, bitorder="little").astype(np.int64)
        pairs = zip((differing @ self.high).tolist(), (differing @ self.low).tolist(), strict=True)
        return [(high << 30) + low for high, low in pairs]

    def positions(self, ids: Ids, versions: Versions) -> list[Position]:
        """Return the positions of some items in the answer, in order."""
        return sorted(zip(self.distances(ids, versions), ids.tolist(), strict=True))


def make_question(rng: np.random.Generator, *, exact: bool = False) -> Question:
    """Return a random query: many ties, few ties, or (unless ``exact``) distances that have to be rounded."""
    kind = int(rng.integers(3 if exact else 4))
    low = rng.integers(0, (2, 6, 1 << 30, 1 << 30)[kind], BITS)
    high = np.zeros(BITS, dtype=np.int64)
    if kind == 3:
        high[rng.permutation(BITS)[:20]] = rng.integers(1 << 26, 1 << 30)
        low[high > 0] = 0
        low >>= 20  # many of the sums are closer together than the doubles nearest to them
    return Question(rng.integers(0, 256, BITS // 8, dtype=np.uint8), high, low)


@dataclass
class Hits:
    """What a search has returned so far, and all that its client has written since it began."""

    question: Question
    lane: int
    states: list[Versions]
    """The client's items when the search began, and after each of its writes since then."""
    ids: list[int]
    versions: list[int]
    distances: list[float]

    def check(self, started: Sequence[int], switches: int, *, ended: bool) -> None:
        """Check the hits.

        ``started``: how many writes each client has begun. ``switches``: how many processes were killed: each time,
        the search may have continued with a newer state. ``ended``: whether the search has returned everything.
        """
        ids, versions = np.array(self.ids, dtype=np.uint64), np.array(self.versions, dtype=np.uint64)
        for id_, version in zip(self.ids, self.versions, strict=True):
            lane = lane_of(id_)
            if not 1 <= version <= (1 if lane == _NOBODY else started[lane]):
                raise BrokenPromiseError(f"a hit with id {id_} and version {version}, which nobody has written")
        exact = self.question.distances(ids, versions)
        if [float(distance) for distance in exact] != self.distances:
            raise BrokenPromiseError("a hit's distance is not that of its code")
        path = list(zip(exact, self.ids, strict=True))
        if any(one >= two for one, two in itertools.pairwise(path)):
            raise BrokenPromiseError("hits are not in order of (distance, id)")
        if not switches and len(set(self.ids)) != len(self.ids):
            raise BrokenPromiseError("an id was returned twice")
        self._check_own(path, switches, ended=ended)

    def _check_own(self, path: list[Position], switches: int, *, ended: bool) -> None:
        """Check that the hits of this client are those of its states, in the order of the states."""
        own = ids_of(self.lane)
        answers = [self.question.positions(own[state > 0], state[state > 0]) for state in self.states]
        there = [position[1] % LANES == self.lane and position[1] < FIRST_STATIC for position in path]
        rank = {position: place for place, position in enumerate(sorted({*path, *itertools.chain(*answers)}))}
        ends = np.array([rank[position] for position in path], dtype=np.int64)
        fits = np.array([_fits(ends, there, [rank[position] for position in answer]) for answer in answers])
        if not ended:
            fits = fits[:, :-1]
        changes = np.ones(len(answers))  # the least number of changes of state after which each state is possible
        changes[0] = 0
        for column in np.flatnonzero(~fits.all(axis=0)):
            reached = np.minimum.accumulate(np.concatenate([[np.inf], changes[:-1] + 1]))
            changes = np.where(fits[:, column], np.minimum(changes, reached), np.inf)
            if changes.min() > switches:
                raise BrokenPromiseError(
                    f"client {self.lane}: no {switches} changes between {len(answers)} states explain a search with "
                    f"{len(path)} hits, of which {sum(there)} are its own; hit {column} is not the next one"
                )


def _fits(ends: NDArray[np.int64], there: list[bool], answer: list[int]) -> list[bool]:
    """Return, for each hit, whether one client's hits up to it are right in one state, and whether none is left."""
    counts = np.searchsorted(answer, ends, side="right")
    steps = np.diff(counts, prepend=0)
    places = np.array(answer, dtype=np.int64)
    last = places[np.maximum(counts - 1, 0)] if len(places) else np.full(len(ends), -1)
    right = np.where(there, (steps == 1) & (last == ends), steps == 0)
    return [*right.tolist(), bool(len(places) == (counts[-1] if len(counts) else 0))]


def check_near(model: Model, question: Question, k: int, ids: Ids, distances: NDArray[Any], after: Position) -> None:
    """Check the client's own items in a complete answer with at most k hits that follow a position."""
    hits = list(zip(distances.tolist(), ids.tolist(), strict=True))
    if hits != sorted(hits) or (hits and hits[0] <= after):
        raise BrokenPromiseError("hits are not in order of (distance, id), or not after the position")
    last = hits[-1] if len(hits) == k else (np.inf, 0)
    own = [hit for hit in hits if lane_of(hit[1]) == model.lane]
    expected = [(float(far), id_) for far, id_ in question.positions(*model.items)]
    expected = [hit for hit in expected if after < hit <= last]
    if own != expected:
        raise BrokenPromiseError(f"client {model.lane}: its own hits are {own[:5]}, not {expected[:5]}")


def check_items(ids: Ids, codes: NDArray[np.uint8], payloads: Sequence[bytes]) -> Versions:
    """Check that items are whole. Returns their versions."""
    versions = np.array([version_of(payload) for payload in payloads], dtype=np.uint64)
    check_whole(ids, codes, versions)
    return versions


# -- the board ---------------------------------------------------------------------------------------------------------


class Board:
    """Counters that the clients and the checker share, in a memory-mapped file. Each has one writer."""

    FIELDS = (
        "started",  # writes to DOCS that have begun
        "acknowledged",
        "quick_started",  # writes to QUICK
        "quick_safe",  # the last one that is on disk
        "box_started",  # calls that create, fill and drop an index of one's own, in turn
        "box_done",
        "calls",
        "searches",
        "crossed",  # searches that crossed a kill
        "hits",
        "scans",
        "maintained",
    )

    def __init__(self, path: Path, *, create: bool = False) -> None:
        if create:
            path.write_bytes(bytes(8 * (len(self.FIELDS) * LANES + 2)))
        self._cells = np.memmap(path, dtype=np.int64, mode="r+")

    def row(self, field: str) -> NDArray[np.int64]:
        """Return the counters of all clients."""
        first = self.FIELDS.index(field) * LANES
        return self._cells[first : first + LANES]

    @property
    def kills(self) -> int:
        """Twice the number of processes that were killed and are back. It is odd while processes are dead."""
        return int(self._cells[-1])

    def begin_kill(self, processes: int) -> None:
        """Count a kill. A call may cross it once per process: before a process ends, calls of others may move to it."""
        self._cells[-1] += 2 * processes - 1

    def end_kill(self) -> None:
        self._cells[-1] += 1

    @property
    def stopped(self) -> bool:
        """Whether the clients shall end."""
        return bool(self._cells[-2])

    def stop(self) -> None:
        self._cells[-2] = 1


def box_name(lane: int, done: int) -> str:
    """Return the name of a client's own index."""
    return f"box-{lane}-{done // 3}"
