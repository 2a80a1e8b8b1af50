"""Fit encoders while the server searches: large ones one at a time, each in a process that can be killed.

A single call of linear algebra may take half a minute, and nothing can interrupt it. So a fit in a thread could not be
stopped when its client cancels or the server shuts down. A process can be killed. It also has its own memory, and its
own limit on the threads that linear algebra uses. Starting a process takes about half a second, so small fits run in a
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from whamming.native import OutOfMemoryError
from whamming.storage import Encoder
from whamming.storage.vectors.fit_limits import FitLimits
from whamming.storage.vectors.fit_process import COMMAND, ENVIRONMENT, pack_request, read_answer
from whamming.storage.vectors.fitting import FitRequest, fit_checked
from whamming.wire.service_errors import OverloadedError, UnavailableError

LIMITS: Final = FitLimits()
"""Limits for every fit on a server."""

SMALL: Final = FitLimits(max_bytes=128 << 20, max_seconds=0.1)
"""Fits within these limits run in a thread."""

MAX_WAITING: Final = 4
"""How many fits may wait for a process. Each of them keeps its sample in memory."""


class FitQueue:
    """Fits encoders in the order of the calls. Further calls are refused if too many wait."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="whamming-fit")
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closed = False
        self._process: asyncio.subprocess.Process | None = None

    async def fit(self, request: FitRequest) -> Encoder:
        """Fit an encoder. If this is cancelled, the process is killed and the fit is abandoned.

        Raises :class:`InvalidArgumentError` if the fit is above a limit, :class:`OverloadedError` if too many fits are
        waiting, and :class:`UnavailableError` after :meth:`stop`.
        """
        request.size.check(LIMITS)
        self._check_open()
        if request.size.is_within(SMALL):
            return await asyncio.get_running_loop().run_in_executor(self._thread, fit_checked, request)
        if self._waiting >= MAX_WAITING:
            raise OverloadedError(
                f"{self._waiting} encoders are waiting to be fitted, the maximum is {MAX_WAITING}; try again later, or "
                "fit the encoder yourself and send it"
            )
        self._waiting += 1
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        try:
            self._check_open()
            return await self._fit_in_process(request)
        finally:
            self._turn.release()

    def stop(self) -> None:
        """Abandon all fits, because the server is shutting down."""
        self._closed = True
        self._kill()

    def close(self) -> None:
        """Wait for the fit in the thread. It takes a fraction of a second."""
        self._thread.shutdown(cancel_futures=True)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("the server is shutting down, and the encoder was not fitted; try again later")

    async def _fit_in_process(self, request: FitRequest) -> Encoder:
        pipe = asyncio.subprocess.PIPE
        environment = {**os.environ, **ENVIRONMENT}
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=pipe, stdout=pipe, env=environment, start_new_session=True
        )
        self._process = process
        try:
            if self._closed:
                self._kill()
            answer = await _exchange(process, request)
        finally:
            self._kill()
            code = await process.wait()
            self._process = None
        self._check_open()
        if code == -signal.SIGKILL and not answer:
            raise OutOfMemoryError("the process that fits encoders was killed, probably for lack of memory")
        return await asyncio.get_running_loop().run_in_executor(self._thread, read_answer, answer)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                self._process.kill()


async def _exchange(process: asyncio.subprocess.Process, request: FitRequest) -> bytes:
    """Send a request to the process, and return its answer. The answer is empty if the process was killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for part in pack_request(request):
            process.stdin.write(part)
            await process.stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        return b""
    answer = await process.stdout.read()
    process.stdin.close()
    return answer
