"""A query as a command line gives it: hexadecimal digits, a row of a file, an item that is stored, or a vector."""

from __future__ import annotations

import argparse
import math
import re
import zipfile
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.cli.parser import FailureError, UsageError, listed, whole
from whamming.cli.target import AnyIndex
from whamming.native import InvalidArgumentError
from whamming.storage import Form, IndexSettings, KeptVectors, Rerank, read_codes, read_vectors
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
    return np.array([_component(word) for word in text.split(",")])


def _component(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"has the component {word}; give numbers with commas, as in 0.5,-1,2")
    return value


def _rerank(text: str) -> Rerank:
    return "exact" if text == "exact" else whole(1)(text)


def check_options(args: argparse.Namespace, k: int | None) -> None:
    """Refuse options that do not go together, whatever the index."""
    by_vector = args.vector is not None or args.vector_file is not None
    if args.table is not None and args.weights is not None:
        raise UsageError("--table with --weights: the table says what every bit costs; leave --weights out")
    if args.costs is not None and not by_vector:
        raise UsageError(f"--costs {args.costs} without a vector: it says what is made of one; give --vector")
    if by_vector and args.weights is not None and args.costs != "symmetric":
        raise UsageError("--weights with a vector: weights per bit go with --costs symmetric")
    if args.rerank is None:
        return
    if not by_vector:
        raise UsageError(f"--rerank {args.rerank} without a vector: hits are ranked by it; give --vector")
    for flag, value in (("--radius", args.radius), ("--weights", args.weights)):
        if value is not None:
            raise UsageError(f"--rerank {args.rerank} with {flag}: leave one of them out")
    if args.rerank != "exact" and k is None:
        raise UsageError(f"--rerank {args.rerank} without a limit: K x {args.rerank} items are ranked; give -k K")


def _check_index(args: argparse.Namespace, index: AnyIndex) -> None:
    """Refuse options that an index is not made for."""
    settings, name = index.settings, index.name
    if settings.dim is None:
        remedy = "give a code, or import vectors into another index with --encoder"
        raise FailureError(f"index {name} has no encoder, so that it takes no vectors; {remedy}")
    encoder = index.encoder
    if args.costs == "asymmetric" and encoder is not None and encoder.expected is None:
        raise FailureError(f"--costs asymmetric: the encoder of index {name} has not learned from a sample; use inner")
    if args.rerank is None:
        return
    if settings.keep_vectors is None:
        kept = listed(f"--keep-vectors {kind}" for kind in get_args(KeptVectors))
        raise FailureError(f"--rerank {args.rerank}: index {name} keeps no vectors; create one with {kept}")
    if args.rerank == "exact" and settings.metric != "l2":
        remedy = "rank K x N items with --rerank N, or scale vectors to length 1 and use l2, which orders them the same"
        raise FailureError(f"--rerank exact: index {name} has the metric {settings.metric}, not l2; {remedy}")


def read_query(args: argparse.Namespace, index: AnyIndex) -> dict[str, Any]:
    """Return the arguments of ``search`` that a command line stands for."""
    if args.vector is not None or args.vector_file is not None:
        _check_index(args, index)
    given = {"costs": args.costs, "rerank": args.rerank}
    return {**_read_query(args, index), **{name: value for name, value in given.items() if value is not None}}


def _read_query(args: argparse.Namespace, index: AnyIndex) -> dict[str, NDArray[Any]]:
    bits = index.settings.bits
    if args.table is not None:
        return {"table": _read_costs(args.table, args.row, (bits, 2))}
    if args.vector is not None:
        _check_length(args.vector, "--vector", index.settings)
        query = {"vector": args.vector}
    elif args.vector_file is not None:
        query = {"vector": _vector_of_file(args.vector_file, args.row, index.settings)}
    else:
        query = {"code": _read_code(args, index)}
    if args.weights is not None:
        query["weights"] = _read_costs(args.weights, args.row, (bits,))
    return query


