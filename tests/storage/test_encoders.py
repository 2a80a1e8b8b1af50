"""Codes and costs of vectors, compared with exact arithmetic."""

from __future__ import annotations

import dataclasses
import json
import struct
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import generated
from whamming.native import Costs, Index, InvalidArgumentError
from whamming.storage import CorruptStoreError, FormatError, StorageError
from whamming.storage.vectors import encoders
from whamming.storage.vectors.encoders import (
    JSON_BYTES,
    MAX_ROUNDS,
    Encoder,
    Form,
    Kind,
    Training,
    check_encoder,
    load_encoder,
)
from whamming.storage.vectors.fitting import fit

KINDS: tuple[Kind, ...] = ("sign", "lsh", "itq")
FORMS: tuple[Form, ...] = ("asymmetric", "inner", "symmetric")


def make(kind: Kind, dim: int = 12, bits: int = 9, seed: int = 0, rows: int = 200) -> Encoder:
    return fit(kind, make_vectors(rows, dim, seed), bits=bits, seed=seed)


def make_vectors(rows: int, dim: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, dim)).astype(np.float32)


def unpack(codes: NDArray[np.uint8], bits: int) -> NDArray[np.bool_]:
    return np.unpackbits(codes, axis=-1, count=bits, bitorder="little").astype(bool)


def projections(encoder: Encoder, vector: NDArray[Any]) -> list[tuple[Fraction, Fraction]]:
    """Return each p_i(x) without rounding, and the sum of the absolute values of its terms."""
    x = [Fraction(float(v)) for v in vector]
    matrix = np.eye(encoder.dim)[:, : encoder.bits] if encoder.matrix is None else encoder.matrix
    exact = []
    for column, offset in zip(matrix.T, encoder.offsets, strict=True):
        terms = [a * Fraction(float(b)) for a, b in zip(x, column, strict=True)] + [-Fraction(float(offset))]
        exact.append((sum(terms, Fraction(0)), sum(map(abs, terms), Fraction(0))))
    return exact


# -- codes -------------------------------------------------------------------------------------------------------------


@generated(60)
@given(
    kind=st.sampled_from(KINDS),
    dim=st.integers(1, 20),
    bits=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-44, 1e-30, 1e-10, 1.0, 1e15, 1e37]),
    dtype=st.sampled_from(["float32", "float16", "float64", "int8", "uint8"]),
)
def test_a_bit_says_whether_the_projection_is_positive(
    kind: Kind, dim: int, bits: int, seed: int, scale: float, dtype: str
) -> None:
    bits = bits if kind == "lsh" else min(bits, dim)
    encoder = make(kind, dim, bits, seed)
    rng = np.random.default_rng(seed)
    given = rng.standard_normal((20, dim))
    given = given * scale if dtype.startswith("float") and dtype != "float16" else np.abs(given) * 30
    given[3] = 0
    vectors = given.astype(dtype)
    ones = unpack(encoder.encode(vectors), bits)
    for row, vector in zip(ones, vectors.astype(np.float32), strict=True):
        for bit, (exact, size) in zip(row, projections(encoder, vector), strict=True):
            # Doubles decide. If their precision does not suffice to determine the sign, either bit is right.
            assert bit == (exact > 0) or 0 < abs(exact) < size / 2**48
    assert np.array_equal(ones, encoder.project(vectors) > 0)


@generated(120)
@given(
    kind=st.sampled_from(KINDS),
    bits=st.integers(1, 12),
    seed=st.integers(0, 999),
    cut=st.integers(0, 30),
    scale=st.sampled_from([1.0, 2.0**-90, 2.0**125]),  # whose squares underflow, or overflow
)
def test_a_code_depends_on_the_vector_alone(kind: Kind, bits: int, seed: int, cut: int, scale: float) -> None:
    """The projections are so close to zero that their signs in single precision are random."""
    encoder = make(kind, 12, bits, seed) if kind != "lsh" else fit("lsh", dim=12, bits=bits, seed=seed)
    vectors = make_vectors(30, 12, seed).clip(-7, 7) * np.float32(scale)
    if encoder.matrix is not None:  # nearly orthogonal to the first direction: the last digits decide the sign
        direction = encoder.matrix[:, 0].astype(np.float64)
        along = (vectors.astype(np.float64) @ direction - encoder.offsets[0]) / (direction @ direction)
        vectors = (vectors - along[:, None] * direction).astype(np.float32)
    whole = encoder.encode(vectors)
    assert np.array_equal(unpack(whole, bits), encoder.project(vectors) > 0)
    assert np.array_equal(whole, np.concatenate([encoder.encode(vectors[:cut]), encoder.encode(vectors[cut:])]))
    assert np.array_equal(whole, [encoder.encode(vector) for vector in vectors])
    assert np.array_equal(whole, encoder.encode(np.asfortranarray(vectors)))
    assert np.array_equal(whole, encoder.encode(vectors.astype(np.float64)))


