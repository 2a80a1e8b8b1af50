"""Queries at work without a server: what they hand to a sink, slice by slice."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

import whamming
from tests.native.examples import make_codes
from tests.native.oracle import Floats, Truth, truth
from whamming import InvalidArgumentError, StoredIndex
from whamming.native import Costs
from whamming.server.search.messages import encode_answers
from whamming.server.search.queries import (
    CHUNK_BYTES,
    MOST_TOGETHER,
    PAYLOADS_TOGETHER,
    Answers,
    BatchedQueries,
    Chunk,
    End,
    Held,
    Options,
    Pace,
    Reason,
    StreamedQuery,
    is_quick,
)
from whamming.server.search.scheduler import Job, Outcome
from whamming.v1 import search_pb2
from whamming.wire.values import hits_of

BITS = 24
N = 400
LONG = 3600.0


class Ledger:
    """A sink that keeps everything, and has room or not as it is told."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.room = True
        self.parked: list[Job] = []
        self.idled = 0

    def send(self, chunks: Sequence[Chunk]) -> None:
        self.chunks += chunks

    def send_answers(self, answers: Answers) -> None:
        for chunk in search_pb2.SearchResponse.FromString(encode_answers(answers)).chunks:
            place = answers.query_ids.index(chunk.query_id)
            reason: Reason = "complete" if chunk.end.reason == search_pb2.END_REASON_COMPLETE else "exhausted"
            end = End(reason, chunk.end.exact, answers.stats[place], answers.elapsed)
            self.chunks.append(Chunk(chunk.query_id, *hits_of(chunk), (), chunk.lower_bound, end))

    def has_room(self) -> bool:
        return self.room

    def park(self, job: Job) -> bool:
        if not self.room:
            self.parked.append(job)
        return not self.room

    def unpark(self, job: Job) -> bool:
        kept = job in self.parked
        self.parked = [other for other in self.parked if other is not job]
        return kept

    def idle(self) -> None:
        self.idled += 1

    def hits(self, query_id: int = 1) -> Truth:
        mine = [chunk for chunk in self.chunks if chunk.query_id == query_id]
        ids = [chunk.ids for chunk in mine] or [np.empty(0, dtype=np.uint64)]
        return Truth(np.concatenate(ids), np.concatenate([chunk.distances for chunk in mine] or [np.empty(0)]))

    def end(self, query_id: int = 1) -> End:
        ends = [chunk.end for chunk in self.chunks if chunk.query_id == query_id and chunk.end is not None]
        assert len(ends) == 1
        return ends[0]

    def reason(self, query_id: int = 1) -> str:
        return self.end(query_id).reason


@pytest.fixture
def index() -> Iterator[StoredIndex]:
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), make_codes("clustered", N, BITS, np.random.default_rng(1)))
        yield index


@pytest.fixture
def sink() -> Ledger:
    return Ledger()


def table(seed: int = 0) -> Floats:
    return np.random.default_rng(seed).random((BITS, 2))


def answer(index: StoredIndex, costs: Floats) -> Truth:
    items = index.get(np.arange(N))
    return truth(items.codes, costs, items.ids)


def streamed(
    index: StoredIndex,
    sink: Ledger,
    options: Options,
    *,
    after: tuple[float, int] | None = None,
    seconds: float = LONG,
) -> StreamedQuery:
    held = Held(index.snapshot(), seconds)
    return StreamedQuery(1, options, Costs.table(table()), held, sink, started=time.perf_counter(), after=after)


def batched(
    index: StoredIndex,
    sink: Ledger,
    count: int,
    k: int = 3,
    radius: float | None = None,
    alone: Callable[[], bool] = lambda: False,
) -> BatchedQueries:
    costs = Costs.table(np.stack([table(seed) for seed in range(count)]))
    ids, held = list(range(count)), Held(index.snapshot(), LONG)
    options, started = Options(k, radius), time.perf_counter()
    return BatchedQueries(ids, options, costs, held, sink, started=started, pace=Pace(), alone=alone)


