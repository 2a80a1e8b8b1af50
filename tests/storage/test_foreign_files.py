"""Files to import that are not what they seem: bounded memory, no waiting, and an error that says what is wrong."""

from __future__ import annotations

import io
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import whamming
from tests.storage.conftest import Place
from whamming import InvalidArgumentError
from whamming.storage import CorruptStoreError, FormatError, read_codes, read_vectors
from whamming.storage.files.regular import read_small
from whamming.storage.transfer import numpy_files

BITS = 16
CODES = np.arange(200, dtype=np.uint8).reshape(100, 2)
SUFFIXES = (".npz", ".npy", ".fvecs", ".bvecs")


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


KINDS: dict[str, Callable[[Path], None]] = {
    "a directory": Path.mkdir,
    "a named pipe": make_pipe,
    "a socket": make_socket,
    "a device": make_device,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_only_regular_files_are_read(suffix: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    path = Path(f"items{suffix}")
    KINDS[kind](path)
    for read in (lambda: read_codes(path, BITS), lambda: read_vectors(path)):
        with pytest.raises(InvalidArgumentError, match=rf"items{suffix} is {kind}, not a regular file"):
            read()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_encoders_are_regular_files_too(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("items.npy", CODES)
    KINDS[kind](Path("items.ids.npy"))
    with pytest.raises(InvalidArgumentError, match=f"is {kind}"):
        read_codes("items.npy", BITS)
    KINDS[kind](Path("an.encoder"))
    with pytest.raises(InvalidArgumentError, match=f"an.encoder is {kind}"):
        whamming.load_encoder("an.encoder")


def test_the_command_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    make_pipe(tmp_path / "items.npy")
    with whamming.open(tmp_path / "db") as database:
        database.create_index("docs", BITS)
    command = [sys.executable, "-m", "whamming", "import", "docs", "items.npy", "--data", "db"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("whamming: error: items.npy is a named pipe")


# -- sizes -------------------------------------------------------------------------------------------------------------


def npy(shape: str, data: bytes = b"", version: int = 1, dtype: str = "|u1") -> bytes:
    """Return a .npy file with any header."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    width = {1: "<H", 2: "<I"}[version]
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(width, len(text)) + text + data


def zipped(name: str, content: bytes, claimed: int | None = None) -> bytes:
    """Return a compressed .npz file whose directory claims that the member has any size."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    data = bytearray(file.getvalue())
    if claimed is not None:
        at = data.index(b"PK\x01\x02") + 24
        data[at : at + 4] = struct.pack("<I", claimed)
    return bytes(data)


BOMBS = {
    "a header of 4 GiB": (
        ".npy",
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1),
        "its header has 4294967295 bytes",
    ),
    "an array of 16 TiB": (".npy", npy(f"({2**43}, 2)"), "cut short"),
    "an array of 2^70 bytes": (".npy", npy(f"({2**69}, 2)"), "shape"),
    "a negative shape": (".npy", npy("(-3, -2)"), "shape"),
    "many dimensions": (".npy", npy("(" + "1, " * 300 + ")"), "shape"),
    "deep nesting": (".npy", npy("(" * 3000 + ")" * 3000), "header"),
    "Python objects": (".npy", npy("(3, 2)", b"x" * 99, dtype="|O"), "Python objects"),
    "a later version": (".npy", b"\x93NUMPY\x09\x00" + bytes(100), "version 9"),
    "nothing": (".npy", b"", "not an array of numbers"),
    "an array of 16 TiB in a zip file": (".npz", zipped("codes.npy", npy(f"({2**43}, 2)")), "should have"),
    "a zip file that claims 4 GiB": (
        ".npz",
        zipped("codes.npy", npy("(3, 2)", bytes(6)), 2**32 - 2),
        "save them without",
    ),
    "a zip file with another name": (".npz", zipped("other.npy", npy("(3, 2)", bytes(6))), "no array codes"),
    "a zip file that holds text": (".npz", zipped("codes.npy", b"hello"), "not an array of numbers"),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_sizes_are_checked_before_memory_is_taken(bomb: str, tmp_path: Path) -> None:
    suffix, content, message = BOMBS[bomb]
    path = tmp_path / f"items{suffix}"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidArgumentError, match=message):
        read_codes(path, BITS)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "KiB"


def test_a_zip_file_may_expand_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real zip bomb, with a lower limit: 3 MB in a file of 3 KB."""
    monkeypatch.setattr(numpy_files, "NPZ_BYTES", 1 << 20)
    np.savez_compressed(tmp_path / "bomb.npz", codes=np.zeros((1_500_000, 2), dtype=np.uint8))
    np.savez_compressed(tmp_path / "fine.npz", codes=np.zeros((500_000, 2), dtype=np.uint8))
    np.savez(tmp_path / "large.npz", codes=np.zeros((1_500_000, 2), dtype=np.uint8))
    with pytest.raises(InvalidArgumentError, match=r"bomb\.npz .*3000128 bytes .*at most 1048576, or 16 times"):
        read_codes(tmp_path / "bomb.npz", BITS)
    assert read_codes(tmp_path / "fine.npz", BITS).count == 500_000
    assert read_codes(tmp_path / "large.npz", BITS).count == 1_500_000


def test_a_file_that_says_less_than_it_holds_gives_no_more(tmp_path: Path) -> None:
    """A zip file whose directory claims a small member that expands to much more."""
    size = len(npy("(3, 2)")) + 6
    (tmp_path / "items.npz").write_bytes(zipped("codes.npy", npy("(3, 2)", bytes(50 << 20)), size))
    with pytest.raises(InvalidArgumentError, match="CRC"):
        read_codes(tmp_path / "items.npz", BITS)


def test_a_small_file_takes_little_memory_whatever_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"abc")
    assert read_small(path, 1 << 50) == read_small(path, 3) == b"abc"
    with pytest.raises(InvalidArgumentError, match="more than 2 bytes"):
        read_small(path, 2)


READ_BOMB = """
import resource, sys
from pathlib import Path
from whamming.native import InvalidArgumentError
from whamming.storage import read_codes
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_codes(Path(sys.argv[1]), 16)
except InvalidArgumentError as error:
    print(error)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize(("method", "name"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "LZMA")])
def test_compression_without_a_limit_is_refused(method: int, name: str, tmp_path: Path) -> None:
    """zipfile expands bzip2 and LZMA as far as they go, whatever size the member claims. Here it is 256 MiB."""
    path, start = tmp_path / "items.npz", npy("(3, 2)")
    with zipfile.ZipFile(path, "w", method) as archive:
        with archive.open("codes.npy", "w") as member:
            member.write(start)
            for _ in range(256):
                member.write(bytes(1 << 20))
        archive.infolist()[0].file_size = len(start) + 6
    assert path.stat().st_size < 100_000
    run = subprocess.run([sys.executable, "-c", READ_BOMB, path], capture_output=True, text=True, check=True)
    *message, grown = run.stdout.splitlines()
    assert f"compressed with {name}" in message[0]
    assert int(grown) < 64 << 10, "KiB"


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_are_invalid_arguments(suffix: str, tmp_path: Path) -> None:
    """Flipped, lost and repeated bytes: an answer, or an InvalidArgumentError, and nothing else."""
    chance, path = random.Random(suffix), tmp_path / f"items{suffix}"
    if suffix == ".npz":
        ends = np.arange(100, dtype=np.uint64)
        np.savez_compressed(path, codes=CODES, ids=ends, payload_ends=ends, payload_data=np.zeros(99, dtype=np.uint8))
    elif suffix == ".npy":
        np.save(path, CODES)
    else:
        width = np.int32(BITS if suffix == ".fvecs" else 2).tobytes()
        rows = CODES if suffix == ".bvecs" else np.unpackbits(CODES, axis=1).astype("<f4") - 0.5
        path.write_bytes(b"".join(width + row.tobytes() for row in rows))
    whole = path.read_bytes()
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(min(len(data), 400)) if chance.random() < 0.5 else chance.randrange(len(data))
            how = chance.randrange(4)
            if how == 0:
                data[at] ^= 1 << chance.randrange(8)
            elif how == 1:
                data[at] = chance.choice((0, 255, 128, 40))
            elif how == 2:
                del data[at : at + chance.randint(1, 9)]
            else:
                data[at:at] = data[at : at + chance.randint(1, 9)]
        path.write_bytes(data)
        try:
            for piece in read_codes(path, BITS).pieces():
                assert piece.codes.shape == (len(piece.ids), 2)
        except InvalidArgumentError:
            pass


# -- the files of a database -------------------------------------------------------------------------------------------


def make_loop(path: Path) -> None:
    path.symlink_to(path.name)


def make_text(path: Path) -> None:
    path.write_text("[" * 100_000)


def make_empty(path: Path) -> None:
    path.touch()


def make_numbers(path: Path) -> None:
    path.write_text('{"format": 1' + "0" * 5000 + "}")


ODD = {**KINDS, "a loop": make_loop, "brackets": make_text, "empty": make_empty, "digits": make_numbers}


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", ["whamming.json", "docs", "docs/data.mdb", "docs/lock.mdb", "docs/encoder"])
def test_files_of_a_database_may_be_anything(
    name: str, kind: str, disk: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening the database, or the index, raises an error that says so, or works."""
    monkeypatch.chdir(disk.directory)
    with disk.open() as database:
        database.create_index("docs", encoder="sign", dim=BITS).upsert([1], vectors=np.ones((1, BITS)))
        database.create_index("more", BITS).upsert([1], CODES[:1])
    target = Path("db") / name
    target.rename(f"{target.name}.before")
    ODD[kind](target)
    if name == "whamming.json":
        with pytest.raises(FormatError, match=r"whamming\.json"):
            whamming.open("db")
        return
    with whamming.open("db") as database:
        broken, sound = database.describe_indexes()
        assert (broken.name, sound.name, sound.error) == ("docs", "more", None)
        if broken.error is None:
            assert name == "docs/lock.mdb"
        else:
            assert isinstance(broken.error, CorruptStoreError | FormatError), repr(broken.error)
        if name == "docs" and not target.is_symlink() and not target.is_dir():
            with pytest.raises(FormatError, match="move it away"):
                database.drop_index("docs")
            return
        database.drop_index("docs")
        assert database.list_indexes() == ["more"]
