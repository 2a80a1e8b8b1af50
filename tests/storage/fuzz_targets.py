"""What the fuzz of files does with an input: it makes a file of it, and uses the file in every way.

Each target reads one kind of file. An input is not always the file itself. Checksums would stop nearly all changes of
random bytes, so for files with checksums an input is a list of edits, after which the checksums are made to fit.
"""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np

import whamming
from tests.storage.file_regions import regions_of
from whamming import StoredIndex, WhammingError
from whamming.cli.checkpoint import Checkpoint, ImportJob
from whamming.cli.parser import FailureError
from whamming.native import Costs, Index, OutOfMemoryError, Plan
from whamming.server.config import load
from whamming.storage import import_items, load_encoder, read_vectors
from whamming.storage.files import reading
from whamming.storage.files.records import HEADER, array_key, with_checksum
from whamming.storage.transfer import numpy_files
from whamming.storage.vectors.encoders import Encoder
from whamming.wire.pem import earliest_expiry, read_authorities, read_pair

INDEX: Final = "docs"
ITEMS: Final = 120
DIM: Final = 16
NUMBERS: Final = (0, 1, 2, 3, 7, 63, 64, 127, 128, 255, 256, 4095, 4096, 4097, 65_535, 65_536, 2**24, 2**31 - 1, 2**31,
                  2**32 - 1, 2**32, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1)  # fmt: skip
"""Numbers at which something may overflow."""
_META_CHECK: Final = HEADER + 60
"""Where the record of the array META has the engine's checksum."""


