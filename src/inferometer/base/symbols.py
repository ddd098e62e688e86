"""Formulas over names. One formula text is shown to people, evaluated on floats and on arrays.

    from inferometer.base.symbols import names as s, Program
    flops = 2 * s.tokens * s.hidden_size * s.intermediate_size
    str(flops)                                    # '2·tokens·hidden_size·intermediate_size'
    Program([flops])({"tokens": 8, "hidden_size": 4096, "intermediate_size": 14336})    # [939524096.0]

Equal formulas are the same object, so a `Program` evaluates every shared part once. Formulas are only ever
built by Python code of this package, never parsed from a user's file.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

Number = float | int

# What formulas are evaluated on and to: a float, or an ndarray of floats whose shape broadcasts with the others' in the
# same binding. It is Any because NumPy is only loaded where an array is met: a single point never needs it.
Value = Any

# What operators are described with: an `Expr`, or a plain number where nothing is to be bound.
Formula = Any

Env = Mapping[str, Value]  # names -> values
_SCALARS = (float, int)
_PLAIN = frozenset({float, int, bool})

# Weak, so that the formulas of a model go with it. A formula holds its parts, so the ids in a key outlive the entry.
_interned: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()


class Expr:
    """A formula: a constant, a name, or an operation on formulas."""

    __slots__ = ("__weakref__", "args", "op")
    op: str
    args: tuple[Any, ...]

    def __new__(cls, op: str, args: tuple[Any, ...]) -> Expr:
        key = (op, *(id(a) if isinstance(a, Expr) else a for a in args))
        expr = _interned.get(key)
        if expr is None:
            expr = object.__new__(cls)
            expr.op, expr.args = op, args
            _interned[key] = expr
        return expr

    def __reduce__(self) -> tuple[type[Expr], tuple[str, tuple[Any, ...]]]:
        return Expr, (self.op, self.args)

    def __add__(self, other: Expr | Number) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: Number) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return _binary("*", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return _binary("/", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return _binary("/", other, self)

    def __pow__(self, other: Expr | Number) -> Expr:
        return _binary("**", self, other)

    def __str__(self) -> str:
        return text(self)

    def __repr__(self) -> str:
        return f"<{text(self)}>"


def constant(value: Number) -> Expr:
    """``constant(2)``: a number as a formula."""
    return Expr("const", (float(value),))


def name(word: str) -> Expr:
    """``name("tokens")``: a value that is bound later."""
    return Expr("name", (word,))


class _Names:
    """``names.tokens`` is the formula ``tokens``."""

    def __getattr__(self, word: str) -> Expr:
        return name(word)


names = _Names()


def maximum(a: Expr | Number, b: Expr | Number) -> Expr:
    """``maximum(s.num_key_value_heads / s.tp, 1)``"""
    return _binary("max", a, b)


def minimum(a: Expr | Number, b: Expr | Number) -> Expr:
    """``minimum(s.tokens, 512)``"""
    return _binary("min", a, b)


def ceil(a: Expr | Number) -> Expr:
    """``ceil(s.tokens / 128)``"""
    a = lift(a)
    return constant(math.ceil(a.args[0])) if a.op == "const" else Expr("ceil", (a,))


def total(items: Iterable[Expr | Number]) -> Expr:
    """The sum of formulas; 0 of none."""
    result: Expr = constant(0)
    for item in items:
        result = result + item
    return result


def lift(value: Expr | Number) -> Expr:
    """A number as a formula, a formula as it is: ``lift(2) is constant(2)  # True``"""
    return value if isinstance(value, Expr) else constant(value)


def _is(expr: Expr, value: float) -> bool:
    return expr.op == "const" and expr.args[0] == value


def _binary(op: str, a: Expr | Number, b: Expr | Number) -> Expr:
    """Build `a op b`, dropping what does nothing so that the text stays readable."""
    a, b = lift(a), lift(b)
    if a.op == "const" and b.op == "const":
        return constant(_FUNCTIONS[op](a.args[0], b.args[0]))
    if op == "+":
        if _is(a, 0):
            return b
        if _is(b, 0):
            return a
        if a is b:
            return 2 * a
    elif op == "-" and _is(b, 0):
        return a
    elif op == "*":
        if _is(a, 0) or _is(b, 0):
            return constant(0)
        if _is(a, 1):
            return b
        if _is(b, 1):
            return a
        if b.op == "const":  # numbers first, as people write them
            a, b = b, a
        if a.op == "const" and b.op == "*" and b.args[0].op == "const":
            rest: Expr = b.args[1]
            return constant(a.args[0] * b.args[0].args[0]) * rest
    elif op == "/":
        if _is(b, 1):
            return a
        if _is(a, 0):
            return a
    elif op == "**" and _is(b, 1):
        return a
    return Expr(op, (a, b))


