"""An index with a segment, dead items and recent writes."""

from __future__ import annotations

import numpy as np

from tests.native.examples import make_codes
from tests.native.oracle import Codes
from tests.storage.model import Model
from whamming import Database

BITS = 13


def codes(n: int, seed: int = 0) -> Codes:
    return make_codes("uniform", n, BITS, np.random.default_rng(seed))


def fill(database: Database, name: str = "docs", n: int = 50) -> Model:
    index = database.create_index(name, BITS)
    model = Model(index.settings)
    payloads: list[bytes | None] = [b"%d" % i for i in range(n)]
    index.upsert(range(n), codes(n), payloads)
    model.upsert(range(n), codes(n), payloads)
    index.seal()
    index.delete([1, 2, 3])
    model.delete([1, 2, 3])
    index.upsert([n, n + 1], codes(2, 1))
    model.upsert([n, n + 1], codes(2, 1))
    return model