class Input:
    """The bytes of an input, taken from the front. At the end come zeros."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        return self._at < len(self._data)

    def take(self, count: int) -> bytes:
        taken = self._data[self._at : self._at + count]
        self._at += count
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def rest(self) -> bytes:
        return self.take(len(self._data))


class Target(ABC):
    """One kind of file."""

    name: str
    share = 1
    """How much of the time of all targets this one has, relative to the others."""

    def __init__(self, directory: Path) -> None:
        """Use a directory for files."""
        self.path = directory

    @abstractmethod
    def seeds(self) -> list[bytes]:
        """Return inputs to start with."""

    @abstractmethod
    def use(self, source: Input) -> None:
        """Make a file of an input, and use it. Documented errors may be raised."""

    def run(self, data: bytes) -> bool:
        """Use an input. Returns whether it was accepted. Everything that is not a documented error is raised."""
        try:
            self.use(Input(data))
        except OutOfMemoryError:
            raise
        except (WhammingError, FailureError):
            return False
        return True


# -- databases ---------------------------------------------------------------------------------------------------------


def make_specimen(path: Path, kind: int) -> None:
    """Create a small database with sealed segments, dead items, payloads, and writes that are not sealed."""
    rng = np.random.default_rng(kind)
    with whamming.open(path) as database:
        if kind == 2:
            index = database.create_index(INDEX, encoder="sign", dim=DIM, keep_vectors="float16", tables="none")
        else:
            bits, tables = (64, "single") if kind == 0 else (70, "multi")
            index = database.create_index(INDEX, bits, tables=tables, buckets="fast" if kind else "compact")  # type: ignore[arg-type]
        for first, last in ((0, 80), (60, 100), (90, ITEMS)):
            ids = np.arange(first, last, dtype=np.uint64)
            payloads = [b"%d" % id_ * (id_ % 3) for id_ in range(first, last)]
            if kind == 2:
                index.upsert(ids, payloads=payloads, vectors=rng.standard_normal((len(ids), DIM)))
            else:
                codes = rng.integers(0, 4, (len(ids), index.settings.code_bytes), dtype=np.uint8)
                index.upsert(ids, codes, payloads)
            if first < 90:
                index.seal()
        index.delete(np.arange(20, 30, dtype=np.uint64))
        if kind == 1:
            index.seal()


def ask(index: StoredIndex) -> None:
    """Read, search and verify."""
    settings = index.settings
    index.stats()
    index.get(np.arange(0, ITEMS, 3, dtype=np.uint64))
    for rows in index.scan(50):
        assert len(rows) <= 50
    if settings.dim is not None:
        if settings.dim <= 4096:
            vectors = np.ones((2, settings.dim), dtype=np.float32)
            index.search_batch(vectors=vectors, k=3)
            index.search_batch(vectors=vectors, k=3, rerank=2)
        return
    codes = np.full((2, settings.code_bytes), 1, dtype=np.uint8)
    weights = np.linspace(0.5, 1.5, settings.bits)
    plans: tuple[Plan, ...] = ("auto", "sweep") if settings.tables == "none" else ("auto", "sweep", "probe")
    for plan in plans:
        index.search_batch(codes, weights, k=5, plan=plan, threads=1)
    with index.search(codes[0], weights=weights, k=200, payloads=True) as hits:
        found = [hit.distance for hit in hits]
    assert found == sorted(found)


def change(index: StoredIndex) -> None:
    """Write, delete, seal and merge."""
    settings = index.settings
    ids = np.array([2, 850], dtype=np.uint64)
    if settings.dim is None:
        index.upsert(ids, np.ones((2, settings.code_bytes), dtype=np.uint8), [b"two", b""])
    elif settings.dim <= 4096:
        index.upsert(ids, vectors=np.ones((2, settings.dim), dtype=np.float32))
    index.delete([7])
    index.seal()
    index.compact()


class _Databases(Target):
    """Damaged databases. The first byte selects the specimen and what is done with it; edits follow."""

    share = 3  # inputs take a hundred times as long as those of the other targets

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        vars(reading).update(_CHECKS=1)  # nobody commits at the same time, so one check is enough
        self.sound: list[bytes] = []
        for kind in range(3):
            place = directory / f"specimen-{kind}"
            if not place.exists():
                make_specimen(place, kind)
            self.sound.append((place / INDEX / "data.mdb").read_bytes())

    def seeds(self) -> list[bytes]:
        rng = np.random.default_rng(0)
        return [bytes([first]) + rng.bytes(count) for first in range(12) for count in (0, 8, 24)]

    def place(self, kind: int, data: bytes | None) -> Path:
        """Return a database whose data.mdb has some contents; None: the file does not exist yet."""
        path = self.path / "database"
        shutil.rmtree(path, ignore_errors=True)
        (path / INDEX).mkdir(parents=True)
        for file in ("whamming.json", f"{INDEX}/encoder"):
            if (source := self.path / f"specimen-{kind}" / file).exists():
                shutil.copyfile(source, path / file)
        if data is not None:
            (path / INDEX / "data.mdb").write_bytes(data)
        return path

    def use_database(self, path: Path, first: int) -> None:
        """Open a database in every way. An error of one way does not prevent the others."""
        problem = ""
        ways: list[Callable[[], None]] = [lambda: self._read(path)]
        if first & 4:
            ways.append(lambda: self._restore(path))
        if first & 8:
            ways += [lambda: self._write(path), lambda: self._read(path)]
        for way in ways:
            try:
                way()
            except OutOfMemoryError:
                raise
            except WhammingError as error:
                problem = str(error)  # not the error itself, which keeps the file open through its traceback
        if problem:
            raise WhammingError(problem)

    def _read(self, path: Path) -> None:
        with whamming.open(path, mode="r") as database:
            database.describe_indexes()
            database.verify()
            index = database.index(INDEX)
            ask(index)

    def _restore(self, path: Path) -> None:
        target = self.path / "restored"
        shutil.rmtree(target, ignore_errors=True)
        whamming.restore(path, target)

    def _write(self, path: Path) -> None:
        with whamming.open(path) as database:
            index = database.index(INDEX)
            change(index)
            ask(index)


class Pages(_Databases):
    """Bytes of an LMDB file: meta pages, the tree, the free list, records and arrays."""

    name = "pages"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._regions = [regions_of(data) for data in self.sound]

    def use(self, source: Input) -> None:
        first = source.number(1)
        kind = first % 3
        data, regions = bytearray(self.sound[kind]), self._regions[kind]
        names = sorted(regions)
        while source:
            action, which = source.number(1), source.number(1)
            ranges = regions[names[which % len(names)]]
            start, stop = ranges[source.number(1) % len(ranges)]
            at = min(start + source.number(2) % (stop - start), len(data) - 1)
            if action % 16 == 0:
                del data[max(1, at) :]
            elif action % 16 < 5:
                size = (1, 2, 4, 8)[action % 4]
                number = NUMBERS[source.number(1) % len(NUMBERS)] & 2 ** (8 * size) - 1
                data[at : at + size] = number.to_bytes(size, "little")
            elif action % 16 < 8:
                data[at] = data[at] + source.number(1) - 128 & 255
            else:
                new = source.take(action % 4 + 1)
                data[at : at + len(new)] = new
        self.use_database(self.place(kind, bytes(data)), first)


class Records(_Databases):
    """Records of a sound LMDB file, with checksums that fit: manifest, writes, bitmaps, and the arrays of segments."""

    name = "records"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._records: list[dict[bytes, bytes]] = []
        for kind in range(3):
            with (
                lmdb.open(str(directory / f"specimen-{kind}" / INDEX), readonly=True, lock=False, lib_version=0) as env,
                env.begin() as txn,
            ):
                self._records.append({bytes(key): bytes(value) for key, value in txn.cursor()})

    def use(self, source: Input) -> None:
        first = source.number(1)
        kind = first % 3
        records = {key: bytearray(value) for key, value in self._records[kind].items()}
        while source and records:
            self._edit(records, source)
        path = self.place(kind, None)
        with (
            lmdb.open(str(path / INDEX), map_size=1 << 28, sync=False, lib_version=0) as env,
            env.begin(write=True) as txn,
        ):
            for key, value in records.items():
                if 0 < len(key) <= 511 and value:
                    txn.put(key, bytes(self._checked(key, value)))
        (path / INDEX / "lock.mdb").unlink()
        self.use_database(path, first)

    def _edit(self, records: dict[bytes, bytearray], source: Input) -> None:
        keys = sorted(records)
        action, key = source.number(1), keys[source.number(1) % len(keys)]
        record = records[key]
        at = source.number(2) % (len(record) or 1)
        if action % 16 < 3:
            record[at : at + 1] = source.take(1)
        elif action % 16 < 8:
            size = (1, 2, 4, 8)[action % 4]
            at -= at % size  # fields are aligned
            number = NUMBERS[source.number(1) % len(NUMBERS)] & 2 ** (8 * size) - 1
            record[at : at + size] = number.to_bytes(size, "little")
        elif action % 16 == 8:
            del record[at:]
        elif action % 16 == 9:
            record += source.take(source.number(1))
        elif action % 16 == 10:
            del records[key]
        elif action % 16 == 11:
            records[keys[at % len(keys)]] = bytearray(record)
        elif action % 16 == 12:
            place = at % len(key)
            records[key[:place] + source.take(1) + key[place + 1 :]] = records.pop(key)
        elif b"m" in records:
            self._edit_manifest(records[b"m"], source)

    def _edit_manifest(self, record: bytearray, source: Input) -> None:
        """Replace a value in the JSON text, or insert some text."""
        text = bytes(record[12:])
        stops = [place for place, byte in enumerate(text) if byte in b":,[]{}"]
        if stops:
            at = stops[source.number(1) % len(stops)] + 1
            end = min([place for place in stops if place >= at], default=len(text))
            number = str(NUMBERS[source.number(1) % len(NUMBERS)]).encode()
            values = (number, b"-" + number, b"null", b"true", b'"x"', b"[]", b"{}", b"1e999", b"0.5", source.take(4))
            text = text[:at] + values[source.number(1) % len(values)] + text[end:]
        record[12:] = text
        record[8:12] = struct.pack("<I", len(text))

    def _checked(self, key: bytes, record: bytearray) -> bytearray:
        """Make the checksums fit."""
        if (
            key[:1] == b"s"
            and key == array_key(int.from_bytes(key[1:9], "big"), "meta")
            and len(record) > _META_CHECK + 4
        ):
            struct.pack_into("<I", record, _META_CHECK, _meta_check(bytes(record[HEADER:])))
        if len(record) >= 8:
            record[4:8] = bytes(4)
            with_checksum(record)
        return record


def _meta_check(meta: bytes) -> int:
    """Return the engine's checksum of META: ``meta_check`` in ``native/engine/index/arrays.c``."""
    value = len(meta)
    for at, byte in enumerate(meta):
        value = (value ^ (0 if 60 <= at < 64 else byte)) * 0x100000001B3 & 2**64 - 1
    return (value ^ value >> 32) & 2**32 - 1


