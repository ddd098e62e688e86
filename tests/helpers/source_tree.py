"""The source of the package as data: its modules, who imports whom, and what is defined where."""

from __future__ import annotations

import ast
import gc
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import inferometer

SOURCE = Path(inferometer.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))
_NAMES = frozenset(("id", "attr", "arg", "name", "asname"))  # fields of nodes
FRONT_ENDS = ("views", "web", "cli")


def label(path: Path) -> str:
    """``costs/step.py`` is ``costs.step``, ``costs/__init__.py`` is ``costs``, the package's own is ``__init__``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {label(path): path for path in FILES}


@cache
def tree(path: Path) -> ast.Module:
    """The parsed file."""
    gc.disable()  # all of it is kept: looking for garbage would take longer than reading
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        gc.freeze()
        gc.enable()


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every node of the parsed file."""
    return list(ast.walk(tree(path)))


def package(module: str) -> str:
    """``package("costs.kernels.fitted")  # "costs"``"""
    return module.partition(".")[0]


def is_front_end(module: str) -> bool:
    """Whether people see what the module makes."""
    return package(module) in FRONT_ENDS


@cache
def imported(path: Path) -> list[tuple[str, str]]:
    """Each ``(module, name)`` of this package that a file imports: at the top, in functions and for types alone."""
    folder = list(path.relative_to(SOURCE).parts[:-1])
    pairs = []
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) + 1 - node.level] + (node.module.split(".") if node.module else [])
            for alias in node.names:
                submodule = ".".join([*base, alias.name])
                pairs.append((submodule, "") if submodule in MODULES else (".".join(base) or "__init__", alias.name))
    return pairs


@cache
def absolute_imports(path: Path) -> set[str]:
    """The names after ``import`` or ``from`` that do not begin with a dot."""
    names = {alias.name for node in nodes(path) if isinstance(node, ast.Import) for alias in node.names}
    return names | {str(node.module) for node in nodes(path) if isinstance(node, ast.ImportFrom) and not node.level}


def circles() -> set[str]:
    """The modules that import themselves around some corner."""
    edges = {module: {other for other, _ in imported(path)} - {module} for module, path in MODULES.items()}

    def reachable(module: str) -> set[str]:
        seen: set[str] = set()
        todo = list(edges[module])
        while todo:
            other = todo.pop()
            if other not in seen:
                seen.add(other)
                todo += edges[other]
        return seen

    return {module for module in MODULES if module in reachable(module)}


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """``("Engine.step", 42)``: each function and method of a file, and how many lines it has."""

    def walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, int]]:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):  # of statements; expressions define none
            inner_nodes = getattr(node, field, ())
            for inner in inner_nodes if isinstance(inner_nodes, list) else ():
                name = prefix
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    name = f"{prefix}.{inner.name}".lstrip(".")
                    if not isinstance(inner, ast.ClassDef):
                        yield name, (inner.end_lineno or 0) - inner.lineno + 1
                yield from walk(inner, name)

    return walk(tree(path), "")


def classes(path: Path) -> Iterator[str]:
    """The names of the classes in a file."""
    return (node.name for node in nodes(path) if isinstance(node, ast.ClassDef))


@cache
def identifiers(path: Path) -> Counter[str]:
    """How often each name is written: variables, arguments, attributes, functions and imports."""
    names: Counter[str] = Counter()
    for node in nodes(path):
        for field in _NAMES.intersection(node._fields):
            value = getattr(node, field)
            if isinstance(value, str):
                names[value] += 1
    return names


def flags(path: Path) -> int:
    """How many strings, docstrings aside, spell a flag such as ``--batch-size``."""
    docstrings = {
        id(node.value) for node in nodes(path) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    texts = [
        node.value
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
    ]
    return sum(bool(re.search(r"(?<![\w-])--[a-z]", text)) for text in texts)
