"""The options of a query, parsed from its message."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from whamming.native import Plan
from whamming.storage import Rerank
from whamming.v1 import search_pb2
from whamming.wire.enums import PLANS
from whamming.wire.fields import FieldError

DEFAULT_CHUNK: Final = 4096
"""Default number of hits per chunk."""
MAX_CHUNK: Final = 65_536
MAX_CACHED: Final = 1024
MAX_CACHED_BYTES: Final = 256
"""Larger options are not cached. Only options with unknown fields can be larger."""
MAX_GROUP_K: Final = 256
"""Maximum k of queries that can be searched together."""


class Options(NamedTuple):
    """The options of a query. None: no limit."""

    k: int | None = None
    radius: float | None = None
    plan: Plan = "auto"
    payloads: bool = False
    chunk_size: int = DEFAULT_CHUNK
    credit: int | None = None
    candidates: int | None = None
    seconds: float | None = None
    rerank: Rerank | None = None
    statistics: bool = False

    @property
    def can_be_grouped(self) -> bool:
        """Whether the query can share an engine call: it wants few hits, and no option needs a cursor of its own."""
        return (
            self.k is not None
            and self.k <= min(MAX_GROUP_K, self.chunk_size)
            and (self.credit is None or self.credit >= self.k)
            and not self.payloads
            and self.candidates is None
            and self.seconds is None
            and self.rerank is None
        )


class OptionsReader:
    """Parses options, with a cache: most clients send the same options with every query."""

    def __init__(self, max_k: int) -> None:
        self._max_k = max_k
        self._cache: dict[bytes, Options] = {}

    def __call__(self, message: search_pb2.QueryOptions) -> Options:
        """Return the options of a message. Raises :class:`FieldError` for an invalid one."""
        data = message.SerializeToString()
        options = self._cache.get(data)
        if options is None:
            options = options_of(message, self._max_k)
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            if len(data) <= MAX_CACHED_BYTES:
                self._cache[data] = options
        return options


def options_of(message: search_pb2.QueryOptions, max_k: int) -> Options:
    """Return the options of a message. Raises :class:`FieldError` for an invalid one."""
    k = message.k if message.HasField("k") else None
    if k is not None and not 1 <= k <= max_k:
        raise FieldError("options.k", f"k = {k}; it must be 1 to {max_k}, or unset for all items")
    radius = message.radius if message.HasField("radius") else None
    if radius is not None and math.isnan(radius):
        raise FieldError("options.radius", "radius = nan; it must be a number, or unset for no limit")
    candidates = seconds = None
    if message.HasField("budget"):
        seconds = message.budget.seconds
        if not 0 <= seconds < math.inf:
            raise FieldError("options.budget.seconds", f"seconds = {seconds}; it must be finite, 0 or more")
        candidates, seconds = message.budget.candidates or None, seconds or None
    return Options(
        k,
        radius,
        PLANS.word("options.plan", message.plan) or "auto",
        message.payloads,
        min(message.chunk_size, MAX_CHUNK) or DEFAULT_CHUNK,
        message.credit if message.HasField("credit") else None,
        candidates,
        seconds,
        _rerank_of(message, k),
        message.statistics,
    )


def _rerank_of(message: search_pb2.QueryOptions, k: int | None) -> Rerank | None:
    if not message.rerank and not message.rerank_exactly:
        return None
    if message.rerank and (message.rerank_exactly or k is None):
        raise FieldError("options.rerank", f"rerank = {message.rerank} needs k, and no rerank_exactly")
    if message.HasField("radius") or message.HasField("budget"):
        raise FieldError("options.rerank", "re-ranking cannot be combined with a radius or a budget; leave them out")
    return "exact" if message.rerank_exactly else message.rerank