def finish(job: Job, seconds: float = 0.001) -> None:
    """Do what is left of a job that nothing holds up."""
    while (outcome := job.step(seconds)) is Outcome.AGAIN:
        pass
    assert outcome is Outcome.DONE


def test_a_query_is_answered_in_chunks(index: StoredIndex, sink: Ledger) -> None:
    finish(streamed(index, sink, Options(chunk_size=7)))
    assert sink.hits().bytes() == answer(index, table()).bytes()
    assert max(len(chunk.ids) for chunk in sink.chunks) == 7
    assert sink.reason() == "exhausted"
    assert sink.chunks[-1].lower_bound == math.inf
    assert sink.end().stats.candidates > 0


def test_the_first_hit_waits_for_no_other(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(chunk_size=4096, plan="sweep"))
    while not sink.chunks:
        assert query.step(1e-6) is Outcome.AGAIN
    assert len(sink.chunks[0].ids) < N
    finish(query)
    assert sink.hits().bytes() == answer(index, table()).bytes()


@pytest.mark.parametrize("credit", [0, 1, 5])
def test_credit_holds_a_query_up(index: StoredIndex, sink: Ledger, credit: int) -> None:
    query = streamed(index, sink, Options(credit=credit))
    while (outcome := query.step(0.01)) is Outcome.AGAIN:
        pass
    assert outcome is Outcome.PAUSE
    assert len(sink.hits()) == credit
    assert query.pause()
    assert sink.idled == 1
    assert query.waits_for_credit
    assert query.grant(2), "it waited, so whoever grants has to hand it in"
    assert not query.grant(1), "and does so once"
    assert not query.waits_for_credit
    while query.step(0.01) is Outcome.AGAIN:
        pass
    assert sink.hits().bytes() == answer(index, table())[: credit + 3].bytes()


def test_credit_that_comes_before_the_pause_is_not_lost(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(credit=0))
    assert query.step(0.01) is Outcome.PAUSE
    assert not query.grant(1), "it is still at work"
    assert not query.pause(), "it can go on"


def test_a_stop_that_comes_before_the_pause_is_not_lost(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(credit=0))
    assert query.step(0.01) is Outcome.PAUSE
    assert not query.stop("cancelled")
    assert not query.pause()
    assert query.step(0.01) is Outcome.DONE
    assert sink.reason() == "cancelled"


def test_a_query_waits_for_room(index: StoredIndex, sink: Ledger) -> None:
    sink.room = False
    query = streamed(index, sink, Options(k=3))
    assert query.step(0.01) is Outcome.PAUSE
    assert query.pause()
    assert sink.parked == [query]
    sink.room = True
    finish(query)
    assert sink.hits().bytes() == answer(index, table())[:3].bytes()
    assert sink.reason() == "complete"


def test_a_parked_query_that_is_stopped_is_handed_in_by_one_side_only(index: StoredIndex, sink: Ledger) -> None:
    sink.room = False
    query = streamed(index, sink, Options())
    assert query.step(0.01) is Outcome.PAUSE
    assert not query.stop("cancelled")
    assert not query.pause(), "its worker goes on with it ..."
    assert not sink.unpark(query), "... and so whoever stopped it does not"
    assert query.step(0.01) is Outcome.DONE
    assert sink.reason() == "cancelled"


@pytest.mark.parametrize("sent", [0, 5])
def test_a_query_that_is_stopped_says_where_to_go_on(index: StoredIndex, sink: Ledger, sent: int) -> None:
    whole = answer(index, table())
    query = streamed(index, sink, Options(credit=sent))
    while query.step(0.01) is Outcome.AGAIN:
        pass
    assert query.pause()
    assert query.stop("shutdown")
    assert query.step(0.01) is Outcome.DONE
    resume = sink.end().resume
    assert resume == ((float(whole.distances[4]), int(whole.ids[4])) if sent else None)
    assert not sink.end().exact
    rest = Ledger()
    finish(streamed(index, rest, Options(), after=resume))
    assert np.concatenate([sink.hits().ids, rest.hits().ids]).tolist() == whole.ids.tolist()


