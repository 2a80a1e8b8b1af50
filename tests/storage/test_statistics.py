"""Statistics of a search over all parts of an index."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import whamming
from whamming.native import Buckets, Budget, available_simd

N = 20_000


@pytest.mark.parametrize("buckets", ["compact", "fast"])
@pytest.mark.parametrize("bits", [32, 64, 128, 512])
def test_verified_counts_the_codes_whose_distance_was_computed(bits: int, buckets: Buckets) -> None:
    """For codes of 8 to 32 bytes the sieve skips nearly all codes of a bucket; without it, none is skipped."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 256, (N, bits // 8), dtype=np.uint8)
    with whamming.open(":memory:") as database:
        index = database.create_index("docs", bits, buckets=buckets)
        for half in (range(N // 2), range(N // 2, N)):
            index.upsert(half, codes[half])
            index.seal()
        view = index.snapshot().view
        assert len(view.parts) == 2
        query: dict[str, Any] = {"weights": np.abs(rng.standard_normal(bits)), "k": 10, "plan": "probe"}
        for simd in available_simd():
            for part in view.parts:
                part.index.use_simd(simd)
            (stats,) = index.search_batch(rng.integers(0, 256, (1, bits // 8), dtype=np.uint8), **query).stats
            assert stats.plan == "probe"
            assert stats.blocks == 0
            if simd != "portable" and 64 <= bits <= 256:
                assert 10 <= stats.verified < stats.candidates / 5
            else:
                assert 10 <= stats.verified == stats.candidates
            search = index.search(codes[7], **query)
            seen = [search.stats]
            for _ in range(3):
                search.next(1, budget=Budget(candidates=500))
                seen.append(search.stats)
            for before, after in pairwise(seen):
                assert before.verified <= after.verified <= after.candidates
            assert seen[-1].verified > 0
