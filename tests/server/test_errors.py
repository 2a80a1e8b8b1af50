"""Exceptions become statuses with machine-readable details."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2

from whamming.server.failures import ERROR_TEXT_BYTES, failure_of, shortened
from whamming.server.rpc import status as statuses
from whamming.storage import IncompleteBackupError, StorageError
from whamming.v1 import error_pb2
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import TABLE


@pytest.mark.parametrize(("kind", "code", "reason"), TABLE)
def test_an_error_becomes_a_status(kind: type[BaseException], code: int, reason: Any) -> None:
    failure = failure_of(kind("the value, the limit and the remedy"))
    assert (failure.code, failure.reason, failure.field) == (code, reason, "")
    assert failure.message == "the value, the limit and the remedy"
    status = statuses.status_of(failure)
    assert (status.code, status.message) == (code, failure.message)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert info.domain == "whamming"
    assert f"ERROR_REASON_{info.reason}" == error_pb2.ErrorReason.Name(reason)
    retry = error_details_pb2.RetryInfo()
    again = [detail for detail in status.details if detail.Unpack(retry)]
    assert bool(again) == (info.reason in ("OVERLOADED", "WRITER_BUSY", "SHUTTING_DOWN"))
    assert not again or 0 < retry.retry_delay.ToMilliseconds() <= 1000


def test_every_storage_error_that_a_server_can_meet_has_a_reason_of_its_own() -> None:
    kinds = {kind for kind, _, _ in TABLE}
    others = {kind for kind in StorageError.__subclasses__() if kind.__module__.startswith("whamming.storage")} - kinds
    assert others == {IncompleteBackupError}  # servers make no backups


def test_a_field_is_named() -> None:
    status = statuses.status_of(failure_of(FieldError("options.k", "k = 0; it must be 1 or more")))
    fault = error_details_pb2.BadRequest()
    assert any(detail.Unpack(fault) for detail in status.details)
    assert [(one.field, one.description) for one in fault.field_violations] == [
        ("options.k", "k = 0; it must be 1 or more")
    ]


def test_an_unexpected_error_is_logged_but_not_disclosed(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ArithmeticError("secret")
    except ArithmeticError as error:
        failure = failure_of(error)
    assert (failure.code, failure.reason) == (code_pb2.INTERNAL, error_pb2.ERROR_REASON_INTERNAL)
    assert "secret" not in failure.message
    assert "secret" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("letter", ["x", "ä", "語", "\U0001f40d"])
@pytest.mark.parametrize("count", [1, ERROR_TEXT_BYTES - 1, ERROR_TEXT_BYTES, ERROR_TEXT_BYTES + 1, 500_000])
def test_long_messages_are_shortened_in_the_middle(letter: str, count: int) -> None:
    text = f"index name '{letter * count}'; use 1 to 128 letters"
    short = shortened(text)
    assert len(short.encode()) <= ERROR_TEXT_BYTES
    assert short.startswith("index name '")
    assert short.endswith("; use 1 to 128 letters")
    assert (short == text) == (len(text.encode()) <= ERROR_TEXT_BYTES)


class Text(str):
    """A text that cannot be encoded as a whole."""

    def encode(self, *unused: Any) -> bytes:
        raise AssertionError("all of it is encoded")


def test_only_what_is_sent_of_a_long_message_is_encoded() -> None:
    """Encoding 16 MiB stopped the event loop."""
    short = shortened(Text("start " + 100_000 * "x" + " end"))
    assert short.startswith("start x")
    assert short.endswith("x end")


async def test_failing_to_write_to_a_lost_client_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """On a real connection, gRPC may raise this error before or after it cancels the call."""
    with pytest.raises(asyncio.CancelledError):
        async with statuses.reporting(None):  # the context is not used
            raise grpc.aio.InternalError("Failed execute_batch")
    assert not caplog.text


class Gone:
    """The context of a call whose client is gone."""

    status: Any = None

    async def abort_with_status(self, status: Any) -> None:
        self.status = status
        raise grpc.aio.InternalError("Failed execute_batch")


async def test_failing_to_report_an_error_to_a_lost_client_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The client disconnects just before the server reports the error."""
    context = Gone()
    with pytest.raises(asyncio.CancelledError):
        async with statuses.reporting(context):
            raise FieldError("k", "k = 0")
    assert context.status.code == grpc.StatusCode.INVALID_ARGUMENT
    assert not caplog.text


def test_grpc_errors_about_lost_clients_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """gRPC logs an error if it cannot write to a client after the handler has ended."""
    statuses.silence_lost_clients()
    for error in (grpc.aio.InternalError("Failed execute_batch"), KeyError("our bug")):
        try:
            raise error
        except Exception:
            logging.getLogger("grpc._cython.cygrpc").exception("raised in core by servicer method")
    assert "our bug" in caplog.text
    assert "execute_batch" not in caplog.text
