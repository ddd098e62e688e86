"""Where efficiencies come from: sources that answer in order, each saying who it is.

A source is one function of an operator's shape and its roofline terms. It answers with the seconds of a call (a stored
efficiency is roofline seconds over real ones), nan where it does not know; the first answer wins and its ``origin`` is
kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from .operators import Op
from .spec import Engine, Kernel
from .symbols import Value, least, most, scalar

ORIGINS = {"measured": "●", "fitted": "◐", "assumed": "○", "given": "◇", "ideal": "·"}
LINKED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "host_copy"})
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
    """Who answers, and how: ``answer(op, dims, terms)`` gives seconds, never less than the roofline, or nan."""

    origin: str
    answer: Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]
    note: Callable[[Op], str]
    kinds: frozenset[str] | None = None  # operator kinds it speaks for; None = all


def ideal() -> Source:
    """Everything at its peak."""
    return Source("ideal", lambda op, dims, terms: terms.roofline, lambda op: "the data sheet's peak, nothing lost")


def given(flops: float = 1.0, hbm: float = 1.0, intra: float = 1.0, inter: float = 1.0) -> Source:
    """``--efficiency flops=0.7,hbm=0.85``: constant shares of each peak."""

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        link = inter if op.axis == "pp" else intra
        return most(most(terms.compute / flops, terms.memory / hbm), terms.link / link + terms.latency)

    return Source("given", answer, lambda op: f"--efficiency flops={flops:g},hbm={hbm:g},intra={intra:g},inter={inter:g}")


def assumed(engine: Engine) -> Source:
    """The engine file's constants per kind of kernel: fixed + ‖compute, memory‖ₚ, each at its share of peak."""
    default = Kernel(flops=0.7, hbm=0.8, link=0.75, fixed=3e-6, source="assumed")
    p = engine.smooth

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        kernel = engine.kernels.get(op.kind, default)
        if op.kind in LINKED:
            busy = terms.link / kernel.link + terms.latency
        else:
            busy = _norm(terms.compute / kernel.flops, terms.memory / kernel.hbm, p)
        fixed = kernel.fixed * op.calls * (terms.unfused if op.kind in FUSED else 1.0)
        return busy + fixed * (busy > 0)

    def note(op: Op) -> str:
        k = engine.kernels.get(op.kind, default)
        return (
            f"engine {engine.name}, kind {op.kind}: {op.calls} × {k.fixed * 1e6:.3g} µs + "
            f"‖compute/{k.flops:g}, memory/{k.hbm:g}‖ with p = {p:g} ({k.source})"
        )

    return Source("assumed", answer, note)


def sources(
    engine: Engine, efficiency: dict[str, float] | None = None, places: Mapping[str, object] | None = None
) -> tuple[Source, ...]:
    """The sources of a request, best first."""
    if efficiency:
        return (given(**efficiency),)
    if not engine.kernels:
        return (ideal(),)
    return (assumed(engine),)


def _norm(a: Value, b: Value, p: float) -> Value:
    """(aᵖ + bᵖ)^(1/p), scaled so that it neither over- nor underflows; cubes and squares without the slow power."""
    big = most(a, b)
    if p >= 100:
        return big
    ratio = least(a, b) / most(big, 1e-300)
    if p == 3:
        return big * _cube_root(1 + ratio * ratio * ratio)
    return big * (1 + ratio**p) ** (1 / p)


def _cube_root(a: Value) -> Value:
    if scalar(a):
        return a ** (1 / 3)
    import numpy as np

    return np.cbrt(a)
