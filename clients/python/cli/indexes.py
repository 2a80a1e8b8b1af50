"""``whamming create``, ``list``, ``stats``, ``seal``, ``compact`` and ``drop``: commands on whole indexes."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, get_args

from whamming.cli.encoding import add_encoder, create_options, encoder_text, encoder_values
from whamming.cli.output import confirm, counted, note, progress_bar, say, say_json, say_pairs, say_table, size
from whamming.cli.parser import Commands, FailureError, add_json, whole
from whamming.cli.target import AnyDatabase, AnyIndex, add_target, find_index, no_such_index, opened
from whamming.native import Buckets, Tables, WhammingError
from whamming.storage import AlreadyExistsError, BitOrder, Durability, IndexSettings, NotFoundError

CREATE_TEXT = """\
The settings of an index cannot be changed later. To change tables, buckets or durability, export the items and import
them into a new index. An export has no kept vectors. To keep vectors, or to change any other setting, import the
original data into a new index.

An index with an encoder takes vectors, both as items and as queries, and turns them into codes. To learn the encoder
from your vectors, use whamming import --encoder instead: it creates the index and fits the encoder on the file."""
CREATE_EXAMPLE = """\
whamming create docs --bits 256 --bit-order big
whamming create texts --encoder lsh --dim 768 --bits 1024 --keep-vectors float16 --metric cosine
whamming create more --encoder-file docs.encoder"""
LIST_TEXT = """\
An index that cannot be opened, or whose files are lost, is listed as broken. The reason is printed on standard error;
with --json, it is also in the field "error". The other indexes are listed all the same. If an index is broken, the exit
code is 1; with --names it is 0. To remove a broken index: whamming drop NAME."""
SEAL_TEXT = """\
Recent writes have no hash tables yet and are searched by a sweep. They get tables automatically once there are enough
of them. Seal builds the tables now, for example after a large import."""
COMPACT_TEXT = """\
Removes deleted and replaced items from the file, and merges all segments into as few as possible, usually one. Fewer
segments are faster to search. Segments are also merged automatically when that pays off; compact merges them now."""


def add(commands: Commands) -> None:
    parser = commands(
        "create",
        create,
        "create an index",
        text=CREATE_TEXT,
        example=CREATE_EXAMPLE,
    )
    parser.add_argument("name", metavar="NAME", help="name of the index: 1 to 128 letters, digits, '.', '_' and '-'")
    text = "length of the codes, 1 to 4096; required unless the encoder sets it (default with --encoder sign: --dim)"
    parser.add_argument("--bits", metavar="N", type=whole(1, 4096), help=text)
    text = (
        "order of the bits within a byte. little: bit 0 is mask 1; big: bit 0 is mask 128, the usual order of "
        "numpy.packbits (default little)"
    )
    parser.add_argument("--bit-order", choices=get_args(BitOrder), default="little", help=text)
    text = """\
hash tables of a segment. single: one directory for all substrings of the codes; multi: one per substring; none: no
tables, so that every search scans all codes (default single)"""
    parser.add_argument("--tables", choices=get_args(Tables), default="single", help=text)
    text = "layout of the hash tables; fast takes more space and is faster to search (default compact)"
    parser.add_argument("--buckets", choices=get_args(Buckets), default="compact", help=text)
    text = """\
