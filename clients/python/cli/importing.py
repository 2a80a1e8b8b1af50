"""``whamming import``: load a file into an index. An interrupted import resumes where it stopped."""

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
from whamming.cli.encoding import add_fitting, find_or_create_index
from whamming.cli.output import counted, items_bar, note, say, say_json
from whamming.cli.parser import Commands, FailureError, add_json, whole
from whamming.cli.target import AnyIndex, add_target, opened, target_name
from whamming.storage import (
    CodesFile,
    Durability,
    Piece,
    StorageFullError,
    VectorsFile,
    VectorsPiece,
    read_codes,
    read_vectors,
)
from whamming.storage.storage_errors import from_system

IMPORT_ROWS: Final = 50_000
BATCH_BYTES: Final = 1 << 20
"""A batch has at most ``IMPORT_ROWS`` rows and ``BATCH_BYTES`` bytes of codes."""
VECTOR_BATCH_BYTES: Final = 3 << 20
"""The limit in bytes for vectors, which are longer than codes. A batch has to fit into one message to a server."""
SYNC_SECONDS: Final = 0.5
"""How often an import waits for the disk if the index has ``durability="async"``."""

TEXT = """\
FILE holds n codes, each as long as the index's codes:

  .npy    packed uint8 [n, bytes] in the index's bit order, bool [n, bits],
          or floating-point [n, bits] (a value greater than 0 is a 1);
          the ids of docs.npy are read from docs.ids.npy, if that exists
  .npz    an array "codes" in one of these forms, and optionally "ids",
          "payload_ends" and "payload_data", as export writes them;
          compressed files may expand to 1 GiB, or to 16 times their size
  .fvecs  floating-point vectors (a value greater than 0 is a 1)
  .bvecs  packed codes

For an index with an encoder, FILE holds vectors [n, dim] of float32, float16, float64, int8 or uint8 in the same file
types. In .npz the array is called "vectors". With --encoder, import creates the index if it does not exist.

An item whose id is already in the index is replaced. To resume an interrupted import, run the same command again: a
checkpoint file next to FILE records how many rows are on disk, until the import is done."""

EXAMPLE = """\
whamming import docs codes.npy
whamming import docs more.fvecs --first-id 1000000 --batch 1000
whamming import texts vectors.npy --encoder itq --bits 256 --keep-vectors float16"""


def add(commands: Commands) -> None:
    parser = commands("import", import_file, "load items from a file", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="name of the index")
    parser.add_argument("file", metavar="FILE", help="a file of codes or vectors")
    text = f"rows per write (default {IMPORT_ROWS:,}, fewer for long codes)"
    parser.add_argument("--batch", metavar="N", type=whole(1, 1_000_000), help=text)
    text = "id of the first row if the file has no ids; the others follow (default 0)"
    parser.add_argument("--first-id", metavar="ID", type=whole(0, 2**64 - 1), default=0, help=text)
    text = "checkpoint file (default FILE.NAME.checkpoint)"
    parser.add_argument("--checkpoint", metavar="FILE", help=text)
    parser.add_argument("--restart", action="store_true", help="ignore the checkpoint and start at row 0")
    add_fitting(parser)
    add_json(parser)
    add_target(parser)


