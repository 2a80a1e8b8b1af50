"""The engine's Python interface: numpy arrays in, numpy arrays out.

>>> import numpy as np
>>> from whamming.native import Costs, Index
>>> codes = np.array([[0b0000], [0b0011], [0b1111]], dtype=np.uint8)
>>> index = Index.build(codes, bits=4)
>>> ids, distances = index.search(Costs.weights(codes[0], [1.0, 1.0, 0.5, 0.5]), k=2)
>>> ids.tolist(), distances.tolist()
([0, 1], [0.0, 2.0])
"""

from whamming.native.arguments import Plan, Position
from whamming.native.budget import Budget
from whamming.native.costs import MAX_BITS, Costs
from whamming.native.cursor import Cursor, Hit, StopReason
from whamming.native.errors import (
    CorruptIndexError,
    InvalidArgumentError,
    NoTablesError,
    OutOfMemoryError,
    WhammingError,
)
from whamming.native.index import (
    ARRAY_NAMES,
    Buckets,
    Index,
    Simd,
    Tables,
    available_simd,
    choose_substring_bits,
)
from whamming.native.memory import keep_memory, release_memory
from whamming.native.stats import BatchStats, Stats
from whamming.native.view import Answer, Batch, CancelFlag, Part, View

__all__ = [
    "ARRAY_NAMES",
    "MAX_BITS",
    "Answer",
    "Batch",
    "BatchStats",
    "Buckets",
    "Budget",
    "CancelFlag",
    "CorruptIndexError",
    "Costs",
    "Cursor",
    "Hit",
    "Index",
    "InvalidArgumentError",
    "NoTablesError",
    "OutOfMemoryError",
    "Part",
    "Plan",
    "Position",
    "Simd",
    "Stats",
    "StopReason",
    "Tables",
    "View",
    "WhammingError",
    "available_simd",
    "choose_substring_bits",
    "keep_memory",
    "release_memory",
]
