"""What does not fit in a file of figures, as a sentence: which key, what is allowed, what stands there.

explained({"memory": "96GB"}, Hardware)  # "`memory` must be a number in SI units, not '96GB': write 96e9"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import inspect

from .errors import abbreviate, nearest

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kKMGTP]|ms|us|µs|ns)(i?)[A-Za-z/]*\s*")
_POWER = {"ns": -9, "us": -6, "µs": -6, "ms": -3, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
_NAMES: dict[Any, str] = {
    inspect.FloatType: "a number",
    inspect.IntType: "a whole number",
    inspect.StrType: "text in quotes",
    inspect.BoolType: "true or false",
    inspect.NoneType: "nothing",
    inspect.DictType: "a table",
    inspect.StructType: "a table",
    inspect.ListType: "a list",
    inspect.VarTupleType: "a list",
    inspect.TupleType: "a list",
}
_BOUNDS = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}


def explained(data: Any, kind: Any, at: str = "") -> str:
    """The first thing that does not fit, or "" if all of it does: ``explained({"memory": "x"}, Hardware)``"""
    if _fits(data, kind):
        return ""
    shape = inspect.type_info(kind)
    items: Any = getattr(kind, "__args__", ())
    if isinstance(shape, inspect.UnionType):  # what was meant follows from whether it is a list, a table or neither
        alike = [member for member in items if isinstance(data, _container(inspect.type_info(member)))]
        if len(alike) == 1:
            return explained(data, alike[0], at)
    if isinstance(shape, inspect.StructType) and isinstance(data, Mapping):
        return _in_struct(data, shape, at)
    if isinstance(shape, inspect.DictType) and isinstance(data, Mapping):
        return _first(explained(value, items[1], _below(at, key)) for key, value in data.items())
    if isinstance(shape, inspect.ListType | inspect.VarTupleType) and isinstance(data, list | tuple):
        return _first(explained(value, items[0], f"{at}[{place}]") for place, value in enumerate(data))
    return f"`{at}` must be {_allowed(shape)}, not {abbreviate(data)}{_hint(data, shape)}"


def _in_struct(data: Mapping[str, Any], shape: inspect.StructType, at: str) -> str:
    fields = {field.encode_name: field for field in shape.fields}
    types = {field.encode_name: field.type for field in msgspec.structs.fields(shape.cls)}
    for key, value in data.items():
        if key not in fields:
            if not shape.cls.__struct_config__.forbid_unknown_fields:
                continue  # keys of others
            near = nearest(str(key), fields)
            tail = f"did you mean {' or '.join(near)}?" if near else f"allowed: {', '.join(fields)}"
            return f"`{_below(at, key)}` is not known; {tail}"
        wrong = explained(value, types[key], _below(at, key))
        if wrong:
            return wrong
    needed = [name for name, field in fields.items() if field.required]
    missing = [name for name in needed if name not in data]
    return f"`{_below(at, missing[0])}` is missing; needed: {', '.join(needed)}" if missing else ""


def _container(shape: Any) -> tuple[type, ...]:
    if isinstance(shape, inspect.StructType | inspect.DictType):
        return (Mapping,)
    return (list, tuple) if isinstance(shape, inspect.ListType | inspect.VarTupleType | inspect.TupleType) else ()


def _fits(data: Any, kind: Any) -> bool:
    try:
        msgspec.convert(data, kind)
    except msgspec.ValidationError:
        return False
    return True


def _first(sentences: Any) -> str:
    return next(filter(None, sentences), "")


def _below(at: str, key: object) -> str:
    return f"{at}.{key}" if at else str(key)


def _allowed(shape: Any) -> str:
    if isinstance(shape, inspect.UnionType):
        return " or ".join(map(_allowed, shape.types))
    if isinstance(shape, inspect.LiteralType):
        return " or ".join(map(repr, shape.values))
    bounds = {key: getattr(shape, key, None) for key in _BOUNDS}
    parts = [f" {_BOUNDS[key]} {bound:,.10g}" for key, bound in bounds.items() if bound is not None]
    return _NAMES.get(type(shape), "something else") + " and".join(parts)


def _hint(data: Any, shape: Any) -> str:
    """A size with its unit, as the number that it is: ``_hint("96GB", …)  # ' (SI units without a name: 96e9)'``"""
    match = _SIZE.fullmatch(data) if isinstance(data, str) and isinstance(shape, inspect.FloatType) else None
    if match is None:
        return ""
    number, prefix, binary = match.groups()
    power = _POWER[prefix]
    value = f"{float(number) * 2 ** (power // 3 * 10):.10g}" if binary and power > 0 else f"{number}e{power}"
    return f": without a unit it is {value}"
