"""The build backend: generates the cffi bindings and the protobuf modules, then calls setuptools.

``pyproject.toml`` names this module, so ``pip install .`` needs no ``setup.py``. The declarations of a binding are read
from its C header, not copied by hand: everything except comments and preprocessor lines.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc_tools
from cffi import FFI
from grpc_tools import protoc
from setuptools import build_meta
from setuptools.build_meta import *

NATIVE = Path(__file__).resolve().parent
PROTOS = NATIVE.parent / "protos"
GOOGLE_PROTOS = Path(grpc_tools.__file__).parent / "_proto"
"""Folder of ``google/protobuf/*.proto``, part of grpcio-tools."""

BINDINGS = {"_engine": "engine/whamming.h", "_lab": "lab/lab.h"}
"""Module name within ``whamming.native`` -> the header that declares it."""


def declarations(header: Path) -> str:
    """Return the declarations of a C header, without preprocessor lines and comments."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def write_bindings() -> None:
    """Write ``native/_*.c`` if the header or this file is newer."""
    for module, header in BINDINGS.items():
        source = NATIVE / header
        target = NATIVE / f"{module}.c"
        newest = max(source.stat().st_mtime, Path(__file__).stat().st_mtime)
        if target.exists() and target.stat().st_mtime >= newest:
            continue
        ffi = FFI()
        ffi.cdef(declarations(source))
        ffi.set_source(f"whamming.native.{module}", f'#include "{source.name}"')
        ffi.emit_c_code(str(target))


def write_messages() -> None:
    """Write ``protos/whamming/v1/*_pb2*.py`` if a proto or this file is newer."""
    sources = sorted(PROTOS.glob("whamming/v1/*.proto"))
    targets = [source.with_name(f"{source.stem}_pb2{end}") for source in sources for end in (".py", ".pyi", "_grpc.py")]
    newest = max(path.stat().st_mtime for path in (*sources, Path(__file__)))
    if all(target.exists() and target.stat().st_mtime >= newest for target in targets):
        return
    outputs = [f"--{kind}_out={PROTOS}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main(["protoc", f"-I{PROTOS}", f"-I{GOOGLE_PROTOS}", *outputs, *map(str, sources)]) != 0:
        raise SystemExit("protoc failed; see its messages above")


def generate() -> None:
    """Generate all files that setuptools needs."""
    write_bindings()
    write_messages()


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """Build a wheel (PEP 517)."""
    generate()
    return str(build_meta.build_wheel(*args, **kwargs))


def build_editable(*args: Any, **kwargs: Any) -> str:
    """Build an editable wheel (PEP 660)."""
    generate()
    return str(build_meta.build_editable(*args, **kwargs))


def build_sdist(*args: Any, **kwargs: Any) -> str:
    """Build a source distribution (PEP 517)."""
    generate()
    return str(build_meta.build_sdist(*args, **kwargs))
