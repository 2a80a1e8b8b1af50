"""Invalid arguments; arrays in any kind of memory, misaligned or corrupt."""

from __future__ import annotations

import gc
import mmap
import pickle
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import LAYOUTS, generated, make_codes, make_table, plans
from tests.native.oracle import Codes, Floats, truth
from whamming.native import (
    ARRAY_NAMES,
    Buckets,
    CorruptIndexError,
    Costs,
    Index,
    InvalidArgumentError,
    OutOfMemoryError,
    Tables,
    WhammingError,
    available_simd,
    choose_substring_bits,
)

BITS = 37
N = 400

every_layout = pytest.mark.parametrize(("tables", "buckets"), LAYOUTS)


def codes_of(seed: int = 0) -> Codes:
    return make_codes("duplicated", N, BITS, np.random.default_rng(seed))


def query(seed: int = 0) -> Floats:
    return make_table("random", codes_of()[5], BITS, np.random.default_rng(seed))


def copied(index: Index) -> dict[str, bytes]:
    return {name: bytes(array) for name, array in index.arrays.items()}


def check_answers(index: Index) -> None:
    whole = truth(codes_of(), query())
    for plan in plans(index):
        ids, distances = index.search(Costs.table(query()), k=N, plan=plan)
        assert (ids.tobytes(), distances.tobytes()) == whole.bytes()


# -- invalid arguments of build ----------------------------------------------------------------------------------------


def check_rejected(match: str, call: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgumentError, match=match):
        call()


@pytest.mark.parametrize("bits", [0, -3, 4097])
def test_bits_must_be_1_to_4096(bits: int) -> None:
    check_rejected(f"bits = {bits}; .* 1 to 4096", lambda: Index.build(np.zeros((1, 1), dtype=np.uint8), bits))


@pytest.mark.parametrize("shape", [(3,), (3, 4), (3, 6), (1, 3, 5), ()])
def test_codes_must_have_one_row_of_bytes_each(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Index.build(np.zeros(shape, dtype=np.uint8), BITS)
    assert str(shape) in str(caught.value)
    assert "37 bits need [n, 5]" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.bool_, np.float32])
def test_codes_must_be_packed_bytes(dtype: type) -> None:
    check_rejected(
        f"{np.dtype(dtype)}, not uint8; .*np.packbits",
        lambda: Index.build(np.zeros((3, 5), dtype=dtype), BITS),
    )


def test_codes_may_be_strided() -> None:
    wide = np.zeros((2 * N, 10), dtype=np.uint8)
    wide[::2, ::2] = codes_of()
    check_answers(Index.build(wide[::2, ::2], BITS))
    check_answers(Index.build(np.asfortranarray(codes_of()), BITS))


@pytest.mark.parametrize("shape", [(N - 1,), (N + 1,), (N, 1), ()])
def test_there_must_be_one_id_per_code(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Index.build(codes_of(), BITS, ids=np.zeros(shape, dtype=np.uint64))
    assert str(shape) in str(caught.value)
    assert f"{N} codes need [{N}]" in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float64, np.bool_, object, "U3"])
def test_ids_must_be_integers(dtype: Any) -> None:
    check_rejected("ids have dtype .* integers", lambda: Index.build(codes_of(), BITS, np.zeros(N, dtype)))


def test_ids_must_not_be_negative() -> None:
    ids = np.arange(N)
    ids[7] = -5
    check_rejected("id -5 of row 7", lambda: Index.build(codes_of(), BITS, ids))


def test_ids_must_be_distinct() -> None:
    ids = np.arange(N, dtype=np.uint64)
    ids[[3, 50]] = 2**64 - 1
    check_rejected(
        "id 18446744073709551615 .*distinct",
        lambda: Index.build(codes_of(), BITS, ids),
    )


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint16, np.int64, np.uint64])
def test_ids_of_any_integer_type_are_accepted(dtype: type) -> None:
    ids: NDArray[Any] = np.arange(100, dtype=dtype)[::-1]
    index = Index.build(codes_of()[:100], BITS, ids)
    assert sorted(index.search(Costs.table(query()), k=100).ids.tolist()) == list(range(100))


@pytest.mark.parametrize("length", [0, -1, 33])
def test_substring_bits_must_be_1_to_32(length: int) -> None:
    check_rejected(
        f"substring_bits = {length}; .* 1 to 32", lambda: Index.build(codes_of(), BITS, substring_bits=length)
    )


