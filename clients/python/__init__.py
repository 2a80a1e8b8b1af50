"""Whamming: exact nearest neighbours of binary codes under weighted Hamming distance.

In this process::

    import whamming

    with whamming.open("data") as db:
        docs = db.create_index("docs", bits=256)
        docs.upsert(ids, codes)
        for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

With vectors, which the index encodes into codes::

        docs = db.create_index("docs", encoder="itq", bits=256, train=sample)
        docs.upsert(ids, vectors=vectors)
        docs.search(vector=query, k=10)

On a server (``whamming serve``), with the same verbs::

    with whamming.connect("localhost:7777") as db:
        ...

:mod:`whamming.native` is the engine alone, on arrays in memory. :mod:`whamming.storage` stores indexes.
"""

from importlib import import_module as _import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

from whamming import native, storage
from whamming.native import Answer, Budget, Hit, InvalidArgumentError, WhammingError
from whamming.storage import Database, Encoder, StorageError, StoredIndex, load_encoder, restore
from whamming.storage import fit as fit_encoder
from whamming.storage import open_database as open  # noqa: A004 - the verb that users expect
from whamming.wire.service_errors import DeadlineError, LocalOnlyError, OverloadedError, ServiceError, UnavailableError

if TYPE_CHECKING:
    from whamming import aio
    from whamming.blocking import RemoteDatabase, RemoteIndex, RemoteSearch, connect
    from whamming.remote.tls import Tls

__version__ = _version("whamming")
__all__ = [
    "Answer",
    "Budget",
    "Database",
    "DeadlineError",
    "Encoder",
    "Hit",
    "InvalidArgumentError",
    "LocalOnlyError",
    "OverloadedError",
    "RemoteDatabase",
    "RemoteIndex",
    "RemoteSearch",
    "ServiceError",
    "StorageError",
    "StoredIndex",
    "Tls",
    "UnavailableError",
    "WhammingError",
    "__version__",
    "aio",
    "connect",
    "fit_encoder",
    "load_encoder",
    "native",
    "open",
    "restore",
    "storage",
]


_LAZY = {
    "aio": "whamming.aio",
    "RemoteDatabase": "whamming.blocking",
    "RemoteIndex": "whamming.blocking",
    "RemoteSearch": "whamming.blocking",
    "connect": "whamming.blocking",
    "Tls": "whamming.remote.tls",
}
"""Names that are imported on first use, because they need gRPC, which takes long to import."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _import_module(_LAZY[name])
    return module if name == "aio" else getattr(module, name)


def __dir__() -> list[str]:
    """List the public names, including those that are not imported yet."""
    return sorted(__all__)
