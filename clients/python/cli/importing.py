"""``whamming import``: a file's items into an index, to be resumed where it was interrupted."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from whamming.cli.checkpoint import Checkpoint, ImportJob
from whamming.cli.encoding import add_fitting, found_or_made
from whamming.cli.output import counted, items_bar, note, say, say_json
from whamming.cli.parser import Commands, FailureError, add_json, whole
from whamming.cli.target import AnyIndex, add_target, opened, target_name
from whamming.storage import CodesFile, Durability, Piece, VectorsFile, VectorsPiece, read_codes, read_vectors
from whamming.storage.storage_errors import from_system

IMPORT_ROWS: Final = 50_000
BATCH_BYTES: Final = 1 << 20
"""Rows are written so many at a time, or fewer where their codes are so long that it would be more bytes than this."""
VECTOR_BATCH_BYTES: Final = 3 << 20
"""The same of vectors, which are longer: what fits into a message to a server."""
SYNC_SECONDS: Final = 0.5
"""Of an index whose writes are acknowledged before they are on disk, how often an import waits for the disk."""

TEXT = """\
FILE holds codes of as many bits as the index has:

  .npy    packed (uint8 [n, bytes], in the index's bit order), boolean
          ([n, bits]) or floating-point ([n, bits], by sign: greater than 0
          is a 1); with the ids beside it in *.ids.npy, if there is such a file
  .npz    "codes" like that, and optionally "ids", "payload_ends" and
          "payload_data", as export writes them
  .fvecs  floating-point vectors, by sign
  .bvecs  packed codes

or, for an index with an encoder, vectors [n, dim] of float32, float16, float64, int8 or uint8, in the same forms; in
.npz they are called "vectors". --encoder makes such an index first, if there is none.

Items whose id exists are replaced. An import that is interrupted goes on where it was when it is run again: how many
rows are on disk is kept beside FILE until it is done."""

EXAMPLE = """\
whamming import docs codes.npy
whamming import docs more.fvecs --first-id 1000000 --batch 1000
whamming import texts vectors.npy --encoder itq --bits 256 --keep-vectors float16"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = commands("import", import_file, "load items from a file", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="an index")
    parser.add_argument("file", metavar="FILE", help="a file of codes, or of vectors")
    text = f"rows to write at once (default {IMPORT_ROWS:,}, or fewer if codes are long)"
    parser.add_argument("--batch", metavar="N", type=whole(1, 1_000_000), help=text)
    text = "id of the first row, if the file has no ids (default 0)"
    parser.add_argument("--first-id", metavar="ID", type=whole(0, 2**64 - 1), default=0, help=text)
    text = "where to keep how far it has come (default FILE.NAME.checkpoint)"
    parser.add_argument("--checkpoint", metavar="FILE", help=text)
    parser.add_argument("--restart", action="store_true", help="begin at row 0, whatever the checkpoint says")
    add_fitting(parser)
    add_json(parser)
    add_target(parser)


def import_file(args: argparse.Namespace) -> None:
    """Import, or go on importing."""
    path = Path(args.file)
    try:
        job = ImportJob.of(args.name, target_name(args), path, args.first_id)
    except OSError as error:
        raise from_system(error, path) from error
    kept_at = Path(args.checkpoint) if args.checkpoint else path.with_name(f"{path.name}.{args.name}.checkpoint")
    checkpoint = Checkpoint(kept_at, job)
    if args.checkpoint:  # a file of the default name is ours
        checkpoint.check()
    with opened(args, write=True, create=args.encoder is not None) as database:
        index = found_or_made(database, args)
        file = _open(path, index, args)
        start = 0 if args.restart else _resumed(index, file, checkpoint)
        limit = VECTOR_BATCH_BYTES if isinstance(file, VectorsFile) else BATCH_BYTES
        batch = args.batch or min(IMPORT_ROWS, limit // (8 + file.row_bytes))
        began = time.perf_counter()
        with items_bar(f"import {args.name}", file.count, start) as bar:
            _Import(index, file, checkpoint, bar).run(start, batch)
        seconds = time.perf_counter() - began
    checkpoint.remove()
    rate = (file.count - start) / max(seconds, 1e-9)
    if args.json:
        values = {"rows": file.count, "resumed_at": start, "seconds": seconds, "rows_per_second": rate}
        say_json({"name": args.name, "file": args.file, **values})
    else:
        say(f"{args.name}: {counted(file.count - start, 'row')} imported in {seconds:.2f} s, {rate:,.0f} per second")


def _open(path: Path, index: AnyIndex, args: argparse.Namespace) -> CodesFile | VectorsFile:
    """Return what the file holds for an index."""
    settings = index.settings
    if args.codes and settings.keep_vectors is not None:
        raise FailureError(f"--codes: index {index.name} keeps vectors, and makes codes of them; import the vectors")
    if settings.dim is None or args.codes:
        return read_codes(path, settings.bits, settings.bit_order, first_id=args.first_id)
    return read_vectors(path, settings.dim, first_id=args.first_id)


def _resumed(index: AnyIndex, file: CodesFile | VectorsFile, checkpoint: Checkpoint) -> int:
    """Return the row to begin with."""
    rows = checkpoint.rows()
    if rows is None:
        if checkpoint.path.exists():
            note(f"{checkpoint.path} is of another import, or of a file that has changed: beginning at row 0")
        return 0
    if rows > file.count:
        return 0
    for row in {0, rows - 1} if rows else ():
        ids = file.ids(row, row + 1)
        if not index.get(ids).found[0]:
            raise FailureError(
                f"{checkpoint.path} says that {rows:,} rows are in index {index.name}, but item {ids[0]} of "
                f"row {row} is not: begin anew with --restart"
            )
    note(f"going on at row {rows:,} of {file.count:,}; --restart would begin anew")
    return rows


class _Import:
    """Rows on their way into an index."""

    def __init__(self, index: AnyIndex, file: CodesFile | VectorsFile, checkpoint: Checkpoint, bar: Any) -> None:
        self._index = index
        self._file = file
        self._checkpoint: Checkpoint | None = checkpoint
        self._bar = bar
        self._lazy = index.settings.durability == "async"
        self._synced = time.monotonic()

    def run(self, start: int, batch: int) -> None:
        """Write everything from a row on. Ctrl-C ends it between two batches, a second one at once."""
        done = start
        with _deferred_interrupt() as interrupted:
            for piece in self._file.pieces(start, batch):
                done = piece.first_row + len(piece.ids)
                sync = not self._lazy or done == self._file.count or self._is_due()
                durability: Durability = "fsync" if sync else "async"
                self._write(piece, durability)
                if sync:
                    self._save(done)
                self._bar.update(len(piece.ids))
                if interrupted.is_set() and done < self._file.count:
                    raise KeyboardInterrupt(self._interruption(done))

    def _write(self, piece: Piece | VectorsPiece, durability: Durability) -> None:
        if isinstance(piece, VectorsPiece):
            self._index.upsert(piece.ids, None, piece.payloads, vectors=piece.vectors, durability=durability)
        else:
            self._index.upsert(piece.ids, piece.codes, piece.payloads, durability=durability)

    def _is_due(self) -> bool:
        now = time.monotonic()
        due = now - self._synced >= SYNC_SECONDS
        if due:
            self._synced = now
        return due

    def _save(self, rows: int) -> None:
        if self._checkpoint is None:
            return
        try:
            self._checkpoint.save(rows)
        except OSError as error:
            remedy = "an import that is interrupted will begin anew; --checkpoint FILE keeps it elsewhere"
            note(f"no checkpoint can be kept: {error.strerror or error}; {remedy}")
            self._checkpoint = None

    def _interruption(self, done: int) -> str:
        return f"interrupted; {done:,} of {self._file.count:,} rows are in: run the same command again to go on"


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event, so that what is under way can be finished."""
    told = threading.Event()

    def hear(number: int, frame: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield told
        return
    signal.signal(signal.SIGINT, hear)
    try:
        yield told
    finally:
        signal.signal(signal.SIGINT, before)
