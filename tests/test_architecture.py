"""The shape of the package: imports run one way, files stay small, the public face is fixed, start-up is light."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import inferometer

SOURCE = Path(inferometer.__file__).parent

# The floors of the house, from the ground up: a package imports only from lines above its own.
LAYERS = [
    ["base"],  # knows nothing of language models
    ["specs"],  # what can be asked for, and on what
    ["network"],  # what a model computes
    ["costs"],  # how long one step takes
    ["inference"],  # one plan
    ["serving", "training"],  # requests over time; iterations
    ["sweep", "search", "sensitivity", "validation"],  # many plans; predicted against measured
    ["profiling", "bench"],  # real machines
    ["views", "web", "cli"],  # what people see, each on top of the one before
]
PLACE = {name: (floor, name in ("web", "cli"), name == "cli") for floor, group in enumerate(LAYERS) for name in group}
PUBLIC = {
    "BadFile",
    "BadValue",
    "Capacity",
    "InferometerError",
    "Outcome",
    "Report",
    "Sensitivity",
    "Sweep",
    "Trace",
    "TrainReport",
    "UnknownName",
    "__version__",
    "analyze",
    "find_capacity",
    "metrics",
    "profile",
    "read_trace",
    "sensitivity",
    "simulate",
    "Search",
    "search",
    "sweep",
    "synthetic",
    "train",
    "validate",
}
HEAVY = {
    "torch",
    "pandas",
    "scipy",
    "transformers",
    "matplotlib",
    "huggingface_hub",
    "litestar",
    "uvicorn",
    "rich",
    "plotly",
    "pyarrow",
    "joblib",
}
FILES = sorted(SOURCE.rglob("*.py"))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def label(path: Path) -> str:
    """``models/llama.py`` is ``models.llama``, ``models/__init__.py`` is ``models``."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


MODULES = {label(path): path for path in FILES}


def imports(path: Path, *, lazy: bool) -> set[str]:
    """The modules of this package that a file imports, also inside functions if ``lazy``; not those for types alone."""
    package = list(path.relative_to(SOURCE).parts[:-1])
    checking = {
        inner
        for node in ast.walk(tree(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree(path)) if lazy else tree(path).body:
        if not isinstance(node, ast.ImportFrom) or not node.level or node in checking:
            continue
        base = package[: len(package) + 1 - node.level] + (node.module.split(".") if node.module else [])
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            found.add(whole if whole in MODULES else ".".join(base) or "__init__")
    return found - {label(path)}


def room(module: str) -> str:
    return module.partition(".")[0]


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    assert room(module) in PLACE, f"give {room(module)!r} its place in LAYERS"
    for other in imports(MODULES[module], lazy=True):
        if room(other) != room(module):
            assert PLACE[room(other)] < PLACE[room(module)], (
                f"{module} imports {other}, which stands above or beside it"
            )


def test_layers_name_what_exists() -> None:
    assert set(PLACE) == {room(module) for module in MODULES}
    assert len(PLACE) == sum(map(len, LAYERS)), "a module has one place"


def test_no_file_imports_itself_around_a_corner() -> None:
    edges = {module: imports(path, lazy=False) & set(MODULES) for module, path in MODULES.items()}
    free = set(MODULES)
    while free:
        leaves = {module for module in free if not edges[module] & free}
        assert leaves, f"a circle of imports among {sorted(free)}"
        free -= leaves


def test_the_public_face() -> None:
    assert set(inferometer.__all__) == PUBLIC and len(inferometer.__all__) == len(PUBLIC)
    assert all(getattr(inferometer, name) is not None for name in PUBLIC)


@pytest.mark.parametrize("path", FILES, ids=label)
def test_files_stay_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", FILES, ids=label)
def test_what_is_public_is_documented(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "a file says what it is about"
    holders = [
        tree(path),
        *(node for node in tree(path).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"),
    ]
    for holder in holders:
        for node in holder.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{label(path)}.{node.name} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_shipped_data_is_read_in_one_place(path: Path) -> None:
    readers = {"catalog", "files", "profiles"}
    code = [
        node
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute | ast.Name | ast.Import | ast.ImportFrom)
    ]
    used = {
        node.attr if isinstance(node, ast.Attribute) else node.id
        for node in code
        if isinstance(node, ast.Attribute | ast.Name)
    }
    taken = {alias.name for node in code if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
    if room(label(path)) not in readers:
        assert not {"__file__", "DATA"} & used, "the folder of data is the catalogue's"
        assert not {"tomllib", "DATA"} & taken
    if room(label(path)) not in readers | {"views", "measure", "sheets"}:  # files of the user
        assert not {"open", "read_text", "read_bytes"} & used, "files are read by the catalogue, and written by views"


@pytest.mark.parametrize("path", FILES, ids=label)
def test_heavy_libraries_are_imported_where_they_are_needed(path: Path) -> None:
    for node in tree(path).body:
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        heavy = {name.partition(".")[0] for name in names} & HEAVY
        assert not heavy - {"rich"} and (not heavy or room(label(path)) == "views"), (
            f"{heavy} at the top of {label(path)}"
        )


def test_nothing_evaluates_text() -> None:
    for path in FILES:
        calls = {
            node.func.id
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        assert not calls & {"eval", "exec", "compile"}, label(path)


def test_analyze_as_json_loads_nothing_heavy() -> None:
    code = (
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(m for m in sys.modules if '.' not in m)), file=sys.stderr))\n"
        "from inferometer.cli import main\n"
        "main(['analyze', 'llama-3.1-8b', '--gpu', 'h200', '--json'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["feasible"]
    assert not set(json.loads(ran.stderr.splitlines()[-1])) & HEAVY


def test_errors_are_a_family() -> None:
    for name in ("BadFile", "BadValue", "UnknownName"):
        assert issubclass(getattr(inferometer, name), inferometer.InferometerError)
    assert issubclass(inferometer.InferometerError, Exception)
