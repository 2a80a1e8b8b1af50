"""Error messages of the command line name the value, the limit and the remedy, in terms of the command line.

``Done.refused`` checks that no message shows traces of Python. ``golden_messages.txt`` pins the wording of a few.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import whamming
from tests.clients.commands import Cli

BITS = 64
DIM = 16
ONES = ",".join(["1"] * DIM)


def write_files(directory: Path) -> None:
    """Write many files that commands cannot use, and a few that they can."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((100, DIM)).astype(np.float32)
    spoilt = vectors.copy()
    spoilt[3, 2] = np.nan
    codes = rng.integers(0, 256, (100, BITS // 8), dtype=np.uint8)
    arrays: dict[str, NDArray[Any]] = {
        "codes": codes,
        "short": codes[:, :7],
        "cube": codes[:, :, None],
        "vectors": vectors,
        "narrow": vectors[:, :8],
        "few": vectors[:DIM],
        "nan": spoilt,
        "whole": np.zeros((5, BITS), dtype=np.int64),
        "text": np.array(["a", "b"]),
        "objects": np.array([{}, 1], dtype=object),
        "weights": np.ones(BITS),
        "weights63": np.ones(BITS - 1),
        "weights-nan": np.full(BITS, np.nan),
        "table": np.zeros((BITS, 2)),
        "table3": np.zeros((BITS, 3)),
        "table-inf": np.full((BITS, 2), np.inf),
        "code7": np.zeros(7, dtype=np.uint8),
    }
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    np.savez(directory / "other.npz", other=np.zeros(3))
    np.savez(directory / "half.npz", codes=codes[:2], payload_ends=np.array([1, 2], dtype=np.uint64))
    np.savez(directory / "ids3.npz", codes=codes[:5], ids=np.array([1, 2, 3]))
    np.savez(directory / "negative.npz", codes=codes[:2], ids=np.array([-1, 3]))
    np.savez(directory / "words.npz", codes=codes[:2], payload_ends=np.ones(2, dtype=np.uint64), payload_data=["a"])
    for name in ("junk.npy", "junk.npz", "junk.fvecs", "junk.encoder", "junk.txt", "junk.pem", "file"):
        (directory / name).write_bytes(b"junkjunk")
    (directory / "key.toml").write_text("max_q = 1")
    (directory / "syntax.toml").write_text("max_k = ")
    (directory / "type.toml").write_text("max_k = true")
    (directory / "value.toml").write_text('log_level = "loud"')


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with these files and a database ``db`` with four indexes: codes, vectors, kept vectors, empty."""
    directory = tmp_path_factory.mktemp("messages")
    write_files(directory)
    vectors = np.load(directory / "vectors.npy")
    with whamming.open(directory / "db") as database:
        database.create_index("docs", BITS).upsert(np.arange(100), np.load(directory / "codes.npy"))
        database.create_index("vecs", 32, encoder="lsh", dim=DIM).upsert(np.arange(100), vectors=vectors)
        kept = database.create_index("kept", encoder="sign", dim=DIM, keep_vectors="float16", metric="cosine")
        kept.upsert(np.arange(100), vectors=vectors)
        database.create_index("bare", 8)
    return directory


def facts(*words: str) -> tuple[str, ...]:
    return words


COMMANDS: list[tuple[int, str, tuple[str, ...]]] = [
    # create
    (2, "create", facts("NAME", "whamming create --help")),
    (2, "create x", facts("--bits", "--encoder")),
    (2, "create x --bits 0", facts("--bits", "0", "1 to 4096")),
    (2, "create x --bits 4097", facts("--bits", "4097", "1 to 4096")),
    (2, "create x --bits ten", facts("--bits", "ten", "whole number")),
    (1, "create a/b --bits 8", facts("a/b", "1 to 128")),
    (1, "create docs --bits 64", facts("docs", "already exists", "bits 64")),
    (1, "create docs --bits 32 --exist-ok", facts("docs", "already exists", "bits 64")),
    (1, "create kept --encoder sign --dim 16 --exist-ok", facts("kept", "already exists", "keep vectors float16")),
    (2, "create x --bits 8 --tables some", facts("--tables", "some", "single, multi or none")),
    (2, "create x --bits 8 --metric cosine", facts("--metric", "--encoder")),
    (2, "create x --bits 8 --keep-vectors int8", facts("--keep-vectors", "--encoder")),
    (2, "create x --bits 8 --dim 4", facts("--dim", "--encoder")),
    (2, "create x --encoder sign --dim 16 --bits 17", facts("--bits 17", "at most 16")),
    (2, "create x --encoder sign --dim 16 --metric cosine", facts("--metric", "--keep-vectors")),
    (2, "create x --encoder lsh --dim 16", facts("--encoder lsh", "--bits")),
    (2, "create x --encoder sign", facts("--encoder sign", "--dim")),
    (2, "create x --encoder itq --dim 16 --bits 8", facts("whamming import x FILE --encoder itq")),
    (1, "create x --encoder-file none", facts("none", "No such file")),
    (1, "create x --encoder-file junk.encoder", facts("junk.encoder", "encoder")),
    # import
    (1, "import docs none.npy", facts("none.npy", "No such file")),
    (1, "import docs junk.txt", facts("junk.txt", ".npz, .npy, .fvecs, .bvecs")),
    (1, "import docs junk.npy", facts("junk.npy", "codes")),
    (1, "import docs junk.npz", facts("junk.npz", "codes")),
    (1, "import docs junk.fvecs", facts("junk.fvecs", "8 bytes")),
    (1, "import docs short.npy", facts("[100, 7]", "[n, 8]")),
    (1, "import docs cube.npy", facts("[100, 8, 1]", "[n, 8]")),
    (1, "import docs text.npy", facts("text.npy", "uint8")),
    (1, "import docs objects.npy", facts("objects.npy", "numbers")),
    (1, "import docs whole.npy", facts("int64", "uint8")),
    (1, "import docs other.npz", facts("other.npz", "codes")),
    (1, "import docs half.npz", facts("half.npz", "payload_data")),
    (1, "import docs words.npz", facts("words.npz", "payload_data", "bytes")),
    (1, "import docs ids3.npz", facts("ids3.npz", "5", "[3]")),
    (1, "import docs negative.npz", facts("id -1", "row 0", "18446744073709551615")),
    (1, "import docs codes.npy --first-id 18446744073709551606", facts("18446744073709551606", "100")),
    (2, "import docs codes.npy --batch 0", facts("--batch", "0", "1 to 1000000")),
    (2, "import docs codes.npy --bits 8", facts("--bits", "--encoder")),
    (1, "import docs codes.npy --encoder lsh", facts("docs", "lsh", "leave --encoder out")),
    (1, "import new vectors.npy", facts("no index new", "docs")),
    (2, "import new vectors.npy --encoder lsh", facts("--encoder lsh", "--bits")),
    (2, "import new vectors.npy --encoder itq --bits 32", facts("--bits 32", "at most 16", "--encoder lsh")),
    (1, "import new few.npy --encoder itq --bits 16", facts("16 vectors", "17")),
    (1, "import new nan.npy --encoder sign", facts("row 3", "column 2", "finite")),
    (1, "import new other.npz --encoder sign", facts("other.npz", "vectors")),
    (1, "import vecs narrow.npy", facts("[100, 8]", "[n, 16]")),
    (1, "import vecs text.npy", facts("text.npy", "float32")),
    (2, "import vecs vectors.npy --codes --encoder lsh", facts("--encoder", "--codes")),
    (1, "import kept vectors.npy --codes", facts("--codes", "kept", "vectors")),
    # search
    (2, "search docs", facts("--code", "--like", "--vector")),
    (1, "search docs --code xy", facts("--code xy", "0-9 and a-f")),
    (1, "search docs --code ff", facts("--code", "2 hexadecimal digits", "16")),
    (1, "search docs --like 999", facts("--like 999", "docs")),
    (2, "search docs --like x", facts("--like", "x", "whole number")),
    (2, "search docs --like 1 -k 1.5", facts("-k", "1.5", "whole number")),
    (2, "search docs --like 1 -k -1", facts("-k", "-1", "0 to 2147483647")),
    (2, "search docs --like 1 -k 2147483648", facts("-k", "2147483648", "0 to 2147483647", "all")),
    (2, "search docs --like 1 --rerank foo", facts("--rerank", "foo", "exact")),
    (2, "search docs --like 1 --radius nan", facts("--radius", "nan", "number")),
    (2, "search docs --like 1 --plan hope", facts("--plan", "hope", "auto, probe or sweep")),
    (1, "search docs --like 1 --weights weights63.npy", facts("weights63.npy", "[63]", "[64]")),
    (1, "search docs --like 1 --weights weights-nan.npy", facts("bit 0", "finite")),
    (1, "search docs --like 1 --weights text.npy", facts("text.npy", "numbers")),
    (1, "search docs --like 1 --weights none.npy", facts("none.npy", "No such file")),
    (1, "search docs --like 1 --weights junk.txt", facts("junk.txt", ".npy")),
    (1, "search docs --like 1 --weights other.npz", facts("other.npz", "several arrays")),
    (1, "search docs --table table3.npy", facts("[64, 3]", "[64, 2]")),
    (1, "search docs --table table-inf.npy", facts("bit 0", "finite")),
    (2, "search docs --table table.npy --weights weights.npy", facts("--table", "--weights")),
    (1, "search docs --code-file code7.npy", facts("code7.npy", "7 values", "8 packed")),
    (1, "search docs --code-file codes.npy --row 100", facts("--row 100", "100 rows")),
    (1, "search docs --vector 1,2", facts("docs", "no encoder")),
    (2, "search vecs --vector 1,x", facts("--vector", "x", "0.5,-1,2")),
    (1, "search vecs --vector 1,2", facts("--vector", "2 components", "16")),
    (1, "search vecs --vector-file text.npy", facts("text.npy", "finite numbers")),
    (1, f"search vecs --vector {ONES} --rerank 2", facts("--rerank 2", "vecs", "--keep-vectors float16")),
    (1, f"search vecs --vector {ONES} --costs asymmetric", facts("--costs asymmetric", "inner")),
    (2, f"search vecs --vector {ONES} --weights weights.npy", facts("--weights", "--costs symmetric")),
    (1, f"search kept --vector {ONES} --rerank exact", facts("--rerank exact", "cosine", "l2")),
    (2, f"search kept --vector {ONES} --rerank 5 -k all", facts("--rerank 5", "-k K")),
    (2, f"search kept --vector {ONES} --rerank 5 --radius 3", facts("--rerank 5", "--radius")),
    (2, "search kept --like 1 --rerank 5", facts("--rerank 5", "--vector")),
    (2, "search docs --like 1 --costs inner", facts("--costs inner", "--vector")),
    # other commands
    (2, "get docs x", facts("x", "18446744073709551615", "FIRST-LAST")),
    (1, "get docs 999", facts("1 of 1 id", "docs", "999")),
    (2, "delete docs 0-2000", facts("--yes", "2,001 ids", "docs")),
    (2, "drop docs", facts("--yes", "docs", "100 items")),
    (1, "export docs new.txt", facts("new.txt", ".npz or .npy")),
    (1, "export docs junk.npz", facts("junk.npz", "--overwrite")),
    (1, "export docs /none/such.npz", facts("/none/such.npz", "No such file")),
    (1, "encoder docs out", facts("docs", "no encoder")),
    (1, "encoder vecs /none/such", facts("/none/such", "No such file")),
    (1, "bench bare", facts("bare", "no items")),
    (2, "bench docs --seconds x", facts("--seconds", "x", "greater than 0")),
]


def with_paths(words: Sequence[str], place: Path) -> list[str]:
    """Replace the names of files in a directory by their paths."""
    return [str(place / word) if (place / word).is_file() or word.startswith("none") else word for word in words]


@pytest.mark.parametrize(("code", "line", "words"), COMMANDS, ids=[line for _, line, _ in COMMANDS])
def test_invalid_commands(cli: Cli, place: Path, code: int, line: str, words: Sequence[str]) -> None:
    cli(*with_paths(line.split(" "), place), "--data", place / "db").refused(code, *words)


SERVING: list[tuple[int, str, tuple[str, ...]]] = [
    (2, "serve --listen 7777", facts("--listen 7777", "HOST:PORT")),
    (2, "serve --max-k 0", facts("--max-k 0", "1 to 2147483647")),
    (2, "serve --max-k many", facts("--max-k", "many", "whole number")),
    (2, "serve --slice-ms fast", facts("--slice-ms", "fast", "number")),
    (2, "serve --slice-ms nan", facts("--slice-ms nan", "0.05 to 1000")),
    (2, "serve --log-level loud", facts("--log-level loud", "debug, info, warning or error")),
    (2, "serve --workers 2 --data :memory:", facts("--workers 2", "directory")),
    (1, "serve --config none.toml", facts("none.toml", "No such file")),
    (1, "serve --config key.toml", facts("key.toml", "max_q", "max_k")),
    (1, "serve --config syntax.toml", facts("syntax.toml", "TOML")),
    (1, "serve --config type.toml", facts("max_k", "true", "whole number")),
    (1, "serve --config value.toml", facts("log_level", '"loud"', "debug, info, warning or error")),
    (2, "serve --tls-cert junk.pem", facts("--tls-cert", "key")),
    (2, "serve --tls-client-ca junk.pem", facts("--tls-client-ca", "key")),
    (1, "serve --tls-cert junk.pem --tls-key none.pem", facts("none.pem", "No such file")),
    (1, "serve --tls-cert junk.pem --tls-key junk.pem", facts("junk.pem", "PEM")),
    (2, "list --server here", facts("--server", "here", "HOST:PORT")),
    (2, "list --server http://here:7777", facts("http://here:7777", "HOST:PORT")),
    (2, "list --server here:70000", facts("here:70000", "HOST:PORT")),
    (2, "list --server here:1 --data there", facts("--server", "--data")),
    (2, "list --data there --tls", facts("--tls", "--data")),
    (2, "list --tls-cert junk.pem", facts("--tls-cert requires --tls-key")),
    (2, "list --tls-key junk.pem", facts("--tls-key requires --tls-cert")),
    (1, "list --tls-ca junk.pem", facts("junk.pem", "PEM")),
    (2, "list --timeout 0", facts("--timeout", "0", "greater than 0")),
    (1, "list --data none", facts("no database at", "whamming create NAME")),
    (2, "list --data http://127.0.0.1:7777", facts("http://127.0.0.1:7777", "--server 127.0.0.1:7777")),
    (2, "create x --bits 8 --data localhost:7777", facts("localhost:7777", "--server localhost:7777")),
    (1, "list --data file", facts("file is not a Whamming database: it is a file", "give the directory of")),
    (1, "verify --data file", facts("it is a file", "give the directory of a database")),
    (1, "restore file new", facts("it is a file", "give the directory of a database")),
    (1, "create x --bits 8 --data /proc/none", facts("/proc/none")),
    (2, "verify", facts("--data")),
    (2, "restore somewhere", facts("TO")),
    (1, "restore none elsewhere", facts("no backup at")),
]


@pytest.mark.parametrize(("code", "line", "words"), SERVING, ids=[line for _, line, _ in SERVING])
def test_invalid_servers_and_directories(
    cli: Cli, place: Path, code: int, line: str, words: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    cli(*with_paths(line.split(" "), place)).refused(code, *words)