def test_a_token_outlives_a_query_without_hits(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(), after=(1.5, 7))
    query.stop("snapshot_expired")
    assert query.step(0.01) is Outcome.DONE
    assert sink.end().resume == (1.5, 7)


def test_a_query_that_has_ended_is_not_stopped_again(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(k=1))
    finish(query)
    assert not query.stop("cancelled")
    assert not query.grant(5)
    assert sink.reason() == "complete"


def test_an_old_snapshot_ends_a_query(index: StoredIndex, sink: Ledger) -> None:
    query = streamed(index, sink, Options(credit=3), seconds=-1.0)
    assert query.is_stale
    assert query.step(0.01) is Outcome.DONE
    assert sink.reason() == "snapshot_expired"
    assert not query.is_stale, "it holds no snapshot any more"


@pytest.mark.parametrize("k", [None, 10])
def test_a_budget_of_candidates_ends_a_query(index: StoredIndex, sink: Ledger, k: int | None) -> None:
    finish(streamed(index, sink, Options(k=k, candidates=1, plan="sweep", chunk_size=1)), 10.0)
    end = sink.end()
    assert end.reason == "budget"
    assert not end.exact
    found = sink.hits()
    whole = answer(index, table())
    assert found.bytes() == whole[: len(found)].bytes()
    if k is None:
        assert end.guess is None
    else:
        assert end.guess is not None
        assert len(found) + len(end.guess[0]) <= k
        assert not set(end.guess[0].tolist()) & set(found.ids.tolist())


def test_a_budget_of_seconds_ends_a_query(index: StoredIndex, sink: Ledger) -> None:
    finish(streamed(index, sink, Options(seconds=1e-9, chunk_size=1)), 10.0)
    assert sink.reason() == "budget"


@pytest.mark.parametrize("radius", [None, 1.0])
def test_a_batch_finds_nothing_in_an_empty_index(radius: float | None, sink: Ledger) -> None:
    with whamming.open(":memory:") as database:
        batch = batched(database.create_index("docs", BITS), sink, 3, radius=radius)
        while batch.step(0.01) is Outcome.AGAIN:
            pass
    assert [sink.reason(query_id) for query_id in range(3)] == ["exhausted"] * 3
    assert [chunk.lower_bound for chunk in sink.chunks] == [math.inf] * 3


def test_answers_that_cannot_be_sent_fail(index: StoredIndex) -> None:
    """Rather than that their client would wait for them."""

    class Broken(Ledger):
        def send_answers(self, answers: Answers) -> None:
            if sum(chunk.end is not None for chunk in self.chunks) >= 2:
                raise MemoryError
            super().send_answers(answers)

    sink = Broken()
    batch = batched(index, sink, 40)
    while batch.step(1e-9) is Outcome.AGAIN:
        pass
    reasons = [sink.reason(query_id) for query_id in range(40)]
    found = reasons.index("failed")
    assert 2 <= found < 40
    assert reasons == ["complete"] * found + ["failed"] * (40 - found)


def test_what_fails_is_told(index: StoredIndex, sink: Ledger) -> None:
    held = Held(index.snapshot(), LONG)
    costs = Costs.table(np.ones((BITS + 1, 2)))
    query = StreamedQuery(1, Options(), costs, held, sink, started=time.perf_counter())
    assert query.step(0.01) is Outcome.DONE
    assert isinstance(sink.end().error, InvalidArgumentError)
    batch = BatchedQueries([2], Options(k=1), costs, held, sink, started=time.perf_counter(), pace=Pace())
    assert batch.step(0.01) is Outcome.DONE
    assert isinstance(sink.end(2).error, InvalidArgumentError)


