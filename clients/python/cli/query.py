"""A query as a command line gives it: hexadecimal digits, a row of a file, an item that is stored, or a vector."""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.cli.parser import FailureError, whole
from whamming.cli.target import AnyIndex
from whamming.native import InvalidArgumentError
from whamming.storage import Form, IndexSettings, Rerank, read_codes, read_vectors
from whamming.storage.storage_errors import from_system


def add_query(parser: argparse.ArgumentParser) -> None:
    """Add the options that make a query."""
    group = parser.add_argument_group("the query, and what a mismatch costs")
    either = group.add_mutually_exclusive_group(required=True)
    text = "a code as hexadecimal digits, in the index's bit order"
    either.add_argument("--code", metavar="HEX", help=text)
    text = "a code from a file: packed, boolean, or floating-point by sign, as for import, or a single such row"
    either.add_argument("--code-file", metavar="FILE", help=text)
    either.add_argument("--like", metavar="ID", type=whole(0, 2**64 - 1), help="the code of an item that is stored")
    text = "instead of a code, what a stored 0 and a stored 1 of each bit cost, .npy [bits, 2]"
    either.add_argument("--table", metavar="FILE", help=text)
    text = (
        "the components of a vector, with commas, for an index with an encoder; --vector=-1,2 if the first is negative"
    )
    either.add_argument("--vector", metavar="X,Y,...", type=_vector, help=text)
    text = "a vector from a file, as for import, or a single row of .npy [dim]"
    either.add_argument("--vector-file", metavar="FILE", help=text)
    text = "what a mismatch of each bit costs, .npy [bits] (default 1 each: Hamming distance)"
    group.add_argument("--weights", metavar="FILE", help=text)
    text = "of files with several rows: which (default 0)"
    group.add_argument("--row", metavar="N", type=whole(0), default=0, help=text)
    text = """\
what is made of a vector: asymmetric, its distance to what the encoder has learned of either value of a bit (default
where it has learned from a sample); inner, its inner product with the signs of a code (default elsewhere); symmetric,
the Hamming distance to its code, or with --weights a weighted one"""
    group.add_argument("--costs", choices=get_args(Form), help=text)
    text = """\
rank hits by the vectors that the index keeps: of the K x N nearest by code, which may miss some, or with exact until
none can be missed (metric l2 only)"""
    group.add_argument("--rerank", metavar="N|exact", type=_rerank, help=text)


def _vector(text: str) -> NDArray[np.float64]:
    try:
        return np.array([float(word) for word in text.split(",")])
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give numbers with commas, as in 0.5,-1,2") from None


def _rerank(text: str) -> Rerank:
    return "exact" if text == "exact" else whole(1)(text)


def read_query(args: argparse.Namespace, index: AnyIndex) -> dict[str, Any]:
    """Return the arguments of ``search`` that a command line stands for."""
    given = {"costs": args.costs, "rerank": args.rerank}
    return {**_read_query(args, index), **{name: value for name, value in given.items() if value is not None}}


def _read_query(args: argparse.Namespace, index: AnyIndex) -> dict[str, NDArray[Any]]:
    if args.table is not None:
        if args.weights is not None:
            raise InvalidArgumentError("--table says what every bit costs: leave --weights out")
        return {"table": _read_row(args.table, args.row, 2)}
    if args.vector is not None:
        query = {"vector": args.vector}
    elif args.vector_file is not None:
        query = {"vector": _vector_of_file(args.vector_file, args.row, index.settings)}
    else:
        query = {"code": _read_code(args, index)}
    if args.weights is not None:
        query["weights"] = _read_row(args.weights, args.row, 1)
    return query


def _read_code(args: argparse.Namespace, index: AnyIndex) -> NDArray[np.uint8]:
    if args.code is not None:
        return _code_of_hex(args.code, index.settings)
    if args.code_file is not None:
        return _code_of_file(args.code_file, args.row, index.settings)
    items = index.get([args.like])
    if not items.found[0]:
        raise FailureError(f"there is no item {args.like} in index {index.name!r}; give an id that is there as --like")
    code: NDArray[np.uint8] = items.codes[0]
    return code


def _code_of_hex(text: str, settings: IndexSettings) -> NDArray[np.uint8]:
    try:
        code = bytes.fromhex(text.removeprefix("0x"))
    except ValueError as error:
        raise InvalidArgumentError(f"--code {text!r} is not hexadecimal: {error}") from error
    if len(code) != settings.code_bytes:
        raise InvalidArgumentError(
            f"--code has {2 * len(code)} hexadecimal digits; {settings.bits} bits need {2 * settings.code_bytes}"
        )
    return np.frombuffer(code, dtype=np.uint8)


def _code_of_file(path: str, row: int, settings: IndexSettings) -> NDArray[np.uint8]:
    if path.endswith(".npy") and (single := _load(path)).ndim == 1:
        return _code_of_values(single, path, settings)
    file = read_codes(path, settings.bits, settings.bit_order)
    _check_row(row, path, len(file))
    code: NDArray[np.uint8] = next(file.pieces(row, 1)).codes[0]
    return code


def _vector_of_file(path: str, row: int, settings: IndexSettings) -> NDArray[Any]:
    if path.endswith(".npy") and (single := _load(path)).ndim == 1:
        return single
    file = read_vectors(path, settings.dim)
    _check_row(row, path, len(file))
    vector: NDArray[Any] = next(file.pieces(row, 1)).vectors[0]
    return vector


def _check_row(row: int, path: str, count: int) -> None:
    if row >= count:
        raise InvalidArgumentError(f"--row {row}; {path} has {count} rows, from 0 on")


def _code_of_values(values: NDArray[Any], path: str, settings: IndexSettings) -> NDArray[np.uint8]:
    """Return the code that a single row is."""
    if values.dtype == np.uint8:
        return values
    if values.dtype.kind not in "bf" or len(values) != settings.bits or np.isnan(values).any():
        raise InvalidArgumentError(
            f"{path} has {len(values)} values of {values.dtype}; a code of {settings.bits} bits is "
            f"{settings.code_bytes} packed uint8, or {settings.bits} booleans or numbers"
        )
    return np.packbits(values > 0, bitorder=settings.bit_order)


def _read_row(path: str, row: int, dimensions: int) -> NDArray[Any]:
    """Return an array of so many dimensions, or one row of an array of such."""
    values = _load(path)
    if values.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"{path} holds {values.dtype}; costs are numbers")
    if values.ndim == dimensions + 1:
        _check_row(row, path, len(values))
        values = values[row]
    return values.astype(np.float64)


def _load(path: str) -> NDArray[Any]:
    try:
        loaded = np.load(path, mmap_mode="r")
    except OSError as error:
        raise from_system(error, Path(path)) from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidArgumentError(f"{path} is not a .npy file: {error}") from error
    if not isinstance(loaded, np.ndarray):
        raise InvalidArgumentError(f"{path} holds several arrays; give a .npy file")
    return loaded
