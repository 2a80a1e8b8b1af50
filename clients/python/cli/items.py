"""``whamming get``, ``delete`` and ``export``: commands on the items of an index."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from whamming.cli.output import add_overwrite, check_new, confirm, counted, payload_json, payload_text, say, say_json
from whamming.cli.parser import Commands, FailureError, UsageError, add_json
from whamming.cli.target import add_target, find_index, opened
from whamming.storage import Items, export_items
from whamming.storage.transfer.columns import ids_path

GET_BATCH: Final = 40
"""Ids per request. The response fits into one message even if every payload has the maximum size."""
DELETE_BATCH: Final = 100_000
MAX_IDS: Final = 10_000_000
MAX_ID: Final = 2**64 - 1
CONFIRM_ABOVE: Final = 1000
"""Deleting more ids than this needs a confirmation."""

IDS_TEXT = """\
ID is a number (42), a range with both ends included (100-199), or - to read ids and ranges from standard input."""


def add(commands: Commands) -> None:
    summary = "print items by id"
    example = "whamming get docs 42 100-109\nwhamming get docs 42 --json | jq -r .code"
    parser = commands("get", get, summary, text=IDS_TEXT, example=example)
    _add_items(parser)
    add_json(parser)
    add_target(parser)

    summary = "delete items"
    text = (
        f"{IDS_TEXT} Ids that do not exist are ignored. Deleting more than {CONFIRM_ABOVE:,} ids asks for confirmation."
    )
    example = "whamming delete docs 42 100-109\nwhamming delete docs - --yes < ids.txt"
    parser = commands("delete", delete, summary, text=text, example=example)
    _add_items(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_json(parser)
    add_target(parser)

    summary = "write all items to a file"
    text = """\
The suffix of FILE selects the format. Both can be imported again:

  .npz  ids, codes and payloads; everything has to fit into memory
  .npy  codes, with the ids in a second file (docs.ids.npy for docs.npy);
        no payloads; may be larger than memory

Kept vectors are not exported. To copy everything, use whamming backup."""
    parser = commands("export", export, summary, text=text, example="whamming export docs docs.npz")
    parser.add_argument("name", metavar="NAME", help="name of the index")
    parser.add_argument("file", metavar="FILE", help="the file to write, .npz or .npy")
    add_overwrite(parser)
    add_json(parser)
    add_target(parser)


def _add_items(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the index")
    parser.add_argument("ids", metavar="ID", nargs="+", help="an id, a range of ids, or -")


def get(args: argparse.Namespace) -> None:
    """Print the items that exist, then fail if any is missing."""
    ids = read_ids(args.ids)
    missing: list[int] = []
    with opened(args) as database:
        index = find_index(database, args.name)
        for batch in _batches(ids, GET_BATCH):
            items = index.get(batch)
            _say_items(items, as_json=args.json)
            missing += items.ids[~items.found].tolist()
    if missing:
        named = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise FailureError(f"{len(missing):,} of {counted(len(ids), 'id')} not found in index {args.name}: {named}")


def _say_items(items: Items, *, as_json: bool) -> None:
    rows = zip(items.ids.tolist(), items.found.tolist(), items.codes, items.payloads, strict=True)
    for id_, found, code, payload in rows:
        if as_json:
            values = {"code": code.tobytes().hex(), **payload_json(payload)} if found else {}
            say_json({"id": id_, "found": found, **values})
        elif found:
            say(f"{id_}  {code.tobytes().hex()}  {payload_text(payload)}".rstrip())


def delete(args: argparse.Namespace) -> None:
    ids = read_ids(args.ids)
    with opened(args, write=True) as database:
        index = find_index(database, args.name)
        if len(ids) > CONFIRM_ABOVE and not confirm(f"delete {len(ids):,} ids from index {args.name}", args.yes):
            raise FailureError("nothing was deleted")
        ids = np.unique(ids)
        deleted = sum(index.delete(batch) for batch in _batches(ids, DELETE_BATCH))
    if args.json:
        say_json({"name": args.name, "ids": len(ids), "deleted": deleted})
    elif deleted == len(ids):
        say(f"{args.name}: {counted(deleted, 'id')} deleted")
    else:
        say(f"{args.name}: {deleted:,} of {counted(len(ids), 'id')} deleted; {len(ids) - deleted:,} not in the index")


def export(args: argparse.Namespace) -> None:
    check_new(args.file, args.overwrite)
    if args.file.endswith(".npy"):
        check_new(str(ids_path(Path(args.file))), args.overwrite)
    with opened(args) as database:
        count = export_items(find_index(database, args.name), args.file)
    if args.json:
        say_json({"name": args.name, "file": args.file, "items": count})
    else:
        say(f"{args.name}: {counted(count, 'item')} exported to {args.file}")


def _batches(ids: NDArray[np.uint64], size: int) -> Iterator[NDArray[np.uint64]]:
    for first in range(0, len(ids), size):
        yield ids[first : first + size]


def read_ids(words: Sequence[str]) -> NDArray[np.uint64]:
    """Parse ids and ranges. Each ``-`` stands for those on standard input."""
    parts: list[NDArray[np.uint64]] = []
    count = 0
    for word in words:
        for one in sys.stdin.read().split() if word == "-" else [word]:
            first, last = _range(one)
            count += last - first + 1
            if count > MAX_IDS:
                raise UsageError(f"too many ids: {count:,} or more; give at most {MAX_IDS:,} per command")
            parts.append(np.arange(last - first + 1, dtype=np.uint64) + np.uint64(first))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.uint64)


def _range(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)(?:-([0-9]+))?", word, flags=re.ASCII)
    first = int(match[1]) if match else -1
    last = int(match[2] or match[1]) if match else -1
    if not 0 <= first <= last <= MAX_ID:
        raise UsageError(f"{word} is not an id or a range; ids are 0 to {MAX_ID}, ranges are FIRST-LAST, as in 100-199")
    return first, last