def _read_code(args: argparse.Namespace, index: AnyIndex) -> NDArray[np.uint8]:
    if args.code is not None:
        return _code_of_hex(args.code, index.settings)
    if args.code_file is not None:
        return _code_of_file(args.code_file, args.row, index.settings)
    items = index.get([args.like])
    if not items.found[0]:
        raise FailureError(f"there is no item {args.like} in index {index.name}; give an id that is there as --like")
    code: NDArray[np.uint8] = items.codes[0]
    return code


def _code_of_hex(text: str, settings: IndexSettings) -> NDArray[np.uint8]:
    digits = "".join(text.removeprefix("0x").split())
    wrong = re.search(r"[^0-9a-fA-F]", digits)
    if wrong is not None:
        raise InvalidArgumentError(f"--code {text} has the character {wrong[0]}; hexadecimal digits are 0-9 and a-f")
    if len(digits) != 2 * settings.code_bytes:
        raise InvalidArgumentError(
            f"--code has {len(digits)} hexadecimal digits; {settings.bits} bits need {2 * settings.code_bytes}"
        )
    return np.frombuffer(bytes.fromhex(digits), dtype=np.uint8)


def _code_of_file(path: str, row: int, settings: IndexSettings) -> NDArray[np.uint8]:
    if path.endswith(".npy") and (single := _load(path)).ndim == 1:
        return _code_of_values(single, path, settings)
    file = read_codes(path, settings.bits, settings.bit_order)
    _check_row(row, path, len(file))
    code: NDArray[np.uint8] = next(file.pieces(row, 1)).codes[0]
    return code


def _vector_of_file(path: str, row: int, settings: IndexSettings) -> NDArray[Any]:
    if path.endswith(".npy") and (single := _load(path)).ndim == 1:
        if single.dtype.kind not in "iuf" or not np.isfinite(single).all():
            raise InvalidArgumentError(f"{path} does not hold a vector: its components must be finite numbers")
        _check_length(single, path, settings)
        return single
    file = read_vectors(path, settings.dim)
    _check_row(row, path, len(file))
    vector: NDArray[Any] = next(file.pieces(row, 1)).vectors[0]
    return vector


def _check_length(vector: NDArray[Any], source: str, settings: IndexSettings) -> None:
    if len(vector) != settings.dim:
        raise InvalidArgumentError(f"{source} has {len(vector)} components; vectors of this index have {settings.dim}")


def _check_row(row: int, path: str, count: int) -> None:
    if row >= count:
        raise InvalidArgumentError(f"--row {row}; {path} has {count} rows, from 0 on")


def _code_of_values(values: NDArray[Any], path: str, settings: IndexSettings) -> NDArray[np.uint8]:
    """Return the code that a single row is."""
    if values.dtype == np.uint8 and len(values) == settings.code_bytes:
        return values
    if values.dtype.kind not in "bf" or len(values) != settings.bits or np.isnan(values).any():
        raise InvalidArgumentError(
            f"{path} has {len(values)} values of {values.dtype.name}; a code of {settings.bits} bits is "
            f"{settings.code_bytes} packed uint8, or {settings.bits} booleans or numbers"
        )
    return np.packbits(values > 0, bitorder=settings.bit_order)


def _read_costs(path: str, row: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return costs of some shape, or one row of an array of such."""
    values = _load(path)
    if values.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"{path} holds {values.dtype.name}; costs are numbers")
    if values.ndim == len(shape) + 1:
        _check_row(row, path, len(values))
        values = values[row]
    if values.shape != shape:
        raise InvalidArgumentError(f"{path} has the shape {[*values.shape]}; costs of this index are {[*shape]}")
    if not np.isfinite(values).all():
        bit = int(np.argwhere(~np.isfinite(values))[0][0])
        raise InvalidArgumentError(f"{path} has a cost of bit {bit} that is not a finite number")
    return values.astype(np.float64)


def _load(path: str) -> NDArray[Any]:
    try:
        loaded = np.load(path, mmap_mode="r")
    except OSError as error:
        raise from_system(error, Path(path)) from error
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidArgumentError(f"{path} is not a .npy file of numbers; numpy.save writes one") from error
    if not isinstance(loaded, np.ndarray):
        raise InvalidArgumentError(f"{path} holds several arrays; give a .npy file")
    return loaded