@pytest.mark.parametrize("threads", [0, -1, 257])
def test_threads_must_be_1_to_256(threads: int) -> None:
    check_rejected(f"threads = {threads}; .* 1 to 256", lambda: Index.build(codes_of(), BITS, threads=threads))
    index = Index.build(codes_of(), BITS)
    check_rejected(f"threads = {threads}; .* 1 to 256", lambda: index.search(Costs.table(query()), threads=threads))


def test_unknown_option_names_are_rejected() -> None:
    check_rejected("tables = 'tripple'.*'multi'", lambda: Index.build(codes_of(), BITS, tables="tripple"))  # type: ignore[arg-type]
    check_rejected("buckets = 'slow'.*'fast'", lambda: Index.build(codes_of(), BITS, buckets="slow"))  # type: ignore[arg-type]
    index = Index.build(codes_of(), BITS)
    costs = Costs.table(query())
    check_rejected("plan = 'guess'.*'sweep'", lambda: index.search(costs, plan="guess"))  # type: ignore[arg-type]
    check_rejected("plan = 'guess'.*'sweep'", lambda: index.cursor(costs, plan="guess"))  # type: ignore[arg-type]
    check_rejected("simd = 'mmx'.*portable", lambda: index.use_simd("mmx"))  # type: ignore[arg-type]


# -- invalid arguments of search ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [-1, 2**31, 2**70])
def test_k_of_a_search_must_be_in_range(k: int) -> None:
    index = Index.build(codes_of(), BITS)
    check_rejected(f"k = {k}; .* 0 to {2**31 - 1} .*cursor", lambda: index.search(Costs.table(query()), k=k))


def test_the_largest_k_is_accepted_unless_padding_is_too_large() -> None:
    index = Index.build(codes_of(), BITS)
    assert len(index.search(Costs.table(query()), k=2**31 - 1).ids) == N
    batch = Costs.table(np.stack([query(1), query(2)]))
    assert index.search(batch, k=N + 100_000).ids.shape == (2, N + 100_000)
    check_rejected("4294967294 .*268435456", lambda: index.search(batch, k=2**31 - 1))


def test_costs_must_fit_the_index() -> None:
    index = Index.build(codes_of(), BITS)
    costs = Costs.table(np.ones((40, 2)))
    check_rejected(f"40 bits.* {BITS} bits$", lambda: index.search(costs))
    check_rejected(f"40 bits.* {BITS} bits$", lambda: index.cursor(costs))


def test_probing_needs_tables() -> None:
    index = Index.build(codes_of(), BITS, tables="none")
    costs = Costs.table(query())
    check_rejected("plan = 'probe'.*tables", lambda: index.search(costs, plan="probe"))
    check_rejected("plan = 'probe'.*tables", lambda: index.cursor(costs, plan="probe"))


def test_all_errors_derive_from_whamming_error() -> None:
    assert issubclass(CorruptIndexError, WhammingError)
    assert issubclass(OutOfMemoryError, WhammingError)
    assert issubclass(OutOfMemoryError, MemoryError)


# -- properties of an index --------------------------------------------------------------------------------------------


@every_layout
def test_properties_describe_the_index(tables: Tables, buckets: Buckets) -> None:
    index = Index.build(codes_of(), BITS, None, tables, buckets)
    assert (len(index), index.n, index.bits, index.tables, index.buckets) == (N, N, BITS, tables, buckets)
    assert repr(index) == f"Index({N} x {BITS} bits, tables={tables!r}, buckets={buckets!r})"
    assert set(index.storage) == set(index.arrays) == set(ARRAY_NAMES)
    assert index.storage == {name: array.nbytes for name, array in index.arrays.items()}
    assert all(array.readonly for array in index.arrays.values())
    assert (index.storage["entries"] > 0) == (buckets == "fast")
    assert (index.storage["directory"] > 0) == (tables != "none")


@every_layout
def test_equal_codes_are_stored_once_and_trailing_bits_ignored(tables: Tables, buckets: Buckets) -> None:
    clean = codes_of()
    clean[:, -1] &= (1 << BITS % 8) - 1
    noise = np.random.default_rng(1).integers(0, 256, N, dtype=np.uint8) << BITS % 8
    noisy = clean.copy()
    noisy[:, -1] |= noise.astype(np.uint8)
    index = Index.build(noisy, BITS, None, tables, buckets)
    assert index.rows == len(np.unique(clean, axis=0)) < len(np.unique(noisy, axis=0))
    assert copied(index) == copied(Index.build(clean, BITS, None, tables, buckets))


