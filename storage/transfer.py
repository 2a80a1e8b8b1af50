"""Items in and out as numpy files, with a progress bar.

``items.npz`` holds ``ids``, ``codes`` and, where there are any, ``payload_ends`` and ``payload_data``, all at once.
``codes.npy`` holds packed codes only, with the ids beside it in ``codes.ids.npy``; it is read and written piece by
piece, for collections larger than memory, and leaves payloads out.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from whamming.native import InvalidArgumentError
from whamming.storage.rows import Payloads, Rows

if TYPE_CHECKING:
    from whamming.storage.database import StoredIndex

BATCH: Final = 10_000


def bar(total: int, doing: str, *, shown: bool | None = None) -> Any:
    """Return a progress bar on the error stream; by default only where that is a terminal."""
    return tqdm(total=total, desc=doing, unit=" items", unit_scale=True, disable=None if shown is None else not shown)


def ids_path(path: Path) -> Path:
    """Return where the ids of a ``.npy`` file of codes are."""
    return path.with_suffix(".ids.npy")


def export_items(index: StoredIndex, path: str | Path, *, progress: bool | None = None) -> int:
    """Write all items of an index, as of now, in order of id within each segment; returns how many.

    The suffix chooses the form: ``.npz`` or ``.npy``.
    """
    target = Path(path)
    snapshot = index.snapshot()
    count = len(snapshot)
    if target.suffix == ".npy":
        width = index.settings.code_bytes
        codes = np.lib.format.open_memmap(target, mode="w+", dtype=np.uint8, shape=(count, width))
        ids = np.lib.format.open_memmap(ids_path(target), mode="w+", dtype=np.uint64, shape=(count,))
        done = 0
        with bar(count, f"export {index.name}", shown=progress) as shown:
            for rows in snapshot.scan(BATCH):
                codes[done : done + len(rows)] = rows.codes
                ids[done : done + len(rows)] = rows.ids
                done += len(rows)
                shown.update(len(rows))
        codes.flush()
        ids.flush()
        return count
    if target.suffix != ".npz":
        raise InvalidArgumentError(f"{target} has the suffix {target.suffix!r}; export to .npz or .npy")
    pieces = [Rows.none(index.settings.code_bytes)]
    with bar(count, f"export {index.name}", shown=progress) as shown:
        for rows in snapshot.scan(BATCH):
            pieces.append(rows)
            shown.update(len(rows))
    everything = Rows.concatenate(pieces)
    columns: dict[str, NDArray[Any]] = {"ids": everything.ids, "codes": everything.codes}
    if everything.payloads is not None:
        columns |= {"payload_ends": everything.payloads.ends, "payload_data": everything.payloads.data}
    np.savez(target, **columns)  # type: ignore[arg-type]
    return count


def import_items(
    index: StoredIndex, path: str | Path, *, first_id: int = 0, batch: int = BATCH, progress: bool | None = None
) -> int:
    """Upsert all items of a file that :func:`export_items` wrote, or of any ``.npy`` of codes; returns how many.

    Codes may be packed, ``uint8 [n, ceil(bits / 8)]``, or plain, ``bool [n, bits]``. Without an ids file beside it a
    ``.npy`` gets the ids ``first_id``, ``first_id + 1``, ...
    """
    source = Path(path)
    payloads = None
    try:
        if source.suffix == ".npz":
            with np.load(source) as columns:
                codes, ids = columns["codes"], columns["ids"]
                if "payload_ends" in columns:
                    payloads = Payloads(columns["payload_ends"], columns["payload_data"])
        elif source.suffix == ".npy":
            codes = np.load(source, mmap_mode="r")
            beside = ids_path(source)
            ids = (
                np.load(beside, mmap_mode="r")
                if beside.exists()
                else np.arange(first_id, first_id + len(codes), dtype=np.uint64)
            )
        else:
            raise InvalidArgumentError(f"{source} has the suffix {source.suffix!r}; import from .npz or .npy")
    except (KeyError, ValueError, EOFError) as error:
        raise InvalidArgumentError(f"{source} is not a file of codes: {error}") from error
    if len(ids) != len(codes):
        raise InvalidArgumentError(f"{source} has {len(codes)} codes but {len(ids)} ids")
    order = index.settings.bit_order
    with bar(len(codes), f"import {index.name}", shown=progress) as shown:
        for first in range(0, len(codes), batch):
            piece = np.asarray(codes[first : first + batch])
            if piece.dtype == np.bool_:
                piece = np.packbits(piece, axis=1, bitorder=order)
            kept = None
            if payloads is not None:
                kept = [payloads[row] for row in range(first, first + len(piece))]
            index.upsert(np.asarray(ids[first : first + batch]), piece, kept)
            shown.update(len(piece))
    return len(codes)
