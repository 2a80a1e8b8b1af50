"""The engine's description of a search: costs, k, radius and plan."""

from __future__ import annotations

import math
from typing import Any, Final

from whamming.native._engine import ffi, lib
from whamming.native.arguments import SUM_BYTES, Plan, Position, check_radius, checked_position
from whamming.native.costs import Costs

_SEARCHES: Final = ffi.typeof("struct wh_search[]")
_PLANS: Final = {"auto": lib.WH_AUTO, "probe": lib.WH_PROBE, "sweep": lib.WH_SWEEP}


def describe_searches(costs: Costs, k: int, radius: float | None, plan: Plan, after: Position | None = None) -> Any:
    """Return one ``struct wh_search`` per query. They point into ``costs``, which must outlive them."""
    check_radius(radius)
    count = len(costs)
    searches = ffi.new(_SEARCHES, count)
    lib.wh_searches_fill(
        searches, count, costs.bits, *costs.pointers, _PLANS[plan], k, math.inf if radius is None else radius
    )
    if after is not None:
        distance, last_id, sum_of_costs = checked_position(after)
        for search in searches:
            search.resumed, search.after_id = lib.WH_AFTER_DISTANCE, last_id
            search.after_distance = distance
            if sum_of_costs:
                search.resumed = lib.WH_AFTER_SUM
                ffi.memmove(ffi.addressof(search, "after_sum"), sum_of_costs, SUM_BYTES)
    return searches
