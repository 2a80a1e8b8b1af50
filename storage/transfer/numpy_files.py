"""Reading ``.npy`` and ``.npz`` files that may come from anywhere.

:func:`numpy.load` believes what a file says about itself. A file may announce a header of 4 GiB or an array of any
size, and a small ``.npz`` file may expand to any size. This module checks all sizes before it allocates memory.
"""

from __future__ import annotations

import errno
import io
import math
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from whamming.storage.files.regular import open_regular

NPZ_BYTES: Final = 1 << 30
NPZ_FACTOR: Final = 16
"""The arrays that are read from a ``.npz`` file may have ``NPZ_BYTES`` in total, or ``NPZ_FACTOR`` times the size of
the file if that is more."""
_HEADER_BYTES: Final = 10_000
"""Maximum size of an array's header. numpy has the same limit."""
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
"""The compression methods that numpy writes. ``zipfile`` expands the others without a limit: 1 KB takes gigabytes."""
_METHOD_NAMES: Final = {zipfile.ZIP_BZIP2: "bzip2", zipfile.ZIP_LZMA: "LZMA", 93: "Zstandard"}
_MAGIC: Final = b"\x93NUMPY"
_ZIP_MAGIC: Final = b"PK"
_CHUNK: Final = 1 << 20


class _Header(NamedTuple):
    """What the header of a file says about its array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    size: int
    """Size of the header itself in bytes."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def map_npy(path: Path) -> NDArray[Any]:
    """Map the array in a ``.npy`` file.

    Raises InvalidArgumentError if it is not a regular file, ValueError if it does not hold one array of numbers, and
    OSError if it cannot be read.
    """
    with open_regular(path) as file:
        header, size = _read_header(file), os.fstat(file.fileno()).st_size
        if header.size + header.nbytes > size:
            raise ValueError(f"it has {size} bytes, fewer than its array of {header.nbytes}: it was cut short")
        order = "F" if header.fortran_order else "C"
        mapped: NDArray[Any] = np.memmap(file, header.dtype, "r", header.size, header.shape, order)  # type: ignore[call-overload]
        return mapped


def load_npz(path: Path, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return arrays of a ``.npz`` file by name. Names that the file does not have are left out.

    Raises InvalidArgumentError if it is not a regular file, ValueError or ``zipfile.BadZipFile`` if it has another
    format or is too large, and OSError if it cannot be read.
    """
    with open_regular(path) as file:
        if file.read(len(_MAGIC)) == _MAGIC:
            raise ValueError("it holds one array, like a .npy file")
        try:
            with zipfile.ZipFile(file) as archive:
                members = _members(archive, names)
                total, size = sum(info.file_size for info in members.values()), os.fstat(file.fileno()).st_size
                if total > max(NPZ_BYTES, NPZ_FACTOR * size):
                    raise ValueError(
                        f"its arrays have {total} bytes but the file has {size}; at most {NPZ_BYTES}, or {NPZ_FACTOR} "
                        "times the size of the file, can be loaded: save them without compression, or as .npy"
                    )
                return {name: _load(archive, info) for name, info in members.items()}
        except zipfile.BadZipFile as error:
            file.seek(0)
            if not zipfile.is_zipfile(file) and _starts_like_zip(file):
                raise ValueError(
                    f"it has {os.fstat(file.fileno()).st_size} bytes, and its end is missing: it was cut short"
                ) from error
            raise
        except (ValueError, EOFError):
            raise
        except OSError as error:
            if error.errno not in (None, errno.EINVAL):  # bz2 sets no errno; EINVAL: an offset before the start
                raise
            raise ValueError(f"it is damaged: {error}") from error
        except Exception as error:  # a password, an unknown compression; each decompressor has errors of its own
            raise ValueError(f"it cannot be unpacked: {error}") from error


def _starts_like_zip(file: IO[bytes]) -> bool:
    file.seek(0)
    return file.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC


def _members(archive: zipfile.ZipFile, names: Sequence[str]) -> dict[str, zipfile.ZipInfo]:
    """Return the named arrays. Raises ValueError if one is compressed in a way that numpy does not write."""
    present = set(archive.namelist())
    members = {name: archive.getinfo(f"{name}.npy") for name in names if f"{name}.npy" in present}
    for info in members.values():
        if info.compress_type not in _METHODS:
            method = _METHOD_NAMES.get(info.compress_type, f"method {info.compress_type}")
            raise ValueError(
                f"{info.filename} is compressed with {method}; only deflate and no compression are supported: save it "
                "with numpy.savez_compressed or numpy.savez"
            )
    return members


def _load(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array. Reading never returns more bytes than the directory of the zip file announces."""
    with archive.open(info) as member:
        header = _read_header(member)
        if header.size + header.nbytes != info.file_size:
            raise ValueError(
                f"{info.filename} has {info.file_size} bytes; its header and array should have "
                f"{header.size + header.nbytes}"
            )
        data = np.empty(header.nbytes, dtype=np.uint8)
        at = 0
        while at < header.nbytes:
            piece = member.read(min(_CHUNK, header.nbytes - at))
            if not piece:
                raise EOFError(f"{info.filename} ends after {at} of {header.nbytes} bytes")
            data[at : at + len(piece)] = np.frombuffer(piece, dtype=np.uint8)
            at += len(piece)
        member.read(1)  # zipfile verifies the checksum when it reaches the end
    return np.ndarray(header.shape, header.dtype, data, order="F" if header.fortran_order else "C")


def _read_header(file: IO[bytes]) -> _Header:
    """Read the header of an array of numbers. Raises ValueError for anything else."""
    magic = file.read(len(_MAGIC) + 2)
    if magic[: len(_ZIP_MAGIC)] == _ZIP_MAGIC:
        raise ValueError("it holds several arrays, like a .npz file")
    if magic[: len(_MAGIC)] != _MAGIC or len(magic) < len(_MAGIC) + 2:
        raise ValueError("it is not an array of numbers")
    version = magic[len(_MAGIC)]
    if version not in (1, 2):
        raise ValueError(f"it has version {version} of the format; arrays of numbers have version 1 or 2")
    width = 2 if version == 1 else 4
    size = file.read(width)
    length = int.from_bytes(size, "little")
    if len(size) < width or length > _HEADER_BYTES:
        raise ValueError(f"its header has {length} bytes; at most {_HEADER_BYTES} are allowed")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("it ends within its header")
    read = np.lib.format.read_array_header_1_0 if version == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = read(io.BytesIO(size + text))
    except Exception as error:  # numpy calls Python's tokenizer and parser, which raise many kinds of errors
        raise ValueError(f"its header is not valid: {error}") from error
    if dtype.hasobject:
        raise ValueError(
            "it holds lists or other Python objects; save one array of numbers, such as numpy.stack(column)"
        )
    if len(shape) > 8 or any(not 0 <= length < 2**63 for length in shape) or math.prod(shape) >= 2**63:
        raise ValueError(f"its array has the shape {list(shape)[:8]}")
    return _Header(dtype, shape, fortran_order, len(magic) + width + length)
