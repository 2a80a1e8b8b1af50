"""Errors that name the field of a message which is at fault."""

from __future__ import annotations

from whamming.native import InvalidArgumentError


class FieldError(InvalidArgumentError):
    """A field of a message is outside its limits."""

    def __init__(self, field: str, message: str) -> None:
        """Name the field, such as ``options.k``, and say what is wrong with it."""
        super().__init__(message)
        self.field = field


class in_field:  # noqa: N801 - used like a function
    """A context in which an :class:`InvalidArgumentError` is raised again as a :class:`FieldError` of a field."""

    __slots__ = ("_field",)

    def __init__(self, field: str) -> None:
        """Name the field."""
        self._field = field

    def __enter__(self) -> None:
        """Enter the context."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Add the field to an error that names none."""
        if type(error) is InvalidArgumentError:
            raise FieldError(self._field, str(error)) from error
