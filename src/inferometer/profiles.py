"""Where efficiencies come from: sources that answer in order, each saying who it is.

A source is one function of an operator and its roofline terms. It answers with an efficiency (roofline seconds over
real seconds) per point, nan where it does not know; the first answer wins and its ``origin`` is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .operators import Op
from .spec import Engine, Kernel
from .symbols import Value, most

ORIGINS = {"measured": "●", "fitted": "◐", "assumed": "○", "given": "◇", "ideal": "·"}
FUSED = ("norm", "elementwise", "kv_write")  # kinds that fusion makes part of their neighbours


class Terms(NamedTuple):
    """Seconds an operator needs at the peak of each resource."""

    compute: Value
    memory: Value
    link: Value  # bytes over the link
    latency: Value  # messages in a row
    unfused: Value = 1.0

    @property
    def roofline(self) -> Value:
        """The speed of light: nothing is faster than its slowest resource."""
        return most(most(self.compute, self.memory), self.link + self.latency)


class Source(NamedTuple):
    """Who answers, and how: ``answer(op, dims, terms)`` gives an efficiency in (0, 1] or nan."""

    origin: str
    answer: Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]
    note: Callable[[Op], str]


def ideal() -> Source:
    """Everything at its peak."""
    return Source("ideal", lambda op, dims, terms: 1.0, lambda op: "the data sheet's peak, nothing lost")


def given(flops: float = 1.0, hbm: float = 1.0, intra: float = 1.0, inter: float = 1.0, across: bool = False) -> Source:
    """``--efficiency flops=0.7,hbm=0.85``: constant shares of each peak."""
    link = inter if across else intra

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        real = most(most(terms.compute / flops, terms.memory / hbm), terms.link / link + terms.latency)
        return _ratio(terms.roofline, real)

    return Source("given", answer, lambda op: f"--efficiency flops={flops:g},hbm={hbm:g},intra={intra:g},inter={inter:g}")


def assumed(engine: Engine) -> Source:
    """The engine file's constants per kind of kernel: fixed + ‖compute, memory‖ₚ, each at its share of peak."""
    default = Kernel(flops=0.7, hbm=0.8, link=0.75, fixed=3e-6, source="assumed")
    p = engine.smooth

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        kernel = engine.kernels.get(op.kind, default)
        real = _norm(terms.compute / kernel.flops, terms.memory / kernel.hbm, p)
        real = real + terms.link / kernel.link + terms.latency
        fixed = kernel.fixed * op.calls * (terms.unfused if op.kind in FUSED else 1.0)
        return _ratio(terms.roofline, real + fixed * (terms.roofline > 0))

    def note(op: Op) -> str:
        k = engine.kernels.get(op.kind, default)
        return (
            f"engine {engine.name}, kind {op.kind}: {op.calls} × {k.fixed * 1e6:.3g} µs + "
            f"‖compute/{k.flops:g}, memory/{k.hbm:g}‖ with p = {p:g} ({k.source})"
        )

    return Source("assumed", answer, note)


def sources(engine: Engine, efficiency: dict[str, float] | None = None, across: bool = False) -> tuple[Source, ...]:
    """The sources of a request, best first."""
    if efficiency:
        return (given(**efficiency, across=across),)
    if not engine.kernels:
        return (ideal(),)
    return (assumed(engine),)


def _norm(a: Value, b: Value, p: float) -> Value:
    """(aᵖ + bᵖ)^(1/p), scaled so that it neither over- nor underflows."""
    big = most(a, b)
    if p >= 100:
        return big
    if isinstance(big, np.ndarray):
        small = np.minimum(a, b)
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(big > 0, small / big, 0.0)
        return big * (1 + ratio**p) ** (1 / p)
    return big * (1 + (min(a, b) / big) ** p) ** (1 / p) if big > 0 else 0.0


def _ratio(a: Value, b: Value) -> Value:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(b > 0, a / b, 1.0)
    return a / b if b > 0 else 1.0
