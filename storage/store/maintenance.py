"""When to seal, and which runs and segments to merge.

Runs of recent writes form tiers by size, each TIER times larger than the one before, and so do sealed segments. TIER
parts of one tier are merged into one of the next. Hence there are at most TIER - 1 parts per tier, and each item is
rewritten once per tier. The smallest runs are merged by the write that adds one too many, larger ones in the
background. If the background falls behind, writers wait: see MOST_RUNS.

Bound on space: dead items stay below a quarter of all sealed ones. If there are more, the segment with the largest
fraction of them is rewritten. Hence sealed rows <= 4/3 x live rows once maintenance is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whamming.storage.items.live_part import LivePart

SEAL_ROWS: Final = 1 << 20
"""The delta is sealed when it has this many items."""
SEAL_BYTES: Final = 128 << 20
"""The delta is sealed when it has this many bytes."""
WRITE_BYTES: Final = 4096
"""Bytes that each write adds to the size of the delta, besides its items. Hence SEAL_BYTES is reached after 32,768
writes, however small. Reading one back takes 30 µs, and an index should open within a second or two."""
MOST_DELTA: Final = 4
"""If the delta is this many times larger, writers wait for the seal."""
TIER: Final = 4
SMALL_RUN: Final = 1024
"""Rows. TIER runs of at most this size are merged by the write that adds the last of them."""
MOST_RUNS: Final = 24
"""If there are more runs, writers wait for the background. Each run costs a search some microseconds."""
MOST_DEAD: Final = 0.25
MOST_PAYLOAD: Final = 1 << 30
"""Limit of the bytes of payloads, and of vectors, in one segment. Merging does not exceed it."""


def wants_seal(rows: int, size: int, times: int = 1) -> bool:
    """Return whether a delta of this many items and bytes should be sealed, at ``times`` the usual limits."""
    return rows >= times * SEAL_ROWS or size >= times * SEAL_BYTES


def choose_small_runs(runs: Sequence[LivePart]) -> list[LivePart]:
    """Return the runs that the write itself should merge, or none."""
    small = [run for run in runs if run.live <= SMALL_RUN]
    return small if len(small) >= TIER else []


def choose_runs(runs: Sequence[LivePart]) -> list[LivePart]:
    """Return the runs to merge next in the background, or none.

    These are the runs of the lowest full tier. If the merged run would fill the next tier, the runs of that tier are
    included, and so on.
    """
    tiers: dict[int, list[LivePart]] = {}
    for run in runs:
        if run.live > SMALL_RUN:
            tiers.setdefault(_tier(run.live, SMALL_RUN), []).append(run)
    full = [tier for tier, parts in tiers.items() if len(parts) >= TIER]
    if not full:
        return []
    tier = min(full)
    chosen = list(tiers[tier])
    while len(tiers.get(tier := tier + 1, ())) >= TIER - 1:
        chosen += tiers[tier]
    return chosen


def tier_of(rows: int) -> int:
    """Return the tier of a sealed segment: 0 up to SEAL_ROWS items, then one more per factor of TIER."""
    return _tier(rows, SEAL_ROWS)


def _tier(rows: int, lowest: int) -> int:
    tier = 0
    while rows > lowest * TIER**tier:
        tier += 1
    return tier


def choose_merge(sealed: Sequence[LivePart], most_rows: int) -> list[LivePart]:
    """Return the sealed segments to merge next, or none."""
    tiers: dict[int, list[LivePart]] = {}
    for part in sealed:
        tiers.setdefault(tier_of(part.live), []).append(part)
    for _, parts in sorted(tiers.items()):
        chosen: list[LivePart] = []
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


def group(parts: Sequence[LivePart], most_rows: int) -> list[list[LivePart]]:
    """Divide parts into groups that each fit into one segment."""
    groups: list[list[LivePart]] = []
    for part in sorted(parts, key=lambda p: -p.live):
        for chosen in groups:
            fits = sum(p.live for p in chosen) + part.live <= most_rows
            if fits and sum(p.segment.payload_bytes for p in (*chosen, part)) <= MOST_PAYLOAD:
                chosen.append(part)
                break
        else:
            groups.append([part])
    return groups