# ------------------------------------------------------------------ evaluation


def scalar(*values: Value) -> bool:
    """Whether all are plain numbers; NumPy is loaded only where one is not, since most requests are one point."""
    for value in values:  # noqa: SIM110  a plain loop: it runs millions of times in a sweep
        if not isinstance(value, _SCALARS):
            return False
    return True


def maximum_of(a: Value, b: Value) -> Value:
    """The larger of two values, point by point where one is an array."""
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return b if b > a else a
    import numpy as np

    return np.maximum(a, b)


def minimum_of(a: Value, b: Value) -> Value:
    """The smaller of two values, point by point where one is an array."""
    if isinstance(a, _SCALARS) and isinstance(b, _SCALARS):
        return b if b < a else a
    import numpy as np

    return np.minimum(a, b)


def where(which: Value, a: Value, b: Value) -> Value:
    """``a`` where ``which`` holds, else ``b``; point by point where it is an array."""
    if isinstance(which, bool):
        return a if which else b
    import numpy as np

    return np.where(which, a, b)


def log2(a: Value) -> Value:
    """Of a float or an array: ``log2(8.0)  # 3.0``"""
    if scalar(a):
        return math.log2(a)
    import numpy as np

    return np.log2(a)


def exp(a: Value) -> Value:
    """Of a float or an array: ``exp(0.0)  # 1.0``"""
    if scalar(a):
        return math.exp(a)
    import numpy as np

    return np.exp(a)


def ceil_of(a: Value) -> Value:
    """The next whole number, of a float or an array: ``ceil_of(1.2)  # 2``"""
    if scalar(a):
        return math.ceil(a)
    import numpy as np

    return np.ceil(a)


def _times(a: Value, b: Value) -> Value:
    """A product in which nothing times an array stays nothing: what a plan switches off costs no array work."""
    if (isinstance(a, float | int) and a == 0) or (isinstance(b, float | int) and b == 0):
        return 0.0
    return a * b


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": _times,
    "/": operator.truediv,
    "**": operator.pow,
    "max": maximum_of,
    "min": minimum_of,
    "ceil": ceil_of,
}


COMPILED_AFTER = 48  # evaluations of a program: one analysis compiles nothing, a server or a search what it asks often


class Program:
    """Formulas, put in order once and then applied to many bindings: ``Program([e1, e2])(env)  # [v1, v2]``

    One that is applied often is compiled to a Python function of plain numbers; arrays go through the steps always.
    """

    __slots__ = ("calls", "compiled", "names", "outputs", "steps", "width")

    def __init__(self, exprs: Sequence[Expr]) -> None:
        slots: dict[Expr, int] = {}
        self.names: dict[str, int] = {}
        self.steps: list[tuple[int, Callable[..., Any] | None, Any]] = []

        def visit(expr: Expr) -> int:
            if expr in slots:
                return slots[expr]
            inputs = tuple(visit(a) for a in expr.args) if expr.op not in ("const", "name") else ()
            slot = slots[expr] = len(slots)
            if expr.op == "name":
                self.names[expr.args[0]] = slot
            elif expr.op == "const":
                self.steps.append((slot, None, expr.args[0]))
            else:
                self.steps.append((slot, _FUNCTIONS[expr.op], inputs))
            return slot

        self.outputs = [visit(e) for e in exprs]
        self.width = len(slots)
        self.calls = 0
        self.compiled: Callable[..., list[Value]] | None = None

    def __call__(self, env: Env) -> list[Value]:
        if self.compiled is not None:
            inputs = [env[word] for word in self.names]
            if _PLAIN.issuperset(map(type, inputs)):
                return self.compiled(*inputs)
        elif self.calls < COMPILED_AFTER:
            self.calls += 1
        else:
            self.compiled = _compiled(self)
        values: list[Value] = [0.0] * self.width
        for word, slot in self.names.items():
            values[slot] = env[word]
        for slot, function, args in self.steps:
            if function is None:
                values[slot] = args
            elif len(args) == 2:
                values[slot] = function(values[args[0]], values[args[1]])
            else:
                values[slot] = function(values[args[0]])
        return [values[i] for i in self.outputs]


