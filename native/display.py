"""HTML tables for notebooks, and short texts for ``repr``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

MAX_ROWS: Final = 20
"""Maximum number of rows that a notebook shows."""


def table(header: Sequence[str], rows: Iterable[Sequence[object]], note: str = "") -> str:
    """Return an HTML table with a note below it. All values are escaped."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(value)}</td>' for value in row)}</tr>" for row in rows)
    below = f"<div>{html.escape(note)}</div>" if note else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"


def shortened(payload: bytes, limit: int = 32) -> str:
    """Return the repr of a payload. If it has more than ``limit`` bytes, truncate it and add its length."""
    return repr(payload) if len(payload) <= limit else f"{payload[:limit]!r}... ({len(payload)} bytes)"


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun, singular or plural."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return html.escape(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))
