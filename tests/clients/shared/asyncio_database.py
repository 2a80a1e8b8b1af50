"""A blocking wrapper around the asyncio client, so that the shared suite can run on it."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Self

from whamming import aio


class _Loop:
    """The standard library's event loop in a thread, in addition to the loop of the blocking client."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()


_loops: list[_Loop] = []


def _run(call: Coroutine[Any, Any, Any]) -> Any:
    if not _loops:
        _loops.append(_Loop())
    return _loops[0].run(call)


class Awaited:
    """Wraps a database or search of :mod:`whamming.aio`: its methods block until they are done."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def __repr__(self) -> str:
        return repr(self.target)

    def __enter__(self) -> Self:
        _run(self.target.__aenter__())
        return self

    def __exit__(self, *exc: object) -> None:
        _run(self.target.__aexit__(*exc))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        async def step() -> Any:
            return await anext(self.target, None)

        hit = _run(step())
        if hit is None:
            raise StopIteration
        return hit

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not inspect.ismethod(value):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            if inspect.isasyncgen(result):
                return [piece async for piece in result]
            if inspect.isawaitable(result):
                result = await result
            if isinstance(result, aio.Index):
                return AwaitedIndex(result)
            return Awaited(result) if isinstance(result, aio.Search) else result

        return lambda *args, **options: _run(call(*args, **options))


class AwaitedIndex(Awaited):
    """Wraps an index, with its ``len`` and ``encoder``."""

    def __len__(self) -> int:
        return int(_run(self.target.count()))

    @property
    def encoder(self) -> Any:
        return _run(self.target.encoder())


def connect(address: str, **options: Any) -> Any:
    """Connect with :func:`whamming.aio.connect`."""
    return Awaited(_run(aio.connect(address, **options).open()))
