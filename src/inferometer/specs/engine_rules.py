"""The defaults of an engine by its version, device and layout: rules in data, evaluated in the order of the file.

    engine = catalog.engine("vllm@0.28")
    resolve(engine, RuleFacts.of(engine, catalog.hardware("b200"))).max_num_batched_tokens   # 16384

A file has plain values, and below them ``[[when]]`` tables: every rule whose conditions all hold sets its values over
those before it, so the last one that holds wins. A value that is text is a formula over the engine's figures so far
and over the facts below. What the user gives stands before every rule, and formulas see it.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadFile, BadValue
from .structs import Default, Engine, GraphSizes, Hardware, Rule

SETTINGS = {  # figures of an engine that are settings of a server -> as its users know them
    "max_num_batched_tokens": "max_num_batched_tokens",
    "max_num_seqs": "max_num_seqs",
    "memory_utilization": "gpu_memory_utilization",
    "block_size": "block_size",
    "graph_tokens": "max_cudagraph_capture_size",
    "prefill_graph_tokens": "prefill_graph_tokens",
    "async_scheduling": "async_scheduling",
    "scheduler": "scheduler",
}
_FUNCTIONS: dict[str, Any] = {"min": min, "max": max, "round": round}
_NONE_SET = Engine()  # for the types of figures


class RuleFacts(NamedTuple):
    """What the conditions and formulas of rules may look at, besides the engine's own figures."""

    version: tuple[int, ...] = ()
    memory: float = 0.0  # bytes of one device
    device: str = ""  # its name and label, in small letters
    architecture: str = ""
    vendor: str = ""
    tp: int = 1
    pp: int = 1
    dp: int = 1
    tokens_per_decode: int = 1  # of a sequence in a step: 1, and those that are drafted
    speculation: str = ""  # the drafting method
    attention: str = ""  # mla, sparse_mla, or empty
    models: tuple[str, ...] = ()  # the model's family, and dense, mixture or hybrid

    @classmethod
    def of(cls, engine: Engine, device: Hardware, **others: Any) -> RuleFacts:
        """``RuleFacts.of(catalog.engine("vllm"), catalog.hardware("h200"), tp=2)``"""
        return cls(
            version=version_number(engine.version),
            memory=device.memory,
            device=f"{device.name} {device.label}".lower(),
            architecture=device.architecture,
            vendor=device.vendor,
            **others,
        )


@functools.lru_cache(256)
def version_number(text: str) -> tuple[int, ...]:
    """How versions are compared: ``version_number("0.5.10.post1")  # (0, 5, 10)``"""
    numbers: list[int] = []
    for piece in text.split("."):
        if not piece.isdigit():
            break
        numbers.append(int(piece))
    return tuple(numbers)


def choose_version(engine: Engine, given: str) -> Engine:
    """The engine at the given version, or at the newest that was checked: ``choose_version(vllm, "0.15.1")``"""
    if not given:
        return msgspec.structs.replace(engine, version=engine.versions[-1]) if engine.versions else engine
    label = engine.label or engine.name
    if not engine.versions:
        raise BadValue(f"`engine` {engine.name} has no versions to choose from: give it without @")
    wanted = given.strip().removeprefix("v")
    for version in engine.versions:
        if wanted == version or re.match(rf"{re.escape(version)}(\.|rc|post)", wanted):
            return msgspec.structs.replace(engine, version=version)
    many = len(engine.versions) > 4
    known = f"{engine.versions[0]} to {engine.versions[-1]}" if many else ", ".join(engine.versions)
    raise BadValue(f"`engine` {engine.name}@{given[:40]}: defaults of {label} are known for {known} only")


def resolve(engine: Engine, facts: RuleFacts, given: Mapping[str, Any] | None = None) -> Engine:
    """The engine with the values that its rules set here, and a record of those that are settings of a server.

    ``given``: figures of the engine that the user chose; no rule changes them.
    """
    own = dict(given or {})
    values: dict[str, Any] = {name: getattr(engine, name) for name in SETTINGS} | own
    reasons: dict[str, Rule] = {}
    for rule in engine.when:
        if not _holds(rule, facts):
            continue
        for name, value in rule.set.items():
            if name in own:
                continue
            before, values[name] = values.get(name), _value(engine, name, value, values, facts)
            if values[name] != before:  # a limit that does not bind explains nothing
                reasons[name] = rule
    if engine.graphs_by_sequence and facts.tokens_per_decode > 1:
        values |= _in_tokens(engine, values, facts.tokens_per_decode, own)
    defaults = tuple(
        Default(
            name=public,
            value=values[name],
            why=reasons[name].why if name in reasons else "its default",
            source=reasons[name].source if name in reasons else engine.source.get(name, ""),
        )
        for name, public in SETTINGS.items()
        if name not in own and values[name] is not None
    )
    return msgspec.structs.replace(engine, **values, defaults=defaults)


def ruled_fields(engine: Engine) -> set[str]:
    """The figures that some rule of an engine may set."""
    return {name for rule in engine.when for name in rule.set} | set(SETTINGS)


