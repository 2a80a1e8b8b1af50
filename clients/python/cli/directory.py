"""``whamming backup``, ``restore`` and ``verify``: commands on a database in a directory."""

from __future__ import annotations

import argparse

import whamming
from whamming.cli.output import counted, progress_bar, say, say_json, size
from whamming.cli.parser import Commands, FailureError, add_json
from whamming.cli.target import add_data, open_directory
from whamming.storage import IncompleteBackupError, NotFoundError


def add(commands: Commands) -> None:
    text = """\
The copy is consistent even while a server is writing to the directory. It is a database: open it, serve it, or restore
it. If an index is broken, the others are copied, and the exit code is 1."""
    example = "whamming backup --data my-data /backups/monday"
    parser = commands("backup", backup, "copy a database to a new directory", text=text, example=example)
    parser.add_argument("to", metavar="TO", help="the directory to create; it must not exist, but its parent must")
    add_data(parser)
    add_json(parser)

    text = """\
Checks every byte of the backup first. A damaged backup is not restored. If an index was broken when the backup was
made, the others are copied, and the exit code is 1."""
    example = "whamming restore /backups/monday my-data"
    parser = commands("restore", restore, "create a database from a backup", text=text, example=example)
    parser.add_argument("source", metavar="FROM", help="the directory of the backup")
    parser.add_argument("to", metavar="TO", help="the directory to create; it must not exist, but its parent must")
    add_json(parser)

    text = "Lists the problems and exits with code 1 if anything is damaged. Can run while a server is writing."
    example = "whamming verify --data my-data && echo all is well"
    parser = commands("verify", verify, "check every byte of a database", text=text, example=example)
    add_data(parser)
    add_json(parser)


def backup(args: argparse.Namespace) -> None:
    incomplete = None
    with open_directory(args.data) as database:
        try:
            database.backup(args.to)
        except IncompleteBackupError as error:
            incomplete = error
    with open_directory(args.to) as copy:
        names = copy.list_indexes()
    _say_copied(args.data, args.to, names, as_json=args.json)
    if incomplete is not None:
        raise incomplete


def restore(args: argparse.Namespace) -> None:
    incomplete = None
    try:
        with progress_bar("check the backup") as progress:
            whamming.restore(args.source, args.to, progress)
    except IncompleteBackupError as error:
        incomplete = error
    except NotFoundError as error:
        remedy = "give the directory that 'whamming backup' created"
        raise NotFoundError(f"there is no backup at {args.source}; {remedy}") from error
    with open_directory(args.to) as database:
        names = database.list_indexes()
    _say_copied(args.source, args.to, names, as_json=args.json)
    if incomplete is not None:
        raise incomplete


def _say_copied(source: str, to: str, names: list[str], *, as_json: bool) -> None:
    if as_json:
        say_json({"from": source, "to": to, "indexes": names})
    else:
        say(f"{to}: {counted(len(names), 'index', 'indexes')} copied from {source}")


def verify(args: argparse.Namespace) -> None:
    with open_directory(args.data) as database, progress_bar("verify") as progress:
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
        remedy = "to go back to a backup: whamming restore FROM TO"
        raise FailureError(f"{args.data} has damaged indexes: {', '.join(damaged)}; {remedy}")
