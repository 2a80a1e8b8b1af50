"""The build backend: setuptools, after writing the C side of the cffi bindings.

``pyproject.toml`` names this module, so that ``pip install .`` needs no ``setup.py``. A binding's declarations are read
from the C header that is the engine's contract, not copied by hand: whatever is not a preprocessor line is declared.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cffi import FFI
from setuptools import build_meta
from setuptools.build_meta import *

NATIVE = Path(__file__).resolve().parent

BINDINGS = {"_engine": "engine/whamming.h", "_lab": "lab/lab.h"}
"""Module name within ``whamming.native`` -> the header that declares it."""


def declarations(header: Path) -> str:
    """Return what a C header declares, without preprocessor lines and comments."""
    text = re.sub(r"/\*.*?\*/", "", header.read_text(encoding="utf-8"), flags=re.DOTALL)
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def write_bindings() -> None:
    """Write ``native/_*.c`` where the header or this file is newer."""
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


def build_wheel(*args: Any, **kwargs: Any) -> str:
    """Build a wheel (PEP 517)."""
    write_bindings()
    return str(build_meta.build_wheel(*args, **kwargs))


def build_editable(*args: Any, **kwargs: Any) -> str:
    """Build an editable wheel (PEP 660)."""
    write_bindings()
    return str(build_meta.build_editable(*args, **kwargs))


def build_sdist(*args: Any, **kwargs: Any) -> str:
    """Build a source distribution (PEP 517)."""
    write_bindings()
    return str(build_meta.build_sdist(*args, **kwargs))