# -- other files -------------------------------------------------------------------------------------------------------


class Encoders(Target):
    """Encoder files, with a checksum that fits unless the first byte is odd. Then the file as that of an index."""

    name = "encoder"

    def seeds(self) -> list[bytes]:
        sample = np.random.default_rng(0).standard_normal((60, 12)).astype(np.float32)
        made = [
            whamming.fit_encoder("itq", sample, bits=8),
            whamming.fit_encoder("lsh", sample, bits=9),
            whamming.fit_encoder("sign", sample),
            whamming.fit_encoder("sign", dim=5),
        ]
        return [bytes([first]) + encoder.to_bytes() for encoder in made for first in (0, 1)]

    def use(self, source: Input) -> None:
        first, data = source.number(1), bytearray(source.rest())
        if not first & 1 and len(data) >= 8:
            data[4:8] = bytes(4)
            with_checksum(data)
        file = self.path / "encoder"
        file.write_bytes(data)
        encoder = load_encoder(file)
        assert Encoder.from_bytes(encoder.to_bytes()).fingerprint == encoder.fingerprint
        if encoder.dim * encoder.bits <= 1 << 20:
            vectors = np.linspace(-1, 1, 2 * encoder.dim, dtype=np.float32).reshape(2, encoder.dim)
            encoder.encode(vectors)
            encoder.costs(vectors[0])
            with whamming.open(":memory:") as database:
                index = database.create_index(INDEX, encoder=encoder)
                index.upsert([1, 2], vectors=vectors)
                index.search_batch(vectors=vectors, k=1)


