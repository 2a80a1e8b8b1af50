"""Which operations of a lane an index contains: see ``writing_process``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.storage.item_checks import BrokenPromiseError, Versions, some, versions_in
from tests.storage.writing_process import Operation
from whamming.storage import StoredIndex


class LostWritesError(BrokenPromiseError):
    """No prefix of a lane's operations explains the contents of the index."""

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count
        """How many ids of durable operations are wrong."""


def durable_count(returned: Sequence[Operation]) -> int:
    """Return how many operations must have survived, of those that had returned."""
    return max((number for number, one in enumerate(returned, 1) if one.makes_durable), default=0)


def surviving(index: StoredIndex, operations: Sequence[Operation], safe: int, before: Versions) -> int:
    """Return how many operations of a lane the index contains.

    ``safe``: as many must be there at least. ``before``: the version of each id before the first of them. Raises
    LostWritesError.
    """
    touched = np.unique(np.concatenate([ids for one in operations for ids in (one.upserts, one.deletes)]))
    found = dict(zip(touched.tolist(), versions_in(index.get(touched)).tolist(), strict=True))
    state = {id_: int(before[id_]) for id_ in found}
    wrong = {id_ for id_ in found if state[id_] != found[id_]}
    matches = []
    wrong_when_safe = set(wrong)
    for number, operation in enumerate(operations, 1):
        for id_, version in operation.effects():
            state[id_] = version
            (wrong.discard if found[id_] == version else wrong.add)(id_)
        if number == safe:
            wrong_when_safe = set(wrong)
        if number >= safe and not wrong:
            matches.append(number)
    if not matches and not (safe == 0 and not wrong_when_safe):
        later = {id_ for one in operations[safe:] for id_, _ in one.effects()}
        lost = sorted(wrong_when_safe - later)
        raise LostWritesError(
            f"no prefix of {safe} to {len(operations)} operations explains the contents; lost ids: "
            f"{some(lost) or 'none'}; {len(wrong_when_safe) - len(lost)} more ids are wrong",
            len(lost),
        )
    return matches[-1] if matches else 0
