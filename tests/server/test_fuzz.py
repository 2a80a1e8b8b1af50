"""Fuzz a server with 20,000 random calls. ``test_regressions.py`` has the bugs found this way."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.server.fuzz import fuzz_service
from tests.server.fuzz_cases import METHODS, Case, make_case
from tests.server.fuzz_statuses import Answer, check_details

SEED = 20_000
CASES = 20_000


@pytest.mark.parametrize(("store", "share"), [("ram", 0.6), ("lmdb", 0.4)])
async def test_the_server_survives_random_calls(store: str, share: float, tmp_path: Path) -> None:
    """Every call ends with a documented status, control searches stay exact, and nothing leaks."""
    cases = round(share * CASES)
    report = await fuzz_service(SEED, cases, ":memory:" if store == "ram" else str(tmp_path))
    print(report)
    assert report.cases == cases
    assert report.compared > cases / 10
    for path in METHODS:
        assert report.statuses[f"{path} OK"], f"no call of {path} succeeded"
    for reason in ("COMPLETE", "EXHAUSTED", "BUDGET", "CANCELLED", "SNAPSHOT_EXPIRED", "FAILED"):
        assert report.ends[f"END_REASON_{reason}"], f"no query ended with {reason}"


def test_cases_are_reproducible() -> None:
    for number in range(300):
        case = make_case(SEED, number)
        assert case == make_case(SEED, number)
        assert Case.from_json(case.to_json()) == case


def test_a_status_without_details_is_detected() -> None:
    with pytest.raises(AssertionError, match="without ErrorInfo"):
        check_details(Answer(grpc.StatusCode.INVALID_ARGUMENT, "no"))
