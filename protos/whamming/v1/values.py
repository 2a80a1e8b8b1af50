"""Messages to values and back: what the server and the clients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.native import Buckets, InvalidArgumentError, Plan, Stats, Tables
from whamming.storage import BitOrder, Durability, IndexSettings, Rows, StoreStats
from whamming.storage.rows import Payloads
from whamming.v1 import index_pb2, item_pb2, search_pb2

_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "bit_order": get_args(BitOrder),
    "tables": get_args(Tables),
    "buckets": get_args(Buckets),
    "durability": get_args(Durability),
}
"""The choices of an index's settings, in the order of the enums' numbers from 1 on."""
_PLANS: Final[tuple[Plan, ...]] = get_args(Plan)


class FieldError(InvalidArgumentError):
    """A field of a message is outside its limits."""

    def __init__(self, field: str, text: str) -> None:
        """Say what is wrong with which field."""
        super().__init__(text)
        self.field = field


def _choice(field: str, number: int, choices: Sequence[Any]) -> Any:
    """Return what an enum's number stands for; 0 is the first choice."""
    if not 0 <= number <= len(choices):
        raise FieldError(field, f"{field} = {number}; it must be 0 to {len(choices)}")
    return choices[max(number - 1, 0)]


def settings_message(settings: IndexSettings) -> index_pb2.IndexSettings:
    """Pack the settings of an index."""
    numbers = {name: choices.index(getattr(settings, name)) + 1 for name, choices in _SETTINGS.items()}
    return index_pb2.IndexSettings(bits=settings.bits, **numbers)  # type: ignore[arg-type]


def settings_of(message: index_pb2.IndexSettings) -> IndexSettings:
    """Unpack the settings of an index."""
    chosen = {name: _choice(f"settings.{name}", getattr(message, name), of) for name, of in _SETTINGS.items()}
    try:
        return IndexSettings(message.bits, **chosen)
    except InvalidArgumentError as error:
        raise FieldError("settings.bits", str(error)) from error


def store_stats_message(stats: StoreStats) -> index_pb2.IndexStatistics:
    """Pack what an index holds."""
    return index_pb2.IndexStatistics(**vars(stats))


def store_stats_of(message: index_pb2.IndexStatistics) -> StoreStats:
    """Unpack what an index holds."""
    return StoreStats(**{field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields})


def durability_number(durability: Durability | None) -> Any:
    """Return the number of a durability; 0: as the index says."""
    return 0 if durability is None else _SETTINGS["durability"].index(durability) + 1


def durability_of(number: int) -> Durability | None:
    """Return when a write is to be acknowledged; None: as the index says."""
    durability: Durability = _choice("durability", number, _SETTINGS["durability"])
    return durability if number else None


def ids_of(numbers: Sequence[int]) -> NDArray[np.uint64]:
    """Unpack ids."""
    return np.fromiter(numbers, dtype=np.uint64, count=len(numbers))


def items_message(rows: Rows) -> item_pb2.ItemBatch:
    """Pack items, whose codes are in the index's bit order."""
    payloads = () if rows.payloads is None else [rows.payloads[i] for i in range(len(rows))]
    return item_pb2.ItemBatch(ids=rows.ids.tolist(), codes=rows.codes.tobytes(), payloads=payloads)


def items_of(message: item_pb2.ItemBatch, settings: IndexSettings) -> Rows:
    """Unpack items; their codes stay in the index's bit order. The ids may repeat."""
    ids, width = ids_of(message.ids), settings.code_bytes
    if len(message.codes) != len(ids) * width:
        raise FieldError(
            "items.codes",
            f"items.codes has {len(message.codes)} bytes for {len(ids)} ids; {settings.bits} bits need {width} bytes "
            f"each, {len(ids) * width} in all",
        )
    if len(message.payloads) not in (0, len(ids)):
        raise FieldError(
            "items.payloads", f"{len(message.payloads)} payloads for {len(ids)} ids; give one each, or none at all"
        )
    codes = np.frombuffer(message.codes, dtype=np.uint8).reshape(len(ids), width)
    return Rows(ids, codes, Payloads.of(list(message.payloads)) if message.payloads else None)


def plan_number(plan: Plan) -> Any:
    """Return the number of a plan."""
    if plan not in _PLANS:
        raise InvalidArgumentError(f"plan = {plan!r}; choose one of {_PLANS}")
    return _PLANS.index(plan) + 1


def plan_of(number: int) -> Plan:
    """Return what a plan's number stands for."""
    plan: Plan = _choice("options.plan", number, _PLANS)
    return plan


def statistics_message(stats: Stats, elapsed: float) -> search_pb2.QueryStatistics:
    """Pack what a query has cost."""
    return search_pb2.QueryStatistics(
        plan=_PLANS.index(stats.plan) + 1,  # type: ignore[arg-type]
        switched=stats.switched,
        rounds=stats.rounds,
        buckets=stats.buckets,
        buckets_nonempty=stats.buckets_nonempty,
        candidates=stats.candidates,
        verified=stats.verified,
        blocks=stats.blocks,
        planes=stats.planes,
        engine_seconds=stats.seconds,
        elapsed_seconds=elapsed,
    )


def statistics_of(message: search_pb2.QueryStatistics) -> Stats:
    """Unpack what a query has cost."""
    return Stats(
        plan=plan_of(message.plan),
        switched=message.switched,
        rounds=message.rounds,
        buckets=message.buckets,
        buckets_nonempty=message.buckets_nonempty,
        candidates=message.candidates,
        verified=message.verified,
        blocks=message.blocks,
        planes=message.planes,
        seconds=message.engine_seconds,
    )


def hits_of(ids: Sequence[int], distances: Sequence[float]) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Unpack hits."""
    return ids_of(ids), np.fromiter(distances, dtype=np.float64, count=len(distances))
