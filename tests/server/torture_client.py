"""A process with clients of a server that is being killed. They write, read and search, and check every answer.

    python -m tests.server.torture_client KIND ADDRESS BOARD SEED LANE...

KIND is ``blocking`` or ``asyncio``. Before a call that changes something, a client counts it on the board as begun, and
afterwards as acknowledged; what the n-th call writes follows from the seed. The process prints nothing and ends with
exit code 0 if all answers were right.
"""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import whamming
from tests.clients.shared import asyncio_database
from tests.server.torture_model import (
    DOCS,
    LANES,
    QUICK,
    QUICK_ITEMS,
    Board,
    Hits,
    Model,
    box_name,
    check_items,
    check_near,
    ids_of,
    make_question,
    payload_of,
    version_of,
    write_of,
)
from tests.storage.item_checks import BITS, BrokenPromiseError, Versions, codes_of
from whamming import Hit
from whamming.remote import channel
from whamming.storage import NotFoundError
from whamming.wire.service_errors import OverloadedError, UnavailableError

RETRY_SECONDS = 300.0
"""A server is away for a shorter time than this."""
RECONNECT_MS = 150
"""So that little time of a server's short life passes without clients."""


class Client:
    """One client: it makes random calls one after the other, and knows what they should return."""

    def __init__(self, database: Any, board: Board, seed: int, lane: int) -> None:
        self._database = database
        self._board = board
        self._seed = seed
        self._lane = lane
        self._own = ids_of(lane)
        self._rng = np.random.default_rng([seed, lane, os.getpid()])
        self._docs = database.index(DOCS)
        self._quick = database.index(QUICK)
        self._model = Model(lane)
        self._search: Any = None
        self._hits: Hits
        self._kills_before = 0
        self._quick_kills = -1
        """The number of kills before the last write to QUICK; -1 if there was none."""

    def run(self) -> None:
        """Make calls until the board says stop."""
        calls: list[tuple[Callable[[], None], float]] = [
            (self._write, 0.34),
            (self._read_on, 0.22),
            (self._get, 0.10),
            (self._search_batch, 0.08),
            (self._write_quickly, 0.10),
            (self._search_after, 0.04),
            (self._scan, 0.04),
            (self._change_box, 0.04),
            (self._maintain, 0.02),
            (self._count, 0.02),
        ]
        odds = np.array([odds for _, odds in calls])
        while not self._board.stopped:
            calls[int(self._rng.choice(len(calls), p=odds))][0]()
            self._tick("calls")

    def _tick(self, field: str, by: int = 1) -> None:
        self._board.row(field)[self._lane] += by

    def _switches(self, since: int) -> int:
        """Return how many ends of processes a call may have crossed that began when the board said ``since``."""
        now = self._board.kills
        return (now + 1) // 2 - since // 2

    # -- writing -------------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        started = self._board.row("started")
        number = int(started[self._lane]) + 1
        write, kills = write_of(self._seed, self._lane, number), self._board.kills
        started[self._lane] = number
        if write.deletes:
            count = self._docs.delete(write.ids)
            there = np.count_nonzero(np.isin(write.ids, self._model.items[0]))
            if count != there and (self._switches(kills) == 0 or count > there):
                raise BrokenPromiseError(f"client {self._lane} deleted {count} items, not {there}")
        else:
            self._docs.upsert(write.ids, write.codes, write.payloads)
        self._board.row("acknowledged")[self._lane] = number
        self._model.apply_write(write)
        if self._search is not None:
            self._hits.states.append(self._model.versions.copy())

    def _write_quickly(self) -> None:
        """Write to the index with durability async, or check what is there."""
        rng, lane = self._rng, self._lane
        started, safe = self._board.row("quick_started"), self._board.row("quick_safe")
        ids, last = ids_of(lane, QUICK_ITEMS), int(started[lane])
        if rng.random() < 0.5:
            self._quick_kills = self._board.kills
            started[lane] = last + 1
            self._quick.upsert(ids, codes_of(ids, last + 1), [payload_of(last + 1)] * len(ids))
        elif rng.random() < 0.5:
            self._quick.flush()
            if self._switches(self._quick_kills) == 0:
                safe[lane] = last
        else:
            items = self._quick.get(ids)
            versions = set(self._versions(items).tolist())
            least = last if self._switches(self._quick_kills) == 0 else safe[lane]
            if len(versions) != 1 or not least <= min(versions) <= last:
                raise BrokenPromiseError(
                    f"client {lane}: versions {versions} in {QUICK!r}, not one of {least} to {last}"
                )

    def _change_box(self) -> None:
        """Create an index of one's own, fill it, or drop it."""
        lane, done = self._lane, int(self._board.row("box_done")[self._lane])
        name = box_name(lane, done)
        self._board.row("box_started")[lane] = done + 1
        if done % 3 == 0:
            self._insist(lambda again: self._database.create_index(name, BITS, exist_ok=again))
        elif done % 3 == 1:
            ids = ids_of(lane, QUICK_ITEMS)
            self._database.index(name).upsert(ids, codes_of(ids, 1), [payload_of(1)] * len(ids))
        else:
            if len(self._database.index(name)) != QUICK_ITEMS:
                raise BrokenPromiseError(f"index {name!r} has {len(self._database.index(name))} items")
            self._insist(lambda again: self._drop(name, again=again))
        self._board.row("box_done")[lane] = done + 1
        listed = self._database.list_indexes()
        if (name in listed) != (done % 3 < 2) or DOCS not in listed:
            raise BrokenPromiseError(f"index {name!r} is listed wrongly after {done + 1} calls: {listed}")

    def _drop(self, name: str, *, again: bool) -> None:
        try:
            self._database.drop_index(name)
        except NotFoundError:
            if not again:
                raise

    def _maintain(self) -> None:
        """Seal or compact. On a busy machine, servers may live too briefly for that."""
        with contextlib.suppress(UnavailableError, OverloadedError):
            if self._rng.random() < 0.7:
                self._docs.seal()
            else:
                self._docs.compact()
            self._tick("maintained")

    def _insist(self, call: Callable[[bool], None]) -> None:
        """Repeat a call that the client does not repeat by itself. Passes True from the second time on."""
        end = time.monotonic() + RETRY_SECONDS
        again = False
        while True:
            try:
                call(again)
            except (UnavailableError, OverloadedError):
                if time.monotonic() > end:
                    raise
                again = True
                time.sleep(0.1)
            else:
                return

    # -- reading -------------------------------------------------------------------------------------------------------

    def _versions(self, items: Any) -> Versions:
        """Check that items are whole, and return the version of each; 0 if it does not exist."""
        found = np.flatnonzero(items.found)
        versions = np.zeros(len(items.ids), dtype=np.uint64)
        versions[found] = check_items(items.ids[found], items.codes[found], [items.payloads[i] for i in found])
        return versions

    def _get(self) -> None:
        self._model.check(self._versions(self._docs.get(self._own)), "by get")

    def _count(self) -> None:
        if self._docs.count() < len(self._model.items[0]):
            raise BrokenPromiseError(f"client {self._lane}: the index counts fewer items than this client has")

    def _scan(self) -> None:
        found, kills = np.zeros_like(self._model.versions), self._board.kills
        last, crossed = -1, 0
        for rows in self._docs.scan(500):
            assert rows.payloads is not None
            versions = check_items(rows.ids, rows.codes, [rows.payloads[row] for row in range(len(rows))])
            if int(rows.ids[0]) <= last or (np.diff(rows.ids.astype(np.int64)) <= 0).any():
                raise BrokenPromiseError("a scan is not in order of id")
            last = int(rows.ids[-1])
            own = np.isin(rows.ids, self._own)
            found[(rows.ids[own] // LANES).astype(np.int64)] = versions[own]
            crossed = self._switches(kills)
        self._model.check(found, f"by a scan that crossed {crossed} kills")
        self._tick("scans")

    def _search_batch(self) -> None:
        questions = [make_question(self._rng, exact=True) for _ in range(int(self._rng.integers(1, 6)))]
        codes = np.stack([question.code for question in questions])
        answer = self._docs.search_batch(codes, np.stack([question.weights for question in questions]), k=40)
        if not answer.exact.all():
            raise BrokenPromiseError("a batch without a budget is not exact")
        for question, ids, distances in zip(questions, answer.ids, answer.distances, strict=True):
            check_near(self._model, question, 40, ids, distances, (-1, 0))
        self._tick("searches", len(questions))

    def _search_after(self) -> None:
        question = make_question(self._rng, exact=True)
        spread = int(question.weights.sum())
        after = int(self._rng.integers(spread // 4, spread // 2 + 1)), int(self._rng.integers(1 << 20))
        search = self._docs.search(question.code, weights=question.weights, k=60, after=(float(after[0]), after[1]))
        ids, distances = search.all()
        check_near(self._model, question, 60, ids, distances, after)
        self._tick("searches")

    def _read_on(self) -> None:
        """Read some more hits of a search that stays open while this client makes other calls."""
        rng = self._rng
        if self._search is None:
            question = make_question(rng)
            self._kills_before = self._board.kills
            self._search = self._docs.search(question.code, weights=question.weights, payloads=True)
            self._hits = Hits(question, self._lane, [self._model.versions.copy()], [], [], [])
        wanted = int(rng.integers(1, 1200))
        hits = take(self._search, wanted)
        if hits and self._search.lower_bound < hits[-1].distance:
            raise BrokenPromiseError("the lower bound is below the last hit")
        self._hits.ids += [hit.id for hit in hits]
        self._hits.versions += [version_of(hit.payload) for hit in hits]
        self._hits.distances += [hit.distance for hit in hits]
        ended = len(hits) < wanted
        if ended or rng.random() < 0.1:
            switches = self._switches(self._kills_before)
            self._hits.check(self._board.row("started").tolist(), switches, ended=ended)
            self._search.close()
            self._search = None
            self._tick("searches")
            self._tick("crossed", switches > 0)
            self._tick("hits", len(self._hits.ids))


def take(search: Any, count: int) -> list[Hit]:
    """Return the next hits of a search of either client."""
    if not isinstance(search, asyncio_database.Awaited):
        return list(itertools.islice(search, count))

    async def read() -> list[Hit]:
        hits: list[Hit] = []
        async for hit in search.target:
            hits.append(hit)
            if len(hits) == count:
                break
        return hits

    read_hits: list[Hit] = asyncio_database._run(read())
    return read_hits


def main(kind: str, address: str, board_path: str, seed: str, *lanes: str) -> int:
    """Run some clients in threads. Returns 1 as soon as one of them fails."""
    faulthandler.enable()
    options = dict(channel.OPTIONS)
    options["grpc.max_reconnect_backoff_ms"] = RECONNECT_MS
    channel.OPTIONS[:] = list(options.items())
    board = Board(Path(board_path))
    connect = whamming.connect if kind == "blocking" else asyncio_database.connect

    def run(lane: int) -> None:
        try:
            with connect(address, retry_seconds=RETRY_SECONDS) as database:
                Client(database, board, int(seed), lane).run()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    threads = [threading.Thread(target=run, args=(int(lane),)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
