"""Ways to break an index on disk, each with the reason that a listing gives."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from whamming import Database
from whamming.storage.files.records import MANIFEST_KEY, pack_manifest, unpack_manifest
from whamming.storage.vectors import encoder_file

NAME = "m-broken"
"""Sorts between the names of the sound indexes."""
SOUND = ("a-sound", "z-sound")


def make_indexes(database: Database) -> None:
    """Create two sound indexes, and one between them to be broken."""
    for name in (*SOUND, NAME):
        index = database.create_index(name, encoder="sign", dim=8)
        index.upsert([1, 2], vectors=np.eye(8)[:2])


def _cut(index: Path) -> None:
    data = index / "data.mdb"
    data.write_bytes(data.read_bytes()[:100])


def _empty(index: Path) -> None:
    (index / "data.mdb").write_bytes(b"")


def _flip(index: Path) -> None:
    data = bytearray((index / "data.mdb").read_bytes())
    at = data.rindex(b"WHAm") + 20
    data[at] ^= 1
    (index / "data.mdb").write_bytes(data)


def _manifest(**changes: Any) -> Callable[[Path], None]:
    def change(index: Path) -> None:
        with lmdb.open(str(index), map_size=1 << 40) as env, env.begin(write=True) as txn:
            txn.put(MANIFEST_KEY, pack_manifest({**unpack_manifest(txn.get(MANIFEST_KEY)), **changes}))

    return change


def _list_manifest(index: Path) -> None:
    with lmdb.open(str(index), map_size=1 << 40) as env, env.begin(write=True) as txn:
        txn.put(MANIFEST_KEY, pack_manifest([]))  # type: ignore[arg-type]


def _encoder(data: bytes | None) -> Callable[[Path], None]:
    def change(index: Path) -> None:
        file = index / encoder_file.ENCODER_FILE
        file.write_bytes(file.read_bytes()[:-1] + b"x" if data is None else data)

    return change


def _stray_directory(index: Path) -> None:
    shutil.rmtree(index)
    index.mkdir()
    (index / "notes").write_text("not an index")


def _stray_file(index: Path) -> None:
    shutil.rmtree(index)
    index.write_text("not an index")


def _dangling_link(index: Path) -> None:
    shutil.rmtree(index)
    index.symlink_to(index.parent / "nowhere")


WAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "the file is cut short": (_cut, "CORRUPT"),
    "a bit is flipped": (_flip, "CORRUPT"),
    "the file is empty": (_empty, "CORRUPT"),
    "the file is missing": (lambda index: (index / "data.mdb").unlink(), "FORMAT"),
    "a newer format": (_manifest(format=99), "FORMAT"),
    "an older format": (_manifest(format=1), "FORMAT"),
    "a format that is no number": (_manifest(format="new"), "CORRUPT"),
    "unknown settings": (_manifest(settings={"bits": 8, "colour": "red"}), "CORRUPT"),
    "settings of the wrong type": (_manifest(settings=[8]), "CORRUPT"),
    "odd settings": (_manifest(settings={"bits": 8, "dim": "x", "encoder": "y"}), "CORRUPT"),
    "odd segments": (_manifest(segments=[{"number": "one"}]), "CORRUPT"),
    "a negative number": (_manifest(sealed=-5), "CORRUPT"),
    "a huge number": (_manifest(next_segment=2**70), "CORRUPT"),
    "a manifest that is a list": (_list_manifest, "CORRUPT"),
    "a damaged encoder": (_encoder(None), "CORRUPT"),
    "an encoder of another kind": (_encoder(b"rubbish"), "FORMAT"),
    "an encoder that is missing": (lambda index: (index / encoder_file.ENCODER_FILE).unlink(), "CORRUPT"),
    "a stray directory": (_stray_directory, "FORMAT"),
    "a stray file": (_stray_file, "FORMAT"),
    "a dangling link": (_dangling_link, "FORMAT"),
}
STRAY = ("a stray directory", "a stray file")
"""The ways after which there is no index any more, but files of somebody else."""
