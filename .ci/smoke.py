"""Smoke test of an installed package: compares a small search with NumPy (``python .ci/smoke.py``).

It tests the wheels of a release on every platform, so it needs nothing but the package itself.
"""

from __future__ import annotations

import tempfile

import numpy as np

import whamming
from whamming.native import available_simd

BITS, ITEMS, K = 64, 5000, 10

rng = np.random.default_rng(0)
codes = rng.integers(0, 256, (ITEMS, BITS // 8), dtype=np.uint8)
query = rng.integers(0, 256, BITS // 8, dtype=np.uint8)
weights = rng.integers(1, 100, BITS).astype(np.float64)

mismatches = np.unpackbits(codes ^ query, axis=1, bitorder="little")
distances = mismatches @ weights
nearest = np.lexsort((np.arange(ITEMS), distances))[:K]

with tempfile.TemporaryDirectory() as directory:
    for place in (":memory:", directory):
        with whamming.open(place) as database:
            index = database.create_index("smoke", bits=BITS)
            index.upsert(np.arange(ITEMS), codes)
            index.seal()
            for plan in ("probe", "sweep"):
                hits = [(hit.id, hit.distance) for hit in index.search(query, weights=weights, k=K, plan=plan)]
                assert hits == [(int(item), float(distances[item])) for item in nearest], (place, plan, hits)

print(f"whamming {whamming.__version__} searches correctly; instruction sets: {', '.join(available_simd())}")
