"""The query options of ``whamming search``: a code, a vector, a stored item, or a row of a file."""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from whamming.cli.parser import FailureError, UsageError, listed, whole
from whamming.cli.target import AnyIndex
from whamming.native import InvalidArgumentError
from whamming.native.costs import as_numbers
from whamming.storage import Form, IndexSettings, KeptVectors, Rerank, read_codes, read_vectors
from whamming.storage.storage_errors import from_system
from whamming.storage.transfer.numpy_files import map_npy


def add_query(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the query, and the cost of a mismatch")
    either = group.add_mutually_exclusive_group(required=True)
    text = "a code as hexadecimal digits, in the index's bit order"
    either.add_argument("--code", metavar="HEX", help=text)
    text = "a code from a file in any form that import takes, or a .npy file with a single code"
    either.add_argument("--code-file", metavar="FILE", help=text)
    either.add_argument("--like", metavar="ID", type=whole(0, 2**64 - 1), help="the code of the stored item ID")
    text = "costs instead of a code: for each bit, the cost of a stored 0 and of a stored 1, .npy [bits, 2]"
    either.add_argument("--table", metavar="FILE", help=text)
    text = """\
a vector, for an index with an encoder: its components, separated by commas; write --vector=-1,2 if the first one is
negative"""
    either.add_argument("--vector", metavar="X,Y,...", type=_vector, help=text)
    text = "a vector from a file in any form that import takes, or a .npy file [dim] with a single vector"
    either.add_argument("--vector-file", metavar="FILE", help=text)
    text = "the cost of a mismatch at each bit, .npy [bits] (default: 1 each, the Hamming distance)"
    group.add_argument("--weights", metavar="FILE", help=text)
    text = "the row to read from a file with several rows, counted from 0 (default 0)"
    group.add_argument("--row", metavar="N", type=whole(0), default=0, help=text)
    text = """\
how a vector is compared with codes. asymmetric: estimate distances with statistics of the sample that the encoder was
fitted on (default if there was one). inner: rank by the inner product with the codes' signs (default otherwise).
symmetric: encode the vector and use the Hamming distance, weighted with --weights"""
    group.add_argument("--costs", choices=get_args(Form), help=text)
    text = """\
rank hits by the kept vectors. N: rank the K x N items that are nearest by code; may miss some. exact: continue until no
nearer item can be missing (metric l2 only)"""
    group.add_argument("--rerank", metavar="N|exact", type=_rerank, help=text)


def _vector(text: str) -> NDArray[np.float64]:
    return np.array([_component(word) for word in text.split(",")])


def _component(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be numbers separated by commas, as in 0.5,-1,2; it has {word}")
    return value


def _rerank(text: str) -> Rerank:
    if text == "exact":
        return "exact"
    try:
        return whole(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}; or give exact") from None


def check_options(args: argparse.Namespace, k: int | None) -> None:
    """Fail if options contradict each other, whatever the index."""
    by_vector = args.vector is not None or args.vector_file is not None
    if args.table is not None and args.weights is not None:
        raise UsageError("--weights cannot be used with --table, which already sets all costs; leave --weights out")
    if args.costs is not None and not by_vector:
        raise UsageError(f"--costs {args.costs} requires a vector; give --vector or --vector-file")
    if by_vector and args.weights is not None and args.costs != "symmetric":
        raise UsageError("--weights with a vector requires --costs symmetric")
    if args.rerank is None:
        return
    if not by_vector:
        raise UsageError(f"--rerank {args.rerank} requires a vector; give --vector or --vector-file")
    for flag, value in (("--radius", args.radius), ("--weights", args.weights)):
        if value is not None:
            raise UsageError(f"--rerank {args.rerank} cannot be used with {flag}; leave one of them out")
    if args.rerank != "exact" and k is None:
        raise UsageError(f"--rerank {args.rerank} ranks K x {args.rerank} items, so it requires a limit; give -k K")


def _check_index(args: argparse.Namespace, index: AnyIndex) -> None:
    """Fail if the index does not support the options."""
    settings, name = index.settings, index.name
    if settings.dim is None:
        remedy = "search with a code, or import your vectors into a new index with --encoder"
        raise FailureError(f"index {name} has no encoder, so it does not take vectors; {remedy}")
    encoder = index.encoder
    if args.costs == "asymmetric" and encoder is not None and encoder.expected is None:
        reason = f"the encoder of index {name} was not fitted on a sample"
        raise FailureError(f"--costs asymmetric is not available: {reason}; use --costs inner")
    if args.rerank is None:
        return
    if settings.keep_vectors is None:
        kept = listed(f"--keep-vectors {kind}" for kind in get_args(KeptVectors))
        raise FailureError(
            f"--rerank {args.rerank} needs kept vectors, and index {name} has none; create one with {kept}"
        )
    if args.rerank == "exact" and settings.metric != "l2":
        remedy = "use --rerank N"
        if settings.metric == "cosine":
            remedy += "; or scale the vectors to length 1 and use l2, which ranks them the same"
        raise FailureError(f"--rerank exact requires metric l2, and index {name} has {settings.metric}; {remedy}")


def read_query(args: argparse.Namespace, index: AnyIndex) -> dict[str, Any]:
    """Return the arguments of ``search`` that correspond to the options."""
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
        raise FailureError(
            f"--like {args.like}: index {index.name} has no item with this id; give the id of a stored item"
        )
    code: NDArray[np.uint8] = items.codes[0]
    return code


def _code_of_hex(text: str, settings: IndexSettings) -> NDArray[np.uint8]:
    digits = "".join(text.removeprefix("0x").split())
    wrong = re.search(r"[^0-9a-fA-F]", digits)
    if wrong is not None:
        raise InvalidArgumentError(f"--code {text} contains {wrong[0]}; it must be hexadecimal digits, 0-9 and a-f")
    if len(digits) != 2 * settings.code_bytes:
        raise InvalidArgumentError(
            f"--code has {len(digits)} hexadecimal digits; codes of {settings.bits} bits have {2 * settings.code_bytes}"
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
            raise InvalidArgumentError(f"{path} is not a vector; its components must be finite numbers")
        _check_length(single, path, settings)
        return single
    file = read_vectors(path, settings.dim)
    _check_row(row, path, len(file))
    vector: NDArray[Any] = next(file.pieces(row, 1)).vectors[0]
    return vector


def _check_length(vector: NDArray[Any], source: str, settings: IndexSettings) -> None:
    if len(vector) != settings.dim:
        raise InvalidArgumentError(f"{source} has {len(vector)} components; vectors in this index have {settings.dim}")


def _check_row(row: int, path: str, count: int) -> None:
    if row >= count:
        raise InvalidArgumentError(f"--row {row} does not exist; {path} has {count} rows, counted from 0")


def _code_of_values(values: NDArray[Any], path: str, settings: IndexSettings) -> NDArray[np.uint8]:
    """Return a single row as a packed code."""
    if values.dtype == np.uint8 and len(values) == settings.code_bytes:
        return values
    if values.dtype.kind not in "bf" or len(values) != settings.bits or np.isnan(values).any():
        raise InvalidArgumentError(
            f"{path} has {len(values)} values of type {values.dtype.name}; a code of {settings.bits} bits is "
            f"{settings.code_bytes} packed uint8 values, or {settings.bits} booleans or floating-point numbers"
        )
    return np.packbits(values > 0, bitorder=settings.bit_order)


def _read_costs(path: str, row: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array of the given shape, or row ``row`` of an array that has one more dimension."""
    values = _load(path)
    if values.dtype.kind not in "biuf":
        raise InvalidArgumentError(f"{path} holds values of type {values.dtype.name}; costs must be numbers")
    if values.ndim == len(shape) + 1:
        _check_row(row, path, len(values))
        values = values[row]
    if values.shape != shape:
        raise InvalidArgumentError(f"{path} has shape {[*values.shape]}; costs for this index have shape {[*shape]}")
    if not np.isfinite(values).all():
        bit = int(np.argwhere(~np.isfinite(values))[0][0])
        raise InvalidArgumentError(f"{path}: the cost of bit {bit} is not finite; costs must be finite numbers")
    return as_numbers(values, f"costs in {path}")


def _load(path: str) -> NDArray[Any]:
    try:
        return map_npy(Path(path))
    except InvalidArgumentError:  # is a ValueError, too
        raise
    except OSError as error:
        raise from_system(error, Path(path)) from error
    except ValueError as error:
        raise InvalidArgumentError(
            f"{path} is not a .npy file of numbers: {error}; write one with numpy.save"
        ) from error
