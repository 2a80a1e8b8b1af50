"""Freed memory is kept for the next search, or returned to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import numpy as np
from whamming.native import Costs, Index, keep_memory, release_memory

kept = sys.argv[1] == "keep" and keep_memory()
index = Index.build(np.random.default_rng(0).integers(0, 256, (200, 8), dtype=np.uint8), bits=64)
costs = Costs.table(np.random.default_rng(1).random((64, 64, 2)))
for _ in range(5):
    index.search(costs, k=10, threads=1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    index.search(costs, k=10, threads=1)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
release_memory()
"""


def page_faults(what: str) -> tuple[bool, int]:
    done = subprocess.run([sys.executable, "-c", FAULTS, what], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept == "True", int(count)


def test_kept_memory_saves_page_faults() -> None:
    kept, with_it = page_faults("keep")
    if not kept:
        pytest.skip("this C library does not support keep_memory")
    _, without = page_faults("return")
    assert with_it < without / 10
