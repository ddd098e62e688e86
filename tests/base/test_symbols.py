"""Formulas: one text, and the same number from floats, from arrays and from JavaScript."""

from __future__ import annotations

import ast
import contextlib
import gc
import json
import math
import operator
import pickle
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer.base import symbols
from inferometer.base.symbols import (
    COMPILED_AFTER,
    Expr,
    Program,
    ceil,
    constant,
    evaluate,
    free_names,
    maximum,
    minimum,
    name,
    names,
    text,
    total,
)
from inferometer.costs.binding import bind, step_env
from inferometer.costs.step import Group, Step
from inferometer.network import families
from inferometer.specs import catalog
from inferometer.specs.structs import Plan

NAMES = ("tokens", "hidden_size", "tp")
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_CALLS = {"max": max, "min": min, "ceil": math.ceil}


def read(source: str, env: dict[str, float]) -> float:
    """A formula's JavaScript, which is also Python's grammar, computed by a few rules of its own."""

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Attribute)
            return _CALLS[node.func.attr](*map(value, node.args))
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        if isinstance(node, ast.Name):
            return env[node.id]
        assert isinstance(node, ast.Constant)
        return node.value

    return float(value(ast.parse(source, mode="eval").body))


leaves = st.one_of(
    st.sampled_from(NAMES).map(name), st.integers(1, 9).map(constant), st.sampled_from([0.5, 1.5, 0.0]).map(constant)
)
formulas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] - p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, leaves.filter(lambda e: not (e.op == "const" and e.args[0] == 0))).map(lambda p: p[0] / p[1]),
        st.tuples(inner, inner).map(lambda p: maximum(*p)),
        st.tuples(inner, inner).map(lambda p: minimum(*p)),
        inner.map(ceil),
        st.tuples(leaves, st.sampled_from([1, 2, 3])).map(lambda p: p[0] ** p[1]),
    ),
    max_leaves=12,
)
bindings = st.fixed_dictionaries({word: st.integers(1, 1000).map(float) for word in NAMES})


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(formulas, bindings)
def test_javascript_means_the_same(formula: Expr, env: dict[str, float]) -> None:
    assert read(text(formula, js=True), env) == pytest.approx(evaluate(formula, env), rel=1e-12, abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(formulas, st.lists(bindings, min_size=1, max_size=5))
def test_arrays_are_floats_side_by_side(formula: Expr, envs: list[dict[str, float]]) -> None:
    columns = {word: np.array([env[word] for env in envs]) for word in NAMES}
    together = np.broadcast_to(evaluate(formula, columns), len(envs))
    assert together == pytest.approx([evaluate(formula, env) for env in envs], rel=1e-12)


@settings(max_examples=80, deadline=None)
@given(formulas)
def test_equal_formulas_are_one_object_and_survive_pickling(formula: Expr) -> None:
    assert pickle.loads(pickle.dumps(formula)) is formula
    assert set(free_names(formula)) <= set(NAMES)


def test_what_does_nothing_is_not_written() -> None:
    s = names
    assert str(2 * s.tokens * s.hidden_size) == "2·tokens·hidden_size"
    assert str(s.tokens * 1 + 0) == "tokens" and str(s.tokens * 0) == "0" and str(s.tokens / 1) == "tokens"
    assert str(3 * (2 * s.tokens)) == "6·tokens" and str(s.tokens + s.tokens) == "2·tokens"
    assert str((s.tokens + 1) * s.tp) == "(tokens + 1)·tp" and str(s.tokens - (s.tp - 1)) == "tokens - (tp - 1)"
    assert str(s.tokens / (s.tp / 2)) == "tokens/(tp/2)" and str((s.tokens / s.tp) ** 2) == "(tokens/tp)^2"
    assert text(maximum(s.tokens, 1), js=True) == "Math.max(tokens, 1)"
    assert str(total([])) == "0" and free_names(s.tokens * s.tp + s.tokens) == ["tokens", "tp"]


def test_a_name_that_is_not_bound_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(KeyError):
        evaluate(2 * names.tokens, {})


def test_shared_parts_are_computed_once() -> None:
    shared = names.tokens * names.hidden_size
    program = Program([shared + 1, shared + 2, shared])
    assert sum(1 for _, function, _ in program.steps if function is not None) == 3
    assert program({"tokens": 3.0, "hidden_size": 5.0}) == [16.0, 17.0, 15.0]


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(st.lists(formulas, min_size=1, max_size=4), st.lists(bindings, min_size=1, max_size=3), st.sampled_from(NAMES))
def test_a_compiled_program_gives_the_very_same(some: list[Expr], envs: list[dict[str, float]], zero: str) -> None:
    program, plain = Program(some), [{**env, zero: 0.0} if number else env for number, env in enumerate(envs)]
    columns = {word: np.array([env[word] for env in envs]) for word in NAMES}
    by_steps = [program(env) for env in envs], program(columns)
    program.calls = COMPILED_AFTER
    program(envs[0])
    assert program.compiled is not None
    assert [program(env) for env in envs] == by_steps[0]
    assert all(np.array_equal(a, b) for a, b in zip(program(columns), by_steps[1], strict=True))
    for env in plain:  # nothing times anything is nothing
        with contextlib.suppress(ZeroDivisionError):
            assert program(env) == [evaluate(formula, env) for formula in some]


MODELS = [
    "llama-3.1-8b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "gemma-3-27b",
    "nemotron-h-56b",
    "dit-xl-2",
]


@pytest.mark.parametrize("model", MODELS)
def test_every_formula_of_a_network_reads_as_javascript(model: str) -> None:
    """What the web page shows and computes is what this package computes."""
    network = families.build(catalog.model(model).config)
    plan = Plan(tensor_parallel_size=2)
    bound_plan = bind(network, catalog.hardware("h200"), catalog.engine("vllm"), plan)
    env = step_env(bound_plan, Step((Group(3, 700, 50), Group(5, 1, 900, decode=True))))
    asked: list[tuple[str, float, dict[str, float]]] = []
    for block in network.blocks:
        here = {**env, **block.dims}
        for op in block.ops:
            for field in ("flops", "weights", "reads", "writes", "kv_reads", "kv_writes", "sent", "params", "stored"):
                formula = getattr(op.work, field)
                used = {word: float(here[word]) for word in free_names(formula)}
                asked.append((text(formula, js=True), float(evaluate(formula, here)), used))
    for source, expected, used in asked:
        assert read(source, used) == pytest.approx(expected, rel=1e-12), source
    node = shutil.which("node")
    if node is None:
        return
    lines = [
        f"(({', '.join(used)}) => {source})({', '.join(repr(v) for v in used.values())})" for source, _, used in asked
    ]
    script = f"console.log(JSON.stringify([{', '.join(lines)}]))"
    ran = subprocess.run([node, "-e", script], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(ran.stdout) == pytest.approx([expected for _, expected, _ in asked], rel=1e-12)


def test_formulas_go_with_their_model() -> None:
    start = 3 * symbols.name("never_seen_before") + 0.123456
    key = next(k for k, v in symbols._interned.items() if v is start)
    del start
    gc.collect()
    assert key not in symbols._interned
    x, y = symbols.names.tokens * 7, symbols.names.tokens * 7
    assert x is y  # equal formulas are still one object
