"""``whamming search``: print hits as the search proves them."""

from __future__ import annotations

import argparse
import time
from typing import Any, get_args

from whamming.cli.output import counted, note, payload_json, payload_text, say, say_json
from whamming.cli.parser import Commands, add_json, number, whole
from whamming.cli.query import add_query, check_options, read_query
from whamming.cli.target import add_target, find_index, opened
from whamming.native import Hit, Plan

DEFAULT_K = 10

TEXT = """\
Prints hits in order of distance, each as soon as it is proven that no remaining item is nearer. Ctrl-C stops the
search. The columns are:

  MS        milliseconds since the search started
  DISTANCE  distance from the query
  BOUND     lower bound on the distances of all remaining items
  ID        id of the item
  PAYLOAD   payload of the item, with --payloads

With --rerank, distances are between vectors. With --rerank N, items nearer than the hits may be missing, so there is no
bound."""

EXAMPLE = """\
whamming search docs --like 42 -k 5 --payloads
whamming search docs --code 00ff00ff00ff00ff --weights weights.npy --radius 9.5
whamming search docs --code-file queries.npy --row 3 -k all --json | head
whamming search texts --vector-file queries.npy --row 3 --rerank 10"""


def add(commands: Commands) -> None:
    parser = commands("search", search, "find the nearest items", text=TEXT, example=EXAMPLE)
    parser.add_argument("name", metavar="NAME", help="name of the index")
    text = f"maximum number of hits, or all (default {DEFAULT_K}; with --radius: all)"
    parser.add_argument("-k", metavar="K", type=_k, help=text)
    parser.add_argument("--radius", metavar="R", type=number, help="only hits within this distance")
    text = "search algorithm; every plan gives the same hits (default auto)"
    parser.add_argument("--plan", choices=get_args(Plan), default="auto", help=text)
    parser.add_argument("--payloads", action="store_true", help="print the payload of each hit")
    add_json(parser, "print one JSON object per hit; lower_bound is null if no items remain, or with --rerank N")
    add_query(parser)
    add_target(parser)


def _k(text: str) -> int | None:
    if text == "all":
        return -1
    try:
        return whole(0, 2**31 - 1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or give all") from None


def search(args: argparse.Namespace) -> None:
    k = args.k
    if k is None and args.radius is None:
        k = DEFAULT_K
    elif k == -1:
        k = None
    count, first, printed = 0, 0.0, _Json if args.json else _Lines
    check_options(args, k)
    with opened(args) as database:
        index = find_index(database, args.name)
        query: dict[str, Any] = read_query(args, index)
        began = time.perf_counter()
        with index.search(**query, k=k, radius=args.radius, plan=args.plan, payloads=args.payloads) as hits:
            lines = printed(args.payloads)
            for hit in hits:
                elapsed = 1e3 * (time.perf_counter() - began)
                lines.say(hit, elapsed, hits.lower_bound)
                first = first if count else elapsed
                count += 1
            elapsed = 1e3 * (time.perf_counter() - began)
            stats = hits.stats
    if not args.json:
        found = f"{counted(count, 'hit')} in {elapsed:.2f} ms" + (f", the first after {first:.2f} ms" if count else "")
        note(f"{found}; plan {stats.plan}, {counted(stats.verified, 'code')} compared")


class _Lines:
    def __init__(self, payloads: bool) -> None:
        say(f"{'MS':>9}  {'DISTANCE':>12}  {'BOUND':>12}  {'ID':>12}" + ("  PAYLOAD" if payloads else ""))

    def say(self, hit: Hit, elapsed: float, bound: float) -> None:
        line = f"{elapsed:9.2f}  {hit.distance:12.6g}  {bound:12.6g}  {hit.id:12d}  {payload_text(hit.payload)}"
        say(line.rstrip())


class _Json:
    def __init__(self, payloads: bool) -> None:
        self._payloads = payloads

    def say(self, hit: Hit, elapsed: float, bound: float) -> None:
        values = {"id": hit.id, "distance": hit.distance, "lower_bound": bound, "ms": round(elapsed, 4)}
        say_json({**values, **(payload_json(hit.payload) if self._payloads else {})})
