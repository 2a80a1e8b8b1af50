"""``python -m whamming.native.demo``: neighbours of a sentence among Python's own documentation, as they are proven.

The data are real and made on the spot: every public function and class of the standard library that is documented.
Its words are hashed to a vector; the vectors' 256 principal directions, rotated at random, give a number each, and the
signs are the code. The query's own numbers are its weights: getting a bit wrong costs as much as the query is sure of
it.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
import time
import warnings
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from whamming.native import Costs, Index

BITS = 256
BUCKETS = 2048
"""Places that words are hashed to."""

MODULES = """
argparse array ast asyncio base64 bisect bz2 calendar cmath collections concurrent.futures configparser
contextlib copy csv ctypes dataclasses datetime decimal difflib email enum fnmatch fractions ftplib functools getpass
gettext glob graphlib gzip hashlib heapq hmac html http.client http.cookies http.server imaplib inspect io ipaddress
itertools json locale logging lzma mailbox math mimetypes mmap multiprocessing numbers operator os pathlib pickle
platform plistlib poplib pprint profile queue quopri random re reprlib sched secrets select selectors shelve shlex
shutil signal smtplib socket socketserver sqlite3 ssl statistics string struct subprocess symtable sys tarfile tempfile
textwrap threading time timeit tokenize trace traceback types typing unicodedata unittest urllib.parse urllib.request
uuid venv warnings wave weakref webbrowser xml.dom xml.etree.ElementTree xmlrpc.client zipfile zipimport zlib zoneinfo
"""


def documented() -> Iterator[tuple[str, str]]:
    """Yield (name, documentation) of what the standard library documents."""
    seen: set[str] = set()
    for module_name in MODULES.split():
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        owners: list[tuple[str, Any]] = [(module_name, module)]
        owners += [(f"{module_name}.{n}", c) for n, c in inspect.getmembers(module, inspect.isclass)]
        for prefix, owner in owners:
            for name, member in inspect.getmembers(owner):
                text = inspect.getdoc(member) if callable(member) and not name.startswith("_") else None
                if text and len(text) > 40 and text not in seen:
                    seen.add(text)
                    yield f"{prefix}.{name}", text


def features(text: str) -> NDArray[np.float64]:
    """Hash a text's words, and pairs of neighbouring words, to a vector of length 1."""
    vector = np.zeros(BUCKETS)
    words = [w.rstrip("s") for w in re.findall(r"[a-z]{2,}", text.lower())]
    for term in words + [f"{a} {b}" for a, b in pairwise(words)]:
        vector[zlib.crc32(term.encode()) % BUCKETS] += 1
    vector = np.sqrt(vector)
    return vector / max(float(np.linalg.norm(vector)), 1e-9)


def principal(vectors: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the vectors' first principal directions, rotated at random so that all matter alike."""
    rng = np.random.default_rng(1)
    basis = np.linalg.qr(vectors @ rng.standard_normal((vectors.shape[1], count + 32)))[0]
    for _ in range(2):
        basis = np.linalg.qr(vectors @ (vectors.T @ basis))[0]
    directions = np.linalg.svd(basis.T @ vectors, full_matrices=False)[2][:count]
    rotation = np.linalg.qr(rng.standard_normal((count, count)))[0]
    return np.asarray(directions.T @ rotation)


def first_line(text: str) -> str:
    """Return what a documentation text says first, shortened to fit a terminal."""
    line = " ".join(text.split())
    return line if len(line) <= 70 else line[:67] + "..."


def main() -> None:
    """Build the index, search it, print hits as they arrive."""
    parser = argparse.ArgumentParser(prog="python -m whamming.native.demo", description=__doc__)
    parser.add_argument(
        "query",
        nargs="*",
        default=["compress", "data", "and", "write", "it", "to", "a", "file"],
        help="a sentence to look for",
    )
    parser.add_argument("--hits", type=int, default=10, help="how many to show (default 10)")
    options = parser.parse_args()
    query = " ".join(options.query)

    warnings.simplefilter("ignore")
    names, texts = zip(*documented(), strict=True)
    vectors = np.stack([features(text) for text in texts])
    rare = np.log(len(texts) / (1 + np.count_nonzero(vectors, axis=0)))  # rare words tell more
    vectors *= rare
    directions = principal(vectors, BITS)
    projected = vectors @ directions
    centre = projected.mean(axis=0)
    codes = np.packbits(projected > centre, axis=1, bitorder="little")

    start = time.perf_counter()
    index = Index.build(codes, bits=BITS)
    built = time.perf_counter() - start
    print(f"{len(index)} documented functions and classes of Python {sys.version.split()[0]} -> {index}")
    print(f"built in {built * 1e3:.1f} ms, {sum(index.storage.values()) / len(index):.0f} bytes per code\n")

    wanted = features(query) * rare @ directions - centre
    costs = Costs.weights(np.packbits(wanted > 0, bitorder="little"), np.abs(wanted))
    print(f'nearest to "{query}", by weighted Hamming distance, in the order in which they are proven:\n')
    print(f"{'ms':>7}  {'distance':>9}  {'bound':>9}  what")
    start = time.perf_counter()
    with index.cursor(costs) as cursor:
        for shown, hit in enumerate(cursor):
            if shown == options.hits:
                break
            now = (time.perf_counter() - start) * 1e3
            print(f"{now:7.3f}  {hit.distance:9.3f}  {cursor.lower_bound:9.3f}  {names[hit.id]}")
            print(f"{'':30}{first_line(texts[hit.id])}")
        stats = cursor.stats
    print(
        f"\nplan: {stats.plan}; {stats.verified} of {len(index)} codes compared exactly; "
        "every hit was final when shown, and nothing nearer than its bound was left"
    )


if __name__ == "__main__":
    main()
