"""The queue of hits that wait to be proven, compared with a sorted list."""

from __future__ import annotations

import random

import numpy as np
import pytest

from whamming.storage.vectors.ranked_hits import RankedHits


@pytest.mark.parametrize("limit", [1, 7, 100, 2**64 - 1])
@pytest.mark.parametrize("seed", range(5))
def test_hits_come_in_order(limit: int, seed: int) -> None:
    rng, left = random.Random(seed), limit
    hits, model = RankedHits(limit), list[tuple[float, int]]()
    next_id = 0
    for _ in range(200):
        if rng.random() < 0.4:
            count = rng.choice([0, 1, 3, 40])
            new = [(float(rng.randrange(50)), next_id + place) for place in range(count)]
            next_id += count
            hits.add(np.array([d for d, _ in new]), np.array([i for _, i in new], dtype=np.uint64))
            model = sorted(model + new)[:left]
        elif model and left > 1:
            assert hits.nearest == model[0][0]
            assert hits.pop() == model.pop(0)
            left -= 1
        assert bool(hits) == bool(model)
        ids, distances = hits.first(5)
        assert list(zip(distances.tolist(), ids.tolist(), strict=True)) == model[:5]
