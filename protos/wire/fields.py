"""Errors that name the message field at fault."""

from __future__ import annotations

from whamming.native import InvalidArgumentError


class FieldError(InvalidArgumentError):
    """A field of a message has an invalid value."""

    def __init__(self, field: str, message: str) -> None:
        """Name the field, for example ``options.k``, and say what is wrong with its value."""
        super().__init__(message)
        self.field = field


class in_field:  # noqa: N801 - used like a function
    """Context manager that turns an :class:`InvalidArgumentError` into a :class:`FieldError` of the given field."""

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        self._field = field

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if type(error) is InvalidArgumentError:
            raise FieldError(self._field, str(error)) from error
