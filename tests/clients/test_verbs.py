"""Every client implements ``storage/verbs.py``: the same methods, parameters, defaults and documentation."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whamming
from whamming import aio, blocking
from whamming.remote import async_verbs
from whamming.storage import Search, StoredIndex, verbs

GENERATOR = Path(__file__).parents[2] / "clients" / "generate.py"
CLASSES: dict[str, tuple[type, type, type, type]] = {
    "Database": (verbs.DatabaseVerbs, whamming.Database, aio.Database, blocking.RemoteDatabase),
    "Index": (verbs.IndexVerbs, StoredIndex, aio.Index, blocking.RemoteIndex),
    "Search": (verbs.SearchVerbs, Search, aio.Search, blocking.RemoteSearch),
}
IN_ASYNC = {"__enter__": "__aenter__", "__exit__": "__aexit__", "__iter__": "__aiter__", "__next__": "__anext__"}
CONSTRUCTORS = {"at"}
"""Public class methods that are not part of the declaration."""
FOR_THE_SERVER = {"begin_drop", "check_files", "encoding", "find_open", "refresh", "visiting", "write_once"}
"""Methods of local classes that only the server calls."""
FOR_THE_DATABASE = {"abandon", "copy_to", "pause", "read_encoder", "resume", "touch"}
"""Methods of local classes that only storage calls: to close and to open indexes, and to restore a backup."""


def declared(declaration: type) -> dict[str, Any]:
    """Return the methods and properties that a class declares, without those that Protocol adds."""
    text = inspect.getsource(declaration)
    return {name: member for name, member in vars(declaration).items() if f"def {name}(" in text}


def function(member: Any) -> Any:
    return member.fget if isinstance(member, property) else member


def each_verb() -> Iterator[Any]:
    for kind, (declaration, *followers) in CLASSES.items():
        for name, member in declared(declaration).items():
            for follower in followers:
                yield pytest.param(name, member, follower, id=f"{follower.__module__}-{kind}-{name}")


@pytest.mark.parametrize(("name", "member", "follower"), list(each_verb()))
def test_classes_implement_the_declaration(name: str, member: Any, follower: type) -> None:
    is_async = follower in (aio.Database, aio.Index, aio.Search)
    if is_async and name == "__len__":
        assert not hasattr(follower, "__len__"), "len() cannot be awaited; asyncio has count() instead"
        return
    own_name = IN_ASYNC.get(name, name) if is_async else name
    (definer,) = [base for base in follower.__mro__ if own_name in vars(base)][:1]
    assert not definer.__name__.endswith("Verbs"), f"{follower.__name__} does not define {own_name}"
    own = inspect.getattr_static(follower, own_name)
    expected, found = inspect.signature(function(member)), inspect.signature(function(own))
    assert list(found.parameters) == list(expected.parameters)
    for parameter, other in zip(found.parameters.values(), expected.parameters.values(), strict=True):
        assert (parameter.kind, parameter.default) == (other.kind, other.default)
    is_fetched = is_async and name == "encoder"
    assert isinstance(own, property) == (isinstance(member, property) and not is_fetched)
    documented = inspect.getdoc(member) or ""
    if is_async:  # the example is for blocking code
        documented = documented.partition("\n\n>>> ")[0]
    assert documentation(follower, own_name) == documented


def documentation(cls: type, name: str) -> str | None:
    """Return the docstring that ``help()`` and editors show: that of the first class that has one."""
    for base in cls.__mro__:
        member = vars(base).get(name)
        if member is not None and member.__doc__:
            return inspect.cleandoc(member.__doc__)
    return None


@pytest.mark.parametrize("kind", CLASSES)
def test_every_parameter_is_documented(kind: str) -> None:
    for name, member in declared(CLASSES[kind][0]).items():
        text = inspect.getdoc(member)
        assert text
        for parameter in inspect.signature(function(member)).parameters:
            assert parameter in ("self", "exc") or parameter in text, (
                f"the docstring of {name} does not mention {parameter}"
            )


@pytest.mark.parametrize("kind", CLASSES)
def test_every_public_method_of_local_classes_is_declared(kind: str) -> None:
    declaration, local, *_ = CLASSES[kind]
    public = {name for name, member in inspect.getmembers(local) if callable(member) and not name.startswith("_")}
    declared_names = {name for name in dir(declaration) if not name.startswith("_")}
    assert public - CONSTRUCTORS - FOR_THE_SERVER - FOR_THE_DATABASE <= declared_names


def test_generated_files_are_up_to_date() -> None:
    """If this fails after a change in storage/verbs.py, run make verbs."""
    spec = importlib.util.spec_from_file_location("generate", GENERATOR)
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    files = generate.generated()
    assert {path.name for path in files} == {"async_verbs.py", "blocking.py"}
    for path, text in files.items():
        written = path.read_text(encoding="utf-8")
        assert "generated by" in written.lower().splitlines()[0]
        assert meaning(written) == meaning(text), f"{path} is stale: run make verbs"


def meaning(text: str) -> list[str]:
    """Return the content of a module, independent of its layout and the order of its imports."""
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body[0] = ast.Expr(ast.Constant(ast.get_docstring(node)))
    imports = {
        (getattr(node, "module", ""), name.name, name.asname)
        for node in module.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    others = [ast.dump(node) for node in module.body if not isinstance(node, ast.Import | ast.ImportFrom)]
    return [*map(str, sorted(imports, key=str)), *others[1:]]


def test_async_declarations_are_coroutines() -> None:
    for kind in CLASSES:
        cls = getattr(async_verbs, f"Async{kind}Verbs")
        for name, member in declared(cls).items():
            if inspect.isfunction(member):
                at_once = (kind, name) in {("Index", "search"), ("Index", "scan"), ("Search", "close")}
                assert inspect.iscoroutinefunction(member) != (at_once or name == "__aiter__"), (kind, name)


def test_connect_is_the_same_in_both_clients() -> None:
    assert str(inspect.signature(aio.connect)).partition(" -> ")[0] == str(
        inspect.signature(blocking.connect)
    ).partition(" -> ")[0].replace("aio.", "")
    assert inspect.getdoc(aio.connect) == inspect.getdoc(blocking.connect)
