"""``python -m whamming.demo``: type a sentence and see the nearest dictionary definitions.

The demo starts a server with an index of definitions. The mean of all embeddings is subtracted from each embedding. The
code of a text is the signs of the result. The weights of a query are the absolute values of the result for the
sentence: the farther a component is from zero, the more a mismatch in its bit costs. Hits are shown as they arrive.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import whamming
from whamming import RemoteIndex
from whamming.demo.texts import BITS, SentenceEncoder, load

INDEX = "glosses"
EXAMPLES = ("a musician who plays the piano", "a place where ships are safe from storms")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m whamming.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sentence", nargs="*", help="the sentence to search for (default: two examples, then a prompt)")
    parser.add_argument("-k", type=_positive, default=8, help="hits to show (default 8)")
    parser.add_argument("--data", type=Path, help="directory of the database (default: a temporary one)")
    parser.add_argument("--listen", default="127.0.0.1:0", help="address of the server (default: a free port)")
    parser.add_argument("--serve", action="store_true", help="leave the server running until Ctrl-C")
    options = parser.parse_args(arguments)
    with contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        data = options.data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="whamming-demo-"))) / "data"
        address = stack.enter_context(serving(data, options.listen))
        index = filled(stack.enter_context(whamming.connect(address)))
        encoder = SentenceEncoder.load()
        for sentence in [" ".join(options.sentence)] if options.sentence else EXAMPLES:
            show(index, encoder, sentence, options.k)
        if options.serve:
            print(f"\nserving {data} on {address} until Ctrl-C; try:")
            print(f"  whamming search {INDEX} --server {address} --like 42 -k 5 --payloads")
            while True:
                time.sleep(3600)
        while not options.sentence and sys.stdin.isatty():
            sentence = input("\nyour sentence (empty to end): ").strip()
            if not sentence:
                break
            show(index, encoder, sentence, options.k)


def _positive(text: str) -> int:
    k = int(text)
    if k < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {k}")
    return k


@contextlib.contextmanager
def serving(data: Path, listen: str) -> Iterator[str]:
    """Run a server in another process. Yields its address."""
    command = [
        sys.executable,
        "-m",
        "whamming",
        "serve",
        "--data",
        str(data),
        "--listen",
        listen,
        "--log-level",
        "warning",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        try:
            assert server.stdout is not None
            said = server.stdout.readline()
            if not said.startswith("listening on "):
                raise SystemExit("the server did not start; its message is above")
            yield said.split()[-1]
        finally:
            server.terminate()


def filled(database: whamming.RemoteDatabase) -> RemoteIndex:
    """Return the index of texts. Create it if it does not exist, and fill it if texts are missing."""
    index = database.create_index(INDEX, BITS, exist_ok=True)
    glosses = load()
    if len(index) != len(glosses.texts):
        start = time.perf_counter()
        index.upsert(glosses.ids, glosses.codes, [text.encode() for text in glosses.texts])
        index.seal()
        took = time.perf_counter() - start
        print(f"loaded {len(glosses.texts):,} texts with {BITS}-bit codes into LMDB through the server in {took:.2f} s")
    return index


def show(index: RemoteIndex, encoder: SentenceEncoder, sentence: str, k: int) -> None:
    vector = encoder.encode(sentence)
    code, weights = np.packbits(vector > 0, bitorder="little"), np.abs(vector)
    print(f'\n"{sentence}"\n{"ms":>7}  {"distance":>8}  {"bound":>8}  text')
    times = []
    start = time.perf_counter()
    search = index.search(code, weights=weights, k=k, payloads=True)
    for hit in search:
        times.append((time.perf_counter() - start) * 1e3)
        text = textwrap.shorten(hit.payload.decode(), 88, placeholder=" ...")
        print(f"{times[-1]:7.2f}  {hit.distance:8.4f}  {search.lower_bound:8.4f}  {text}", flush=True)
    stats = search.stats
    print(
        f"first hit after {times[0]:.2f} ms, last after {times[-1]:.2f} ms, {stats.seconds * 1e3:.2f} ms in the engine "
        f"({stats.plan}, {stats.verified:,} of {len(index):,} texts compared exactly); every hit was final when shown"
    )


if __name__ == "__main__":
    main()
