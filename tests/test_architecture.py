"""The shape of the package: imports run one way, files stay small, names mean one thing, start-up is light."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from conftest import ROOT
from helpers.source_tree import (
    FILES,
    MODULES,
    SOURCE,
    absolute_imports,
    circles,
    classes,
    flags,
    functions,
    identifiers,
    imported,
    is_front_end,
    label,
    nodes,
    package,
    tree,
)

import inferometer
from inferometer.base import symbols

# The floors of the house, from the ground up: a package imports only from the lines before its own.
# In the last line each package may also import those to its left. docs/design.md shows the same lines.
LAYERS = [
    ["base"],  # knows nothing of language models
    ["specs"],  # what can be asked for, and on what
    ["network"],  # what a model computes
    ["costs"],  # how long one step takes
    ["inference"],  # one plan
    ["serving", "training"],  # requests over time; iterations
    ["sweep", "search", "sensitivity", "validation"],  # many plans; predicted against measured
    ["profiling", "bench"],  # real machines
    ["views", "web", "cli"],  # what people see
]
PACKAGES = [name for line in LAYERS for name in line]
ROOT_MODULES = ["__init__", "__main__"]
PUBLIC = [
    "BadFile",
    "BadValue",
    "Capacity",
    "InferometerError",
    "Outcome",
    "Report",
    "Search",
    "Sensitivity",
    "SessionSearch",
    "StepClock",
    "Sweep",
    "Trace",
    "TrainReport",
    "TrainingSearch",
    "TrainingSensitivity",
    "TrainingSweep",
    "UnknownName",
    "__version__",
    "analyze",
    "find_capacity",
    "metrics",
    "profile",
    "read_trace",
    "search",
    "sensitivity",
    "session_search",
    "simulate",
    "sweep",
    "synthetic",
    "train",
    "training_search",
    "training_sensitivity",
    "training_sweep",
    "validate",
]
HEAVY = [
    "torch",
    "pandas",
    "scipy",
    "transformers",
    "matplotlib",
    "huggingface_hub",
    "starlette",
    "uvicorn",
    "rich",
    "plotly",
    "pyarrow",
]

MAX_FILES = 344
MAX_LINES_OF_A_FILE = 500
GENERATED = ["specs.keywords"]  # nobody reads or edits these line by line
MAX_LINES_OF_A_FUNCTION = 60
MAX_FMT_SKIPS = 60

# What still breaks a rule. These lists only shrink: what is mended must be taken off.
KNOWN_CIRCLES: list[str] = []
LONG_FUNCTIONS: list[str] = []
DUPLICATE_MODULES: list[str] = []
DUPLICATE_CLASSES: list[str] = []
PRIVATE_WORDS: dict[str, int] = dict.fromkeys(("found", "asked", "words", "mine", "usual", "told"), 0)
SPELLED_FLAGS: dict[str, int] = {}  # beside the schema, which spells them, and nvidia-smi's own
_SPELL = {"specs.plan_args", "specs.command_args", "specs.train_args", "profiling.machine"}
_SPELL |= {"specs.server_command", "specs.server_flags"}
_SPELL |= {module for module in MODULES if module.startswith("search.launch.")}


def only_shrinks(now: Iterable[str] | Mapping[str, int], known: Iterable[str] | Mapping[str, int]) -> None:
    """Nothing new breaks the rule, and what is mended is off the list. Names, or names with how often each is there."""
    present, listed = Counter(now), Counter(known)
    assert not present - listed, "these are new"
    assert not listed - present, "these are mended: take them off the list"


# ------------------------------------------------------------------ imports


def may_import(name: str) -> set[str]:
    """``may_import("costs")  # {"base", "specs", "network"}``"""
    floor = next(floor for floor, line in enumerate(LAYERS) if name in line)
    left = LAYERS[-1][: LAYERS[-1].index(name)] if name in LAYERS[-1] else []
    return {other for line in LAYERS[:floor] for other in line} | set(left)


def test_the_tree_is_packages() -> None:
    assert len(LAYERS) <= 10 and len(PACKAGES) <= 16
    assert {path.parent.name for path in SOURCE.glob("*/*.py")} == set(PACKAGES)
    assert {path.name for path in SOURCE.iterdir() if path.is_file()} == {"__init__.py", "__main__.py", "py.typed"}


