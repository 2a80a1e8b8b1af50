"""Warnings at the start of a server: files that others can read, and certificates that expire."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from whamming.server.config import Config
from whamming.wire.pem import earliest_expiry

NOTICE: Final = timedelta(days=14)
"""How long before a certificate expires the server warns about it."""


def warnings_of(config: Config, now: datetime | None = None) -> Iterator[str]:
    """Yield the warnings about the files of a server. ``now`` is the current time by default."""
    if config.data != ":memory:":
        data = Path(config.data)
        mode = stat.S_IMODE(data.stat().st_mode)
        if mode & 0o077:
            yield f"other users can access the data in {data} (mode {mode:04o}); to prevent that: chmod 700 {data}"
    if config.tls_key:
        yield from _about_key(Path(config.tls_key))
    if config.tls_cert:
        yield from _about_certificate(config.tls_cert, now or datetime.now(UTC))


def _about_key(key: Path) -> Iterator[str]:
    """Warn if others can read a private key. A key that belongs to root may be readable by a group."""
    status = key.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode & (0o007 if status.st_uid == 0 else 0o077):
        yield f"other users can read the private key {key} (mode {mode:04o}); to prevent that: chmod 600 {key}"


def _about_certificate(cert: str, now: datetime) -> Iterator[str]:
    end = earliest_expiry(cert)
    if end is None:
        return
    if end <= now:
        yield f"the certificate {cert} expired on {end:%Y-%m-%d}; clients will refuse it: renew it"
    elif end <= now + NOTICE:
        yield f"the certificate {cert} expires on {end:%Y-%m-%d}; renew it before that"
