"""Messages to values and back: what the server and the clients share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from whamming.native import Buckets, InvalidArgumentError, Plan, Stats, Tables
from whamming.native.costs import check_bits
from whamming.native.cursor import as_whole
from whamming.storage import BitOrder, Durability, IndexSettings, Rows, StoreStats
from whamming.storage.items.payloads import Payloads
from whamming.storage.settings import KeptVectors, Metric, check_choice
from whamming.storage.vectors.encoders import Encoder, Form, Kind
from whamming.v1 import index_pb2, item_pb2, search_pb2
from whamming.wire.packed import pack, unpack

_SETTINGS: Final[dict[str, tuple[str, ...]]] = {
    "bit_order": get_args(BitOrder),
    "tables": get_args(Tables),
    "buckets": get_args(Buckets),
    "durability": get_args(Durability),
    "metric": get_args(Metric),
}
"""The choices of an index's settings, in the order of the enums' numbers from 1 on."""
_VECTOR_TYPES: Final[dict[int, np.dtype[Any]]] = {1: np.dtype("<f4"), 2: np.dtype("<f2"), 3: np.dtype("i1")}
"""How vectors' numbers are written, by the enum's number."""
_KEPT: Final[dict[KeptVectors | None, int]] = {None: 0, "float16": 2, "int8": 3}
"""The types of vectors that an index may keep."""
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_FORMS: Final[tuple[Form, ...]] = get_args(Form)
_PLANS: Final[tuple[Plan, ...]] = get_args(Plan)


class FieldError(InvalidArgumentError):
    """A field of a message is outside its limits."""

    def __init__(self, field: str, text: str) -> None:
        """Say what is wrong with which field."""
        super().__init__(text)
        self.field = field


class blaming:  # noqa: N801 - it is used as a function is
    """Let what is refused inside be the fault of a field, unless it names one itself."""

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        """Name the field."""
        self._field = field

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Name the field in an error that names none."""
        if type(error) is InvalidArgumentError:
            raise FieldError(self._field, str(error)) from error


def _choice(field: str, number: int, choices: Sequence[Any]) -> Any:
    """Return what an enum's number stands for; 0 is the first choice."""
    if not 0 <= number <= len(choices):
        raise FieldError(field, f"{field} = {number}; it must be 0 to {len(choices)}")
    return choices[max(number - 1, 0)]


def settings_message(settings: IndexSettings) -> index_pb2.IndexSettings:
    """Pack the settings of an index."""
    choices = {name: getattr(settings, name) for name in _SETTINGS}
    return settings_request(settings.bits, settings.keep_vectors, **choices)


def settings_request(
    bits: int | None, keep_vectors: KeptVectors | None = None, **choices: str
) -> index_pb2.IndexSettings:
    """Pack the settings that an index is to have; ``bits`` None: its encoder tells."""
    for name, choice in choices.items():
        check_choice(name, choice, _SETTINGS[name])
    if keep_vectors is not None:
        check_choice("keep_vectors", keep_vectors, get_args(KeptVectors))
    numbers = {name: _SETTINGS[name].index(choice) + 1 for name, choice in choices.items()}
    length = 0 if bits is None else check_bits(as_whole("bits", bits))
    return index_pb2.IndexSettings(bits=length, kept_vectors=_KEPT[keep_vectors], **numbers)  # type: ignore[arg-type]


def choices_of(message: index_pb2.IndexSettings) -> dict[str, Any]:
    """Unpack the settings of an index, but for bits: what ``create_index`` takes by these names."""
    kept = {number: kind for kind, number in _KEPT.items()}
    if message.kept_vectors not in kept:
        field = "settings.kept_vectors"
        raise FieldError(field, f"{field} = {message.kept_vectors}; it must be 0 (none), 2 (float16) or 3 (int8)")
    chosen = {name: _choice(f"settings.{name}", getattr(message, name), of) for name, of in _SETTINGS.items()}
    return {**chosen, "keep_vectors": kept[message.kept_vectors]}


def settings_of(message: index_pb2.Index) -> IndexSettings:
    """Unpack the settings of an index that exists."""
    encoder = message.encoder
    return IndexSettings(
        message.settings.bits,
        **choices_of(message.settings),
        dim=encoder.dimension or None,
        encoder=encoder.fingerprint or None,
    )