@pytest.mark.parametrize("bits", [1, 2, 3, 7, 8, 9, 16, 33, 100])
@pytest.mark.parametrize("dim", [1, 2, 9, 130, 1000])
def test_projections_are_summed_in_order(bits: int, dim: int) -> None:
    encoder = fit("lsh", dim=dim, bits=bits, seed=3)
    assert encoder.matrix is not None
    vector = make_vectors(1, dim, 5)[0]
    expected = np.zeros(bits)
    for component, row in zip(vector.tolist(), encoder.matrix.astype(np.float64), strict=True):
        expected += component * row
    assert np.array_equal(encoder.project(vector), expected)
    assert np.array_equal(encoder.project(vector[None]), expected[None])


@pytest.mark.parametrize("bits", [1, 2, 64])
def test_codes_near_zero_do_not_depend_on_the_batch(bits: int) -> None:
    """The terms of these projections cancel. Rounding errors decide their signs, and so does the order of addition."""
    dim, rows = 512, 100
    rng = np.random.default_rng(0)
    signs = rng.choice(np.array([-1, 1], np.float32), (1, bits))
    encoder = Encoder("lsh", dim, bits, False, np.repeat(signs, dim, axis=0), np.zeros(bits, np.float32), None)
    half = rng.standard_normal((rows, dim // 2)) * 2.0 ** rng.integers(-40, 40, (rows, dim // 2))
    vectors = rng.permuted(np.concatenate([half, -half], axis=1), axis=1).astype(np.float32)
    together = encoder.encode(vectors)
    assert np.array_equal(together, np.stack([encoder.encode(vector) for vector in vectors]))
    assert np.array_equal(unpack(together, bits), encoder.project(vectors) > 0)


def test_a_projection_of_exactly_zero_gives_a_zero() -> None:
    matrix = np.array([[1, -1], [-1, 1]], dtype=np.float32)
    encoder = Encoder("lsh", 2, 2, False, matrix, np.zeros(2, dtype=np.float32), None)
    assert encoder.encode(np.array([[5, 5], [5, 4], [4, 5]], dtype=np.int8)).tolist() == [[0], [1], [2]]
    assert encoder.project([5.0, 5.0]).tolist() == [0, 0]


def test_few_signs_are_doubtful_and_these_are_computed_as_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = make("itq", 64, 64)
    computed: list[int] = []
    inner = Encoder._set_exactly

    def spy(self: Encoder, block: Any, matrix: Any, rows: Any, bits: Any, out: Any) -> Any:
        computed.append(len(rows))
        return inner(self, block, matrix, rows, bits, out)

    monkeypatch.setattr(Encoder, "_set_exactly", spy)
    vectors = make_vectors(20_000, 64, 1)
    assert np.array_equal(unpack(encoder.encode(vectors), 64), encoder.project(vectors) > 0)
    assert 0 < sum(computed) < vectors.size // 5_000

    computed.clear()
    fit("lsh", dim=64, bits=64).encode(np.zeros((1000, 64)))
    assert computed == []


def test_zero_vectors_have_the_code_of_the_origin() -> None:
    for kind in KINDS:
        encoder = make(kind)
        assert np.array_equal(unpack(encoder.encode(np.zeros(12, dtype=np.int8)), 9), encoder.offsets < 0)
    bare = fit("lsh", dim=12, bits=9)
    assert not bare.encode(np.zeros((3, 12), dtype=np.float32)).any()
    assert not bare.cost_table(np.zeros(12), "inner").any()


def test_no_vectors_have_no_codes() -> None:
    assert make("lsh").encode(np.empty((0, 12), dtype=np.float32)).shape == (0, 2)
    assert make("lsh").cost_table(np.empty((0, 12), dtype=np.float32)).shape == (0, 9, 2)


# -- costs -------------------------------------------------------------------------------------------------------------


@generated(80)
@given(
    dim=st.integers(1, 70),
    rows=st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    most=st.sampled_from([1, 2, 127]),
    dtype=st.sampled_from(["int8", "float32"]),
)
def test_inner_costs_give_the_order_of_the_inner_product_exactly(
    dim: int, rows: int, seed: int, most: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    items = rng.integers(-most, most + 1, (rows, dim)).astype(dtype)
    query = rng.integers(-most, most + 1, dim)
    encoder = fit("sign", dim=dim)
    ids, distances = Index.build(encoder.encode(items), dim).search(encoder.costs(query.astype(dtype), "inner"), rows)
    products = np.where(items > 0, 1, -1).astype(np.int64) @ query  # exact; a component of zero counts as negative
    order = np.lexsort((np.arange(rows), -products))
    assert ids.tolist() == order.tolist()
    assert np.array_equal(np.abs(query).sum() - 2 * distances, products[order])


@generated(40)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 999))
def test_costs_follow_their_definitions(kind: Kind, seed: int) -> None:
    encoder = make(kind, seed=seed)
    queries = make_vectors(5, 12, seed + 1)
    projected = encoder.project(queries)
    assert encoder.expected is not None
    weights = np.random.default_rng(seed).standard_normal(9)
    ones = unpack(encoder.encode(queries), 9)
    asymmetric = (projected[..., None] - encoder.expected) ** 2
    inner = np.stack([np.where(ones != bool(value), np.abs(projected), 0) for value in (0, 1)], axis=-1)
    chosen: tuple[tuple[Form | None, NDArray[np.float64]], ...] = (
        ("asymmetric", asymmetric),
        (None, asymmetric),
        ("inner", inner),
    )
    for form, exact in chosen:
        table = encoder.cost_table(queries, form)
        less = exact - table
        assert (less >= 0).all()
        assert (less < exact.max(axis=(1, 2), keepdims=True) * 2.0**-39).all()
        assert not Costs.table(table).scales["rounded"].any()
    for value in (0, 1):
        differs = ones != bool(value)
        assert np.array_equal(encoder.cost_table(queries, "symmetric")[..., value], differs)
        weighted = encoder.cost_table(queries, "symmetric", weights=weights)
        assert np.array_equal(weighted[..., value], np.where(differs, weights, 0))
    for each in FORMS:
        assert np.array_equal(encoder.cost_table(queries[2], each), encoder.cost_table(queries, each)[2])
    assert encoder.costs(queries[0]).single
    assert len(encoder.costs(queries)) == 5


def test_without_a_sample_inner_is_the_default() -> None:
    encoder = fit("sign", dim=3)
    assert encoder.default_form == "inner"
    assert encoder.cost_table([1.0, -2.0, 0.0]).tolist() == [[1, 0], [0, 2], [0, 0]]
    with pytest.raises(InvalidArgumentError, match=r"costs = 'asymmetric', but .* without a sample"):
        encoder.costs([1.0, 2.0, 3.0], "asymmetric")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "euclidean"}, "costs = 'euclidean'"),
        ({"form": "inner", "weights": np.ones(9)}, "costs = 'inner' with weights"),
        ({"weights": np.ones(9)}, "costs = 'asymmetric' with weights"),
        ({"form": "symmetric", "weights": np.ones(8)}, r"weights have shape \(8,\); .*\[9\]"),
        ({"form": "symmetric", "weights": np.ones((1, 9))}, r"weights have shape \(1, 9\)"),
        ({"form": "symmetric", "weights": np.full(9, np.nan)}, "finite"),
    ],
)
def test_invalid_costs_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        make("lsh").costs(np.ones(12), **arguments)


