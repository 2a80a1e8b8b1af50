"""The table of errors: every error has a reason, and every reason has an error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from google.rpc import code_pb2

import whamming
from whamming import InvalidArgumentError, WhammingError, storage
from whamming.native import CorruptIndexError
from whamming.v1 import error_pb2
from whamming.wire.fields import FieldError
from whamming.wire.service_errors import (
    PREFIX,
    TABLE,
    DeadlineError,
    LocalOnlyError,
    ServiceError,
    UnavailableError,
    error_of,
    reason_named,
)

OTHERWISE: dict[type[BaseException], type[WhammingError]] = {
    storage.WriterBusyError: UnavailableError,
    CorruptIndexError: storage.CorruptStoreError,
    MemoryError: whamming.native.OutOfMemoryError,
}
"""Errors for which clients raise another type."""


def test_every_reason_is_used() -> None:
    assert {reason for _, _, reason in TABLE} | {0} == set(error_pb2.ErrorReason.values())


def test_each_reason_has_one_status_code() -> None:
    codes: dict[int, set[int]] = {}
    for _, code, reason in TABLE:
        codes.setdefault(reason, set()).add(code)
    assert all(len(some) == 1 and code_pb2.OK not in some for some in codes.values())


def test_no_row_hides_another() -> None:
    for place, (kind, _, _) in enumerate(TABLE):
        assert not any(issubclass(kind, earlier) for earlier, _, _ in TABLE[:place]), kind


@pytest.mark.parametrize(("kind", "reason"), [(kind, reason) for kind, _, reason in TABLE])
def test_clients_raise_the_same_errors_as_local_databases(kind: type[BaseException], reason: int) -> None:
    error = error_of(reason, "the message")
    assert type(error) is OTHERWISE.get(kind, kind)
    assert str(error) == "the message"


@pytest.mark.parametrize("reason", error_pb2.ErrorReason.values())
def test_reasons_have_names(reason: int) -> None:
    name = error_pb2.ErrorReason.Name(reason)
    assert name.startswith(PREFIX)
    assert reason_named(name.removeprefix(PREFIX)) == reason


@pytest.mark.parametrize("name", ["", "NEWER_THAN_THIS", "ERROR_REASON_FORMAT"])
def test_reasons_of_newer_servers_are_service_errors(name: str) -> None:
    assert reason_named(name) == 0
    assert type(error_of(reason_named(name), "x")) is ServiceError
    assert type(error_of(12345, "x")) is ServiceError


def test_fields_are_preserved() -> None:
    error = error_of(error_pb2.ERROR_REASON_INVALID_ARGUMENT, "k = 0", "options.k")
    assert isinstance(error, FieldError)
    assert error.field == "options.k"
    assert type(error_of(error_pb2.ERROR_REASON_INVALID_ARGUMENT, "k = 0")) is InvalidArgumentError
    missing = error_of(error_pb2.ERROR_REASON_INDEX_NOT_FOUND, "no index", "index")
    assert isinstance(missing, storage.NotFoundError)


def every_error(kind: type[WhammingError] = WhammingError) -> Iterator[type[WhammingError]]:
    for one in kind.__subclasses__():
        if one.__module__.startswith("whamming") and ".cli." not in one.__module__:
            yield one
            yield from every_error(one)


@pytest.mark.parametrize("kind", sorted(set(every_error()) - {DeadlineError, LocalOnlyError}, key=str))
def test_every_error_of_ours_has_a_row(kind: type[WhammingError]) -> None:
    """Except DeadlineError and LocalOnlyError, which only clients raise."""
    (reason, *_) = [reason for row, _, reason in TABLE if issubclass(kind, row)]
    assert (reason == error_pb2.ERROR_REASON_INTERNAL) == (kind is ServiceError)
