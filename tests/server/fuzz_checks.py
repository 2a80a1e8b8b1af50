"""Checks that the answer to every fuzz case must pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

import numpy as np
from google.protobuf import message_factory
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from tests.server.answers import Chunk, End, Place, chunks_of, place_of
from tests.server.columns import read_ids, read_payloads
from tests.server.fuzz_cases import FOREIGN, METHODS, UNKNOWN, Case
from tests.server.fuzz_oracle import Control, Expected, batch_of_once
from tests.server.fuzz_query_checks import check_query
from tests.server.fuzz_statuses import ONE_INDEX, STATUSES, Answer, Code, UnsoundError, check_details, expect
from tests.server.fuzz_values import MAX_BATCH, MAX_MESSAGE
from whamming.v1 import search_pb2

MAX_RESPONSES: Final = 500
"""A client cancels after this many responses, so that scans of large indexes item by item do not take too long."""


_GROUP: Final = 3
"""The wire type of the start of a group."""


class Checks:
    """Checks answers, and counts how calls and queries ended."""

    def __init__(self, controls: dict[str, Control]) -> None:
        self.controls = controls
        self.statuses: Counter[str] = Counter()
        """Counts of calls by method and status."""
        self.ends: Counter[str] = Counter()
        """Counts of queries by end reason."""
        self.compared = 0
        """Number of searches whose hits were compared with the oracle."""

    def check(self, case: Case, answer: Answer) -> None:
        """Raise :class:`UnsoundError` if an answer is wrong."""
        try:
            self._check(case, answer)
        except UnsoundError:
            raise
        except AssertionError as error:
            raise UnsoundError(f"{error}") from error

    def _check(self, case: Case, answer: Answer) -> None:
        self.statuses[f"{case.method} {answer.code.name}"] += 1
        if answer.code == Code.CANCELLED and (case.cancels or len(answer.responses) >= MAX_RESPONSES):
            return
        if case.timeout is not None and answer.code == Code.DEADLINE_EXCEEDED:
            return
        if case.method in FOREIGN:
            return
        if case.method in UNKNOWN:
            expect(answer.code == Code.UNIMPLEMENTED, f"{answer.code} for an unknown method")
            return
        method = METHODS[case.method]
        allowed = STATUSES.get(method.name, ONE_INDEX)
        expect(answer.code in allowed, f"{answer.code.name}: {answer.details}")
        if answer.code != Code.OK:
            check_details(answer, method.input_type)
        if not case.cancels and any(len(data) > MAX_MESSAGE for data in case.sent):
            expect(answer.code != Code.OK, "a message that is too large was accepted")
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
                    expect(refused, f"{answer.code.name} for bytes that are not a message")
                break
        specific = getattr(self, f"_{method.name}", None)
        if specific is not None and requests:
            specific(requests, responses, answer, case)

    # -- indexes and items ------------------------------------------------------------------------------------------

    def _ListIndexes(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        for response in responses[:1]:
            names = [index.name for index in response.indexes]
            expect(names == sorted(set(names)), f"names out of order: {names}")
            expect(all(name > requests[0].page_token for name in names), "names of another page")
            expect(len(names) <= (requests[0].page_size or 100), f"{len(names)} names on a page")
            token = response.next_page_token  # the index may have been dropped meanwhile
            expect(not token or not names or token >= names[-1], f"a token {token} after {names}")

    def _Upsert(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        expect(len(responses) <= len(requests), "more acknowledgements than batches")
        for request, response in zip(requests, responses, strict=False):
            expect(response.sequence == request.sequence, "an acknowledgement out of order")
            expect(8 * response.count == len(request.items.ids.uint64), "the wrong number of items was acknowledged")
        if answer.code == Code.OK and not case.cancels:
            expect(len(responses) == len(requests), "a batch without acknowledgement")

    def _Get(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        request = requests[0]
        for response in responses[:1]:
            items, ids = response.items, read_ids(request.ids)
            expect(items.ids == request.ids, "wrong ids")
            expect(len(response.found) == len(ids), "the wrong number of answers")
            expect(set(response.found) <= {0, 1}, "found must be 0 or 1")
            payloads = read_payloads(items.payloads) if items.HasField("payloads") else [b""] * len(ids)
            expect(len(payloads) == len(ids), "the wrong number of payloads")
            control = self.controls.get(request.index)
            if control is None:
                continue
            places = {int(item): place for place, item in enumerate(control.ids)}
            width = control.settings.code_bytes
            expect(len(items.codes) == len(ids) * width, "the wrong number of codes")
            for row, (item, found) in enumerate(zip(ids[:200], response.found, strict=False)):
                expect(found == (item in places), f"id {item}: found {found}")
                code = control.codes[places[item]].tobytes() if found else bytes(width)
                expect(items.codes[row * width : (row + 1) * width] in (code, _spare(code, control)), "a wrong code")
                expect(payloads[row] == (control.payloads[places[item]] if found else b""), "a wrong payload")

    def _Scan(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        control = self.controls.get(requests[0].index)
        for response in responses:
            expect(len(response.items.ids.uint64) <= 8 * (requests[0].batch_size or 10_000), "too many items")
        if control is not None and answer.code == Code.OK and not case.cancels:
            ids = [item for response in responses for item in read_ids(response.items.ids)]
            after = requests[0].after_id if requests[0].HasField("after_id") else -1
            wanted = [item for item in sorted(control.ids.tolist()) if item > after]
            expect(ids == wanted, "a scan must return all items after the given id, once and in order")
            expect(all(response.total == len(control.ids) for response in responses), "a wrong total")
            payloads = [payload for response in responses for payload in read_payloads(response.items.payloads)]
            known = dict(zip(control.ids.tolist(), control.payloads, strict=True))
            expect(payloads == [known[item] for item in ids], "payloads of other items")

    # -- searches ---------------------------------------------------------------------------------------------------

    def _SearchOnce(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        request = requests[0]
        batch = batch_of_once(request)
        bounded = request.options.HasField("k") or request.options.HasField("radius")
        [expected] = self._expected(batch)
        self._check_query(batch, 0, expected, [_chunk_of_once(response, batch) for response in responses[:1]])
        if not expected.is_certain:
            return
        if expected.whole is not None and bounded:
            expect(answer.code == Code.OK, f"{answer.code.name} for a valid search: {answer.details}")
        else:
            expect(answer.code in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), "an invalid search was answered")

    def _Search(self, requests: list[Any], responses: list[Any], answer: Answer, case: Case) -> None:  # noqa: N802
        batches = [request.queries for request in requests if request.HasField("queries")]
        times = Counter(query_id for batch in batches for query_id in batch.query_ids)
        asked_payloads = {query_id for batch in batches if batch.options.payloads for query_id in batch.query_ids}
        grants: Counter[int] = Counter()
        for request in requests:
            if request.HasField("grant"):
                grants[request.grant.query_id] += request.grant.hits
        chunks: dict[int, list[Chunk]] = defaultdict(list)
        for response in responses:
            if response.HasField("payloads"):
                expect(asked_payloads & set(response.query_ids), "payloads that were not requested")
            for chunk in chunks_of(response):
                expect(times[chunk.query_id], f"a chunk of query {chunk.query_id}, which was not sent")
                chunks[chunk.query_id].append(chunk)
        for batch in batches:
            for row, (query_id, expected) in enumerate(zip(batch.query_ids, self._expected(batch), strict=True)):
                if times[query_id] == 1:
                    self._check_query(batch, row, expected, chunks[query_id])
                    self._check_credit(batch.options, grants[query_id], chunks[query_id])
        for query_id, sent in chunks.items():
            expect(_ends(sent) <= times[query_id], f"query {query_id} ended twice")
        if case.cancels:
            return
        whole = len(requests) == len(case.sent) and all(request.WhichOneof("request") for request in requests)
        whole = whole and all(batch.query_ids for batch in batches)
        most = max((max(len(r.queries.query_ids), len(r.cancel.query_ids)) for r in requests), default=0)
        whole = whole and not any(map(_has_groups, requests))
        if whole and max(times.values(), default=0) <= 1 and most <= MAX_BATCH:
            expect(answer.code == Code.OK, f"{answer.code.name} for valid requests: {answer.details}")
        if answer.code == Code.OK:
            expect(whole, "an invalid request was accepted")
            expect(most <= MAX_BATCH, f"a request with {most} ids was accepted; the limit is {MAX_BATCH}")
            for batch in batches:
                expect(len(set(batch.query_ids)) == len(batch.query_ids), "a repeated id in a batch was accepted")
            for query_id, count in times.items():
                expect(
                    _ends(chunks[query_id]) == count,
                    f"query id {query_id}: {_ends(chunks[query_id])} ends, expected {count}",
                )

    def _expected(self, batch: search_pb2.QueryBatch) -> list[Expected]:
        control = self.controls.get(batch.index)
        if control is None:
            return [Expected(None, is_certain=False)] * len(batch.query_ids)
        return control.expected(batch)

    def _check_query(self, batch: search_pb2.QueryBatch, row: int, expected: Expected, chunks: list[Chunk]) -> None:
        compared = check_query(batch, row, expected, chunks, self.controls.get(batch.index))
        self.compared += compared
        for chunk in chunks:
            if chunk.end is not None:
                name = search_pb2.EndReason.Name(chunk.end.reason)
                self.ends[name] += 1
                if chunk.end.error is not None:
                    self.ends[f"{name} {chunk.end.error.reason}"] += 1

    def _check_credit(self, options: search_pb2.QueryOptions, granted: int, chunks: list[Chunk]) -> None:
        if options.HasField("credit"):
            hits = sum(len(chunk.ids) for chunk in chunks)
            expect(hits <= options.credit + granted, f"{hits} hits for a credit of {options.credit}")


def _has_groups(request: Message) -> bool:
    """Return whether a request has groups at its top level, which no version of our messages has."""
    unknown: Any = UnknownFieldSet(request)
    return any(field.wire_type == _GROUP for field in unknown)


def _ends(chunks: list[Chunk]) -> int:
    return sum(chunk.end is not None for chunk in chunks)


def _chunk_of_once(response: search_pb2.SearchOnceResponse, batch: search_pb2.QueryBatch) -> Chunk:
    """Return the answer of SearchOnce as the only chunk of a query."""
    one = response.statistics
    expect(response.HasField("statistics") <= batch.options.statistics, "statistics that were not requested")
    statistics = {field.name: getattr(one, field.name) for field in one.DESCRIPTOR.fields}
    statistics["plans"] = statistics.pop("plan")  # the name in StatisticsColumns
    resume: Place | None = None
    if response.HasField("resume"):
        resume = place_of(response.resume.distance, response.resume.id, response.resume.sum)
    guess = [(hit.distance, hit.id) for hit in response.guesses]
    end = End(response.reason, response.exact, statistics, None, resume, guess)
    payloads = [hit.payload for hit in response.hits]
    if not batch.options.payloads:
        expect(not any(payloads), "payloads that were not requested")
    ids, distances = [hit.id for hit in response.hits], [hit.distance for hit in response.hits]
    last_sum = response.resume.sum  # the only place where SearchOnce has an exact sum
    return Chunk(batch.query_ids[0], ids, distances, payloads, response.lower_bound, end, last_sum)


def _spare(code: bytes, control: Control) -> bytes:
    """Return a code with the unused bits of its last byte cleared."""
    bits = control.settings.bits
    order: Any = control.settings.bit_order
    ones = np.unpackbits(np.frombuffer(code, dtype=np.uint8), count=bits, bitorder=order)
    return np.packbits(ones, bitorder=order).tobytes()
