"""``backup``, ``restore``, ``verify``: a database in a directory."""

from __future__ import annotations

import argparse

import whamming
from whamming.cli.output import counted, say, say_json, share_bar, size
from whamming.cli.parser import Commands, FailureError, add_json
from whamming.cli.target import add_data, open_directory
from whamming.storage import NotFoundError


def add(commands: Commands) -> None:
    """Add the commands."""
    text = "The copy is consistent, also while a server writes to the directory, and is a database of its own."
    example = "whamming backup --data my-data /backups/monday"
    parser = commands("backup", backup, "copy a database to a new directory", text=text, example=example)
    parser.add_argument("to", metavar="TO", help="a directory that does not exist")
    add_data(parser)
    add_json(parser)

    text = "Every byte of the backup is checked first; from a damaged one, nothing is restored."
    example = "whamming restore /backups/monday my-data"
    parser = commands("restore", restore, "make a database from a backup", text=text, example=example)
    parser.add_argument("source", metavar="FROM", help="directory of the backup")
    parser.add_argument("to", metavar="TO", help="a directory that does not exist")
    add_json(parser)

    text = "Exit code 1 and a list of problems if anything is damaged. It may run while a server writes."
    example = "whamming verify --data my-data && echo all is well"
    parser = commands("verify", verify, "check every byte of a database", text=text, example=example)
    add_data(parser)
    add_json(parser)


def backup(args: argparse.Namespace) -> None:
    """Copy a database."""
    with open_directory(args.data) as database:
        names = database.list_indexes()
        database.backup(args.to)
    _say_copied(args.data, args.to, names, as_json=args.json)


def restore(args: argparse.Namespace) -> None:
    """Copy a backup after checking it."""
    try:
        with share_bar("check the backup") as progress:
            whamming.restore(args.source, args.to, progress)
    except NotFoundError as error:
        raise NotFoundError(f"there is no backup at {args.source}; give the directory that backup wrote") from error
    with open_directory(args.to) as database:
        names = database.list_indexes()
    _say_copied(args.source, args.to, names, as_json=args.json)


def _say_copied(source: str, to: str, names: list[str], *, as_json: bool) -> None:
    if as_json:
        say_json({"from": source, "to": to, "indexes": names})
    else:
        say(f"{to}: {counted(len(names), 'index', 'indexes')} copied from {source}")


def verify(args: argparse.Namespace) -> None:
    """Check a database; fails if anything is wrong with it."""
    with open_directory(args.data) as database, share_bar("verify") as progress:
        reports = database.verify(progress)
    for name, report in reports.items():
        if args.json:
            problems = {"problems": report.problems, "bytes_checked": report.bytes_checked}
            say_json({"name": name, "ok": report.ok, **problems})
            continue
        say(f"{name}: {'ok' if report.ok else 'damaged'}, {size(report.bytes_checked)} checked")
        for problem in report.problems:
            say(f"  {problem}")
    damaged = [name for name, report in reports.items() if not report.ok]
    if damaged:
        remedy = "restore a backup: whamming restore FROM TO"
        raise FailureError(f"damaged in {args.data}: {', '.join(damaged)}; {remedy}")
