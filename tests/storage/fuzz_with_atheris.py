"""The child process of the file fuzzer if atheris is installed: imports the code under test with coverage counters."""

from __future__ import annotations

import importlib
import sys

INSTRUMENTED = ["whamming", "zipfile", "numpy.lib", "json", "tomllib"]
"""Packages whose coverage guides the fuzz. The engine in C is not among them: ``make fuzz`` is for it."""

if __name__ == "__main__":
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=INSTRUMENTED):
        main = importlib.import_module("tests.storage.fuzz_files").main
    sys.exit(main(sys.argv[1:]))
