"""The examples in docstrings work as printed."""

from __future__ import annotations

import doctest
from types import ModuleType
from typing import Any

import pytest

from whamming import storage
from whamming.storage import verbs

CLASSES = (verbs.DatabaseVerbs, verbs.IndexVerbs, verbs.SearchVerbs)
METHODS = [
    pytest.param(declared, name, id=f"{declared.__name__}.{name}")
    for declared in CLASSES
    for name, member in vars(declared).items()
    if ">>>" in (getattr(member, "__doc__", None) or "")
]


def run_example(text: str, name: str, variables: dict[str, Any]) -> None:
    """Run an example. Variables that it assigns are added to ``variables``."""
    example = doctest.DocTestParser().get_doctest(text, variables, name, None, None)
    runner = doctest.DebugRunner(verbose=False)  # raises on the first difference
    example.globs = variables
    runner.run(example, clear_globs=False)
    assert runner.tries > 0


def test_most_verbs_have_an_example() -> None:
    assert len(METHODS) >= 15


@pytest.mark.parametrize(("declared", "name"), METHODS)
def test_the_example_of_a_verb_continues_that_of_its_class(declared: type, name: str) -> None:
    variables: dict[str, Any] = {}
    run_example(declared.__doc__ or "", declared.__name__, variables)
    run_example(getattr(declared, name).__doc__, f"{declared.__name__}.{name}", variables)


@pytest.mark.parametrize("module", [storage])
def test_the_examples_of_a_module(module: ModuleType) -> None:
    run_example(module.__doc__ or "", module.__name__, {})
