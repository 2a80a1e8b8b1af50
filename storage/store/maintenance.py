"""When to seal, and which runs and segments to merge.

Runs of recent writes form tiers by size, each FANOUT times larger than the one before. Sealed segments form tiers in
the same way. FANOUT parts of one tier are merged into one part of the next. Hence there are at most FANOUT - 1 parts
per tier, and each item is rewritten once per tier. The smallest runs are merged by the thread that adds one too many,
larger ones in the background. If background merging falls behind, writers wait: see MAX_RUNS. While the index is
searched, each write also waits briefly for merges and seals that are under way, so that searches keep a core.

Bound on space: dead items stay below a quarter of all sealed items. If there are more, the segment with the largest
fraction of dead items is rewritten. Hence sealed rows <= 4/3 x live rows once maintenance is done.

Searches read dead items, too, and skip them. So a run is rewritten when a third of its items are dead. When half of the
sealed items are dead, segments are rewritten at once, without waiting for the next seal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from whamming.storage.items.live_part import LivePart

SEAL_ROWS: Final = 1 << 20
"""The delta is sealed when it has this many items."""
SEAL_BYTES: Final = 128 << 20
"""The delta is sealed when it has this many bytes."""
WRITE_OVERHEAD_BYTES: Final = 4096
"""Bytes that each write adds to the size of the delta, besides its items. Hence SEAL_BYTES is reached after 32,768
writes, however small. Reading a write back takes 30 µs, and an index should open within a second or two."""
MEMORY_PER_ROW: Final = 48
"""Bytes that a change takes in memory besides its id, code, payload and vector. Measured, with merges of runs."""
MAX_DELTA_FACTOR: Final = 4
"""If the delta reaches this many times SEAL_ROWS or SEAL_BYTES, writers wait for the seal."""
FANOUT: Final = 4
"""How many parts of one tier are merged into one part of the next tier."""
SMALL_RUN_ROWS: Final = 1024
"""FANOUT runs of at most this many rows are merged by the write that adds the last of them."""
MAX_RUNS: Final = 24
"""If there are more runs, writers wait until some have been merged. Each run costs a search some microseconds."""
MAX_DEAD_FRACTION: Final = 0.25
"""If a larger fraction of the sealed items is dead, a segment is rewritten without its dead items."""
URGENT_DEAD_FRACTION: Final = 1 / 2
"""If a larger fraction of the sealed items is dead, maintenance starts at once rather than with the next seal."""
MAX_RUN_DEAD_FRACTION: Final = 1 / 3
"""A run with a larger fraction of dead items is rewritten."""
MAX_SEGMENT_PAYLOAD: Final = 1 << 30
"""The largest total size of the payloads of one segment, in bytes. Its kept vectors have the same limit."""


def should_seal(rows: int, size: int, times: int = 1) -> bool:
    """Return whether a delta of this many items and bytes should be sealed, at ``times`` the usual limits."""
    return rows >= times * SEAL_ROWS or size >= times * SEAL_BYTES


def should_rewrite(sealed: Sequence[LivePart]) -> bool:
    """Return whether so many of the sealed items are dead that maintenance should start at once."""
    return _dead_fraction(sealed) > URGENT_DEAD_FRACTION


def choose_small_runs(runs: Sequence[LivePart]) -> list[LivePart]:
    """Return the runs that the write itself should merge, or none."""
    small = [run for run in runs if run.live <= SMALL_RUN_ROWS]
    return small if len(small) >= FANOUT else []


def choose_runs(runs: Sequence[LivePart]) -> list[LivePart]:
    """Return the runs to merge next in the background, or none.

    These are the runs of the lowest full tier. If the merged run would fill the next tier, the runs of that tier are
    included, and so on. If no tier is full, they are the runs with too many dead items.
    """
    large = [run for run in runs if run.live > SMALL_RUN_ROWS]
    tiers: dict[int, list[LivePart]] = {}
    for run in large:
        tiers.setdefault(_tier(run.live, SMALL_RUN_ROWS), []).append(run)
    full = [tier for tier, parts in tiers.items() if len(parts) >= FANOUT]
    if not full:
        return [run for run in large if _dead_fraction([run]) > MAX_RUN_DEAD_FRACTION]
    tier = min(full)
    chosen = list(tiers[tier])
    while len(tiers.get(tier := tier + 1, ())) >= FANOUT - 1:
        chosen += tiers[tier]
    return chosen


def tier_of(rows: int) -> int:
    """Return the tier of a sealed segment: 0 up to SEAL_ROWS items, then one more per factor of FANOUT."""
    return _tier(rows, SEAL_ROWS)


def _tier(rows: int, lowest: int) -> int:
    tier = 0
    while rows > lowest * FANOUT**tier:
        tier += 1
    return tier


def choose_merge(sealed: Sequence[LivePart], max_rows: int) -> list[LivePart]:
    """Return the sealed segments to merge next, or none."""
    tiers: dict[int, list[LivePart]] = {}
    for part in sealed:
        tiers.setdefault(tier_of(part.live), []).append(part)
    for _, parts in sorted(tiers.items()):
        chosen: list[LivePart] = []
        for part in sorted(parts, key=lambda p: p.live):
            if sum(p.live for p in chosen) + part.live > max_rows:
                break
            if sum(p.segment.payload_bytes for p in chosen) + part.segment.payload_bytes > MAX_SEGMENT_PAYLOAD:
                break
            chosen.append(part)
        if len(chosen) >= FANOUT:
            return chosen[:FANOUT]
    if _dead_fraction(sealed) > MAX_DEAD_FRACTION:
        return [max(sealed, key=lambda p: p.dead_count / p.segment.n)]
    return []


def _dead_fraction(parts: Sequence[LivePart]) -> float:
    return sum(part.dead_count for part in parts) / max(1, sum(part.segment.n for part in parts))


def group(parts: Sequence[LivePart], max_rows: int) -> list[list[LivePart]]:
    """Divide parts into groups that each fit into one segment."""
    groups: list[list[LivePart]] = []
    for part in sorted(parts, key=lambda p: -p.live):
        for chosen in groups:
            fits = sum(p.live for p in chosen) + part.live <= max_rows
            if fits and sum(p.segment.payload_bytes for p in (*chosen, part)) <= MAX_SEGMENT_PAYLOAD:
                chosen.append(part)
                break
        else:
            groups.append([part])
    return groups
