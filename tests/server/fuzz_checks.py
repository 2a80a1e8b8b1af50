"""What must hold of every answer, whatever was asked."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from tests.native.oracle import Codes, Floats, Ids, Truth, truth
from tests.server.fuzz_cases import FOREIGN, MAX_BATCH, MAX_MESSAGE, METHODS, UNKNOWN, Case
from whamming.storage import IndexSettings
from whamming.v1 import search_pb2

Code = grpc.StatusCode

MAX_K: Final = 2**31 - 1
MOST_RESPONSES: Final = 500
"""A client that has had so many has had enough, and cancels: there are indexes of 100,000 items, scanned one by one."""
CERTAIN: Final = 1e290
"""Up to this size of costs no distance can overflow."""
_ANY: Final = (Code.OK, Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)
_ONE_INDEX: Final = (*_ANY, Code.NOT_FOUND, Code.ABORTED)  # ABORTED: it was dropped meanwhile
STATUSES: Final[dict[str, tuple[Any, ...]]] = {
    "CreateIndex": (*_ANY, Code.ALREADY_EXISTS, Code.ABORTED),
    "ListIndexes": _ANY,
    "DeleteIndex": (*_ANY, Code.NOT_FOUND),
    "GetEncoder": (*_ONE_INDEX, Code.FAILED_PRECONDITION),
    "Upsert": (*_ONE_INDEX, Code.FAILED_PRECONDITION),
    "SearchOnce": (*_ONE_INDEX, Code.FAILED_PRECONDITION),
    "Search": _ANY,
}
"""What calls may end with beside what their clients cause; where nothing is said: ``_ONE_INDEX``."""


@dataclass
class Answer:
    """What came of a case."""

    code: Any
    details: str = ""
    trailing: Sequence[tuple[str, Any]] = ()
    responses: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class Control:
    """An index that nobody writes to, and all that is in it."""

    settings: IndexSettings
    ids: Ids
    codes: Codes
    """In the index's bit order."""
    payloads: Sequence[bytes]

    @classmethod
    def make(cls, settings: IndexSettings, count: int) -> Control:
        """Make up items: few codes, so that there are ties; the least and the greatest id."""
        rng = np.random.default_rng(settings.bits)
        ids = np.array([0, 2**64 - 1, *rng.choice(3 * count, count - 2, replace=False) + 1], dtype=np.uint64)
        codes = rng.integers(0, 256, (count, settings.code_bytes), dtype=np.uint8)
        codes[: count // 2] = codes[0]
        codes[: count // 2, 0] = rng.integers(0, 256, count // 2)
        return cls(settings, ids, codes, [b"payload of %d" % i for i in ids])

    def truth(self, query: search_pb2.Query, options: search_pb2.QueryOptions) -> Truth | None:
        """Return the whole answer; None: the query makes no sense."""
        table = self._table(query)
        if table is None or not _make_sense(options, query):
            return None
        if options.plan == search_pb2.PLAN_PROBE and self.settings.tables == "none":
            return None
        found = truth(self.settings.to_engine(self.codes), table, self.ids)
        if query.HasField("after"):
            found = found.after(query.after.distance, query.after.id)
        if options.HasField("radius"):
            found = found.within(options.radius)
        return found[: options.k] if options.HasField("k") else found

    def _table(self, query: search_pb2.Query) -> Floats | None:
        bits = self.settings.bits
        if query.table:
            if query.code or query.weights or len(query.table) != 2 * bits:
                return None
            table = np.array(query.table, dtype=np.float64).reshape(bits, 2)
        else:
            if len(query.code) != self.settings.code_bytes or len(query.weights) not in (0, bits):
                return None
            code = self.settings.to_engine(np.frombuffer(query.code, dtype=np.uint8))
            ones = np.unpackbits(code, count=bits, bitorder="little").astype(bool)
            weights = np.array(query.weights, dtype=np.float64) if query.weights else np.ones(bits)
            table = np.stack([np.where(ones, weights, 0.0), np.where(ones, 0.0, weights)], axis=-1)
        return table if np.isfinite(table).all() else None

    def is_certain(self, query: search_pb2.Query, options: search_pb2.QueryOptions) -> bool:
        """Tell whether it is plain that no distance overflows, and :meth:`truth` knows all that is asked for."""
        fields = {field.name for message in (query, options) for field, _ in message.ListFields()}
        return fields <= _KNOWN and all(not abs(number) > CERTAIN for number in (*query.weights, *query.table))


_KNOWN: Final = {
    *("id", "code", "weights", "table", "after", "options"),
    *("k", "radius", "plan", "payloads", "chunk_size", "credit", "budget"),
}
"""Fields of queries and their options that the oracle goes by."""


def _make_sense(options: search_pb2.QueryOptions, query: search_pb2.Query) -> bool:
    return (
        (not options.HasField("k") or 1 <= options.k <= MAX_K)
        and not math.isnan(options.radius)
        and 0 <= options.budget.seconds < math.inf
        and 0 <= options.plan <= 3
        and not math.isnan(query.after.distance)
    )


class UnsoundError(AssertionError):
    """An answer that must not be."""


def expect(holds: object, what: str) -> None:
    """Raise unless something holds."""
    if not holds:
        raise UnsoundError(what)


class Checks:
    """Checks answers."""

    def __init__(self, controls: dict[str, Control]) -> None:
        """Know what the control indexes hold."""
        self.controls = controls
        self.statuses: Counter[str] = Counter()
        """How calls ended, by method."""
        self.ends: Counter[str] = Counter()
        """How queries ended."""
        self.compared = 0
        """Searches whose hits were compared with the oracle's."""

    def check(self, case: Case, answer: Answer) -> None:
        """Raise :class:`UnsoundError` where an answer is wrong."""
        self.statuses[f"{case.method} {answer.code.name}"] += 1
        if answer.code == Code.CANCELLED and (case.cancels or len(answer.responses) >= MOST_RESPONSES):
            return
        if case.timeout is not None and answer.code == Code.DEADLINE_EXCEEDED:
            return
        if case.method in FOREIGN:
            return
        if case.method in UNKNOWN:
            expect(answer.code == Code.UNIMPLEMENTED, f"{answer.code} of a method that there is not")
            return
        method = METHODS[case.method]
        allowed = STATUSES.get(method.name, _ONE_INDEX)
        expect(answer.code in allowed, f"{answer.code.name}: {answer.details}")
        if answer.code != Code.OK:
            check_details(answer)
        if not case.cancels and any(len(data) > MAX_MESSAGE for data in case.sent):
            expect(answer.code != Code.OK, "a message that is too large was taken")
            return
        kind = message_factory.GetMessageClass(method.output_type)
        responses: list[Any] = [kind.FromString(data) for data in answer.responses]
        requests: list[Any] = []
        kind = message_factory.GetMessageClass(method.input_type)
        for data in case.sent if method.client_streaming else case.sent[:1]:
            try:
                requests.append(kind.FromString(data))
            except DecodeError:
                if not case.cancels:
                    refused = answer.code != Code.OK if requests else answer.code == Code.INVALID_ARGUMENT
                    expect(refused, f"{answer.code.name} for bytes that are no message")
                break
        specific = getattr(self, f"_{method.name}", None)
        if specific is not None and requests:
            specific(requests, responses, answer, case)

    # -- by method --------------------------------------------------------------------------------------------------

    def _ListIndexes(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        for response in responses[:1]:
            names = [index.name for index in response.indexes]
            expect(names == sorted(set(names)), f"names out of order: {names}")
            expect(all(name > requests[0].page_token for name in names), "names of another page")
            expect(len(names) <= (requests[0].page_size or 100), f"{len(names)} names on a page")
            token = response.next_page_token  # the name of an index that may have been dropped meanwhile
            expect(not token or not names or token >= names[-1], f"a token {token} after {names}")

    def _Upsert(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        expect(len(responses) <= len(requests), "more acknowledgements than batches")
        for request, response in zip(requests, responses, strict=False):
            expect(response.sequence == request.sequence, "an acknowledgement out of turn")
            expect(response.count == len(request.items.ids), "another number of items acknowledged")
        if answer.code == Code.OK and not case.cancels:
            expect(len(responses) == len(requests), "a batch without acknowledgement")

    def _Get(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        request = requests[0]
        for response in responses[:1]:
            count = len(request.ids)
            expect(list(response.items.ids) == list(request.ids), "other ids")
            expect(len(response.found) == count, "another number of answers")
            expect(len(response.items.payloads) in (0, count), "another number of payloads")
            control = self.controls.get(request.index)
            if control is None:
                continue
            places = {int(item): place for place, item in enumerate(control.ids)}
            width = control.settings.code_bytes
            for row, (item, found) in enumerate(zip(request.ids[:200], response.found, strict=False)):
                expect(found == (item in places), f"id {item}: found {found}")
                code = control.codes[places[item]].tobytes() if found else bytes(width)
                expect(response.items.codes[row * width : (row + 1) * width] in (code, _spare(code, control)), "a code")

    def _Scan(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        control = self.controls.get(requests[0].index)
        for response in responses:
            expect(len(response.items.ids) <= (requests[0].batch_size or 10_000), "too many items in a message")
        if control is not None and answer.code == Code.OK and not case.cancels:
            ids = [item for response in responses for item in response.items.ids]
            expect(sorted(ids) == sorted(control.ids.tolist()), "a scan without all items")
            payloads = [payload for response in responses for payload in response.items.payloads]
            known = dict(zip(control.ids.tolist(), control.payloads, strict=True))
            expect(payloads == [known[item] for item in ids], "payloads of other items")

    def _SearchOnce(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        request = requests[0]
        query, options = request.query, request.query.options
        bounded = options.HasField("k") or options.HasField("radius")
        self._check_query(request.index, query, options, [response.result for response in responses[:1]])
        control = self.controls.get(request.index)
        if control is None or not control.is_certain(query, options):
            return
        if control.truth(query, options) is not None and bounded:
            expect(answer.code == Code.OK, f"{answer.code.name} for a search that makes sense: {answer.details}")
        else:
            expect(answer.code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), "a senseless search was answered")

    def _Search(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        batches = [request.batch for request in requests if request.HasField("batch")]
        asked = [(batch, query) for batch in batches for query in batch.queries]
        times = Counter(query.id for _, query in asked)
        grants: Counter[int] = Counter()
        for request in requests:
            if request.HasField("grant"):
                grants[request.grant.query_id] += request.grant.hits
        chunks: dict[int, list[search_pb2.Chunk]] = defaultdict(list)
        for response in responses:
            for chunk in response.chunks:
                expect(times[chunk.query_id], f"a chunk of query {chunk.query_id}, which nobody sent")
                chunks[chunk.query_id].append(chunk)
        for batch, query in asked:
            if times[query.id] > 1:
                continue
            options = query.options if query.HasField("options") else batch.options
            self._check_query(batch.index, query, options, chunks[query.id])
            if options.HasField("credit"):
                hits = sum(len(chunk.ids) for chunk in chunks[query.id])
                expect(hits <= options.credit + grants[query.id], f"{hits} hits for a credit of {options.credit}")
        for query_id, sent in chunks.items():
            expect(sum(chunk.HasField("end") for chunk in sent) <= times[query_id], f"query {query_id} ended twice")
        if case.cancels:
            return
        whole = len(requests) == len(case.sent) and all(request.WhichOneof("request") for request in requests)
        most = max((max(len(r.batch.queries), len(r.cancel.query_ids)) for r in requests), default=0)
        sound = whole and max(times.values(), default=0) <= 1 and most <= MAX_BATCH
        if sound:
            expect(answer.code == Code.OK, f"{answer.code.name} for requests that make sense: {answer.details}")
        if answer.code == Code.OK:
            expect(whole, "a request without sense was taken")
            expect(most <= MAX_BATCH, f"{most} queries in a request were taken, or cancels; at most {MAX_BATCH}")
            for query_id, count in times.items():
                ends = sum(chunk.HasField("end") for chunk in chunks[query_id])
                expect(ends == count, f"{ends} ends of {count} queries {query_id}")

    # -- one query --------------------------------------------------------------------------------------------------

    def _check_query(
        self,
        index: str,
        query: search_pb2.Query,
        options: search_pb2.QueryOptions,
        chunks: Sequence[search_pb2.Chunk],
    ) -> None:
        bound = -math.inf
        hits: list[tuple[float, int]] = []
        ended = None
        for chunk in chunks:
            expect(ended is None, f"query {query.id}: a chunk after its end")
            expect(len(chunk.ids) == len(chunk.distances), "ids without distances")
            expect(len(chunk.payloads) == (len(chunk.ids) if options.payloads else 0), "another number of payloads")
            expect(all(distance >= bound for distance in chunk.distances), f"a hit below the bound {bound}")
            hits += zip(chunk.distances, chunk.ids, strict=True)
            if chunk.HasField("end"):
                ended = chunk.end
            if options.rerank and not chunk.end.exact:
                expect(chunk.lower_bound == -math.inf, f"a bound of {chunk.lower_bound}, but not all was looked at")
            elif ended is None or ended.reason in (search_pb2.END_REASON_COMPLETE, search_pb2.END_REASON_BUDGET):
                bound = chunk.lower_bound
                expect(not hits or bound >= hits[-1][0], f"a bound of {bound} after a hit at {hits[-1:]}")
        expect(all(a < b for a, b in itertools.pairwise(hits)), "hits out of order")
        if query.HasField("after") and hits:
            expect(hits[0] > (query.after.distance, query.after.id), "a hit that is not after the token")
        if ended is not None:
            self._check_end(options, hits, ended)
        control = self.controls.get(index)
        if control is None or not control.is_certain(query, options):
            return
        exact = control.truth(query, options)
        if exact is None:
            expect(not hits, f"query {query.id}: hits of a query without sense")
            expect(ended is None or not ended.exact, "an exact answer to a query without sense")
            return
        if ended is not None and ended.error.reason == "OVERLOADED":
            return
        expect(ended is None or not ended.HasField("error"), f"refused: {ended and ended.error}")
        self.compared += 1
        found = Truth(np.array([i for _, i in hits], np.uint64), np.array([d for d, _ in hits], np.float64) + 0.0)
        wanted = exact if ended is not None and ended.exact else exact[: len(found)]
        same = found.ids.tolist() == wanted.ids.tolist() and (found.distances == wanted.distances).all()
        if not same:
            raise UnsoundError(f"query {query.id}: {hits}, but the oracle says {wanted}")
        if options.payloads:
            known = dict(zip(control.ids.tolist(), control.payloads, strict=True))
            payloads = [payload for chunk in chunks for payload in chunk.payloads]
            expect(payloads == [known[i] for _, i in hits], "payloads of other items")

    def _check_end(
        self, options: search_pb2.QueryOptions, hits: Sequence[tuple[float, int]], end: search_pb2.QueryEnd
    ) -> None:
        self.ends[search_pb2.EndReason.Name(end.reason)] += 1
        complete = end.reason == search_pb2.END_REASON_COMPLETE
        finished = complete or end.reason == search_pb2.END_REASON_EXHAUSTED
        expect(end.reason != search_pb2.END_REASON_UNSPECIFIED, "an end without reason")
        expect(end.exact == finished or options.rerank, f"exact = {end.exact}, but the reason is {end.reason}")
        if options.HasField("k"):
            expect(len(hits) <= options.k, f"{len(hits)} hits, k = {options.k}")
            expect(finished <= (complete == (len(hits) == options.k)), f"reason {end.reason} after {len(hits)} hits")
        expect(not (finished and end.HasField("resume")), "a resume token where nothing is left")
        if end.HasField("resume") and hits:
            expect((end.resume.distance, end.resume.id) == hits[-1], "a resume token that is not the last hit")
        expect(len(end.guess_ids) == len(end.guess_distances), "guessed ids without distances")
        failed = end.reason == search_pb2.END_REASON_FAILED
        expect(failed == end.HasField("error"), "failed without error, or an error without failing")
        if failed:
            code = Code.__members__.get(_NAMES.get(end.error.code, ""))
            allowed = (*_ONE_INDEX, Code.FAILED_PRECONDITION)
            expect(code in allowed and code != Code.OK, f"a query failed with {end.error}")
            self.ends[f"{search_pb2.EndReason.Name(end.reason)} {end.error.reason}"] += 1
            expect(end.error.reason and end.error.message, "an error that says nothing")


_NAMES: Final = {code.value[0]: code.name for code in Code}


def _spare(code: bytes, control: Control) -> bytes:
    """Return a code without the bits past the last one."""
    bits = control.settings.bits
    order: Any = control.settings.bit_order
    ones = np.unpackbits(np.frombuffer(code, dtype=np.uint8), count=bits, bitorder=order)
    return np.packbits(ones, bitorder=order).tobytes()


def check_details(answer: Answer) -> None:
    """Expect a rich status of our domain, but for what gRPC itself refuses: messages that are too large."""
    for key, value in answer.trailing:
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            expect(status.code == answer.code.value[0], "two codes")
            info = error_details_pb2.ErrorInfo()
            expect(any(detail.Unpack(info) for detail in status.details), "a status without ErrorInfo")
            expect(info.domain == "whamming" and info.reason, f"an ErrorInfo of {info.domain!r}")
            return
    by_grpc = answer.code == Code.RESOURCE_EXHAUSTED and "message larger than max" in answer.details
    expect(by_grpc, f"{answer.code.name} without ErrorInfo: {answer.details}")
