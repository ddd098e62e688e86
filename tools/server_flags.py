"""The flags of `vllm serve`, `sglang.launch_server` and `trtllm-serve`, from a checkout into data/flags/ENGINE.toml.

    python tools/server_flags.py vllm ~/vllm       # at the tag that the file names

Only what stands below the marker is written: the flags by group, and whether each takes no value, one or several. What
a flag is to a plan stands above it and is written by hand. Flags of the source that are new, or gone, are printed.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

DATA = Path(__file__).parents[1] / "src/inferometer/data/flags"
MARKER = "# ---- the engine's own flags, as tools/server_flags.py reads them from its source\n"
SOURCES = {
    "vllm": ["vllm/engine/arg_utils.py", "vllm/entrypoints/openai/cli_args.py"],
    "sglang": ["python/sglang/srt/server_args.py"],
    "trtllm": ["tensorrt_llm/commands/serve.py"],
}
_VALUES = ("switches", "one", "several")


class Flag(NamedTuple):
    """A flag with its other names: ``Flag("ParallelConfig", ["--tensor-parallel-size", "-tp"], "one")``"""

    group: str
    names: list[str]
    values: str  # switches, one or several


def flags_of(engine: str, root: Path) -> list[Flag]:
    """All flags of an engine's source, in its order."""
    trees = [ast.parse((root / path).read_text()) for path in SOURCES[engine]]
    reader = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[engine]
    return [flag for flag in reader(trees) if flag.names and flag.names[0].startswith("-")]


def _vllm(trees: list[ast.Module]) -> Iterator[Flag]:
    """``group.add_argument("--flag", "-f", **kwargs["field"])``: the field's type says what it takes."""
    types = {name: kind for tree in trees for _, name, kind in _fields(tree)}
    groups = {
        node.targets[0].id: _keyword(node.value, "title")
        for node in ast.walk(trees[0])
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_call(node.value, "_group")
    }
    for tree in trees:
        for call in _calls(tree, "add_argument"):
            names = [a.value for a in call.args if isinstance(a, ast.Constant)]
            if names:
                kind = types.get(names[0].lstrip("-").replace("-", "_"), "")
                group = groups.get(call.func.value.id, "other")  # type: ignore[attr-defined]
                yield Flag(group, names, _takes(kind, call))
    for owner, name, kind in _fields(trees[1]):
        yield Flag(owner, [f"--{name.replace('_', '-')}"], _takes(kind, None))


def _sglang(trees: list[ast.Module]) -> Iterator[Flag]:
    """``field: A[type, Arg(aliases=[…]), NS("group")]``, and some calls of ``add_argument``."""
    for owner, name, text in _fields(trees[0]):
        if owner != "ServerArgs" or not text.startswith("A[") or name.startswith("_"):
            continue
        group = re.search(r"NS\('([^']*)'\)", text)
        own = re.search(r"cli_name='(--[^']+)'", text)
        aliases = re.search(r"aliases=(\[[^\]]*\])", text)
        names = [own[1] if own else f"--{name.replace('_', '-')}", *(ast.literal_eval(aliases[1]) if aliases else [])]
        yield Flag(group[1] if group else "other", names, _takes(text[2:], None))
    for call in _calls(trees[0], "add_argument"):
        yield Flag("other", [a.value for a in call.args if isinstance(a, ast.Constant)], _takes("", call))


def _trtllm(trees: list[ast.Module]) -> Iterator[Flag]:
    """``@click.option("--flag", …)`` of the function `serve`."""
    for node in ast.walk(trees[0]):
        if isinstance(node, ast.FunctionDef) and node.name == "serve":
            for call in node.decorator_list:
                if isinstance(call, ast.Call) and _is_call(call, "option"):
                    names = [a.value for a in call.args if isinstance(a, ast.Constant) and a.value.startswith("-")]
                    yield Flag("serve", names, "switches" if _keyword(call, "is_flag") == "True" else "one")


def _fields(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Class, name and annotation of every annotated field."""
    for owner in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in owner.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield owner.name, node.target.id, ast.unparse(node.annotation)


def _takes(kind: str, call: ast.Call | None) -> str:
    action, nargs = (_keyword(call, "action"), _keyword(call, "nargs")) if call else ("", "")
    if re.match(r"(Optional\[)?bool\b(?! \| str)", kind) or re.search(
        "Boolean|store_true|StoreTrue|StoreConst", action
    ):
        return "switches"
    return "several" if re.match(r"(Optional\[)?(list|List|set)\[|str \| list", kind) or nargs == "+" else "one"


def _keyword(call: ast.expr, name: str) -> str:
    words = call.keywords if isinstance(call, ast.Call) else []
    value = next((word.value for word in words if word.arg == name), None)
    return str(value.value) if isinstance(value, ast.Constant) else "" if value is None else ast.unparse(value)


def _is_call(node: ast.expr, ending: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith(ending)


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.Call) and _is_call(n, name) and n.func.attr == name)  # type: ignore[attr-defined]


def as_toml(flags: Iterable[Flag]) -> str:
    """The part of the file below its marker."""
    groups: dict[str, dict[str, list[str]]] = {}
    known: set[str] = set()
    for flag in flags:
        if not known & set(flag.names):
            known |= set(flag.names)
            groups.setdefault(flag.group, {}).setdefault(flag.values, []).append(" ".join(flag.names))
    lines = [MARKER]
    for group, values in groups.items():
        lines.append(f'[flags."{group}"]\n')
        for kind in _VALUES:
            if kind in values:
                lines += [f"{kind} = [\n", *(f'    "{names}",\n' for names in values[kind]), "]\n"]
    return "".join(lines)


def known_flags(text: str) -> set[str]:
    """All names in a file: ``known_flags(path.read_text())  # {'--tensor-parallel-size', '-tp', …}``"""
    groups = tomllib.loads(text).get("flags", {}).values()
    return {name for group in groups for names in group.values() for line in names for name in line.split()}


def main(engine: str, root: str) -> None:
    """Write the file, and say what is new or gone."""
    path = DATA / f"{engine}.toml"
    before = path.read_text()
    after = before.partition(MARKER)[0] + as_toml(flags_of(engine, Path(root)))
    path.write_text(after)
    old, new = known_flags(before), known_flags(after)
    print(f"{len(new)} names; new: {sorted(new - old)}; gone: {sorted(old - new)}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