def test_build_reports_progress() -> None:
    shares: list[float] = []
    index = Index.build(codes_of(), BITS, progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    check_answers(index)


def test_the_default_substring_length_grows_with_n() -> None:
    lengths = [choose_substring_bits(n, 64) for n in (0, 1, 1000, 10**6, 10**9, 2**32 - 1)]
    assert lengths == sorted(lengths)
    assert all(1 <= length <= 32 for length in lengths)
    assert choose_substring_bits(10**6, 3) == 3
    assert choose_substring_bits(10**6, 64, "fast") == choose_substring_bits(10**6, 64, "compact") == 16
    assert (choose_substring_bits(10**7, 64, "fast"), choose_substring_bits(10**7, 64, "compact")) == (20, 22)


def test_portable_kernels_are_always_available() -> None:
    assert available_simd()[0] == "portable"


@every_layout
def test_builds_are_repeatable_on_any_number_of_threads(tables: Tables, buckets: Buckets) -> None:
    one = copied(Index.build(codes_of(), BITS, None, tables, buckets, threads=1))
    assert one == copied(Index.build(codes_of(), BITS, None, tables, buckets, threads=1))
    for threads in (2, 3, 64):
        check_answers(Index.build(codes_of(), BITS, None, tables, buckets, threads=threads))


# -- arrays in any kind of memory --------------------------------------------------------------------------------------


@every_layout
@pytest.mark.parametrize("reorder", [True, False])
def test_arrays_survive_a_round_trip(tables: Tables, buckets: Buckets, reorder: bool, tmp_path: Path) -> None:
    index = Index.build(codes_of(), BITS, None, tables, buckets, reorder=reorder)
    arrays = copied(index)
    again = Index.from_arrays(arrays)
    assert repr(again) == repr(index)
    assert copied(again) == arrays
    check_answers(again)
    check_answers(Index.from_arrays(pickle.loads(pickle.dumps(arrays))))
    check_answers(Index.from_arrays({name: bytearray(array) for name, array in arrays.items()}))
    check_answers(Index.from_arrays({name: np.frombuffer(array, dtype=np.uint8) for name, array in arrays.items()}))
    check_answers(Index.from_arrays(mapped(arrays, tmp_path / "index")))


def mapped(arrays: Mapping[str, bytes], path: Path, gap: int = 1) -> dict[str, memoryview]:
    """Write the arrays to a file, with gaps between them, and map it into memory."""
    path.write_bytes(b"".join(b"\xff" * gap + array for array in arrays.values()))
    with path.open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    views, place = {}, 0
    for name, array in arrays.items():
        views[name] = view[place + gap : place + gap + len(array)]
        place += gap + len(array)
    return views


@every_layout
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 5, 7, 8, 11, 13, 15, 16, 24])
def test_arrays_may_have_any_alignment(tables: Tables, buckets: Buckets, offset: int) -> None:
    """Nothing may depend on alignment: large values of LMDB start 16 or 24 bytes after a page boundary."""
    arrays = copied(Index.build(codes_of(), BITS, None, tables, buckets))
    views = {}
    for name, array in arrays.items():
        room = np.full(len(array) + 128, 0xA5, dtype=np.uint8)
        start = -room.ctypes.data % 64 + offset
        room[start : start + len(array)] = np.frombuffer(array, dtype=np.uint8)
        views[name] = room[start : start + len(array)]
        assert views[name].ctypes.data % 64 == offset or not array
    index = Index.from_arrays(views)
    for simd in available_simd():
        index.use_simd(simd)
        check_answers(index)


def test_an_opened_index_keeps_its_buffers_alive() -> None:
    opened = Index.from_arrays(
        {name: bytearray(array) for name, array in copied(Index.build(codes_of(), BITS)).items()}
    )
    gc.collect()
    check_answers(opened)


def test_arrays_outlive_the_index_that_built_them() -> None:
    """Otherwise another index could be built in their memory."""
    arrays = Index.build(codes_of(), BITS).arrays
    before = {name: bytes(array) for name, array in arrays.items()}
    gc.collect()
    others = [Index.build(codes_of(seed), BITS) for seed in range(1, 20)]
    assert {name: bytes(array) for name, array in arrays.items()} == before
    check_answers(Index.from_arrays(arrays))
    assert len(others) == 19


