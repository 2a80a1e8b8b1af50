"""Fit an encoder in a process of its own: ``python -m whamming.storage.vectors.fit_process``.

A server fits encoders this way. A process can be killed at any moment, even during a long call of linear algebra. It
uses one core at low priority, and its memory is returned to the system when it ends.

::

    standard input     length of the header, uint32 | header, JSON | the sample's numbers
    standard output    OK | the encoder's bytes, or INVALID | a message, or OUT_OF_MEMORY

The parent keeps standard input open until it has the answer. If standard input is closed earlier, the process ends. So
it does not outlive a parent that was killed.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
from typing import Any, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from whamming.native import InvalidArgumentError, OutOfMemoryError
from whamming.storage.vectors.encoders import Encoder
from whamming.storage.vectors.fitting import FitRequest, fit

COMMAND: Final = (sys.executable, "-P", "-m", "whamming.storage.vectors.fit_process")
"""Starts the process. ``-P``: do not import modules from the working directory."""

ENVIRONMENT: Final = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
"""Environment variables that make numpy's linear algebra use one thread. They must be set before numpy is imported."""

NICE: Final = 10
"""How much lower the priority of the process is than that of its parent."""

_OK: Final = b"E"
_INVALID: Final = b"I"
_OUT_OF_MEMORY: Final = b"M"
_length = struct.Struct("<I")


def pack_request(request: FitRequest) -> tuple[bytes, memoryview]:
    """Return the two parts of what the process reads: the header with its length, and the sample's numbers."""
    rows = np.empty((0, 0), dtype="|u1") if request.rows is None else np.ascontiguousarray(request.rows)
    header = {
        "kind": request.size.kind,
        "bits": request.size.bits,
        "dim": request.size.dim,
        "seed": request.seed,
        "centred": request.centred,
        "rounds": request.size.rounds,
        "dtype": rows.dtype.str,
        "rows": request.size.rows,
    }
    text = json.dumps(header).encode()
    return _length.pack(len(text)) + text, rows.reshape(-1).view(np.uint8).data


def read_answer(answer: bytes) -> Encoder:
    """Return the encoder that the process has written, or raise the error that it reports."""
    kind, content = answer[:1], answer[1:]
    if kind == _OK:
        return Encoder.from_bytes(content)
    if kind == _INVALID:
        raise InvalidArgumentError(content.decode())
    if kind == _OUT_OF_MEMORY:
        raise OutOfMemoryError("there is not enough memory to fit the encoder; use a smaller sample or fewer bits")
    raise RuntimeError("the process that fits encoders ended without an answer")


def _read(source: BinaryIO) -> dict[str, Any]:
    """Read a request, and return the arguments of :func:`fit`."""
    (length,) = _length.unpack(_exactly(source, _length.size))
    header: dict[str, Any] = json.loads(_exactly(source, length))
    sample: NDArray[Any] | None = None
    if header["rows"]:
        dtype = np.dtype(header["dtype"])
        numbers = _exactly(source, header["rows"] * header["dim"] * dtype.itemsize)
        sample = np.frombuffer(numbers, dtype).reshape(header["rows"], header["dim"])
    named = {name: header[name] for name in ("kind", "bits", "dim", "seed", "rounds")}
    return {"sample": sample, "centre": header["centred"], **named}


def _exactly(source: BinaryIO, size: int) -> bytes:
    data = source.read(size)
    if len(data) < size:
        sys.exit(1)  # the parent has ended
    return data


def _end_with_parent() -> None:
    os.read(0, 1)  # returns when the parent closes its end
    os._exit(1)


def main() -> None:
    os.nice(NICE)
    arguments = _read(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        answer = _OK + fit(**arguments, limits=None).to_bytes()  # the parent has checked the limits
    except InvalidArgumentError as error:
        answer = _INVALID + str(error).encode()
    except (MemoryError, OutOfMemoryError):
        answer = _OUT_OF_MEMORY
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    os._exit(0)  # without waiting for the thread that reads standard input


if __name__ == "__main__":
    main()
