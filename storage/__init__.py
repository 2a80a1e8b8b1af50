"""Databases, indexes and the stores that hold them.

>>> import numpy as np
>>> from whamming.storage import open_database
>>> with open_database(":memory:") as db:
...     docs = db.create_index("docs", bits=8)
...     docs.upsert([7, 9], np.array([[0b0011], [0b0111]], dtype=np.uint8))
...     [(hit.id, hit.distance) for hit in docs.search(np.array([0b0011], dtype=np.uint8))]
[(7, 0.0), (9, 1.0)]
"""

from whamming.storage.database import Database, open_database
from whamming.storage.directory import Mode
from whamming.storage.index_info import IndexInfo
from whamming.storage.items.payloads import Payloads
from whamming.storage.items.rows import Rows, as_ids
from whamming.storage.items.segment import SEGMENT_ARRAYS, Segment
from whamming.storage.items.write_batch import WriteBatch
from whamming.storage.reranking import Bound, Rerank, Reranked, check_factor, read_queries
from whamming.storage.restoring import restore
from whamming.storage.search import Search, make_costs
from whamming.storage.settings import (
    BitOrder,
    Durability,
    IndexSettings,
    KeptVectors,
    Metric,
    check_choice,
    check_name,
)
from whamming.storage.storage_errors import (
    AlreadyExistsError,
    ClosedError,
    CorruptStoreError,
    FormatError,
    IncompleteBackupError,
    NoEncoderError,
    NotFoundError,
    ProcessLimitError,
    ReadOnlyError,
    StorageError,
    StorageFullError,
    WriterBusyError,
    from_system,
)
from whamming.storage.store.journal import Journal, JournalState, SealedSegment
from whamming.storage.store.protocol import Backend, Progress, Store, StoreStats, VerifyReport
from whamming.storage.store.segmented import SegmentedStore
from whamming.storage.store.snapshot import Items, Snapshot
from whamming.storage.stored_index import StoredIndex
from whamming.storage.transfer.items import (
    CodesFile,
    ItemsIndex,
    Piece,
    VectorsFile,
    VectorsPiece,
    export_items,
    import_items,
    read_codes,
    read_vectors,
)
from whamming.storage.vectors.arrays import as_vectors
from whamming.storage.vectors.encoders import Encoder, Form, Kind, Training, load_encoder
from whamming.storage.vectors.fit_limits import FitLimits
from whamming.storage.vectors.fitting import fit

__all__ = [
    "SEGMENT_ARRAYS",
    "AlreadyExistsError",
    "Backend",
    "BitOrder",
    "Bound",
    "ClosedError",
    "CodesFile",
    "CorruptStoreError",
    "Database",
    "Durability",
    "Encoder",
    "FitLimits",
    "Form",
    "FormatError",
    "IncompleteBackupError",
    "IndexInfo",
    "IndexSettings",
    "Items",
    "ItemsIndex",
    "Journal",
    "JournalState",
    "KeptVectors",
    "Kind",
    "Metric",
    "Mode",
    "NoEncoderError",
    "NotFoundError",
    "Payloads",
    "Piece",
    "ProcessLimitError",
    "Progress",
    "ReadOnlyError",
    "Rerank",
    "Reranked",
    "Rows",
    "SealedSegment",
    "Search",
    "Segment",
    "SegmentedStore",
    "Snapshot",
    "StorageError",
    "StorageFullError",
    "Store",
    "StoreStats",
    "StoredIndex",
    "Training",
    "VectorsFile",
    "VectorsPiece",
    "VerifyReport",
    "WriteBatch",
    "WriterBusyError",
    "as_ids",
    "as_vectors",
    "check_choice",
    "check_factor",
    "check_name",
    "export_items",
    "fit",
    "from_system",
    "import_items",
    "load_encoder",
    "make_costs",
    "open_database",
    "read_codes",
    "read_queries",
    "read_vectors",
    "restore",
]
