"""``make bench-storage``: what it costs to keep an index, in one run.

1. search: a warm LMDB file against RAM, in turns, for each plan; and an index with a tenth of its items in the delta
   and a tenth deleted, against a freshly compacted one;
2. ingest: a million codes of 128 bits in batches of 10,000 with fsync, then sealed, against plain writes of as many
   bytes;
3. group commit: 50,000 single upserts from 8 threads;
4. rewriting: ten rounds over 200,000 items, and the file's size against a fresh index's;
5. an index four times as large as the memory that the process may use.

Writes a Markdown report and a JSON file to ``build/bench``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import datasets
import whamming
from whamming.native import Costs, Plan, View
from whamming.storage import StoredIndex

OUT = datasets.ROOT / "build" / "bench"
PLANS: tuple[Plan, ...] = ("auto", "probe", "sweep")


def fill(
    index: StoredIndex, codes: NDArray[np.uint8], ids: NDArray[np.uint64] | None = None, batch: int = 10_000
) -> None:
    """Upsert codes in batches."""
    names = np.arange(len(codes), dtype=np.uint64) if ids is None else ids
    for first in range(0, len(codes), batch):
        index.upsert(names[first : first + batch], codes[first : first + batch])


def race(views: dict[str, View], costs: Costs, plan: Plan, rounds: int, k: int = 10) -> dict[str, float]:
    """Return ms per query of each view: the mean over all queries of the median over the rounds.

    The views take turns query by query, in another order each round.
    """
    names = list(views)
    singles = [costs[i] for i in range(len(costs))]
    times = np.zeros((rounds + 1, len(singles), len(names)))
    rng = np.random.default_rng(0)
    for turn in range(rounds + 1):
        for query, one in enumerate(singles):
            for name in rng.permutation(len(names)).tolist():
                start = time.perf_counter()
                views[names[name]].search(one, k, plan=plan, threads=1)
                times[turn, query, name] = time.perf_counter() - start
    means = np.median(times[1:], axis=0).mean(axis=0) * 1e3
    return dict(zip(names, means.tolist(), strict=True))


def search_times(directory: Path, names: list[str], rounds: int) -> list[dict[str, Any]]:
    """Point 1: LMDB against RAM, and a lived-in index against a fresh one."""
    rows = []
    for name in names:
        data = datasets.load(name)
        costs = Costs.table(data.costs[:60])
        with whamming.open(directory / f"search-{name}") as db, whamming.open() as memory:
            disk, ram = (d.create_index("codes", data.bits) for d in (db, memory))
            used = db.create_index("lived-in", data.bits)
            fresh = db.create_index("fresh", data.bits)
            n = len(data.codes)
            doomed, recent = n // 10, n // 10
            for index in (disk, ram):
                fill(index, data.codes, batch=100_000)
                index.compact()
            extra = np.random.default_rng(0).integers(0, n, doomed)
            fill(used, np.concatenate([data.codes[: n - recent], data.codes[extra]]), batch=100_000)
            used.compact()
            used.delete(np.arange(n - recent, n - recent + doomed, dtype=np.uint64))
            late = np.arange(2 * n, 2 * n + recent, dtype=np.uint64)
            fill(used, data.codes[n - recent :], late, batch=10_000)
            fill(fresh, data.codes[: n - recent], batch=100_000)
            fill(fresh, data.codes[n - recent :], late, batch=100_000)
            fresh.compact()
            views = {"ram": ram.snapshot().view, "lmdb": disk.snapshot().view}
            for plan in PLANS:
                cell = race(views, costs, plan, rounds)
                rows.append({"codes": name, "plan": plan, **cell, "ratio": cell["lmdb"] / cell["ram"]})
                print(rows[-1], file=sys.stderr, flush=True)
            cell = race({"fresh": fresh.snapshot().view, "lived-in": used.snapshot().view}, costs, "auto", rounds)
            rows.append({"codes": name, "plan": "auto", **cell, "ratio": cell["lived-in"] / cell["fresh"]})
            print(rows[-1], file=sys.stderr, flush=True)
            left, right = (i.search_batch(table=data.costs[:20], k=50) for i in (used, fresh))
            assert (left.distances == right.distances).all()
    return rows


def megabytes(line: str) -> float:
    """Read this process's memory: ``VmRSS``, or ``VmHWM``, the most since :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(row.split()[1]) for row in status.splitlines() if row.startswith(line)) * 1024 / 1e6


