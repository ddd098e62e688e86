"""Arguments as data: what a field of a group says of itself, values checked against it, signatures made from it.

A group is a struct (`plan_args.py`, `command_args.py`, `train_args.py`) whose fields carry type, bounds, unit, default
and description. From the fields come the options of the command line and their groups, the controls of the page, the
axes of a sweep, the checks of values, the tables in docs/flags.md, and the signatures of the public functions
(`keywords.py` has them for type checkers; ``make schema`` writes it and a test compares).

    arguments(PlanArgs)["batch_size"].le              # 10000000
    checked(PlanArgs, {"batch_size": 8}).batch_size    # 8; a wrong name, type or size is one sentence
"""

from __future__ import annotations

import functools
import operator
import os
import re
import types
from collections.abc import Callable, Collection, Mapping
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, Union, get_args, get_origin

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate, check_fraction, check_int, check_positive, is_number


class Slider(NamedTuple):
    """How far a control of the page moves: ``Slider(1, 1024, "x2")`` doubles; values beyond can be typed."""

    least: float
    most: float
    step: float | str


class Argument(NamedTuple):
    """One argument of a command, a function and the page."""

    name: str
    group: str
    help: str
    annotation: Any
    default: Any = None  # None: what `default_text` says
    kind: str = "text"  # int, float, switch or text
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    ends: str = ""  # what the ends of a range mean: "0 (none) and 1 (all)"
    choices: tuple[str, ...] = ()  # nothing else is allowed
    offered: str | tuple[str, ...] = ()  # what a form offers, or the list of the catalogue that has it; more is allowed
    default_text: str = ""  # "the engine's": a default that is no value
    short: str = ""  # "-tp"
    metavar: str = ""
    label: str = ""  # on the page; an argument without one has no control there
    unit: str = ""
    slider: Slider | None = None
    several: bool = False  # may be repeated on the command line
    secret: bool = False  # never shown, never an axis
    forms: int = 1  # types that it takes; an argument of several is parsed, and checked, by its owner

    @property
    def flag(self) -> str:
        """``--batch-size``"""
        return flag(self.name)


class Args(msgspec.Struct, kw_only=True):
    """Base of all groups; ``GROUP`` is the heading under which --help, the page and the docs show the fields."""

    GROUP: ClassVar[str] = ""


Group = TypeVar("Group", bound=Args)
Function = TypeVar("Function", bound=Callable[..., Any])


def arg(help: str, *, ge: float | None = None, gt: float | None = None, le: float | None = None, **more: Any) -> Any:
    """What stands on a field: bounds and description in msgspec's words, the rest as fields of `Argument`."""
    bounds: dict[str, Any] = {"ge": ge, "gt": gt, "le": le}
    return msgspec.Meta(description=help, extra=more, **bounds)


def flag(name: str) -> str:
    """How the command line spells an argument: ``flag("batch_size")  # '--batch-size'``"""
    return "MODEL" if name == "model" else f"--{name.replace('_', '-')}"


@functools.cache
def arguments(group: type[Args]) -> dict[str, Argument]:
    """The arguments of a group by name, in order; of a group of groups, one group after the other."""
    owners = {
        name: owner for owner in reversed(group.__mro__) if issubclass(owner, Args) for name in get_annotations(owner)
    }
    defaults = dict(zip(group.__struct_fields__, group.__struct_defaults__, strict=True))
    return {name: _argument(name, owners[name], defaults[name]) for name in group.__struct_fields__}


def _argument(name: str, owner: Any, default: Any) -> Argument:
    """A field as data: its own note, and the bounds of the type inside ``Annotated[int, …] | None``."""
    annotation = owner.__annotations__[name]
    assert not isinstance(annotation, str), f"{owner.__module__} must do without postponed annotations"
    notes = [annotation.__metadata__[0]] if get_origin(annotation) is Annotated else []
    inner = get_args(annotation)[0] if notes else annotation
    members = get_args(inner) if get_origin(inner) in (Union, types.UnionType) else (inner,)
    plain = []
    for member in members:
        if get_origin(member) is Annotated:
            notes.append(member.__metadata__[0])
            member = get_args(member)[0]
        if member is not type(None):
            plain.append(member)
    bounds: dict[str, Any] = {
        key: next((v for n in notes if (v := getattr(n, key)) is not None), None) for key in ("ge", "gt", "le")
    }
    more: dict[str, Any] = dict(notes[0].extra or {})
    kind = more.pop(
        "kind", {bool: "switch", int: "int", float: "float"}.get(plain[0], "text") if len(plain) == 1 else "text"
    )
    bare = (get_args(member)[0] if get_origin(member) is Annotated else member for member in members)
    shown = functools.reduce(operator.or_, bare)
    return Argument(name, owner.GROUP, notes[0].description, shown, default, kind, forms=len(plain), **bounds, **more)


