"""Fields of a struct with what its source says of them: the comment beside a field is its meaning."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import tomllib
import typing
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple

import msgspec

from inferometer.specs.arguments import arguments
from inferometer.specs.plan_args import PlanArgs

MEANINGS = tomllib.loads((Path(__file__).parent / "meanings.toml").read_text(encoding="utf-8"))


class Field(NamedTuple):
    """One key: its name in files, its type, its default as text ("" where there is none), and what it means."""

    name: str
    kind: Any
    default: str
    meaning: str


def fields(struct: type) -> list[Field]:
    """``fields(Hardware)[0].name  # 'name'``; a comment in the source goes before the glossary of `meanings.toml`."""
    comments = _comments(struct)
    own = MEANINGS.get(struct.__name__, {})
    return [
        Field(
            known.encode_name,
            known.type,
            "" if known.required else _default(known),
            _sentence(own.get(known.name) or comments.get(known.name) or glossary(known.name)),
        )
        for known in _described(struct)
    ]


def glossary(name: str) -> str:
    """What a key means wherever it stands: its entry of `meanings.toml`, or the help of the argument of that name."""
    known = arguments(PlanArgs)
    return MEANINGS["keys"].get(name) or (known[name].help if name in known else "")


def _described(struct: type) -> list[Any]:
    """Names, types and defaults of a msgspec struct, of a named tuple or of a data class, in one form."""
    if issubclass(struct, msgspec.Struct):
        hints = typing.get_type_hints(struct)
        return [_Plain(f.name, f.encode_name, hints[f.name], f.required, f) for f in msgspec.structs.fields(struct)]
    hints, defaults = typing.get_type_hints(struct), getattr(struct, "_field_defaults", {})
    return [_Plain(name, name, kind, name not in defaults, defaults.get(name)) for name, kind in hints.items()]


class _Plain(NamedTuple):
    name: str
    encode_name: str
    type: Any
    required: bool
    default: Any


def _default(known: _Plain) -> str:
    value = known.default
    if isinstance(value, msgspec.structs.FieldInfo):
        value = value.default_factory() if value.default is msgspec.NODEFAULT else value.default  # type: ignore[misc]
    if value is None or isinstance(value, bool):
        return {True: "true", False: "false", None: "null"}[value]
    return _shown(value)


def _shown(value: Any) -> str:
    if value in ((), [], {}, ""):
        return {tuple: "[]", list: "[]", dict: "{}", str: '""'}[type(value)]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _sentence(text: str) -> str:
    """A comment in the words of files: ``_sentence("s per call; None: 0")  # 'Seconds per call; not set: 0.'``"""
    if not text:
        return ""
    text = re.sub(r"^s\b", "seconds", re.sub(r"\bNone\b", "not set", text.replace("False", "false")))
    begins_with_name = re.match(r"\w*[_\d]", text)
    return (
        (text[0] if begins_with_name else text[0].upper())
        + text[1:]
        + ("." if text[-1].isalnum() or text[-1] in ")]`\"'>" else "")
    )


@functools.cache
def _comments(struct: type) -> dict[str, str]:
    """The comment beside each field, or the comment lines right above it; of base classes, too."""
    texts: dict[str, str] = {}
    for base in reversed(struct.__mro__):
        if base.__module__.startswith("inferometer"):
            texts |= _own_comments(base)
    return texts


def _own_comments(struct: type) -> dict[str, str]:
    lines, _ = inspect.getsourcelines(struct)
    source = "".join(lines)
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            beside = lines[node.end_lineno - 1][node.end_col_offset :].strip() if node.end_lineno else ""
            above = []
            for line in reversed(lines[: node.lineno - 1]):
                if not line.strip().startswith("#"):
                    break
                above.insert(0, line.strip().lstrip("# "))
            texts[node.target.id] = beside.lstrip("# ") if beside.startswith("#") else " ".join(above)
    return texts


# ------------------------------------------------------------------ types


PLAIN = {str: "text", int: "integer", float: "number", bool: "boolean", type(None): "null", Any: "any"}


def kind_name(kind: Any, link: Any = None) -> str:
    """A type as people call it: ``kind_name(float | None)  # 'number or null'``; ``link`` names structs."""
    if kind in PLAIN:
        return PLAIN[kind]
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return " or ".join(dict.fromkeys(kind_name(one, link) for one in args))
    if origin is typing.Literal:
        return ", ".join(f"`{one}`" for one in args)
    if origin is typing.Annotated:
        return kind_name(args[0], link)
    if origin is dict:
        return f"table of {kind_name(args[1], link)}" if args[1] is not Any else "table"
    if origin in (list, tuple):
        inner = dict.fromkeys(kind_name(one, link) for one in args if one is not Ellipsis)
        return f"list of {' and '.join(inner)}"
    if isinstance(kind, type):
        return link(kind) if link and issubclass(kind, msgspec.Struct) else kind.__name__.replace("ndarray", "array")
    return str(kind)


def structs_of(kind: Any) -> list[type]:
    """The structs inside a type: ``structs_of(dict[str, Phase])  # [Phase]``"""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [kind]
    return [struct for one in typing.get_args(kind) for struct in structs_of(one)]
