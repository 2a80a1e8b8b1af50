"""Vectors over gRPC: clients without an encoder get the same answers as a local database."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

import whamming
from tests.server.answers import Chunk, chunks_of
from tests.server.columns import pack_ids, pack_matrix
from tests.serving import ServerProcess, Stubs, details_of
from whamming import Database, InvalidArgumentError, RemoteDatabase
from whamming.storage.reranking import Rerank
from whamming.storage.settings import KeptVectors, Metric
from whamming.storage.vectors.encoders import Form, Kind
from whamming.v1 import index_pb2, item_pb2, search_pb2, types_pb2

DIM, BITS, COUNT = 24, 20, 700
KINDS: tuple[Kind, ...] = ("sign", "lsh", "itq")
FORMS: tuple[Form | None, ...] = (None, "asymmetric", "inner", "symmetric")
IDS = np.arange(COUNT, dtype=np.uint64) * 3


def made(seed: int, count: int, dtype: str = "<f4") -> NDArray[Any]:
    """Return vectors of integers, which every element type can represent. Some directions vary more than others."""
    rng = np.random.default_rng(seed)
    return np.rint(rng.standard_normal((count, DIM)) * np.linspace(40, 2, DIM)).clip(-128, 127).astype(dtype)


@pytest.fixture
def here() -> Iterator[Database]:
    with whamming.open() as database:
        yield database


@pytest.fixture(scope="module")
def there(either: ServerProcess) -> Iterator[RemoteDatabase]:
    with whamming.connect(either.address) as database:
        yield database


@pytest.mark.parametrize("dtype", ["<f4", "<f2", "|i1", "<f8"])
@pytest.mark.parametrize("kind", KINDS)
def test_raw_stubs_get_the_same_answers_as_a_local_database(
    either: ServerProcess, here: Database, name: str, kind: Kind, dtype: str
) -> None:
    sample, vectors, queries = made(1, 300), made(2, COUNT, dtype), made(3, 5)
    docs = here.create_index("docs", BITS, encoder=kind, train=sample, seed=5)
    docs.upsert(IDS, vectors=vectors)
    with either.stubs() as stubs:
        encoder = index_pb2.EncoderSettings(kind=KINDS.index(kind) + 1, seed=5, sample=pack_matrix(sample))  # type: ignore[arg-type]
        settings = index_pb2.IndexSettings(bits=BITS)
        created = stubs.indexes.CreateIndex(
            index_pb2.CreateIndexRequest(name=name, settings=settings, encoder=encoder)
        ).index
        assert docs.encoder is not None
        assert created.encoder.fingerprint == docs.encoder.fingerprint
        assert (created.encoder.dimension, created.encoder.samples) == (DIM, 300)
        items = item_pb2.ItemBatch(ids=pack_ids(IDS), vectors=pack_matrix(vectors))
        [done] = stubs.items.Upsert(iter([item_pb2.UpsertRequest(index=name, sequence=1, items=items)]))
        assert done.count == COUNT
        stored = stubs.items.Get(item_pb2.GetRequest(index=name, ids=pack_ids(IDS))).items
        assert stored.codes == docs.get(IDS).codes.tobytes()
        for number, form in enumerate(FORMS):
            expected = docs.search_batch(vectors=queries, costs=form, k=9)
            hits = [list(zip(*row, strict=True)) for row in zip(expected.ids, expected.distances, strict=True)]
            options: dict[str, Any] = {"index": name, "form": number, "options": search_pb2.QueryOptions(k=9)}
            for row, vector in enumerate(queries):
                found = stubs.search.SearchOnce(search_pb2.SearchOnceRequest(vector=vector.tolist(), **options))
                assert [(hit.id, hit.distance) for hit in found.hits] == hits[row]
            batch = search_pb2.QueryBatch(query_ids=range(5), vectors=pack_matrix(queries.astype(dtype)), **options)
            chunks: dict[int, Chunk] = {}
            for response in stubs.search.Search(iter([search_pb2.SearchRequest(queries=batch)])):
                chunks |= {chunk.query_id: chunk for chunk in chunks_of(response)}
            assert [list(zip(chunks[row].ids, chunks[row].distances, strict=True)) for row in range(5)] == hits


@pytest.mark.parametrize("metric", ["l2", "cosine", "inner"])
@pytest.mark.parametrize("keep", ["float16", "int8"])
def test_remote_and_local_databases_give_the_same_answers(
    there: RemoteDatabase, here: Database, name: str, keep: KeptVectors, metric: Metric
) -> None:
    vectors, queries = made(4, COUNT), made(5, 12)
    payloads = [b"item %d" % i for i in range(COUNT)]
    options: dict[str, Any] = {"encoder": "itq", "train": vectors, "keep_vectors": keep, "metric": metric}
    ours, theirs = here.create_index("docs", BITS, **options), there.create_index(name, BITS, **options)
    assert ours.settings == theirs.settings
    for index in (ours, theirs):
        index.upsert(IDS, vectors=vectors, payloads=payloads)
    for form in FORMS:
        expected, found = (index.search_batch(vectors=queries, costs=form, k=6) for index in (ours, theirs))
        assert found.ids.tobytes() == expected.ids.tobytes()
        assert found.distances.tobytes() == expected.distances.tobytes()
    again: list[Rerank] = [1, 4, COUNT]
    for rerank in [*again, "exact"] if metric == "l2" else again:
        expected, found = (index.search_batch(vectors=queries, k=6, rerank=rerank) for index in (ours, theirs))
        assert found.ids.tobytes() == expected.ids.tobytes()
        assert found.distances.tobytes() == expected.distances.tobytes()
        assert found.exact.tolist() == expected.exact.tolist()
        one, other = (
            list(index.search(vector=queries[0], k=6, rerank=rerank, payloads=True)) for index in (ours, theirs)
        )
        assert one == other
        assert all(hit.payload == b"item %d" % (hit.id // 3) for hit in other)
    with theirs.search(vector=queries[0], k=6, rerank=1) as search:
        assert {search.lower_bound for _ in search} == {-np.inf}  # nothing is known about items that were not ranked


def test_an_encoder_is_reused_by_another_index(there: RemoteDatabase, here: Database, name: str) -> None:
    vectors = made(6, COUNT)
    first = there.create_index(name, BITS, encoder="itq", train=vectors)
    encoder = first.encoder
    assert encoder is not None
    second = there.create_index(f"{name}-2", encoder=encoder)
    third = here.create_index("docs", encoder=encoder)
    for index in (second, third):
        index.upsert(IDS, vectors=vectors)
    assert second.settings == third.settings
    assert second.get(IDS).codes.tobytes() == third.get(IDS).codes.tobytes() == encoder.encode(vectors).tobytes()


def test_search_by_vector_streams(there: RemoteDatabase, name: str) -> None:
    vectors = made(7, COUNT)
    docs = there.create_index(name, encoder="sign", dim=DIM)
    docs.upsert(IDS, vectors=vectors)
    search = docs.search(vector=vectors[5])
    first = next(search)
    assert first.distance <= search.lower_bound
    rest = search.all()[0]
    assert sorted([first.id, *rest.tolist()]) == IDS.tolist()


def odd_encoder(value: float) -> bytes:
    """Return the bytes of an encoder with an odd number."""
    encoder = whamming.storage.fit("lsh", dim=DIM, bits=8)
    return dataclasses.replace(encoder, offsets=np.full(8, value, dtype=np.float32)).to_bytes()


def huge_sample(kind: Kind) -> index_pb2.CreateIndexRequest:
    sample = pack_matrix(np.resize(np.array([3e38, -3e38, 2e38], dtype=np.float32), 320).reshape(40, 8))
    encoder = index_pb2.EncoderSettings(kind=KINDS.index(kind) + 1, sample=sample)  # type: ignore[arg-type]
    return CREATE(settings=index_pb2.IndexSettings(bits=8), encoder=encoder)


CREATE = index_pb2.CreateIndexRequest
REFUSED: dict[str, tuple[CREATE, str]] = {
    "no kind": (
        CREATE(settings=index_pb2.IndexSettings(bits=8), encoder=index_pb2.EncoderSettings(dimension=8)),
        "encoder.kind",
    ),
    "no bits": (CREATE(), "settings.bits"),
    "incomplete sample": (
        CREATE(encoder=index_pb2.EncoderSettings(kind=3, sample=types_pb2.Matrix(type=1, columns=8, data=b"1234567"))),  # type: ignore[arg-type]
        "encoder.sample.data",
    ),
    "unknown type": (
        CREATE(encoder=index_pb2.EncoderSettings(kind=3, sample=types_pb2.Matrix(columns=1, type=9, data=b"1"))),  # type: ignore[arg-type]
        "encoder.sample.type",
    ),
    "rubbish": (CREATE(fitted_encoder=b"rubbish"), "fitted_encoder"),
    **{str(odd): (CREATE(fitted_encoder=odd_encoder(odd)), "fitted_encoder") for odd in (np.nan, np.inf, 3e38)},
    **{f"sample of huge numbers, {kind}": (huge_sample(kind), "encoder") for kind in KINDS},
    "no such kept vectors": (
        CREATE(settings=index_pb2.IndexSettings(bits=8, kept_vectors=1)),  # type: ignore[arg-type]
        "settings.kept_vectors",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_invalid_encoder_settings_are_refused(either: ServerProcess, name: str, why: str) -> None:
    request, field = REFUSED[why]
    with either.stubs() as stubs, pytest.raises(grpc.RpcError) as caught:
        stubs.indexes.CreateIndex(
            index_pb2.CreateIndexRequest(**{f.name: v for f, v in request.ListFields()}, name=name)
        )
    details = details_of(caught.value)
    assert (caught.value.code(), details.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert details.field == field
    with either.stubs() as stubs:  # the name is still free
        stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name=name, settings=index_pb2.IndexSettings(bits=8)))


def test_vectors_without_an_encoder(stubs: Stubs, name: str) -> None:
    stubs.indexes.CreateIndex(index_pb2.CreateIndexRequest(name=name, settings=index_pb2.IndexSettings(bits=8)))
    items = item_pb2.ItemBatch(ids=pack_ids([1]), vectors=pack_matrix(made(0, 1)))
    once = search_pb2.SearchOnceRequest(index=name, vector=[1.0], options=search_pb2.QueryOptions(k=1))
    calls = (
        lambda: list(stubs.items.Upsert(iter([item_pb2.UpsertRequest(index=name, items=items)]))),
        lambda: stubs.search.SearchOnce(once),
        lambda: stubs.indexes.GetEncoder(index_pb2.GetEncoderRequest(name=name)),
    )
    for call in calls:
        with pytest.raises(grpc.RpcError) as caught:
            call()
        details = details_of(caught.value)
        assert (caught.value.code(), details.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "NO_ENCODER")


def test_invalid_vectors_are_refused(there: RemoteDatabase, name: str) -> None:
    docs = there.create_index(name, encoder="sign", dim=DIM)
    wrong = made(8, 2)[:, :5]
    broken = made(8, 2)
    broken[1, 3] = np.nan
    for vectors, said in ((wrong, rf"\b5 \w+.*{DIM}"), (broken, "(column|component) 3 .*is nan")):
        with pytest.raises(InvalidArgumentError, match=said):
            docs.upsert([1, 2], vectors=vectors)
        with pytest.raises(InvalidArgumentError, match=said):
            docs.search_batch(vectors=vectors)
    for weights in (np.ones(DIM - 1), np.ones((3, DIM)), np.float64(1)):
        with pytest.raises(InvalidArgumentError, match="weights ha"):
            docs.search_batch(vectors=made(8, 2), costs="symmetric", weights=weights)
    with pytest.raises(InvalidArgumentError, match="keeps no vectors"):
        list(docs.search(vector=made(8, 1)[0], k=3, rerank=2))
    with pytest.raises(InvalidArgumentError, match="both codes and vectors"):
        docs.upsert([1], np.zeros((1, 3), dtype=np.uint8), vectors=made(8, 1))
    with pytest.raises(InvalidArgumentError, match=r"without vectors?|without a vector"):
        list(docs.search(np.zeros(3, dtype=np.uint8), costs="inner"))
    assert len(docs) == 0