def test_tests_mirror_the_tree() -> None:
    folders = {path.name for path in (ROOT / "tests").iterdir() if list(path.glob("test_*.py"))}
    assert folders == set(PACKAGES)


def test_the_design_page_shows_the_layers() -> None:
    """One line per package, blank lines between the layers: ``costs/  step roofline …  # how long one step takes``."""
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    block = page.partition("## What lives where")[2].partition("```text\n")[2].partition("```")[0]
    shown = [[line.partition("#")[0].split() for line in group.splitlines()] for group in block.split("\n\n")]
    assert [[name.rstrip("/") for name, *_ in group] for group in shown] == LAYERS
    for name, *nouns in (line for group in shown for line in group):
        missing = [noun for noun in nouns if f"{name}{noun}".strip("/").replace("/", ".") not in MODULES]
        assert not missing, f"{missing} are not in {name}"


@pytest.mark.slow
def test_imports_run_one_way() -> None:
    """Also inside functions and for types alone."""
    wrong = [
        f"{module} imports {other}"
        for module, path in MODULES.items()
        if module not in ROOT_MODULES
        for other, name in imported(path)
        if package(other) not in {package(module), *may_import(package(module))}
        if (other, name) != ("__init__", "__version__")
    ]
    assert not wrong


def test_imports_within_the_package_are_relative() -> None:
    wrong = [label(path) for path in FILES if any(package(name) == "inferometer" for name in absolute_imports(path))]
    assert not wrong


def test_no_file_imports_itself_around_a_corner() -> None:
    """Imports inside functions and for types alone count, too."""
    only_shrinks(circles(), KNOWN_CIRCLES)


# ------------------------------------------------------------------ sizes


def test_there_are_few_files() -> None:
    assert len(FILES) <= MAX_FILES