@pytest.mark.parametrize("method", ["encode", "project", "costs"])
def test_invalid_vectors_are_refused(method: str) -> None:
    call = getattr(make("itq"), method)
    with pytest.raises(InvalidArgumentError, match=r"have 13 components, .* takes 12"):
        call(np.ones((1, 13)))
    with pytest.raises(InvalidArgumentError, match="row 0, column 4 is nan"):
        call(np.where(np.arange(12) == 4, np.nan, 1)[None])
    with pytest.raises(InvalidArgumentError, match="dtype int32"):
        call(np.ones((1, 12), dtype=np.int32))


# -- bytes -------------------------------------------------------------------------------------------------------------


def same(one: Encoder, other: Encoder) -> bool:
    fields = ("kind", "dim", "bits", "centred", "training")
    arrays = ("matrix", "offsets", "expected")
    return all(getattr(one, f) == getattr(other, f) for f in fields) and all(
        (getattr(one, a) is None and getattr(other, a) is None) or np.array_equal(getattr(one, a), getattr(other, a))
        for a in arrays
    )


@pytest.mark.parametrize("encoder", [*map(make, KINDS), fit("sign", dim=5), fit("lsh", dim=5, bits=7)], ids=repr)
def test_an_encoder_is_restored_from_its_bytes(encoder: Encoder, tmp_path: Path) -> None:
    back = Encoder.from_bytes(encoder.to_bytes())
    assert same(back, encoder)
    assert back.to_bytes() == encoder.to_bytes()
    assert back.fingerprint == encoder.fingerprint
    path = tmp_path / "encoder"
    path.write_text("in the way")
    encoder.save(path)
    loaded = load_encoder(str(path))
    assert same(loaded, encoder)
    assert [p.name for p in tmp_path.iterdir()] == ["encoder"]
    vectors = make_vectors(50, encoder.dim, 8)
    assert np.array_equal(loaded.encode(vectors), encoder.encode(vectors))
    assert np.array_equal(loaded.cost_table(vectors), encoder.cost_table(vectors))