def test_all_arrays_are_required() -> None:
    arrays = copied(Index.build(codes_of(), BITS))
    for name in ARRAY_NAMES:
        with pytest.raises(InvalidArgumentError, match=f"missing arrays: {name};"):
            Index.from_arrays({other: array for other, array in arrays.items() if other != name})


# -- corrupt arrays ----------------------------------------------------------------------------------------------------


@every_layout
def test_arrays_of_the_wrong_size_are_rejected(tables: Tables, buckets: Buckets) -> None:
    arrays = copied(Index.build(codes_of(), BITS, None, tables, buckets))
    for name, array in arrays.items():
        for other in (array[:-1], array[: len(array) // 2], b"", array + b"\0", array + bytes(64)):
            if len(other) != len(array):
                with pytest.raises(CorruptIndexError, match="opening the index"):
                    Index.from_arrays({**arrays, name: other})


def test_arrays_of_another_format_are_rejected() -> None:
    arrays = copied(Index.build(codes_of(), BITS))
    meta = bytearray(arrays["meta"])
    meta[4] += 1
    with pytest.raises(CorruptIndexError, match="format version"):
        Index.from_arrays({**arrays, "meta": meta})
    meta = bytearray(arrays["meta"])
    meta[0] ^= 32
    with pytest.raises(CorruptIndexError, match="corrupt"):
        Index.from_arrays({**arrays, "meta": meta})


def meta_words(arrays: Mapping[str, bytes]) -> range:
    """Offsets of the 32-bit words of META, without the frequencies: 2 bytes per bit."""
    return range(0, len(arrays["meta"]) - 2 * BITS, 4)


@every_layout
def test_a_changed_word_of_meta_is_detected(tables: Tables, buckets: Buckets) -> None:
    arrays = copied(Index.build(codes_of(), BITS, None, tables, buckets))
    accepted = []
    for at in meta_words(arrays):
        (old,) = struct.unpack_from("<I", arrays["meta"], at)
        for new in sorted(
            {0, 1, 2, 3, 31, 32, 33, abs(old - 1), (old + 1) % 2**32, 2 * old % 2**32, 2**31, 2**32 - 1} - {old}
        ):
            meta = bytearray(arrays["meta"])
            struct.pack_into("<I", meta, at, new)
            if opens_safely({**arrays, "meta": bytes(meta)}):
                accepted.append(f"word {at // 4}: {old} -> {new}")
    assert not accepted


def opens_safely(arrays: Mapping[str, bytes]) -> bool:
    """Return whether the arrays can be opened. If so, check that searches end with an answer or an error."""
    try:
        index = Index.from_arrays(arrays)
    except CorruptIndexError:
        return False
    for plan in plans(index):
        for k in (1, N):
            try:
                costs = Costs.table(query()) if index.bits == BITS else Costs.table(np.ones((index.bits, 2)))
                assert len(index.search(costs, k=k, plan=plan).ids) <= index.n
                with index.cursor(costs, plan=plan) as cursor:
                    cursor.next(N)
            except CorruptIndexError as error:
                assert "corrupt" in str(error)  # noqa: PT017
    return True


@every_layout
@generated(150)
@given(
    flips=st.lists(st.tuples(st.sampled_from(ARRAY_NAMES), st.integers(0, 2**20), st.integers(1, 255)), max_size=6),
    runs=st.lists(st.tuples(st.sampled_from(ARRAY_NAMES), st.integers(0, 2**20), st.integers(1, 200)), max_size=2),
    substring_bits=st.integers(1, 14),
)
def test_corrupt_bytes_cause_an_error_or_an_answer(
    tables: Tables,
    buckets: Buckets,
    flips: list[tuple[str, int, int]],
    runs: list[tuple[str, int, int]],
    substring_bits: int,
) -> None:
    index = Index.build(codes_of(), BITS, None, tables, buckets, substring_bits=substring_bits)
    arrays = {name: bytearray(array) for name, array in index.arrays.items()}
    for name, at, mask in flips:
        if arrays[name]:
            arrays[name][at % len(arrays[name])] ^= mask
    for name, at, length in runs:
        start = at % max(1, len(arrays[name]))
        stop = min(len(arrays[name]), start + length)
        arrays[name][start:stop] = b"\xff" * (stop - start)
    opens_safely({name: bytes(array) for name, array in arrays.items()})