def test_chunks_with_payloads_stay_small(sink: Ledger) -> None:
    """Also where the payloads of near items say nothing of those of far ones."""
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        codes = make_codes("uniform", N, BITS, np.random.default_rng(1))
        index.upsert(range(N), codes)
        whole = answer(index, table())
        payloads = {id_: b"" if place < 200 else bytes([place % 251]) * 65_536 for place, id_ in enumerate(whole.ids)}
        index.upsert(range(N), codes, [payloads[np.uint64(id_)] for id_ in range(N)])
        query = streamed(index, sink, Options(payloads=True))
        bound = -math.inf
        while query.step(0.01) is Outcome.AGAIN:
            chunk = sink.chunks[-1]
            assert bound <= chunk.distances[0]
            bound = chunk.lower_bound
    sizes = [sum(map(len, chunk.payloads)) for chunk in sink.chunks]
    assert max(sizes) <= CHUNK_BYTES + PAYLOADS_TOGETHER * 65_536
    assert sink.hits().bytes() == whole.bytes()
    sent = [payload for chunk in sink.chunks for payload in chunk.payloads]
    assert sent == [payloads[id_] for id_ in whole.ids]
    assert sink.reason() == "exhausted"


def test_a_query_stopped_between_payloads_goes_on_there(sink: Ledger) -> None:
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", BITS)
        index.upsert(range(N), make_codes("uniform", N, BITS, np.random.default_rng(1)), [bytes(60_000)] * N)
        whole = answer(index, table())
        query = streamed(index, sink, Options(payloads=True, k=300))
        while len(sink.hits()) < 20:
            assert query.step(0.01) is Outcome.AGAIN
        sent = len(sink.hits())
        assert sent < 300
        query.stop("shutdown")
        assert query.step(0.01) is Outcome.DONE
        assert sink.end().resume == (float(whole.distances[sent - 1]), int(whole.ids[sent - 1]))
        assert sink.chunks[-1].lower_bound <= whole.distances[sent]


# -- batches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, N, N + 5])
@pytest.mark.parametrize("inside", [None, 0.0, 2.5])
def test_a_batch_is_answered(index: StoredIndex, sink: Ledger, k: int, inside: float | None) -> None:
    finish(batched(index, sink, 40, k, inside))
    for query_id in range(40):
        whole = answer(index, table(query_id))
        wanted = whole.within(inside)[:k]
        assert sink.hits(query_id).bytes() == wanted.bytes()
        assert sink.reason(query_id) == ("complete" if len(wanted) == k else "exhausted")
        assert sink.end(query_id).exact
        (bound,) = [chunk.lower_bound for chunk in sink.chunks if chunk.query_id == query_id]
        if len(wanted) < N:
            assert bound <= whole.distances[len(wanted)]


def test_a_batch_is_done_in_handfuls(index: StoredIndex, sink: Ledger) -> None:
    batch = batched(index, sink, 40)
    assert batch.step(LONG) is Outcome.AGAIN
    assert len(sink.chunks) == 1, "one query tells how long they take"
    finish(batch, LONG)
    assert {chunk.query_id for chunk in sink.chunks} == set(range(40))


def test_a_batch_that_has_a_worker_to_itself_goes_on_until_somebody_comes(index: StoredIndex, sink: Ledger) -> None:
    looks = iter([True, False])
    batch = batched(index, sink, 40, alone=lambda: next(looks))
    assert batch.step(LONG) is Outcome.AGAIN
    assert len(sink.chunks) == 1 + 8, "two handfuls"
    assert batch.step(LONG) is Outcome.DONE
    assert [chunk.query_id for chunk in sink.chunks] == list(range(40))


def test_a_batch_sends_what_it_has_now_and_then(index: StoredIndex, sink: Ledger) -> None:
    batch = batched(index, sink, 40, alone=lambda: True)
    assert batch.step(1e-9) is Outcome.AGAIN
    assert len(sink.chunks) == 1