def test_files_stay_small() -> None:
    sizes = {label(path): len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert not {name: size for name, size in sizes.items() if size > MAX_LINES_OF_A_FILE and name not in GENERATED}


def test_functions_stay_small() -> None:
    sizes = {f"{module}:{name}": size for module, path in MODULES.items() for name, size in functions(path)}
    only_shrinks((name for name, size in sizes.items() if size > MAX_LINES_OF_A_FUNCTION), LONG_FUNCTIONS)


def test_code_is_formatted() -> None:
    """``# fmt: skip`` is for tables of data."""
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    assert sum(text.count("# fmt: skip") for text in texts) <= MAX_FMT_SKIPS
    assert not any("# fmt: off" in text for text in texts)


# ------------------------------------------------------------------ names


def test_a_module_name_means_one_thing() -> None:
    """The front ends may repeat a name: ``cli/search.py`` is the face of ``search/search.py``."""
    names = Counter(
        module.rpartition(".")[2]
        for module, path in MODULES.items()
        if path.name != "__init__.py" and not is_front_end(module)
    )
    only_shrinks((name for name, times in names.items() if times > 1), DUPLICATE_MODULES)


def test_a_class_name_means_one_thing() -> None:
    names = Counter(name for path in FILES for name in classes(path))
    only_shrinks((name for name, times in names.items() if times > 1), DUPLICATE_CLASSES)


@pytest.mark.slow
def test_names_are_nouns_of_the_domain() -> None:
    names = Counter[str]()
    for path in FILES:
        names.update(identifiers(path))
    only_shrinks({word: names[word] for word in PRIVATE_WORDS}, PRIVATE_WORDS)


def test_only_front_ends_spell_flags() -> None:
    """The schema spells them; `search.launch` and `profiling.machine` write, `specs.server_*` read others' commands."""
    spelled = {module: flags(path) for module, path in MODULES.items() if not is_front_end(module)}
    only_shrinks({m: n for m, n in spelled.items() if m not in _SPELL}, SPELLED_FLAGS)


def test_what_is_public_is_documented() -> None:
    missing = []
    for module, path in MODULES.items():
        public = [n for n in tree(path).body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
        holders = [tree(path), *public]
        inner = [node for holder in holders for node in holder.body]
        named = [n for n in inner if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name[0] != "_"]
        missing += [f"{module}.{getattr(n, 'name', '')}" for n in (tree(path), *named) if not ast.get_docstring(n)]
    assert not missing


# ------------------------------------------------------------------ files and libraries


def used_names(module: str) -> set[str]:
    """Every variable, attribute and imported name of a module."""
    return set(identifiers(MODULES[module])) | absolute_imports(MODULES[module])


def test_shipped_data_is_read_in_one_place() -> None:
    readers = {module for module in MODULES if {"__file__", "DATA", "tomllib"} & used_names(module)}
    assert readers == {"base.files", "specs.catalog", "costs.kernels.registry"}


def test_users_files_are_read_where_their_noun_lives() -> None:
    readers = {module for module in MODULES if {"open", "read_text", "read_bytes"} & used_names(module)}
    below = {module for module in readers if package(module) not in ("profiling", "views", "web")}
    below -= {"cli.streams"}  # opens nothing but /dev/null
    assert below == {"base.files", "base.input_file", "specs.catalog", "costs.kernels.registry"}


def test_heavy_libraries_are_imported_where_they_are_needed() -> None:
    wrong = []
    for module, path in MODULES.items():
        for node in tree(path).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            heavy = {package(name) for name in names} & set(HEAVY)
            if heavy:
                wrong.append(f"{heavy} at the top of {module}")
    assert not wrong


def test_nothing_evaluates_text() -> None:
    """But a program of formulas, of whose text not even a name comes from anywhere else."""
    for path in FILES:
        calls = [n.func for n in nodes(path) if isinstance(n, ast.Call)]
        evaluating = {f.id for f in calls if isinstance(f, ast.Name)} & {"eval", "exec", "compile"}
        assert evaluating <= ({"exec"} if label(path) == "base.symbols" else set()), label(path)
    hostile = symbols.names
    text = symbols.source_text(
        symbols.Program([getattr(hostile, "__import__('os')") * 3 + symbols.ceil(hostile.x / 7)])
    )
    assert re.fullmatch(r"(def compiled|return|if|else|and|ceil|[vc]\d+|0\.0|[\s()\[\],:=+*/<>-])+", text), text


# ------------------------------------------------------------------ the public face


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran


def test_the_public_face() -> None:
    assert sorted(inferometer.__all__) == sorted(PUBLIC)
    assert all(getattr(inferometer, name) is not None for name in PUBLIC)


def test_lazy_names_are_what_type_checkers_see() -> None:
    checked = next(
        n for n in tree(MODULES["__init__"]).body if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test)
    )
    seen = {a.asname: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert seen == inferometer._LAZY


@pytest.mark.slow
def test_public_functions_stay_callable_beside_packages_of_the_same_name() -> None:
    """Importing ``inferometer.search.space`` must not make ``inferometer.search`` a package."""
    inner = [module for module in MODULES if package(module) in PUBLIC and module.count(".") == 1]
    assert {package(module) for module in inner} == {"search", "sensitivity", "sweep"}
    python(
        "import importlib, inferometer\n"
        f"for module in {inner}: importlib.import_module('inferometer.' + module)\n"
        "verbs = [getattr(inferometer, name) for name in inferometer.__all__ if name.islower() and name[0] != '_']\n"
        "assert len(verbs) > 10 and all(map(callable, verbs)), verbs"
    )


def test_analyze_as_json_loads_nothing_heavy() -> None:
    ran = python(
        "import atexit, json, sys\n"
        "atexit.register(lambda: print(json.dumps(sorted(m for m in sys.modules if '.' not in m)), file=sys.stderr))\n"
        "from inferometer.cli import main\n"
        "main(['analyze', 'llama-3.1-8b', '--gpu', 'h200', '--json'])\n"
    )
    assert json.loads(ran.stdout)["feasible"]
    assert not set(json.loads(ran.stderr.splitlines()[-1])) & {*HEAVY, "numpy"}


def test_errors_are_a_family() -> None:
    for name in ("BadFile", "BadValue", "UnknownName"):
        assert issubclass(getattr(inferometer, name), inferometer.InferometerError)
    assert issubclass(inferometer.InferometerError, Exception)
