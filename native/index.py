"""Build, open and search an index of binary codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Thread
from typing import Any, Final, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from whamming.native._engine import ffi, lib
from whamming.native.arguments import Plan, Position, as_whole, check_threads
from whamming.native.budget import Budget
from whamming.native.costs import Costs, as_codes, check_bits
from whamming.native.cursor import Cursor
from whamming.native.errors import CorruptIndexError, InvalidArgumentError, check
from whamming.native.view import Answer, Part, View

Tables = Literal["single", "multi", "none"]
Buckets = Literal["compact", "fast"]
Simd = Literal["portable", "neon", "avx2", "avx512"]

ARRAY_NAMES: Final = ("meta", "codes", "ids", "groups", "directory", "postings", "entries")
"""Names of an index's flat arrays, in the engine's order."""

MAX_FULLY_COVERED_BITS: Final = 256
COVERED_BITS_OF_LONG_CODES: Final = 128
"""Codes longer than MAX_FULLY_COVERED_BITS have tables over their first COVERED_BITS_OF_LONG_CODES bits only. Searches
of these codes end with a sweep, and a few tables suffice to find good candidates before it."""

_LARGE: Final = 2**22
"""Codes; from about this number on, they do not fit into the caches of common processors."""
_ALL: Final = slice(None)
_LAYOUTS = {"multi": lib.WH_MULTI, "single": lib.WH_SINGLE, "none": lib.WH_SINGLE}
_BUCKETS = {"compact": lib.WH_COMPACT, "fast": lib.WH_FAST}
_SIMD: dict[Simd, int] = {
    "portable": lib.WH_PORTABLE,
    "neon": lib.WH_NEON,
    "avx2": lib.WH_AVX2,
    "avx512": lib.WH_AVX512,
}


def choose_substring_bits(n: int, bits: int, buckets: Buckets = "compact") -> int:
    """Return the default substring length of an index of ``n`` codes.

    With uniform codes, keys of log2(n) bits would give one code per bucket. Keys a few bits shorter probe fewer empty
    buckets and need a smaller directory, which is faster on real codes. In a large index with compact buckets, each
    code of a bucket is a random access to memory, so there the buckets should be smaller.
    """
    shorter = 2 if buckets == "compact" and n >= _LARGE else 4
    return max(1, min(bits, 32, max(8, n.bit_length() - shorter)))


def available_simd() -> tuple[Simd, ...]:
    """Return the instruction sets that this machine supports, slowest first."""
    return tuple(name for name, level in _SIMD.items() if lib.wh_simd_available(level))


class Index:
    """An immutable index over flat arrays; any number of threads may search it at once.

    Build one with :meth:`build`, or open existing arrays with :meth:`from_arrays`. An index also owns a planner, which
    learns from the times of its searches. The planner affects how a search runs, never its answer.
    """

    def __init__(self, arrays: Mapping[str, Any], owner: object = None) -> None:
        """Open an index over named buffers. Users call :meth:`build` or :meth:`from_arrays`."""
        self._owner = owner
        self._buffers = {name: _as_bytes(arrays[name]) for name in ARRAY_NAMES if name in arrays}
        missing = [name for name in ARRAY_NAMES if name not in arrays]
        if missing:
            raise InvalidArgumentError(
                f"missing arrays: {', '.join(missing)}; an index needs all of {', '.join(ARRAY_NAMES)}"
            )
        borrowed = ffi.new("struct wh_arrays *")
        self._pinned = [ffi.from_buffer(self._buffers[name]) for name in ARRAY_NAMES]
        for i, name in enumerate(ARRAY_NAMES):
            size = self._buffers[name].nbytes
            borrowed.data[i] = ffi.cast("void *", self._pinned[i]) if size else ffi.NULL
            borrowed.size[i] = size
        handle = ffi.new("wh_index **")
        check(lib.wh_index_open(borrowed, handle), "opening the index")
        self._handle = ffi.gc(handle[0], lib.wh_index_close)
        planner = ffi.new("wh_planner **")
        check(lib.wh_planner_create(planner), "opening the index")
        self._planner = ffi.gc(planner[0], lib.wh_planner_free)
        info = ffi.new("struct wh_index_info *")
        lib.wh_index_describe(self._handle, info)
        self.n: int = info.n
        self.rows: int = info.rows
        """Number of stored codes. If many codes are equal, these are the distinct codes; otherwise all of them."""
        self._id_bytes: int = info.id_bytes
        self._place_bytes: int = info.place_bytes
        self.bits: int = info.bits
        self.table_count: int = info.tables
        self.tables: Tables = "none" if info.tables == 0 else ("multi", "single")[info.layout]
        self.buckets: Buckets = ("compact", "fast")[info.buckets]

    @classmethod
    def build(
        cls,
        codes: ArrayLike,
        bits: int,
        ids: ArrayLike | None = None,
        tables: Tables = "single",
        buckets: Buckets = "compact",
        *,
        substring_bits: int | None = None,
        reorder: bool = True,
        threads: int | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Index:
        """Build an index in RAM.

        Parameters
        ----------
        codes : ``uint8 [n, ceil(bits / 8)]``; bit i is byte ``i >> 3``, mask ``1 << (i & 7)``. n < 2**32.
        bits : length of the codes, 1 to 4096.
        ids : ``uint64 [n]``, distinct; by default 0 .. n - 1. Equal distances are ordered by id.
        tables : ``"single"``: one directory for all substrings; ``"multi"``: one per substring; ``"none"``: no
            tables, sweep only.
        buckets : ``"compact"`` stores 1 to 4 bytes per code and substring. ``"fast"`` stores the code as well; probing
            is then several times faster for codes of 64 bits and more.
        substring_bits : maximum length of a substring, 1 to 32; by default :func:`choose_substring_bits`.
        reorder : store similar codes next to each other, for faster searches. Takes 4 bytes per code if ``ids`` is
            None.
        threads : number of threads for the build; by default one per core.
        progress : called about every 0.1 s with the fraction done, 0.0 to 1.0. If it raises an error, the build is
            cancelled, and the error is raised.

        Equal codes are stored once, with all their ids. Peak memory is the finished index, the codes once
        more, 24 bytes per code and a few bytes per bucket.
        """
        bits = check_bits(bits)
        packed = as_codes(codes, bits)
        n = len(packed)
        if tables not in _LAYOUTS:
            known = ", ".join(map(repr, get_args(Tables)))
            raise InvalidArgumentError(f"tables = {tables!r}; choose one of {known}")
        if buckets not in _BUCKETS:
            raise InvalidArgumentError(
                f"buckets = {buckets!r}; choose one of {', '.join(map(repr, get_args(Buckets)))}"
            )
        if n >= 2**32:
            raise InvalidArgumentError(f"{n} codes; an index holds fewer than 2**32, so use several")
        length = (
            choose_substring_bits(n, bits, buckets)
            if substring_bits is None
            else as_whole("substring_bits", substring_bits)
        )
        if not 1 <= length <= lib.WH_MAX_SUBSTRING_BITS:
            raise InvalidArgumentError(f"substring_bits = {length}; it must be 1 to {lib.WH_MAX_SUBSTRING_BITS}")
        covered = bits if bits <= MAX_FULLY_COVERED_BITS else COVERED_BITS_OF_LONG_CODES
        count = 0 if tables == "none" else -(-covered // min(length, covered))
        if tables == "single" and n * count >= 2**32:
            raise InvalidArgumentError(
                f"{n} codes x {count} substrings exceed the 2**32 - 1 postings of a single table; use tables='multi'"
            )
        own_ids = None if ids is None else _as_ids(ids, n)
        options = ffi.new(
            "struct wh_build_options *",
            {
                "bits": bits,
                "tables": count,
                "covered": covered,
                "layout": _LAYOUTS[tables],
                "buckets": _BUCKETS[buckets],
                "reorder": int(reorder),
                "threads": check_threads(threads),
                "cancel": (cancel := ffi.new("uint32_t *")),
            },
        )
        arrays = ffi.new("struct wh_arrays *")
        done = ffi.new("uint32_t *")
        status: list[int] = []

        def work() -> None:
            pointer = ffi.NULL if own_ids is None else ffi.cast("uint64_t *", own_ids.ctypes.data)
            code_pointer = ffi.cast("uint8_t *", packed.ctypes.data)
            status.append(lib.wh_build(code_pointer, n, pointer, options, done, arrays))

        if progress is None:
            work()
        else:
            thread = Thread(target=work, name="whamming-build")
            thread.start()
            working = True
            try:
                while working:
                    thread.join(0.1)
                    working = thread.is_alive()  # checked before `done` is read, so the last report is final
                    progress(done[0] / 1000)
            except BaseException:
                cancel[0] = 1
                thread.join()
                raise
        check(status[0], f"building an index of {n} codes of {bits} bits")
        owner = ffi.gc(arrays, lib.wh_arrays_free)

        def view(i: int) -> Any:
            # The buffer keeps the pointer alive; the pointer's destructor keeps the owner of all arrays alive.
            pointer = ffi.gc(arrays.data[i], lambda _, owner=owner: None)
            return ffi.buffer(pointer, arrays.size[i]) if arrays.size[i] else b""

        return cls({name: view(i) for i, name in enumerate(ARRAY_NAMES)})

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any], owner: object = None) -> Index:
        """Open an index over existing buffers (bytes, numpy arrays, memory maps), without copying them.

        ``arrays``: keyed by :data:`ARRAY_NAMES`; read in place and kept alive. ``owner``: any other object to keep
        alive as long as the index is in use. Raises :class:`CorruptIndexError` if the arrays are inconsistent.
        """
        return cls(arrays, owner)

    @property
    def arrays(self) -> dict[str, memoryview]:
        """The index as flat read-only buffers, to store anywhere and open with :meth:`from_arrays`."""
        return {name: buffer.data.toreadonly() for name, buffer in self._buffers.items()}

    @property
    def storage(self) -> dict[str, int]:
        """Bytes per array."""
        return {name: buffer.nbytes for name, buffer in self._buffers.items()}

    @property
    def ids(self) -> NDArray[np.uint64]:
        """The id of the item at each place, as a copy. A place is an item's number in storage order."""
        return self.ids_at(_ALL)

    def ids_at(self, places: NDArray[np.integer[Any]] | slice) -> NDArray[np.uint64]:
        """Return the ids of the items at these places."""
        if self._id_bytes == 0:
            return np.arange(self.n, dtype=np.uint64)[places]
        return self._numbers("ids", self._id_bytes, self.n, places)

    def _numbers(
        self, name: str, width: int, count: int, places: NDArray[np.integer[Any]] | slice = _ALL
    ) -> NDArray[np.uint64]:
        """Return numbers of ``width`` bytes each."""
        packed = np.frombuffer(self._buffers[name], dtype=np.uint8, count=count * width).reshape(count, width)
        chosen = packed[places]
        numbers = np.zeros((len(chosen), 8), dtype=np.uint8)
        numbers[:, :width] = chosen
        return numbers.view("<u8").ravel()

    def codes_at(self, places: NDArray[np.integer[Any]] | slice = _ALL) -> NDArray[np.uint8]:
        """Return the packed codes of the items at these places; by default of all items."""
        rows = np.arange(self.n, dtype=np.uint64)[places] if isinstance(places, slice) else places.astype(np.uint64)
        if self.rows < self.n:
            starts = self._numbers("groups", self._place_bytes, self.rows + 1)
            rows = (np.searchsorted(starts, rows, side="right") - 1).astype(np.uint64)
        codes = np.empty((len(rows), (self.bits + 7) // 8), dtype=np.uint8)
        status = lib.wh_index_codes(
            self._handle,
            ffi.from_buffer("uint64_t[]", np.ascontiguousarray(rows)),
            len(rows),
            ffi.from_buffer("uint8_t[]", codes),
        )
        check(status, f"reading the codes of {len(rows)} items")
        return codes

    def find(self, by_id: Any, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the place of each id; 2**64 - 1 if the index does not contain it.

        ``by_id``: a buffer of all places by increasing id, ``uint32 [n]``, as from ``np.argsort(index.ids)``.
        """
        order = self._check_order(by_id)
        wanted = np.ascontiguousarray(ids, dtype=np.uint64)
        places = np.empty(len(wanted), dtype=np.uint64)
        status = lib.wh_index_find(
            self._handle,
            order,
            ffi.from_buffer("uint64_t[]", wanted),
            len(wanted),
            ffi.from_buffer("uint64_t[]", places),
        )
        check(status, f"looking up {len(wanted)} ids")
        return places

    def _check_order(self, by_id: Any) -> Any:
        order = _as_bytes(by_id)
        if order.nbytes != 4 * self.n:
            raise CorruptIndexError(f"by_id has {order.nbytes} bytes; {self.n} items need {4 * self.n}")
        return ffi.from_buffer(order) if self.n else ffi.NULL

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Index({self.n} x {self.bits} bits, tables={self.tables!r}, buckets={self.buckets!r})"

    def search(
        self,
        costs: Costs,
        k: int = 10,
        radius: float | None = None,
        plan: Plan = "auto",
        *,
        budget: Budget | None = None,
        threads: int | None = None,
    ) -> Answer:
        """Return the exact ``k`` nearest items of each query, in order of (distance, id); see :meth:`View.search`."""
        return View([Part(self)], self.bits).search(costs, k, radius, plan, budget=budget, threads=threads)

    def cursor(
        self,
        costs: Costs,
        k: int | None = None,
        radius: float | None = None,
        plan: Plan = "auto",
        *,
        after: Position | None = None,
    ) -> Cursor:
        """Start a search of one query that returns hits as soon as they are proven.

        ``after``: return only hits after this :data:`Position`, to resume an earlier search.
        """
        return View([Part(self)], self.bits).cursor(costs, k, radius, plan, after=after)

    def use_simd(self, simd: Simd) -> None:
        """Use this instruction set for searches that start from now on. For tests and benchmarks."""
        if simd not in available_simd():
            raise InvalidArgumentError(f"simd = {simd!r}; this machine supports {', '.join(available_simd())}")
        check(lib.wh_planner_use_simd(self._planner, _SIMD[simd]), f"choosing {simd}")


def _as_bytes(buffer: Any) -> NDArray[np.uint8]:
    """Return a buffer as an array, to lend its memory to C.

    Some versions of CPython crash when the garbage collector clears a cycle that contains a memoryview whose memory is
    lent. It does not look into arrays, and so never clears the memoryview below one.
    """
    raw = memoryview(buffer).cast("B")
    return np.frombuffer(raw, dtype=np.uint8) if raw.nbytes else np.empty(0, dtype=np.uint8)


def _as_ids(ids: ArrayLike, n: int) -> NDArray[np.uint64]:
    array = np.asarray(ids)
    if array.shape != (n,):
        raise InvalidArgumentError(f"ids have shape {array.shape}; {n} codes need [{n}]")
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"ids have dtype {array.dtype}; they must be integers from 0 to 2**64 - 1")
    if array.dtype.kind == "i" and n and array.min() < 0:
        row = int(array.argmin())
        raise InvalidArgumentError(f"id {array[row]} of row {row} is negative; ids are 0 to 2**64 - 1")
    own = np.ascontiguousarray(array, dtype=np.uint64)
    ordered = np.sort(own)
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise InvalidArgumentError(f"id {ordered[twice[0]]} is given more than once; ids must be distinct")
    return own
