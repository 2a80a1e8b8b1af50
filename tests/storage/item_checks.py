"""Items that reveal torn or mixed-up writes: the code follows from id and version, and the payload is the version.

Versions start at 1; 0 means that the item does not exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from whamming.storage.store.snapshot import Items, Snapshot

BITS = 64

Ids = NDArray[np.uint64]
Versions = NDArray[np.uint64]


class BrokenPromiseError(Exception):
    """The store has violated one of its guarantees."""


def codes_of(ids: Ids, versions: Versions | int) -> NDArray[np.uint8]:
    """Return the expected codes of some items (by splitmix64, so that they are spread evenly)."""
    mixed = ids * np.uint64(0x9E3779B97F4A7C15) + np.asarray(versions, dtype=np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return mixed.astype("<u8").view(np.uint8).reshape(-1, BITS // 8)


def payloads_of(count: int, version: int) -> list[bytes]:
    """Return the expected payloads of ``count`` items."""
    return [version.to_bytes(8, "little")] * count


def versions_in(items: Items) -> Versions:
    """Return the version of each item, after checking that it is intact."""
    absent = bytes(8)
    wrong = [len(payload) for payload, found in zip(items.payloads, items.found, strict=True) if found]
    if any(size != 8 for size in wrong):
        raise BrokenPromiseError(f"payloads of {sorted(set(wrong))} bytes; all should have 8")
    versions = np.frombuffer(b"".join(payload or absent for payload in items.payloads), dtype="<u8")
    check_whole(items.ids[items.found], items.codes[items.found], versions[items.found])
    return versions


def check_whole(ids: Ids, codes: NDArray[np.uint8], versions: Versions) -> None:
    """Raise BrokenPromiseError if a code does not follow from id and version."""
    torn = np.flatnonzero((codes != codes_of(ids, versions)).any(axis=1) | (versions == 0))
    if len(torn):
        raise BrokenPromiseError(
            f"{len(torn)} torn items, the first of id {ids[torn[0]]} and version {versions[torn[0]]}"
        )


def all_versions(snapshot: Snapshot, universe: int) -> Versions:
    """Return the version of each id below ``universe``, from a scan. Refuses torn items and duplicate ids."""
    versions = np.zeros(universe, dtype=np.uint64)
    for rows in snapshot.scan(1 << 17):
        if rows.payloads is None or (np.diff(rows.payloads.ends) != 8).any():
            raise BrokenPromiseError("items without a version")
        own = rows.payloads.data.view("<u8")
        check_whole(rows.ids, rows.codes, own)
        if versions[rows.ids].any():
            raise BrokenPromiseError(f"id {rows.ids[versions[rows.ids] != 0][0]} appears twice")
        versions[rows.ids] = own
    return versions


def some(values: Sequence[int] | NDArray[np.integer], most: int = 5) -> str:
    """Format the first few of many values."""
    return ", ".join(str(value) for value in values[:most]) + (", ..." if len(values) > most else "")
