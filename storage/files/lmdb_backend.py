"""The ``lmdb`` store: creating and opening an index in an LMDB file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whamming.storage.files.environment import Environment
from whamming.storage.files.lmdb_errors import translated_errors
from whamming.storage.files.lmdb_journal import LmdbJournal, make_directory
from whamming.storage.files.locks import sync
from whamming.storage.files.records import FORMAT, MANIFEST_KEY, pack_manifest
from whamming.storage.items.rows import Rows
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.settings import IndexSettings
from whamming.storage.store.segmented import SegmentedStore
from whamming.storage.store.snapshot import Snapshot


def write_index(path: Path, settings: IndexSettings, snapshot: Snapshot | None = None) -> None:
    """Create an index at ``path``, a directory that does not exist yet. With a snapshot, copy its items."""
    make_directory(path)
    with translated_errors(path):
        env = Environment.create(path)
        try:
            manifest = {
                "format": FORMAT,
                "settings": settings.to_json(),
                "generation": 1,
                "next_segment": 1,
                "sealed": 0,
                "segments": [],
            }
            with env.begin(write=True) as txn:
                txn.put(MANIFEST_KEY, pack_manifest(manifest))
        finally:
            env.close()
        for written in (path, path.parent):
            sync(written)
    if snapshot is not None and len(snapshot):
        store = backend.open(path, None, read_only=False)
        try:
            for rows in snapshot.scan(1 << 18):
                codes = settings.to_engine(rows.codes)
                store.write(WriteBatch(rows.ids[:0], Rows(rows.ids, codes, rows.payloads, rows.vectors)))
            store.seal()
        finally:
            store.close()


class LmdbBackend:
    """See :class:`whamming.storage.Backend`."""

    persistent = True
    files: Sequence[str] = ("data.mdb", "lock.mdb")

    def create(self, path: Path, settings: IndexSettings) -> None:
        write_index(path, settings)

    def open(self, path: Path, settings: IndexSettings | None, *, read_only: bool) -> SegmentedStore:
        return SegmentedStore(LmdbJournal(path, read_only=read_only), read_only=read_only)


backend = LmdbBackend()
