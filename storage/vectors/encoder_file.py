"""The encoder in the directory of an index."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from whamming.native import InvalidArgumentError
from whamming.storage.settings import IndexSettings
from whamming.storage.storage_errors import CorruptStoreError
from whamming.storage.vectors.encoders import Encoder, load_encoder

ENCODER_FILE: Final = "encoder"
"""The encoder's file in the directory of an index."""


def read_encoder(directory: Path, settings: IndexSettings) -> tuple[Encoder | None, int]:
    """Return the encoder in the directory of an index and its size in bytes; None and 0 if it has no encoder."""
    if settings.encoder is None:
        return None, 0
    path = directory / ENCODER_FILE
    if not path.exists():
        raise CorruptStoreError(f"the encoder file {path} is missing; restore a backup")
    try:
        encoder = load_encoder(path)
    except InvalidArgumentError as error:  # not a regular file, or far too large
        raise CorruptStoreError(f"{error}; or restore a backup") from error
    if encoder.fingerprint != settings.encoder:
        raise CorruptStoreError(
            f"{path} has the fingerprint {encoder.fingerprint}, but the index was created with the encoder "
            f"{settings.encoder}; restore a backup"
        )
    return encoder, path.stat().st_size