_CODE = {  # of a step on plain numbers, as `_FUNCTIONS` has it
    "+": "{} + {}",
    "-": "{} - {}",
    "*": "{0} * {1} if {0} and {1} else 0.0",
    "/": "{} / {}",
    "**": "{} ** {}",
    "max": "{1} if {1} > {0} else {0}",
    "min": "{1} if {1} < {0} else {0}",
    "ceil": "ceil({})",
}
_SYMBOLS = {function: symbol for symbol, function in _FUNCTIONS.items()}


def source_text(program: Program) -> str:
    """A program as a Python function of plain numbers, in the order of its names; v and c are numbers of slots."""
    place = [f"v{slot}" for slot in range(program.width)]
    for slot, function, _ in program.steps:
        if function is None:
            place[slot] = f"c{slot}"
    lines = [
        f"    v{slot} = {_CODE[_SYMBOLS[function]].format(*(place[i] for i in inputs))}\n"
        for slot, function, inputs in program.steps
        if function is not None
    ]
    arguments = ", ".join(f"v{slot}" for slot in program.names.values())
    values = ", ".join(place[i] for i in program.outputs)
    return f"def compiled({arguments}):\n{''.join(lines)}    return [{values}]\n"


def _compiled(program: Program) -> Callable[..., list[Value]]:
    constants = {f"c{slot}": value for slot, function, value in program.steps if function is None}
    space: dict[str, Any] = {"__builtins__": {}, "ceil": math.ceil, **constants}
    exec(source_text(program), space)
    compiled: Callable[..., list[Value]] = space["compiled"]
    return compiled


def evaluate(expr: Expr | Number, env: Env) -> Value:
    """``evaluate(2 * names.tokens, {"tokens": 4})  # 8.0``; for many bindings of one formula use a `Program`."""
    if not isinstance(expr, Expr):
        return expr
    if expr.op == "const":
        return expr.args[0]
    if expr.op == "name":
        return env[expr.args[0]]
    return _FUNCTIONS[expr.op](*(evaluate(a, env) for a in expr.args))


def free_names(expr: Expr | Number) -> list[str]:
    """The names in a formula, in the order they appear."""
    in_order: dict[str, None] = {}

    def visit(e: Expr) -> None:
        if e.op == "name":
            in_order[e.args[0]] = None
        elif e.op != "const":
            for a in e.args:
                visit(a)

    visit(lift(expr))
    return list(in_order)


# ------------------------------------------------------------------ text

_RANK = {"+": 1, "-": 1, "*": 2, "/": 2, "**": 3}
_SIGN = {"+": " + ", "-": " - ", "*": "·", "/": "/", "**": "^"}
_SIGN_JS = {"+": " + ", "-": " - ", "*": " * ", "/": " / ", "**": " ** "}
_text_cache: WeakKeyDictionary[Expr, str] = WeakKeyDictionary()  # weak, so that texts go with their formulas


def text(expr: Expr | Number, js: bool = False) -> str:
    """The formula as people read it, or as JavaScript: ``text(2 * s.tokens, js=True)  # '2 * tokens'``"""
    sign = _SIGN_JS if js else _SIGN
    formula = lift(expr)
    if not js and formula in _text_cache:
        return _text_cache[formula]

    def show(e: Expr, outer: int) -> str:
        if e.op == "const":
            value = e.args[0]
            return str(int(value)) if value == int(value) and abs(value) < 1e15 else repr(value)
        if e.op == "name":
            return str(e.args[0])
        if e.op in ("max", "min", "ceil"):
            return f"{'Math.' if js else ''}{e.op}({', '.join(show(a, 0) for a in e.args)})"
        rank = _RANK[e.op]
        right_rank = rank + 1 if e.op in "-/" else rank
        body = show(e.args[0], rank + (e.op == "**")) + sign[e.op] + show(e.args[1], right_rank)
        return f"({body})" if rank < outer else body

    shown = show(formula, 0)
    if not js:
        _text_cache[formula] = shown
    return shown