def import_file(args: argparse.Namespace) -> None:
    path = Path(args.file)
    try:
        job = ImportJob.of(args.name, target_name(args), path, args.first_id)
    except OSError as error:
        raise from_system(error, path) from error
    kept_at = Path(args.checkpoint) if args.checkpoint else path.with_name(f"{path.name}.{args.name}.checkpoint")
    checkpoint = Checkpoint(kept_at, job)
    if args.checkpoint:  # a file with the default name is always a checkpoint
        checkpoint.check()
    with opened(args, write=True, create=args.encoder is not None) as database:
        index = find_or_create_index(database, args)
        file = _open(path, index, args)
        start = 0 if args.restart else _first_row(index, file, checkpoint)
        limit = VECTOR_BATCH_BYTES if isinstance(file, VectorsFile) else BATCH_BYTES
        batch = args.batch or min(IMPORT_ROWS, limit // (8 + file.row_bytes))
        began = time.perf_counter()
        with items_bar(f"import {args.name}", file.count, start) as bar:
            _Import(index, file, checkpoint, bar).run(start, batch)
        seconds = time.perf_counter() - began
        items = index.count()
    checkpoint.remove()
    rate = (file.count - start) / max(seconds, 1e-9)
    if args.json:
        values = {"rows": file.count, "resumed_at": start, "seconds": seconds, "rows_per_second": rate, "items": items}
        say_json({"name": args.name, "file": args.file, **values})
    else:
        rows = counted(file.count - start, "row")
        speed = f"{seconds:.2f} s, {rate:,.0f} per second"
        say(f"{args.name}: {rows} imported in {speed}; the index has {counted(items, 'item')}")


def _open(path: Path, index: AnyIndex, args: argparse.Namespace) -> CodesFile | VectorsFile:
    settings = index.settings
    if args.codes and settings.keep_vectors is not None:
        raise FailureError(f"index {index.name} keeps vectors, so it cannot import --codes; import the vectors instead")
    if settings.dim is None or args.codes:
        return read_codes(path, settings.bits, settings.bit_order, first_id=args.first_id)
    return read_vectors(path, settings.dim, first_id=args.first_id)


def _first_row(index: AnyIndex, file: CodesFile | VectorsFile, checkpoint: Checkpoint) -> int:
    """Return the row to start or resume at."""
    rows = checkpoint.rows()
    if rows is None:
        if checkpoint.path.exists():
            note(f"{checkpoint.path} belongs to another import, or the file has changed; starting at row 0")
        return 0
    if rows > file.count:
        return 0
    for row in {0, rows - 1} if rows else ():
        ids = file.ids(row, row + 1)
        if not index.get(ids).found[0]:
            raise FailureError(
                f"{checkpoint.path} says that {rows:,} rows are in index {index.name}, but item {ids[0]} (row {row}) "
                "is missing; start over with --restart"
            )
    note(f"resuming at row {rows:,} of {file.count:,}; to start over, use --restart")
    return rows


class _Import:
    def __init__(self, index: AnyIndex, file: CodesFile | VectorsFile, checkpoint: Checkpoint, bar: Any) -> None:
        self._index = index
        self._file = file
        self._checkpoint: Checkpoint | None = checkpoint
        self._bar = bar
        self._lazy = index.settings.durability == "async"
        self._synced = time.monotonic()
        self._saved = 0
        """How many rows are on disk."""

    def run(self, start: int, batch: int) -> None:
        """Write all rows from ``start`` on. Ctrl-C stops after the current batch; a second Ctrl-C stops at once."""
        done = self._saved = start
        with _deferred_interrupt() as interrupted:
            for piece in self._file.pieces(start, batch):
                done = piece.first_row + len(piece.ids)
                sync = not self._lazy or done == self._file.count or self._is_due()
                durability: Durability = "fsync" if sync else "async"
                self._write(piece, durability)
                if sync:
                    self._saved = done
                    self._save(done)
                self._bar.update(len(piece.ids))
                if interrupted.is_set() and done < self._file.count:
                    raise KeyboardInterrupt(self._interruption(done))

    def _write(self, piece: Piece | VectorsPiece, durability: Durability) -> None:
        try:
            if isinstance(piece, VectorsPiece):
                self._index.upsert(piece.ids, None, piece.payloads, vectors=piece.vectors, durability=durability)
            else:
                self._index.upsert(piece.ids, piece.codes, piece.payloads, durability=durability)
        except StorageFullError as error:
            done = f"{self._saved:,} of {self._file.count:,} rows are on disk"
            raise StorageFullError(f"{error}; {done}; to resume, run the same command again") from error

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
            remedy = "this import cannot be resumed if interrupted; use --checkpoint FILE to write it elsewhere"
            note(f"the checkpoint cannot be written: {error.strerror or error}; {remedy}")
            self._checkpoint = None

    def _interruption(self, done: int) -> str:
        return f"interrupted after {done:,} of {self._file.count:,} rows; to resume, run the same command again"


@contextlib.contextmanager
def _deferred_interrupt() -> Iterator[threading.Event]:
    """Set an event on the first Ctrl-C, so that the current batch can finish. The second Ctrl-C raises as usual."""
    interrupted = threading.Event()

    def on_interrupt(number: int, frame: object) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        yield interrupted
        return
    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
