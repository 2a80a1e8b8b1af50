"""Freed memory is kept for the next search or returned, and memory lent to C outlives its use."""

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


CYCLES = """
import gc
import numpy as np
from whamming.native import CorruptIndexError, Index

index = Index.build(np.random.default_rng(0).integers(0, 256, (100, 8), dtype=np.uint8), bits=64)
for _ in range(5):
    damaged = memoryview(np.full(100, 2**32 - 1, dtype="<u4").tobytes())
    try:
        index.find(damaged, np.arange(100, dtype=np.uint64))
    except CorruptIndexError as error:
        error.itself = error  # the frames of the traceback, and what they lent to C, are now in a cycle
    del damaged
    gc.collect()
print("survived")
"""


def test_the_garbage_collector_survives_buffers_that_c_reads() -> None:
    done = subprocess.run([sys.executable, "-c", CYCLES], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "survived\n", "")