def encoder_message(encoder: Encoder | None) -> index_pb2.Encoder | None:
    """Describe an encoder."""
    if encoder is None:
        return None
    return index_pb2.Encoder(
        kind=kind_number(encoder.kind),
        dimension=encoder.dim,
        centred=encoder.centred,
        samples=encoder.training.samples,
        errors=encoder.training.errors,
        converged=encoder.training.converged,
        fingerprint=encoder.fingerprint,
    )


def kind_number(kind: Kind) -> Any:
    """Return the number of a kind of encoder."""
    if kind not in _KINDS:
        raise InvalidArgumentError(f"encoder = {kind!r}; choose one of {_KINDS}")
    return _KINDS.index(kind) + 1


def kind_of(number: int) -> Kind:
    """Return what the number of a kind of encoder stands for."""
    if number == 0:
        raise FieldError("encoder.kind", f"encoder.kind is missing; choose one of {_KINDS}")
    kind: Kind = _choice("encoder.kind", number, _KINDS)
    return kind


def form_number(form: Form | None) -> Any:
    """Return the number of a form of costs; 0: the encoder's default."""
    if form not in (None, *_FORMS):
        raise InvalidArgumentError(f"costs = {form!r}; choose one of {_FORMS}")
    return 0 if form is None else _FORMS.index(form) + 1


def form_of(number: int) -> Form | None:
    """Return what the number of a form of costs stands for; None: the encoder's default."""
    form: Form = _choice("form", number, _FORMS)
    return form if number else None


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


def ids_of(message: Message) -> NDArray[np.uint64]:
    """Unpack the ids of a message."""
    return unpack(message, "ids", np.uint64)


def vectors_message(vectors: NDArray[Any]) -> index_pb2.VectorBatch:
    """Pack vectors ``[n, dim]``: as they are where the wire has their type, else as float32."""
    number = next((number for number, dtype in _VECTOR_TYPES.items() if vectors.dtype == dtype), 1)
    data = np.ascontiguousarray(vectors, dtype=_VECTOR_TYPES[number]).tobytes()
    return index_pb2.VectorBatch(dimension=vectors.shape[1], type=number, data=data)  # type: ignore[arg-type]


def vectors_of(message: index_pb2.VectorBatch, field: str) -> NDArray[Any]:
    """Unpack vectors."""
    number = message.type or 1
    if number not in _VECTOR_TYPES:
        raise FieldError(f"{field}.type", f"{field}.type = {number}; it must be 0 to {len(_VECTOR_TYPES)}")
    dtype = _VECTOR_TYPES[number]
    width = message.dimension * dtype.itemsize
    if width == 0 or len(message.data) % width:
        raise FieldError(
            f"{field}.data",
            f"{field}.data has {len(message.data)} bytes; vectors of dimension {message.dimension} have {width} each",
        )
    return np.frombuffer(message.data, dtype=dtype).reshape(-1, message.dimension)


def items_message(rows: Rows) -> item_pb2.ItemBatch:
    """Pack items, whose codes are in the index's bit order."""
    payloads = () if rows.payloads is None else [rows.payloads[i] for i in range(len(rows))]
    message = item_pb2.ItemBatch(codes=rows.codes.tobytes(), payloads=payloads)
    pack(message, "ids", rows.ids)
    return message


def items_of(message: item_pb2.ItemBatch, settings: IndexSettings) -> Rows:
    """Unpack items; their codes stay in the index's bit order. The ids may repeat."""
    ids, width = ids_of(message), settings.code_bytes
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


def fill_statistics(message: search_pb2.QueryStatistics, stats: Stats, elapsed: float) -> None:
    """Pack what a query has cost."""
    message.plan = _PLANS.index(stats.plan) + 1  # type: ignore[assignment]
    message.switched = stats.switched
    message.rounds = stats.rounds
    message.buckets = stats.buckets
    message.buckets_nonempty = stats.buckets_nonempty
    message.candidates = stats.candidates
    message.verified = stats.verified
    message.blocks = stats.blocks
    message.planes = stats.planes
    message.engine_seconds = stats.seconds
    message.elapsed_seconds = elapsed


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


def hits_of(chunk: search_pb2.Chunk) -> tuple[NDArray[np.uint64], NDArray[np.float64]]:
    """Unpack hits."""
    return ids_of(chunk), unpack(chunk, "distances", np.float64)