def test_different_encoders_have_different_fingerprints() -> None:
    some = [make("lsh"), make("lsh", seed=1), make("itq"), make("sign"), fit("sign", dim=12, bits=9)]
    assert len({encoder.fingerprint for encoder in some}) == len(some)


def test_every_damaged_byte_is_detected() -> None:
    data = make("lsh", 3, 2).to_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 0x40
        with pytest.raises((FormatError, CorruptStoreError)):
            Encoder.from_bytes(bytes(damaged))
    for size in range(len(data)):
        with pytest.raises((FormatError, CorruptStoreError)):
            Encoder.from_bytes(data[:size])
    with pytest.raises(CorruptStoreError, match=r"checksum [0-9a-f]{8} "):
        Encoder.from_bytes(data + b"x")


def resealed(data: bytes) -> bytes:
    """Return the bytes with a correct checksum."""
    bare = data[:4] + bytes(4) + data[8:]
    return data[:4] + struct.pack("<I", zlib.crc32(bare)) + data[8:]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"kind":"lsh"', b'"kind":"pca"'),
        (b'"kind":"lsh"', b'"kid" :"lsh"'),
        (b'"dim":3', b'"dim":4'),
        (b'"dim":3', b'"dim":0'),
        (b'"bits":2', b'"bits":1'),
        (b'"bits":2', b'"bits":x'),
        (b'"matrix"', b'"offsets"'[:8]),
        (b'["matrix","offsets","expected"]', b'["matrix","offsets"]           '),
        (b'["matrix","offsets","expected"]', b'["offsets","expected"]         '),
        (b'"errors":[]', b'"errors":{ '),
    ],
)
def test_bytes_that_contradict_themselves_are_refused(old: bytes, new: bytes) -> None:
    data = make("lsh", 3, 2).to_bytes()
    assert old in data
    with pytest.raises(CorruptStoreError, match="contradicts itself"):
        Encoder.from_bytes(resealed(data.replace(old, new)))


def test_numbers_that_are_not_finite_are_refused() -> None:
    data = make("lsh", 3, 2).to_bytes()
    with pytest.raises(CorruptStoreError, match=r"expected .*not finite"):
        Encoder.from_bytes(resealed(data[:-8] + struct.pack("<d", np.nan)))


def edited(data: bytes, **changes: Any) -> bytes:
    """Return an encoder's bytes with other values in the JSON, and a correct checksum."""
    size = struct.unpack_from("<I", data, 12)[0]
    values = json.loads(data[16 : 16 + size]) | changes
    text = json.dumps(values).encode()
    return resealed(data[:12] + struct.pack("<I", len(text)) + text + data[16 + size :])


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": np.inf},
        {"samples": -1},
        {"samples": 2**64},
        {"samples": []},
        {"errors": [np.nan]},
        {"errors": [10**400]},
        {"errors": 3},
        {"kind": ["lsh"]},
        {"bits": 2.0},
        {"dim": np.inf},
        {"arrays": [["offsets"]]},
        {"arrays": ["offsets"]},
        {"arrays": None},
    ],
    ids=lambda changes: str(changes)[:30],
)
def test_odd_values_are_refused_as_damage(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptStoreError, match="contradicts itself"):
        Encoder.from_bytes(edited(make("lsh", 3, 2).to_bytes(), **changes))


