"""Encoders are fitted while the server searches: within limits, one at a time, in processes that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.columns import pack_ids, pack_matrix
from tests.serving import ServerProcess, Stubs, details_of, wait_until
from whamming.server.rpc.fit_queue import LIMITS, MAX_WAITING, SMALL
from whamming.storage import Encoder, fit
from whamming.storage.vectors.fitting import check_fit
from whamming.v1 import index_pb2, item_pb2

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

SOON = 3.0
"""Seconds within which a fit must be abandoned: one, and some for a busy machine. The fit itself takes far longer."""
SLOW = np.random.default_rng(0).integers(-100, 100, (70, 4096), dtype=np.int8)
"""A sample whose fit takes about 15 seconds, nearly all of them in one call of LAPACK."""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def server(place: Path) -> Iterator[ServerProcess]:
    with ServerProcess(place, grace_seconds=25) as server:
        yield server
        server.check_log()


def itq(name: str, sample: NDArray[Any], bits: int = 64) -> index_pb2.CreateIndexRequest:
    encoder = index_pb2.EncoderSettings(kind=index_pb2.ENCODER_KIND_ITQ, sample=pack_matrix(sample))
    return index_pb2.CreateIndexRequest(name=name, settings=index_pb2.IndexSettings(bits=bits), encoder=encoder)


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # the thread may have ended
            found += map(int, (task / "children").read_text().split())
    return found


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process. A fit has begun its work when this exceeds what imports take."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def started_fit(server: ServerProcess) -> int:
    """Wait until a fit is at work, and return its process."""
    wait_until(lambda: children(server.process.pid), "a fit")
    [child] = children(server.process.pid)
    wait_until(lambda: cpu_seconds(child) > 1.5, "the work of the fit")
    return child


def check_nothing_was_created(stubs: Stubs, place: Path) -> None:
    assert not stubs.indexes.ListIndexes(index_pb2.ListIndexesRequest()).indexes
    assert not [entry for entry in place.iterdir() if entry.is_dir()]


def test_the_slow_sample_is_slow_and_allowed() -> None:
    size = check_fit("itq", SLOW, bits=64, dim=None, seed=0, centre=None).size
    assert size.is_within(LIMITS)
    assert not size.is_within(SMALL)
    assert size.seconds > 4 * SOON


def test_a_fit_above_the_limits_is_refused_at_once(server: ServerProcess, stubs: Stubs, place: Path) -> None:
    """It took gigabytes and minutes, and SIGTERM did not stop it."""
    before = server.usage().rss
    with pytest.raises(grpc.RpcError) as refused:
        stubs.indexes.CreateIndex(itq("docs", np.zeros((2, 16_384), dtype=np.int8), 1), timeout=20)
    details = details_of(refused.value)
    assert (details.reason, details.field) == ("INVALID_ARGUMENT", "encoder")
    assert "16384 components" in details.message
    assert "the limit is 1.0 GiB" in details.message
    assert "fewer components" in details.message
    assert server.usage().rss < before + (64 << 20)
    check_nothing_was_created(stubs, place)


def test_cancelling_the_call_abandons_the_fit(server: ServerProcess, stubs: Stubs, place: Path) -> None:
    call = stubs.indexes.CreateIndex.future(itq("docs", SLOW))
    child = started_fit(server)
    call.cancel()
    start = time.monotonic()
    wait_until(lambda: not is_running(child), "the end of the fit")
    assert time.monotonic() - start < SOON
    check_nothing_was_created(stubs, place)
    assert stubs.indexes.CreateIndex(itq("docs", SLOW[:, :64], 8)).index.encoder.dimension == 64


def test_a_deadline_abandons_the_fit(server: ServerProcess, stubs: Stubs, place: Path) -> None:
    with pytest.raises(grpc.RpcError) as late:
        stubs.indexes.CreateIndex(itq("docs", SLOW), timeout=2)
    assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    wait_until(lambda: not children(server.process.pid), "the end of the fit")
    check_nothing_was_created(stubs, place)


def test_shutdown_abandons_running_and_waiting_fits(server: ServerProcess, stubs: Stubs, place: Path) -> None:
    calls = [stubs.indexes.CreateIndex.future(itq(name, SLOW)) for name in ("a", "b")]
    started_fit(server)
    start = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - start < SOON
    for call in calls:
        assert details_of(call.exception()).reason == "SHUTTING_DOWN"
    assert not [entry for entry in place.iterdir() if entry.is_dir()]


def test_a_fit_does_not_outlive_a_server_that_was_killed(server: ServerProcess, stubs: Stubs) -> None:
    call = stubs.indexes.CreateIndex.future(itq("docs", SLOW))
    child = started_fit(server)
    server.kill()
    start = time.monotonic()
    wait_until(lambda: not is_running(child), "the end of the fit")
    assert time.monotonic() - start < SOON
    assert call.exception() is not None


def test_other_work_goes_on_during_fits(server: ServerProcess, stubs: Stubs) -> None:
    """Two fits occupied the threads of seals and compactions."""
    settings = index_pb2.IndexSettings(bits=8)
    stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name="codes", settings=settings))
    items = item_pb2.ItemBatch(ids=pack_ids([1, 2]), codes=b"ab")
    list(stubs.items.Upsert(iter([item_pb2.UpsertRequest(index="codes", items=items)])))
    calls = [stubs.indexes.CreateIndex.future(itq(f"docs-{number}", SLOW)) for number in range(3)]
    child = started_fit(server)
    assert list(stubs.indexes.SealIndex(index_pb2.SealIndexRequest(name="codes")))[-1].index.statistics.segments == 1
    assert list(stubs.indexes.CompactIndex(index_pb2.CompactIndexRequest(name="codes")))[-1].progress == 1
    small = stubs.indexes.CreateIndex(itq("small", SLOW[:, :64], 8))
    assert small.index.encoder.dimension == 64
    assert children(server.process.pid) == [child]
    status = dict(line.split(":", 1) for line in Path(f"/proc/{child}/status").read_text().splitlines())
    assert int(status["Threads"]) == 2  # one computes, the other one waits for the end of standard input
    assert os.getpriority(os.PRIO_PROCESS, child) > os.getpriority(os.PRIO_PROCESS, server.process.pid)
    for call in calls:
        call.cancel()


def test_only_a_few_fits_may_wait(server: ServerProcess, stubs: Stubs) -> None:
    calls = [stubs.indexes.CreateIndex.future(itq(f"docs-{number}", SLOW)) for number in range(MAX_WAITING + 2)]
    wait_until(lambda: any(call.done() for call in calls), "a refusal")
    [refused] = [call for call in calls if call.done()]
    details = details_of(refused.exception())
    assert details.reason == "OVERLOADED"
    assert f"the maximum is {MAX_WAITING}" in details.message
    assert details.retry_seconds > 0
    for call in calls:
        call.cancel()


def test_a_fit_whose_process_is_killed_is_reported(server: ServerProcess, stubs: Stubs, place: Path) -> None:
    call = stubs.indexes.CreateIndex.future(itq("docs", SLOW))
    os.kill(started_fit(server), signal.SIGKILL)
    assert details_of(call.exception()).reason == "OUT_OF_MEMORY"
    check_nothing_was_created(stubs, place)


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "<f8", "|i1"])
def test_fits_in_a_process_give_the_same_encoder(stubs: Stubs, dtype: str) -> None:
    sample = np.rint(np.random.default_rng(1).standard_normal((3000, 600)) * np.linspace(40, 2, 600)).clip(-128, 127)
    sample = sample.astype(dtype)
    assert not check_fit("itq", sample, bits=64, dim=None, seed=0, centre=None).size.is_within(SMALL)
    stubs.indexes.CreateIndex(itq("docs", sample))
    answer = stubs.indexes.GetEncoder(index_pb2.GetEncoderRequest(name="docs"))
    theirs, ours = Encoder.from_bytes(answer.fitted_encoder), fit("itq", sample, bits=64)
    assert theirs.training.samples == 3000
    assert theirs.training.errors == pytest.approx(ours.training.errors, rel=1e-3)
    assert np.mean(theirs.encode(sample) == ours.encode(sample)) > 0.99


def test_a_process_fits_an_encoder_without_a_sample(stubs: Stubs) -> None:
    assert not check_fit("lsh", None, bits=2048, dim=2048, seed=7, centre=None).size.is_within(SMALL)
    encoder = index_pb2.EncoderSettings(kind=index_pb2.ENCODER_KIND_LSH, dimension=2048, seed=7)
    request = index_pb2.CreateIndexRequest(name="docs", encoder=encoder, settings=index_pb2.IndexSettings(bits=2048))
    made = stubs.indexes.CreateIndex(request).index.encoder
    assert made.fingerprint == fit("lsh", dim=2048, bits=2048, seed=7).fingerprint


def test_invalid_samples_are_found_in_the_process(stubs: Stubs, place: Path) -> None:
    sample = np.ones((3000, 600), dtype=np.float32)
    sample[2999, 7] = np.nan
    with pytest.raises(grpc.RpcError) as refused:
        stubs.indexes.CreateIndex(itq("docs", sample))
    details = details_of(refused.value)
    assert (details.reason, details.field) == ("INVALID_ARGUMENT", "encoder")
    assert "row 2999, column 7" in details.message
    check_nothing_was_created(stubs, place)


def test_an_existing_index_is_returned_without_a_fit(server: ServerProcess, stubs: Stubs) -> None:
    request = itq("docs", SLOW[:, :64], 8)
    stubs.indexes.CreateIndex(request)
    request.exist_ok = True
    assert stubs.indexes.CreateIndex(request).index.name == "docs"
    slow = itq("docs", SLOW)
    with pytest.raises(grpc.RpcError) as refused:
        stubs.indexes.CreateIndex(slow)
    assert details_of(refused.value).reason == "INDEX_EXISTS"
    assert not children(server.process.pid)
