"""Queries in every form of costs, with the cost table that each form means, for the oracle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tests.native.examples import TABLE_KINDS, WeightKind, make_table
from tests.native.oracle import Codes, Floats
from tests.server.answers import Place
from tests.server.columns import pack_ids, pack_matrix, pack_sums
from whamming.storage import IndexSettings
from whamming.v1 import search_pb2

Form = Literal["code", "weights", "table"]
FORMS: tuple[Form, ...] = ("code", "weights", "table")

Options = search_pb2.QueryOptions


@dataclass(frozen=True)
class Question:
    """A query. Use ``dataclasses.replace`` to change its id or its start position."""

    id: int = 0
    code: bytes = b""
    weights: Floats | None = None
    table: Floats | None = None
    after: Place | None = None
    costs: Floats | None = None
    """The equivalent cost table ``[bits, 2]``, for the oracle. Not sent."""


def ask_about(
    form: Form, kind: WeightKind, near: Codes, settings: IndexSettings, rng: np.random.Generator, query_id: int = 0
) -> Question:
    """Return a query near a code ``[bytes]`` in little bit order."""
    bits = settings.bits
    code = settings.from_engine(near).tobytes()
    if form == "table":
        table = make_table(kind, near, bits, rng)
        return Question(query_id, table=table, costs=table)
    if form == "code":
        return Question(query_id, code, costs=np.sign(make_table("equal", near, bits, rng)))
    if kind in TABLE_KINDS:
        kind = "negative"
    table = make_table(kind, near, bits, rng)
    return Question(query_id, code, table.sum(axis=1), costs=table)  # one of the two costs is zero


def batch_of(index: str, questions: Sequence[Question], options: Options | None = None) -> search_pb2.QueryBatch:
    """Pack queries of one form into a batch."""
    batch = search_pb2.QueryBatch(index=index, query_ids=[question.id for question in questions], options=options)
    batch.codes = b"".join(question.code for question in questions)
    weights = [question.weights for question in questions if question.weights is not None]
    tables = [question.table.ravel() for question in questions if question.table is not None]
    forms = {(bool(q.code), q.weights is not None, q.table is not None) for q in questions}
    assert len(forms) <= 1, "all queries of a batch must have the same form"
    if weights:
        batch.weights.CopyFrom(pack_matrix(weights, "<f8"))
    if tables:
        batch.tables.CopyFrom(pack_matrix(tables, "<f8"))
    if any(question.after is not None for question in questions):
        places = [question.after or (-math.inf, 0) for question in questions]
        batch.after_distances.extend(place[0] for place in places)
        batch.after_ids.CopyFrom(pack_ids(place[1] for place in places))
        batch.after_sums = pack_sums([place[2] if len(place) == 3 else b"" for place in places])
    return batch


def once_of(index: str, question: Question, options: Options) -> search_pb2.SearchOnceRequest:
    """Return a query as a request of SearchOnce."""
    request = search_pb2.SearchOnceRequest(index=index, code=question.code, options=options)
    if question.weights is not None:
        request.weights.extend(question.weights.tolist())
    if question.table is not None:
        request.table.extend(question.table.ravel().tolist())
    if question.after is not None:
        request.after.distance, request.after.id = question.after[:2]
        request.after.sum = question.after[2] if len(question.after) == 3 else b""
    return request