def _npy(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


_CODES: Final = np.arange(40, dtype=np.uint8).reshape(5, 8)
_VECTORS: Final = np.linspace(-1, 1, 5 * DIM, dtype=np.float32).reshape(5, DIM)
_IDS: Final = np.arange(5, dtype=np.uint64)


class _Imports(Target):
    """Files of items."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        vars(numpy_files).update(NPZ_BYTES=16 << 20)  # so that no input may take the gigabyte that is allowed

    def load(self, file: Path, first: int) -> None:
        """Import a file as codes, or read it as vectors."""
        with whamming.open(":memory:") as database:
            if first & 1:
                index = database.create_index(INDEX, encoder="sign", dim=DIM)
                for piece in read_vectors(file, DIM if first & 2 else None).pieces(0, 1000):
                    if piece.vectors.shape[1] == DIM:
                        index.upsert(piece.ids, None, piece.payloads, vectors=piece.vectors)
            else:
                index = database.create_index(INDEX, 64, bit_order="big" if first & 2 else "little")
                import_items(index, file, batch=1000, progress=False)
            index.search_batch(**({"vectors": _VECTORS} if first & 1 else {"codes": _CODES}), k=2)


class Arrays(_Imports):
    """``.npy`` files with ids, ``.fvecs`` and ``.bvecs``. After the first byte come 2 bytes: the length of the ids."""

    name = "arrays"
    _SUFFIXES = (".npy", ".npy", ".fvecs", ".bvecs")

    def seeds(self) -> list[bytes]:
        ids = _npy(_IDS)
        head = struct.pack("<H", len(ids)) + ids
        seeds = [bytes([0]) + head + _npy(_CODES), bytes([1]) + head + _npy(_VECTORS), b"\2\0\0" + _npy(_CODES)]
        seeds.append(b"\0\0\0" + _npy(np.unpackbits(_CODES, axis=1).astype(bool)))
        seeds.append(b"\0\0\0" + _npy(np.asfortranarray(np.ones((5, 64), dtype=np.float64))))
        width = np.full((5, 1), DIM, dtype="<i4").view("<f4")
        seeds.append(bytes([1 | 2 << 2]) + b"\0\0" + np.hstack([width, _VECTORS]).tobytes())
        seeds.append(
            bytes([3 << 2])
            + b"\0\0"
            + np.hstack([np.full((5, 1), 8, "<i4").view("u1").reshape(5, 4), _CODES]).tobytes()
        )
        return seeds

    def use(self, source: Input) -> None:
        first = source.number(1)
        ids = source.take(source.number(2))
        file = self.path / f"items{self._SUFFIXES[first >> 2 & 3]}"
        file.write_bytes(source.rest())
        named = self.path / "items.ids.npy"
        named.unlink(missing_ok=True)
        if ids:
            named.write_bytes(ids)
        self.load(file, first)


class Archives(_Imports):
    """``.npz`` files: as they are, or (bit 2 of the first byte) members that are put into a sound zip file."""

    name = "archives"
    _NAMES = ("codes", "vectors", "ids", "payload_ends", "payload_data", "codes.npy")
    _METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)

    def seeds(self) -> list[bytes]:
        ends, data = np.array([1, 1, 2, 4, 6], dtype=np.uint64), np.arange(6, dtype=np.uint8)
        arrays: list[np.ndarray[Any, Any]] = [_CODES, _VECTORS, _IDS, ends, data]
        seeds = []
        for first, rows in ((0, 0), (1, 1)):
            chosen = [rows, 2, 3, 4]
            whole = io.BytesIO()
            np.savez_compressed(whole, **{self._NAMES[i]: arrays[i] for i in chosen})  # type: ignore[arg-type]
            seeds.append(bytes([first]) + whole.getvalue())
            parts = [(i, method, _npy(arrays[i])) for method, i in enumerate(chosen)]
            seeds.append(bytes([first | 4]) + b"".join(struct.pack("<BBH", i, m, len(p)) + p for i, m, p in parts))
        return seeds

    def use(self, source: Input) -> None:
        first = source.number(1)
        file = self.path / "items.npz"
        if first & 4:
            with zipfile.ZipFile(file, "w") as archive:
                members: dict[str, tuple[int, bytes]] = {}
                while source:
                    name, method, size = source.number(1), source.number(1), source.number(2)
                    members[self._NAMES[name % 6] + ".npy"] = self._METHODS[method % 4], source.take(size)
                for name_of, (method, data) in members.items():
                    archive.writestr(name_of, data, method)
        else:
            file.write_bytes(source.rest())
        self.load(file, first)


class Texts(Target):
    """Small text files: the mark of a database, the checkpoint of an import, the server's options, certificates."""

    name = "texts"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._job = ImportJob("docs", "here", "codes.npy", 100, 5, 0)

    def seeds(self) -> list[bytes]:
        job = str(asdict(self._job) | {"rows": 3}).replace("'", '"').encode()
        options = b'threads = 4\nslice_ms = 0.5\nlisten = "[::1]:0"\nlog_level = "error"\nbuffer_kb = 1\n'
        certificate = b"-----BEGIN CERTIFICATE-----\nMIIBszCCAVmgAwIBAgIUY2Vy\n-----END CERTIFICATE-----\n"
        deep = b"[" * 3000
        files = [b'{"format": 3, "store": "lmdb"}', job, options, certificate]
        seeds = [bytes([kind]) + text for kind, file in enumerate(files) for text in (file, deep, b"9" * 5000)]
        return [*seeds, b"\2threads = " + deep, b"\2threads = " + b"9" * 5000]

    def use(self, source: Input) -> None:
        kind, text = source.number(1) % 4, source.rest()
        if kind == 0:
            path = self.path / "marked"
            path.mkdir(exist_ok=True)
            (path / "whamming.json").write_bytes(text)
            with whamming.open(path, mode="r") as database:
                database.list_indexes()
            return
        file = self.path / "text"
        file.write_bytes(text)
        if kind == 1:
            checkpoint = Checkpoint(file, self._job)
            rows = checkpoint.rows()
            assert rows is None or rows >= 0
            checkpoint.check()
        elif kind == 2:
            load({}, file, {})
        else:
            earliest_expiry(file)
            for read in (lambda: read_authorities(file), lambda: read_pair(file, file)):
                try:
                    read()
                except WhammingError:
                    continue


class Tokens(Target):
    """Resume tokens: a distance, an id, and perhaps an exact sum."""

    name = "tokens"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        rng = np.random.default_rng(0)
        codes = rng.integers(0, 256, (ITEMS, 8), dtype=np.uint8)
        self._index = Index.build(codes, 64)
        high = np.where(rng.random(64) < 0.3, 2.0**60, 1.0) * rng.integers(1, 1000, 64)
        tables = [np.stack([np.zeros(64), weights], axis=1) for weights in (np.ones(64), rng.random(64), high, -high)]
        self._costs = [Costs.table(table) for table in tables]

    def seeds(self) -> list[bytes]:
        distances = (0.0, 1.0, 12.0, 31.5, -1e300, float("inf"), 2.0**62)
        return [
            bytes([kind]) + struct.pack("<dQ", distance, id_) + more
            for kind, distance in enumerate(distances)
            for id_ in (0, 57, 2**64 - 1)
            for more in (b"", bytes(16), b"\xff" * 16)
        ]

    def use(self, source: Input) -> None:
        first = source.number(1)
        distance = struct.unpack("<d", source.take(8).ljust(8, b"\0"))[0]
        id_ = source.number(8)
        after = (distance, id_, more) if (more := source.rest()) else (distance, id_)
        plan: Plan = ("auto", "probe", "sweep", "auto")[first >> 2 & 3]
        with self._index.cursor(self._costs[first & 3], None, None, plan, after=after) as cursor:
            ids, distances = cursor.next(ITEMS + 1)
        assert len(set(ids.tolist())) == len(ids)
        assert (np.diff(distances) >= 0).all()
        if len(after) == 2 and (distances < distance).any():
            raise AssertionError(f"hits before the position {after}: {distances[:3]}")


TARGETS: Final[tuple[type[Target], ...]] = (Pages, Records, Encoders, Arrays, Archives, Texts, Tokens)