def check_rules(engine: Engine, where: str) -> Engine:
    """The engine itself; a rule that sets something which an engine has not, or whose formula is none, is refused."""
    known = set(Engine.__struct_fields__) - {"name", "version", "versions", "when", "defaults", "source"}
    for rule in engine.when:
        for name, value in rule.set.items():
            if name not in known:
                raise BadFile(f"{where}: a rule sets {name!r}, which is not an engine setting")
            if isinstance(value, str) and isinstance(getattr(_NONE_SET, name), int | float | None):
                try:
                    _value(engine, name, value, {}, RuleFacts(memory=1e11))
                except (ArithmeticError, TypeError, ValueError) as error:
                    raise BadFile(f"{where}: {name} = {value!r} is not a formula: {error}") from None
    return engine


def _holds(rule: Rule, facts: RuleFacts) -> bool:
    """Whether all conditions of a rule hold; those that it does not have do."""
    return (
        (not rule.version_at_least or facts.version >= version_number(rule.version_at_least))
        and (not rule.version_below or facts.version < version_number(rule.version_below))
        and rule.memory_at_least <= facts.memory < rule.memory_below
        and (not rule.named or any(name in facts.device for name in rule.named))
        and not any(name in facts.device for name in rule.not_named)
        and (not rule.architectures or facts.architecture in rule.architectures)
        and (not rule.vendors or facts.vendor in rule.vendors)
        and (not rule.not_vendors or facts.vendor not in rule.not_vendors)
        and (not rule.attention or facts.attention in rule.attention)
        and (not rule.models or any(name in facts.models for name in rule.models))
        and (not rule.speculation or facts.speculation in rule.speculation)
        and rule.ranks_at_least <= facts.tp * facts.dp
        and rule.stages_at_least <= facts.pp
        and rule.data_parallel_at_least <= facts.dp
    )


def _value(engine: Engine, name: str, value: Any, values: Mapping[str, Any], facts: RuleFacts) -> Any:
    """A value of a rule as a figure of the engine: sizes as pairs, names, formulas evaluated, tokens whole."""
    if isinstance(value, list):
        return tuple(item if isinstance(item, str) else (int(item[0]), int(item[1])) for item in value)
    if isinstance(value, dict):
        return {**getattr(engine, name), **value}
    plain = getattr(_NONE_SET, name)
    if not isinstance(value, str) or isinstance(plain, str):
        return value

    def figure(field: str) -> Any:
        return values.get(field, getattr(engine, field))

    limit = figure("prefill_graph_tokens")
    figures = {field: figure(field) for field in _names_in(value) if hasattr(engine, field)}
    names = {
        **{field: number for field, number in figures.items() if isinstance(number, int | float)},
        "memory": facts.memory,
        "tp": facts.tp * facts.dp if engine.graphs_by_sequence else facts.tp,
        "pp": facts.pp,
        "dp": facts.dp,
        "tokens_per_decode": facts.tokens_per_decode,
        "num_graphs": num_sizes(figure("graph_sizes"), figure("graph_tokens")),
        "num_prefill_graphs": num_sizes(figure("prefill_graph_sizes") or (), limit or 0),
    }
    result = _evaluate(value, names)
    return math.floor(result) if isinstance(plain, int) or name == "prefill_graph_tokens" else result


def num_sizes(sizes: GraphSizes, limit: float) -> int:
    """How many sizes are captured up to a limit: ``num_sizes(((32, 4), (64, 16)), 64)  # 10``"""
    count, below = 0, 0
    for upto, every in sizes:
        count += max(0, int(min(upto, limit) - below) // every)
        below = upto
    return count


def _in_tokens(engine: Engine, values: Mapping[str, Any], each: int, own: Mapping[str, Any]) -> dict[str, Any]:
    """Graphs that are counted in sequences, in tokens: every sequence of a step has several."""
    sizes = values.get("graph_sizes", engine.graph_sizes)
    scaled: dict[str, Any] = {"graph_sizes": tuple((upto * each, every * each) for upto, every in sizes)}
    return scaled if "graph_tokens" in own else {**scaled, "graph_tokens": values["graph_tokens"] * each}


@functools.lru_cache(256)
def _parsed(formula: str) -> Any:
    import ast

    try:
        return ast.parse(formula, mode="eval").body
    except SyntaxError:
        raise ValueError("it cannot be read") from None


@functools.lru_cache(256)
def _names_in(formula: str) -> tuple[str, ...]:
    import ast

    return tuple(node.id for node in ast.walk(_parsed(formula)) if isinstance(node, ast.Name))


def _evaluate(formula: str, names: Mapping[str, float]) -> float:
    """A formula of numbers, names, + - * / ** and min, max, round: ``_evaluate("2 * tp", {"tp": 4})  # 8``"""
    import ast
    import operator

    operators: dict[type[ast.operator], Any] = {
        ast.Add: operator.add,
        ast.Sub: operator.sub,
        ast.Mult: operator.mul,
        ast.Div: operator.truediv,
        ast.Pow: operator.pow,
    }

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node.value
        if isinstance(node, ast.Name) and node.id in names:
            return names[node.id]
        if isinstance(node, ast.BinOp) and type(node.op) in operators:
            return operators[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:
            return _FUNCTIONS[node.func.id](*map(value, node.args))
        raise ValueError(f"{ast.unparse(node)!r} is not known")

    return float(value(_parsed(formula)))
