"""When to seal and which segments to merge.

Sealed segments form tiers by size. Four of one tier are merged into one of the next, so that n items lie in at most
3 segments per factor of 4 in size, and each item is rewritten log4(n / SEAL_ROWS) times.

Bound on space: dead items are kept below a quarter of all sealed ones. Where they are more, the segment with the
largest share of them is rewritten. At rest, therefore, sealed rows <= 4/3 x live rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whamming.storage.items.segment import Live

SEAL_ROWS: Final = 1 << 20
"""Items in the delta that make it worth sealing."""
SEAL_BYTES: Final = 128 << 20
"""Bytes in the delta, likewise."""
WRITE_BYTES: Final = 4096
"""What a write counts beside its items: SEAL_BYTES is reached with 32,768 writes, however small. Reading one back takes
30 µs, and an index should be open within a second or two."""
MOST_DELTA: Final = 4
"""Times the above: writers then wait for the seal."""
TIER: Final = 4
MOST_DEAD: Final = 0.25
MOST_PAYLOAD: Final = 1 << 30
"""Bytes of payloads that one segment may have: merging does not go beyond."""


def wants_seal(rows: int, size: int, times: int = 1) -> bool:
    """Tell whether a delta of so many items and bytes should be sealed."""
    return rows >= times * SEAL_ROWS or size >= times * SEAL_BYTES


def tier_of(rows: int) -> int:
    """Return the tier of a segment: 0 up to SEAL_ROWS items, then one more per factor of TIER."""
    tier = 0
    while rows > SEAL_ROWS * TIER**tier:
        tier += 1
    return tier


def choose_merge(sealed: Sequence[Live], most_rows: int) -> list[Live]:
    """Return the segments to merge next, or none."""
    tiers: dict[int, list[Live]] = {}
    for part in sealed:
        tiers.setdefault(tier_of(part.live), []).append(part)
    for _, parts in sorted(tiers.items()):
        chosen: list[Live] = []
        for part in sorted(parts, key=lambda p: p.live):
            if sum(p.live for p in chosen) + part.live > most_rows:
                break
            if sum(p.segment.payload_bytes for p in chosen) + part.segment.payload_bytes > MOST_PAYLOAD:
                break
            chosen.append(part)
        if len(chosen) >= TIER:
            return chosen[:TIER]
    rows, dead = sum(p.segment.n for p in sealed), sum(p.dead_count for p in sealed)
    if dead > MOST_DEAD * rows:
        return [max(sealed, key=lambda p: p.dead_count / p.segment.n)]
    return []