def test_cancelling_some_of_a_batch_leaves_the_others_alone(index: StoredIndex, sink: Ledger) -> None:
    """Cancels of queries that are answered meanwhile do not count against those that are not."""
    batch = batched(index, sink, 10)
    for query_id in range(6):
        batch.stop(query_id, "cancelled")
    answered = 0
    while answered < 6:
        assert batch.step(1e-9) is Outcome.AGAIN
        answered = len(sink.chunks)
    batch.stop(9, "cancelled")
    finish(batch, 1e-9)
    assert [sink.reason(query_id) for query_id in range(10)] == ["cancelled"] * 6 + ["complete"] * 3 + ["cancelled"]


def test_cancelling_all_that_is_left_of_a_batch_ends_it(index: StoredIndex, sink: Ledger) -> None:
    batch = batched(index, sink, 10)
    batch.step(1e-9)
    for query_id in range(1, 10):
        batch.stop(query_id, "cancelled")
    assert batch.step(1e-9) is Outcome.DONE
    assert [sink.reason(query_id) for query_id in range(10)] == ["complete"] + ["cancelled"] * 9


def test_a_batch_waits_for_room_and_can_be_stopped_there(index: StoredIndex, sink: Ledger) -> None:
    sink.room = False
    batch = batched(index, sink, 4)
    assert batch.step(0.01) is Outcome.PAUSE
    assert batch.pause()
    batch.stop(2, "cancelled")
    batch.stop_all("shutdown")
    assert batch.step(0.01) is Outcome.DONE
    assert [sink.reason(query_id) for query_id in range(4)] == ["shutdown", "shutdown", "cancelled", "shutdown"]


def test_the_pace_grows_step_by_step() -> None:
    pace = Pace()
    assert pace.together(1.0) == 1
    pace.took(1e-6, 1)
    assert pace.together(1.0) == 8
    pace.took(8e-6, 8)
    assert pace.together(1.0) == MOST_TOGETHER
    pace.took(64.0, 64)
    assert pace.together(3.5) == 3
    assert pace.together(0.001) == 1


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        (Options(k=10), True),
        (Options(k=10, radius=1.0, plan="probe"), True),
        (Options(k=10, credit=10), True),
        (Options(), False),
        (Options(radius=1.0), False),
        (Options(k=257), False),
        (Options(k=10, chunk_size=9), False),
        (Options(k=10, credit=9), False),
        (Options(k=10, payloads=True), False),
        (Options(k=10, candidates=5), False),
        (Options(k=10, seconds=5.0), False),
    ],
)
def test_only_queries_that_need_no_cursor_are_batched(options: Options, answer: bool) -> None:
    assert options.batchable is answer


def test_small_indexes_are_quick(index: StoredIndex) -> None:
    assert is_quick(index.snapshot(), 0.001)
    assert not is_quick(index.snapshot(), 1e-9)


def test_grants_and_stops_from_elsewhere_neither_hang_nor_repeat(index: StoredIndex) -> None:
    """A worker and its event loop race 300 times; however they meet, every hit is sent once, and the end."""
    whole = answer(index, table())
    for turn in range(300):
        sink = Ledger()
        query = streamed(index, sink, Options(credit=1))
        ready = threading.Semaphore(1)

        def work(query: StreamedQuery = query, ready: threading.Semaphore = ready) -> None:
            while True:
                assert ready.acquire(timeout=20)
                while (outcome := query.step(0.001)) is Outcome.AGAIN or (
                    outcome is Outcome.PAUSE and not query.pause()
                ):
                    pass
                if outcome is Outcome.DONE:
                    return

        worker = threading.Thread(target=work)
        worker.start()
        for _ in range(turn % 7):
            if query.grant(2):
                ready.release()
        if query.stop("cancelled"):
            ready.release()
        worker.join(20)
        assert not worker.is_alive()
        assert sink.reason() == "cancelled"
        found = sink.hits()
        assert len(found) <= 1 + 2 * (turn % 7)
        assert found.bytes() == whole[: len(found)].bytes()
