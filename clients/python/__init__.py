"""Whamming: exact nearest neighbours of binary codes by weighted Hamming distance.

In this process::

    import whamming

    with whamming.open("data") as db:
        docs = db.create_index("docs", bits=256)
        docs.upsert(ids, codes)
        for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

On a server (``whamming serve``), with the same verbs::

    with whamming.connect("localhost:7777") as db:
        ...

The engine alone, over arrays in memory, is :mod:`whamming.native`; where indexes live is :mod:`whamming.storage`.
"""

from importlib.metadata import version

from whamming.errors import DeadlineError, OverloadedError, ServiceError, UnavailableError
from whamming.native import Budget, Hit, InvalidArgumentError, WhammingError
from whamming.remote import RemoteDatabase, RemoteIndex, RemoteSearch, connect
from whamming.storage import Database, StorageError, StoredIndex, restore
from whamming.storage import open_database as open  # noqa: A004 - the verb that users expect

__version__ = version("whamming")
__all__ = [
    "Budget",
    "Database",
    "DeadlineError",
    "Hit",
    "InvalidArgumentError",
    "OverloadedError",
    "RemoteDatabase",
    "RemoteIndex",
    "RemoteSearch",
    "ServiceError",
    "StorageError",
    "StoredIndex",
    "UnavailableError",
    "WhammingError",
    "__version__",
    "connect",
    "open",
    "restore",
]