def test_deeply_nested_json_is_refused_as_damage() -> None:
    data = make("lsh", 3, 2).to_bytes()
    text = b"[" * 200_000
    with pytest.raises(CorruptStoreError, match="contradicts itself"):
        Encoder.from_bytes(resealed(data[:12] + struct.pack("<I", len(text)) + text))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"errors": [0.5] * (MAX_ROUNDS + 2)}, f"{MAX_ROUNDS + 1} rounds; at most {MAX_ROUNDS}"),
        ({"errors": ["x"] * (MAX_ROUNDS + 2)}, f"{MAX_ROUNDS + 1} rounds; at most {MAX_ROUNDS}"),
        ({"arrays": ["offsets", "offsets"]}, "2 arrays"),
        ({"arrays": ["x"] * 9}, "9 arrays"),
        ({"more": []}, "has the keys"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_values_are_counted_before_they_are_converted(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptStoreError, match=message):
        Encoder.from_bytes(edited(make("lsh", 3, 2).to_bytes(), **changes))


@pytest.mark.parametrize("text", [b"[" * (JSON_BYTES + 8), b"{}" + b" " * JSON_BYTES, b"[" + b"[]," * 1_000_000])
def test_a_large_json_is_refused_before_it_is_parsed(text: bytes) -> None:
    """The error is about its size, though it is no JSON either, or has no keys."""
    data = make("lsh", 3, 2).to_bytes()
    with pytest.raises(CorruptStoreError, match=f"JSON has {len(text)} bytes; at most {JSON_BYTES}"):
        Encoder.from_bytes(resealed(data[:12] + struct.pack("<I", len(text)) + text))


def test_the_largest_training_fits_into_the_json() -> None:
    longest = Training(2**64 - 1, (-1 / 3e200,) * (MAX_ROUNDS + 1), converged=False)
    encoder = dataclasses.replace(make("itq"), training=longest)
    assert same(Encoder.from_bytes(encoder.to_bytes()), encoder)


ODD: dict[str, Any] = {
    "nan": {"offsets": np.array([0, np.nan], dtype=np.float32)},
    "infinity": {"matrix": np.full((3, 2), np.inf, dtype=np.float32)},
    "huge": {"matrix": np.full((3, 2), 3e38, dtype=np.float32)},
    "huge offsets": {"offsets": np.array([0, -3e38], dtype=np.float32)},
    "huge doubles": {"expected": np.full((2, 2), 1e300)},
    "too few offsets": {"offsets": np.zeros(1, dtype=np.float32)},
    "transposed": {"matrix": np.zeros((2, 4), dtype=np.float32)},
    "no matrix": {"matrix": None},
    "no such kind": {"kind": "pca"},
    "samples": {"training": Training(samples=2**70)},
}


@pytest.mark.parametrize("odd", ODD)
def test_new_indexes_refuse_odd_encoders(odd: str) -> None:
    good = make("lsh", 3, 2)
    check_encoder(good)
    with pytest.raises(InvalidArgumentError, match="fit a new one"):
        check_encoder(dataclasses.replace(good, **ODD[odd]))


def test_a_newer_version_is_not_reported_as_damage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "encoder"
    with monkeypatch.context() as later:
        later.setattr(encoders, "FORMAT", 2)
        make("lsh").save(path)
    with pytest.raises(FormatError, match=f"{path}: .*format 2; .*up to 1: upgrade"):
        load_encoder(path)


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"nothing .*No such file"):
        load_encoder(tmp_path / "nothing")
    with pytest.raises(StorageError, match=r"encoder .*No such file"):
        make("sign").save(tmp_path / "nowhere" / "encoder")
    (tmp_path / "text").write_text("hello, world: no encoder")
    with pytest.raises(FormatError, match="text: not an encoder"):
        load_encoder(tmp_path / "text")


def test_an_encoder_is_immutable() -> None:
    encoder = make("itq")
    assert encoder.matrix is not None
    with pytest.raises(ValueError, match="read-only"):
        encoder.matrix[0, 0] = 1
    with pytest.raises(AttributeError):
        encoder.bits = 3  # type: ignore[misc]
    assert repr(encoder) == "Encoder('itq', dim=12, bits=9, centred=True)"
    assert Training().rounds == 0
