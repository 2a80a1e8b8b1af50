"""The package exposes its public names and nothing else."""

from __future__ import annotations

import subprocess
import sys

import whamming


def test_dir_lists_only_public_names() -> None:
    names = dir(whamming)
    assert names == sorted(whamming.__all__)
    assert len(set(names)) == len(names)
    assert all(getattr(whamming, name) is not None for name in names)
    assert {"aio", "connect", "open", "Tls", "RemoteIndex", "StoredIndex", "LocalOnlyError"} <= set(names)
    assert not {"Any", "importlib", "version", "TYPE_CHECKING"} & set(names)


def test_other_names_do_not_exist() -> None:
    assert not hasattr(whamming, "no_such_name")
    assert not hasattr(whamming, "blocking_connect")


def test_names_are_listed_before_grpc_is_imported() -> None:
    script = (
        "import sys, whamming; names = dir(whamming); assert 'connect' in names and 'aio' in names; "
        "assert 'grpc' not in sys.modules; whamming.connect; assert 'grpc' in sys.modules; "
        "assert dir(whamming) == names"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