fsync: a write returns once it is on disk; async: it returns earlier, and a crash may lose the last 50 ms of writes
(default fsync)"""
    parser.add_argument("--durability", choices=get_args(Durability), default="fsync", help=text)
    text = "succeed if the index already exists with the same settings"
    parser.add_argument("--exist-ok", action="store_true", help=text)
    add_encoder(parser)
    add_json(parser)
    add_target(parser)

    parser = commands(
        "list",
        list_indexes,
        "list the indexes",
        text=LIST_TEXT,
        example="whamming list\nwhamming list --json | jq .name\nwhamming list --json | jq 'select(.error)'",
    )
    parser.add_argument("--names", action="store_true", help="print only the names, one per line")
    add_json(parser)
    add_target(parser)

    parser = commands(
        "stats",
        stats,
        "show settings and sizes of indexes",
        example="whamming stats docs\nwhamming stats docs --json | jq .items",
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help="name of the index (default: all)")
    add_json(parser)
    add_target(parser)

    summary = "build hash tables for recent writes now"
    parser = commands("seal", seal, summary, text=SEAL_TEXT, example="whamming seal docs")
    parser.add_argument("name", metavar="NAME", help="name of the index")
    add_json(parser)
    add_target(parser)

    summary = "merge the segments of an index"
    parser = commands("compact", compact, summary, text=COMPACT_TEXT, example="whamming compact docs")
    parser.add_argument("name", metavar="NAME", help="name of the index")
    add_json(parser)
    add_target(parser)

    parser = commands("drop", drop, "remove an index with all its items", example="whamming drop docs --yes")
    parser.add_argument("name", metavar="NAME", help="name of the index")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    add_json(parser)
    add_target(parser)


def create(args: argparse.Namespace) -> None:
    options = create_options(args)
    with opened(args, write=True, create=True) as database:
        try:
            index = database.create_index(
                args.name,
                **options,
                bit_order=args.bit_order,
                tables=args.tables,
                buckets=args.buckets,
                durability=args.durability,
                exist_ok=args.exist_ok,
            )
        except AlreadyExistsError as error:
            raise _exists(database, args, error) from error
        if args.json:
            say_json({"name": index.name, **index.settings.to_json()})
        else:
            say(f"{index.name}: {_settings_text(index.settings)}")


def _exists(database: AnyDatabase, args: argparse.Namespace, error: AlreadyExistsError) -> AlreadyExistsError:
    """Return an error that shows the settings of the existing index; with --exist-ok, only those that differ."""
    try:
        settings = database.index(args.name).settings
    except WhammingError:
        return error  # the name is taken by something that cannot be opened
    text = _settings_text(settings)
    if args.exist_ok:
        pairs = [(name, getattr(settings, name), getattr(args, name, None)) for name in settings.to_json()]
        others = [
            f"{name.replace('_', ' ')} {found}, not {wanted}"
            for name, found, wanted in pairs
            if name != "encoder" and wanted not in (None, found)
        ]
        text = ", and ".join(others) or text
    return AlreadyExistsError(f"index {args.name} already exists with {text}; choose another name")


def list_indexes(args: argparse.Namespace) -> None:
    """List indexes. Broken ones are listed as such, and make the command fail at its end."""
    rows = []
    problems = []
    with opened(args) as database:
        if args.names:
            for name in database.list_indexes():
                say_json({"name": name}) if args.json else say(name)
            return
        for info in database.describe_indexes():
            held, settings = info.stats, info.settings
            if held is None or settings is None:
                problems.append(f"index {info.name} is broken: {info.error}")
                values: dict[str, Any] = {"name": info.name, "error": str(info.error)}
                rows.append((info.name, "broken", "", ""))
            else:
                values = {"name": info.name, "items": held.items, **settings.to_json(), "used_bytes": held.used_bytes}
                rows.append((info.name, f"{held.items:,}", str(settings.bits), size(held.used_bytes)))
            if args.json:
                say_json(values)
    if not args.json:
        say_table(("NAME", "ITEMS", "BITS", "SIZE"), rows)
    _report(problems)


def stats(args: argparse.Namespace) -> None:
    problems = []
    with opened(args) as database:
        if args.name is not None:
            _say_stats(find_index(database, args.name), as_json=args.json)
            return
        for name in database.list_indexes():
            try:
                _say_stats(database.index(name), as_json=args.json)
            except NotFoundError:
                continue  # dropped in the meantime
            except WhammingError as error:
                problems.append(f"index {name} is broken: {error}")
    _report(problems)


def _report(problems: list[str]) -> None:
    """Print what is wrong with indexes, and fail if there are any problems."""
    for problem in problems:
        note(problem)
    if problems:
        count = "1 index is" if len(problems) == 1 else f"{len(problems):,} indexes are"
        raise FailureError(f"{count} broken; to check the files: whamming verify --data DIR")


def seal(args: argparse.Namespace) -> None:
    with opened(args, write=True) as database:
        index = find_index(database, args.name)
        with progress_bar(f"seal {args.name}") as progress:
            index.seal(progress)
        _say_segments(index, as_json=args.json)


def compact(args: argparse.Namespace) -> None:
    with opened(args, write=True) as database:
        index = find_index(database, args.name)
        with progress_bar(f"compact {args.name}") as progress:
            index.compact(progress)
        _say_segments(index, as_json=args.json)


def drop(args: argparse.Namespace) -> None:
    with opened(args, write=True) as database:
        # With --yes, the index is not looked up: a reader process of the server may not see one whose files are lost.
        held = "" if args.yes else _count(database, args.name)
        if not confirm(f"drop index {args.name}{held}", args.yes):
            raise FailureError(f"index {args.name} was not dropped")
        try:
            database.drop_index(args.name)
        except NotFoundError as error:
            raise no_such_index(database, args.name) from error
    if args.json:
        say_json({"name": args.name, "dropped": True})
    else:
        say(f"{args.name}: dropped")


def _count(database: AnyDatabase, name: str) -> str:
    """Return the number of items for the confirmation prompt; empty if the index is too damaged to count them."""
    try:
        return f" with {counted(len(find_index(database, name)), 'item')}"
    except NotFoundError:
        raise
    except WhammingError:
        return ""


def _settings_text(settings: IndexSettings) -> str:
    values = settings.to_json()
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items() if value is not None)


def _values(index: AnyIndex) -> dict[str, Any]:
    return {**index.settings.to_json(), **dataclasses.asdict(index.stats())}


def _say_stats(index: AnyIndex, *, as_json: bool) -> None:
    values, encoder = _values(index), index.encoder
    if as_json:
        say_json({"name": index.name, **values, **({} if encoder is None else encoder_values(encoder))})
        return
    if encoder is not None:
        values["encoder"] = f"{encoder_text(encoder)} ({encoder.fingerprint})"
    for name in ("disk_bytes", "used_bytes"):
        values[name] = f"{values[name]:,} ({size(values[name])})"
    say_pairs(index.name, {name: value for name, value in values.items() if value is not None})


def _say_segments(index: AnyIndex, *, as_json: bool) -> None:
    if as_json:
        say_json({"name": index.name, **_values(index)})
        return
    held = index.stats()
    say(f"{index.name}: {counted(held.items, 'item')} in {counted(held.segments, 'segment')}, {size(held.used_bytes)}")
