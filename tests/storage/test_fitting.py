"""Fitting encoders to a sample, and samples that are refused."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.native.examples import generated
from whamming.native import InvalidArgumentError
from whamming.storage.vectors import fitting
from whamming.storage.vectors.encoders import Kind
from whamming.storage.vectors.fit_limits import FitLimits
from whamming.storage.vectors.fitting import fit

KINDS: tuple[Kind, ...] = ("sign", "lsh", "itq")


def make_sample(rows: int = 500, dim: int = 16, seed: int = 0) -> NDArray[np.float32]:
    """Return vectors that vary more in some directions than in others, around a point that is not zero."""
    rng = np.random.default_rng(seed)
    turned = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return np.asarray(rng.standard_normal((rows, dim)) * np.geomspace(5, 0.5, dim) @ turned + 3, dtype=np.float32)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8"])
def test_the_same_seed_and_sample_give_the_same_bytes(kind: Kind, dtype: str) -> None:
    sample = make_sample().astype(dtype)
    one = fit(kind, sample, bits=12, seed=5)
    assert one.to_bytes() == fit(kind, sample.copy(), bits=12, seed=5).to_bytes()
    assert one.to_bytes() == fit(kind, np.asfortranarray(sample), bits=12, seed=5).to_bytes()
    if kind != "sign":
        assert one.to_bytes() != fit(kind, sample, bits=12, seed=6).to_bytes()


def test_lsh_does_not_depend_on_the_data() -> None:
    some, other = fit("lsh", make_sample(), bits=40), fit("lsh", make_sample(seed=1), bits=40)
    none = fit("lsh", dim=16, bits=40)
    assert some.matrix is not None
    assert other.matrix is not None
    assert none.matrix is not None
    assert np.array_equal(some.matrix, other.matrix)
    assert np.array_equal(some.matrix, none.matrix)
    assert np.allclose(np.linalg.norm(some.matrix, axis=0), 1)
    assert (none.offsets == 0).all()
    assert not none.centred
    assert none.training.samples == 0
    assert some.training.samples == 500


@generated(30)
@given(
    kind=st.sampled_from(KINDS),
    centre=st.booleans(),
    rows=st.integers(10, 600),
    seed=st.integers(0, 999),
    dtype=st.sampled_from(["float32", "int8"]),
)
def test_expectations_are_means_of_projections(kind: Kind, centre: bool, rows: int, seed: int, dtype: str) -> None:
    sample = make_sample(rows, 9, seed).astype(dtype)
    encoder = fit(kind, sample, bits=7, seed=seed, centre=centre)
    assert encoder.centred == (centre or kind == "itq")
    projected = encoder.project(sample)
    if encoder.centred:
        assert np.allclose(projected.mean(axis=0), 0, atol=1e-4)
    assert encoder.expected is not None
    for bit, values in enumerate(projected.T):
        for value, those in ((0, values[values <= 0]), (1, values[values > 0])):
            assert np.isclose(encoder.expected[bit, value], those.mean() if len(those) else 0, rtol=1e-4, atol=1e-4)


def test_sign_takes_the_first_components() -> None:
    sample = make_sample()
    assert fit("sign", sample).bits == 16
    short = fit("sign", sample, bits=5)
    assert np.array_equal(short.encode(sample), fit("sign", sample[:, :5]).encode(sample[:, :5]))
    assert np.array_equal(short.offsets, sample[:, :5].mean(axis=0, dtype=np.float64).astype(np.float32))


# -- itq ---------------------------------------------------------------------------------------------------------------


def test_itq_is_a_rotation_of_the_principal_directions() -> None:
    sample = make_sample(2000)
    encoder = fit("itq", sample, bits=6)
    assert encoder.matrix is not None
    assert np.allclose(encoder.matrix.T @ encoder.matrix, np.eye(6), atol=1e-5)
    _, _, principal = np.linalg.svd(sample - sample.mean(axis=0), full_matrices=False)
    span = principal[:6].T @ principal[:6]
    assert np.allclose(encoder.matrix @ encoder.matrix.T, span, atol=1e-4)


def test_itq_reports_how_it_converges() -> None:
    sample = make_sample(2000)
    trained = fit("itq", sample, bits=8).training
    assert trained.converged
    assert 1 <= trained.rounds < fitting.ROUNDS
    assert trained.samples == 2000
    assert (np.diff(trained.errors) < 1e-6).all()
    assert trained.errors[-1] < trained.errors[0]

    cut = fit("itq", sample, bits=8, rounds=2).training
    assert cut.rounds == 2
    assert not cut.converged
    assert cut.errors == trained.errors[:3]
    assert fit("itq", sample, bits=8, rounds=0).training.rounds == 0


def test_the_error_is_the_distance_to_the_corners() -> None:
    sample = make_sample(300)
    encoder = fit("itq", sample, bits=8)
    projected = encoder.project(sample)
    scaled = projected / np.sqrt((projected**2).mean())
    error = ((scaled - np.where(scaled > 0, 1, -1)) ** 2).mean()
    assert np.isclose(encoder.training.errors[-1], error, rtol=1e-4)


def test_itq_finds_its_rotation_on_a_part_of_a_large_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = make_sample(3000)
    monkeypatch.setattr(fitting, "MAX_ROTATED", 1000)
    encoder = fit("itq", sample, bits=8)
    assert encoder.training.samples == 3000
    assert encoder.to_bytes() == fit("itq", sample, bits=8).to_bytes()
    projected = encoder.project(sample)
    assert np.isclose(
        np.abs(projected).mean() / np.sqrt((projected**2).mean()), 1 - encoder.training.errors[-1] / 2, 0.05
    )


def test_itq_finds_neighbours_that_lsh_misses() -> None:
    sample = make_sample(3000, 32)
    queries, items = sample[:100].astype(np.float64), sample[100:].astype(np.float64)
    truth = np.argsort(((queries[:, None] - items) ** 2).sum(axis=2), axis=1)[:, :10]
    share = {}
    for kind in ("lsh", "itq"):
        encoder = fit(kind, sample, bits=16)
        ones = np.unpackbits(encoder.encode(items), axis=1, count=16, bitorder="little").astype(np.int64)
        for form in ("symmetric", "asymmetric"):
            table = encoder.cost_table(queries, form)
            distances = np.stack([table[q, np.arange(16), ones].sum(axis=1) for q in range(100)])
            found = np.argsort(distances, axis=1, kind="stable")[:, :10]
            hits = [len(set(a) & set(b)) for a, b in zip(found.tolist(), truth.tolist(), strict=True)]
            share[kind, form] = np.mean(hits) / 10
    assert share["itq", "asymmetric"] > share["lsh", "asymmetric"] + 0.05
    assert share["itq", "asymmetric"] > share["itq", "symmetric"] + 0.05
    assert share["lsh", "asymmetric"] > share["lsh", "symmetric"]


# -- constant components -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0.1, -7.0, 0.0, 3e20])
def test_a_constant_component_does_no_harm(kind: Kind, value: float) -> None:
    sample = make_sample(777)
    sample[:, 4] = value
    encoder = fit(kind, sample, bits=16)
    assert encoder.expected is not None
    assert np.isfinite(encoder.expected).all()
    if kind == "sign":
        ones = np.unpackbits(encoder.encode(sample), axis=1, bitorder="little")
        assert not ones[:, 4].any()
        assert encoder.expected[4].tolist() == [0, 0]
        costs = encoder.cost_table(sample[0] + 1)
        assert costs[4, 0] == costs[4, 1]
    if kind == "itq" and abs(value) < 10:
        assert encoder.matrix is not None
        moved = sample.copy()
        moved[:, 4] += 1e-3
        assert (encoder.encode(moved) == encoder.encode(sample)).mean() > 0.98


# -- invalid arguments -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("pca", {"sample": make_sample()}, "encoder = 'pca'"),
        ("itq", {"bits": 8}, "encoder = 'itq' without a sample"),
        ("sign", {}, "encoder = 'sign' .*without dim"),
        ("lsh", {"bits": 8}, "encoder = 'lsh' .*without dim"),
        ("lsh", {"dim": 8}, "encoder = 'lsh' without bits"),
        ("itq", {"sample": make_sample()}, "encoder = 'itq' without bits"),
        ("lsh", {"dim": 0, "bits": 8}, "dim = 0; .*1 to 65536"),
        ("lsh", {"dim": 8, "bits": 0}, "bits = 0; .*1 to 4096"),
        ("lsh", {"dim": 8, "bits": 5000}, "bits = 5000; .*1 to 4096"),
        ("lsh", {"dim": 8, "bits": 8.5}, "bits = 8.5"),
        ("lsh", {"dim": 8, "bits": 8, "seed": -1}, "seed = -1;"),
        ("lsh", {"dim": 8, "bits": 8, "seed": "x"}, "seed = 'x';"),
        ("sign", {"dim": 8, "bits": 9}, "bits = 9 .*'sign' .* 8 components"),
        ("itq", {"sample": make_sample(), "bits": 17}, "bits = 17 .*'itq' .* 16 .*'lsh'"),
        ("itq", {"sample": make_sample(8), "bits": 8}, "8 vectors .* 8 bits; .*9"),
        ("itq", {"sample": make_sample(), "bits": 8, "rounds": -1}, "rounds = -1;"),
        ("itq", {"sample": np.ones((100, 16)), "bits": 8}, "100 vectors .*equal"),
        ("sign", {"dim": 8, "centre": True}, "centre = True without a sample"),
        ("lsh", {"sample": make_sample(), "bits": 8, "dim": 15}, "dim = 15, but .* 16"),
        ("lsh", {"sample": np.empty((0, 16)), "bits": 8}, r"the sample has shape \(0, 16\)"),
        ("itq", {"sample": [], "bits": 8}, r"dim = 0|shape \(0,\)"),
        ("lsh", {"sample": np.ones(16), "bits": 8}, r"the sample has shape \(16,\)"),
        ("lsh", {"sample": np.ones((3, 16), dtype=np.int32), "bits": 8}, "sample.* dtype int32"),
        ("lsh", {"sample": np.full((3, 16), np.nan), "bits": 8}, "sample: row 0, column 0 .*nan"),
        ("sign", {"sample": np.full((3, 16), np.inf), "centre": False}, "sample: row 0, column 0 .*inf"),
    ],
)
def test_invalid_arguments_are_refused(kind: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        fit(kind, **arguments)


def test_the_smallest_samples_are_accepted() -> None:
    assert fit("itq", make_sample(9), bits=8).bits == 8
    assert fit("sign", make_sample(1)).training.samples == 1
    assert fit("lsh", make_sample(1), bits=8).training.samples == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("error")
def test_a_sample_whose_sums_overflow_is_refused(kind: Kind) -> None:
    """Encoders with infinite numbers were returned."""
    signs = np.where(make_sample(60, 8, 1) > 3, 1, -1)
    with pytest.raises(InvalidArgumentError, match=r"3e\+38.*scale the vectors"):
        fit(kind, (3e38 * signs).astype(np.float32), bits=8)


# -- limits ------------------------------------------------------------------------------------------------------------


def without_memory(rows: int, dim: int) -> NDArray[np.float32]:
    """Return a sample of zeros that takes no memory, whatever its size."""
    return np.broadcast_to(np.float32(0), (rows, dim))


@pytest.mark.parametrize(
    ("kind", "sample", "bits", "message"),
    [
        (
            "itq",
            without_memory(17, 16_384),
            16,
            r"17 vectors of 16384 components needs about 10\.\d GiB.*1\.0 GiB.*lsh",
        ),
        ("itq", without_memory(17, 16_384), 16, "use fewer components"),
        (
            "itq",
            without_memory(65_000, 2048),
            2048,
            "2048 bits .*takes about 4.. seconds; the limit is 60: use fewer bits.*limits=None",
        ),
        ("itq", without_memory(10**8, 256), 8, "100000000 vectors .* the limit is 60: use a smaller sample"),
        ("lsh", without_memory(10**8, 256), 64, "the limit is 60: use a smaller sample, or encoder = 'sign'"),
        ("sign", without_memory(10**9, 256), 64, "the limit is 60: use a smaller sample"),
        ("lsh", without_memory(1, 65_536), 257, "bits = 257 .*16777216: use at most 256 bits"),
    ],
)
def test_a_fit_above_a_limit_is_refused_before_the_work(
    kind: Kind, sample: NDArray[np.float32], bits: int, message: str
) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(InvalidArgumentError, match=message):
            fit(kind, sample, bits=bits)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_limits_can_be_changed_and_lifted() -> None:
    sample = make_sample()
    with pytest.raises(InvalidArgumentError, match=r"the limit is 0\.0 GiB"):
        fit("itq", sample, bits=8, limits=FitLimits(max_bytes=1 << 20))
    with pytest.raises(InvalidArgumentError, match="the limit is 0: "):
        fit("itq", sample, bits=8, limits=FitLimits(max_seconds=0))
    assert fit("itq", sample, bits=8, limits=None).to_bytes() == fit("itq", sample, bits=8).to_bytes()


MEASURE = """
import sys
from pathlib import Path
import numpy as np
from whamming.storage.vectors.fitting import check_fit, fit
kind, rows, dim, bits = sys.argv[1], *map(int, sys.argv[2:])
sample = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32) if rows else None
peak = lambda: int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
before = peak()
fit(kind, sample, dim=dim, bits=bits, rounds=2)
taken = peak() - before
size = check_fit(kind, sample, bits=bits, dim=dim, seed=0, centre=None).size
print(taken, size.needed_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("kind", "rows", "dim", "bits"),
    [("itq", 40, 2048, 32), ("itq", 800, 768, 768), ("itq", 70_000, 256, 256), ("lsh", 0, 2048, 2048)],
)
def test_a_fit_takes_at_most_the_estimated_memory(kind: Kind, rows: int, dim: int, bits: int) -> None:
    command = [sys.executable, "-c", MEASURE, kind, *map(str, (rows, dim, bits))]
    taken, estimated = map(int, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert estimated / 8 < taken <= estimated
