"""Whamming: exact nearest neighbours of binary codes by weighted Hamming distance.

In this process::

    import whamming

    with whamming.open("data") as db:
        docs = db.create_index("docs", bits=256)
        docs.upsert(ids, codes)
        for hit in docs.search(code, weights=w, k=10):
            print(hit.id, hit.distance)

The engine alone, over arrays in memory, is :mod:`whamming.native`; where indexes live is :mod:`whamming.storage`.
"""

from importlib.metadata import version

from whamming.native import Budget, Hit, InvalidArgumentError, WhammingError
from whamming.storage import Database, StorageError, StoredIndex, restore
from whamming.storage import open_database as open  # noqa: A004 - the verb that users expect

__version__ = version("whamming")
__all__ = [
    "Budget",
    "Database",
    "Hit",
    "InvalidArgumentError",
    "StorageError",
    "StoredIndex",
    "WhammingError",
    "__version__",
    "open",
    "restore",
]