def check_names(group: type[Args], given: Mapping[str, Any], *more: str) -> None:
    """Refuse keywords that the group has not: ``unknown argument 'batchsize'; did you mean batch_size?``"""
    known = arguments(group)
    for name in given:
        if name not in known and name not in more:
            raise UnknownName("argument", name, [*known, *more])


def checked(group: type[Group], given: Mapping[str, Any]) -> Group:
    """The group with the values given, each checked; None is the same as not given."""
    check_names(group, given)
    known = arguments(group)
    return group(**{name: check_value(known[name], value) for name, value in given.items() if value is not None})


def check_value(argument: Argument, value: Any) -> Any:
    """The value, if its type, bounds and choices allow it; arguments of several forms are parsed by their owners."""
    name, kind = argument.name, argument.kind
    if argument.forms > 1:
        return value
    if kind == "switch":
        if not isinstance(value, bool):
            raise BadValue(f"`{name}` must be True or False, not {abbreviate(value)}")
    elif kind == "int" and argument.ge is not None:
        return check_int(name, value, int(argument.ge), int(argument.le if argument.le is not None else 10**9))
    elif kind == "float":
        return _check_float(argument, value)
    elif kind == "text" and not isinstance(value, str | os.PathLike):
        raise BadValue(f"`{name}` must be text, not {abbreviate(value)}")
    elif argument.choices and value not in argument.choices:
        raise UnknownName(f"`{name}`", value, argument.choices)
    return value


def _check_float(argument: Argument, value: Any) -> float:
    if argument.ends and argument.le == 1:
        return check_fraction(argument.name, value, argument.ends)
    if argument.gt == 0:
        check_positive(argument.name, value, argument.le if argument.le is not None else 1e15)
    elif argument.ends and (not is_number(value) or not argument.ge <= value < argument.le):
        raise BadValue(f"`{argument.name}` must be between {argument.ends}, not {abbreviate(value)}")
    elif argument.ge is not None and not argument.ends:
        most = argument.le if argument.le is not None else 1e15
        if not is_number(value) or not argument.ge <= value <= most:
            raise BadValue(
                f"`{argument.name}` must be a number from {argument.ge:g} to {most:g}, not {abbreviate(value)}"
            )
    return float(value) if is_number(value) else value


def signature(*groups: type[Args]) -> Callable[[Function], Function]:
    """Show the arguments of some groups in the signature of a function that takes them as ``**kwargs``.

    ``@signature(PlanArgs)`` makes ``help(analyze)`` list every keyword with its type and default. A function without
    ``**kwargs`` refuses a wrong keyword as the others do: ``unknown argument 'column'; did you mean columns?``
    """

    def decorate(function: Function) -> Function:
        from inspect import Parameter
        from inspect import signature as written

        own = written(function)
        kept = [p for p in own.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
        named = {a.name: a for group in reversed(groups) for a in arguments(group).values()}
        added = [
            Parameter(a.name, Parameter.KEYWORD_ONLY, default=a.default, annotation=a.annotation)
            for a in named.values()
            if a.name not in own.parameters
        ]
        function.__signature__ = own.replace(parameters=[*kept, *added])  # type: ignore[attr-defined]
        if function.__doc__:  # python -OO has none
            described = [named.get(name) for name in function.__signature__.parameters]  # type: ignore[attr-defined]
            lines = (f"        {keyword_line(argument, named)}" for argument in described if argument is not None)
            text = "\n".join(lines)
            function.__doc__ = (
                f"{function.__doc__.rstrip()}\n\n    Keywords:\n{text}\n    " if text else function.__doc__
            )
        return function if kept != [*own.parameters.values()] else _closed(function)

    return decorate


def _closed(function: Function) -> Function:
    """A function that takes no other keywords than its own."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount + function.__code__.co_kwonlyargcount]

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            if name not in names:
                raise UnknownName("argument", name, names)
        return function(*args, **kwargs)

    return wrapper  # type: ignore[return-value]


def keyword_line(argument: Argument, known: Collection[str]) -> str:
    """A line of ``help()``: ``batch_size (default: 1): Sequences at once.``; flags of known keywords become these."""
    default = argument.default_text or ("" if argument.default in (None, "") else repr(argument.default))
    note = f" (default: {default})".replace("engine default", "the engine's") if default else ""
    text = f"{argument.name}{note}: {argument.help}".removesuffix(": ")

    def keyword(match: re.Match[str]) -> str:
        name = match[1].replace("-", "_")
        return name if name in known else match[0]

    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", keyword, text)