def forget_peak() -> None:
    """Let ``VmHWM`` start again from what is in use."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def ingest(directory: Path, count: int = 1_000_000, bits: int = 128) -> dict[str, Any]:
    """Point 2, in a process of its own so that its peak of memory is its own."""
    codes = datasets.load("sift-itq128").codes[:count] if bits == 128 else None
    if codes is None or len(codes) < count:
        codes = np.random.default_rng(0).integers(0, 256, (count, bits // 8), dtype=np.uint8)
    forget_peak()
    before = megabytes("VmRSS")
    with whamming.open(directory / "ingest") as db:
        index = db.create_index("codes", bits)
        start = time.perf_counter()
        fill(index, codes)
        written = time.perf_counter() - start
        index.seal()
        seconds = time.perf_counter() - start
        stats = index.stats()
        final = stats.used_bytes
    peak = megabytes("VmHWM") - before
    plain = []
    blob = os.urandom(final)
    for _ in range(3):
        start = time.perf_counter()
        with (directory / "plain").open("wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        plain.append(time.perf_counter() - start)
        (directory / "plain").unlink()
    return {
        "codes": count,
        "seconds": seconds,
        "of which writing": written,
        "codes per second": count / seconds,
        "peak MB beyond the input": peak,
        "final MB": final / 1e6,
        "peak / final": peak / (final / 1e6),
        "bytes per code on disk": stats.disk_bytes / count,
        "bytes per code in use": final / count,
        "plain write + fsync, seconds": float(np.median(plain)),
        "ratio": seconds / float(np.median(plain)),
    }


def group_commit(directory: Path, count: int = 50_000, threads: int = 8) -> dict[str, Any]:
    """Point 3."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (count, 16), dtype=np.uint8)
    with whamming.open(directory / "group") as db:
        index = db.create_index("codes", 128)

        def work(first: int) -> None:
            for row in range(first, count, threads):
                index.upsert([row], codes[row : row + 1])

        start = time.perf_counter()
        workers = [threading.Thread(target=work, args=(first,)) for first in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.perf_counter() - start
        stats = index.stats()
        assert stats.items == count
    return {
        "upserts": stats.writes,
        "commits": stats.commits,
        "upserts per commit": stats.writes / stats.commits,
        "upserts per second": count / seconds,
    }


def rewriting(directory: Path, count: int = 200_000, rounds: int = 10) -> dict[str, Any]:
    """Point 4."""
    rng = np.random.default_rng(0)
    with whamming.open(directory / "rewriting") as db:
        index, fresh = db.create_index("codes", 128), db.create_index("fresh", 128)
        for _ in range(rounds):
            fill(index, rng.integers(0, 256, (count, 16), dtype=np.uint8))
        index.store.maintain()  # type: ignore[attr-defined]
        fill(fresh, rng.integers(0, 256, (count, 16), dtype=np.uint8))
        fresh.seal()
        stats, new = index.stats(), fresh.stats()
        assert stats.items == count
    return {
        "items": count,
        "rounds": rounds,
        "file MB": stats.disk_bytes / 1e6,
        "fresh file MB": new.disk_bytes / 1e6,
        "ratio": stats.disk_bytes / new.disk_bytes,
        "seals": stats.seals,
        "compactions": stats.compactions,
    }


def larger_than_memory(directory: Path, count: int = 6_000_000, bits: int = 256) -> dict[str, Any]:
    """Point 5: a child whose memory is limited by a cgroup (v1 or v2), where we may make one."""
    path = directory / "large"
    rng = np.random.default_rng(0)
    with whamming.open(path) as db:
        index = db.create_index("codes", bits)
        for first in range(0, count, 250_000):
            codes = rng.integers(0, 256, (250_000, bits // 8), dtype=np.uint8)
            index.upsert(np.arange(first, first + 250_000, dtype=np.uint64), codes)
        index.seal()
        size = index.stats().used_bytes
        queries = codes[:5] ^ np.packbits(rng.random((5, bits)) < 0.05, axis=1, bitorder="little")
        expected = index.search_batch(queries, k=10)
    np.savez(directory / "large.npz", queries=queries, ids=expected.ids, distances=expected.distances)
    limit = size // 4
    result: dict[str, Any] = {"index MB": size / 1e6, "limit MB": limit / 1e6}
    script = (
        "import sys, time, numpy as np, whamming, resource\n"
        "f = np.load(sys.argv[2]); db = whamming.open(sys.argv[1], mode='r'); index = db.index('codes')\n"
        "for plan in ('auto', 'sweep'):\n"
        "    t = time.perf_counter(); a = index.search_batch(f['queries'], k=10, plan=plan, threads=1)\n"
        "    assert (a.ids == f['ids']).all() and (a.distances == f['distances']).all()\n"
        "    print(plan, (time.perf_counter() - t) / len(f['queries']) * 1e3)\n"
        "print('rss', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    command = [sys.executable, "-c", script, str(path), str(directory / "large.npz")]
    group = make_cgroup(limit)
    if group is None:
        result["limited by"] = "nothing: no cgroup can be made here"
    else:
        result["limited by"] = f"cgroup {group}"
    start = (lambda: (group / "cgroup.procs").write_text(str(os.getpid()))) if group is not None else None
    for _ in range(20):  # drop the written pages from the page cache
        if not drop_cache(path / "codes" / "data.mdb"):
            break
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=start, check=False)
    result["answers"] = "exact" if done.returncode == 0 else f"failed: {done.stderr[-300:]}"
    for line in done.stdout.splitlines():
        name, value = line.split()
        result["peak RSS MB" if name == "rss" else f"{name}, ms per query"] = float(value)
    if group is not None:
        group.rmdir()
    return result


def make_cgroup(limit: int) -> Path | None:
    """Return a new cgroup with a limit of memory, or None."""
    for root, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"whamming-bench-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit))
            return group
        except OSError:
            if group.exists():
                group.rmdir()
    return None


def drop_cache(path: Path) -> bool:
    """Ask the system to forget a file's pages."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return False


def table(rows: list[dict[str, Any]]) -> str:
    """Lay rows with the same keys out as a Markdown table."""
    names = list(rows[0])
    cells = [[f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()] for row in rows]
    lines = ["| " + " | ".join(line) + " |" for line in (names, *cells)]
    lines.insert(1, "|---" * len(names) + "|")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[Path], Any]] = {
    "ingest": ingest,
    "group commit": group_commit,
    "rewriting": rewriting,
    "larger than memory": larger_than_memory,
}


def main() -> None:
    """Run what is asked for and write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["search", *PARTS], help="search, ingest, 'group commit', ...")
    parser.add_argument("--rounds", type=int, default=15, help="rounds per cell of the search times (default 15)")
    parser.add_argument("--one", choices=list(PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help="where to keep the files meanwhile (default: build/bench)")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="storage-", dir=arguments.directory or OUT))
    try:
        if arguments.one:
            print(json.dumps(PARTS[arguments.one](directory)))
            return
        results: dict[str, Any] = {}
        text = ["# Storage", ""]
        for part in arguments.parts:
            print(f"-- {part}", file=sys.stderr, flush=True)
            if part == "search":
                rows = search_times(directory, ["sift-itq64", "gist-itq32"], arguments.rounds)
                results[part] = rows
                text += ["ms per query through Python, k = 10, one thread:", "", table(rows[:3] + rows[4:7])]
                text += [
                    "A tenth in the delta and a tenth deleted, against a fresh index:",
                    "",
                    table([rows[3], rows[7]]),
                ]
            else:  # a process of its own: its peak of memory is its own
                command = [sys.executable, __file__, "--one", part, "--directory", str(directory)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results[part] = json.loads(done.stdout)
                text += [f"## {part}", "", table([results[part]])]
                print(results[part], file=sys.stderr, flush=True)
        (OUT / "storage.json").write_text(json.dumps(results, indent=1))
        (OUT / "storage.md").write_text("\n".join(text))
        print("\n".join(text))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
