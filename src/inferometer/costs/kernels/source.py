"""Where the seconds of a kernel come from: one function of an operator's shape and its roofline terms, with its origin.

A source answers with the seconds of a call, nan where it has no figure; the first answer of a chain wins and its
``origin`` is kept. The sources here look at no shapes: data sheet peaks, given shares of them, an engine's constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...base.symbols import Value, maximum_of, minimum_of, scalar
from ...network.operators import Op
from ...specs.arguments import flag
from ...specs.structs import Engine, Hardware, Kernel
from ..parallelism import Place

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
        return maximum_of(maximum_of(self.compute, self.memory), self.link + self.latency)


class Source(NamedTuple):
    """Seconds of kernels and where they come from.

    ``answer(op, dims, terms)`` gives seconds, never less than the roofline, or nan: ``ideal().answer(op, dims, terms)``
    """

    origin: str | Callable[[Op], str]
    answer: Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]
    note: Callable[[Op], str]
    kinds: frozenset[str] | None = None  # operator kinds it has figures for; None = all

    def origin_of(self, op: Op) -> str:
        """The origin of its answer for an operator: ``source.origin_of(op)  # "fitted"``"""
        return self.origin if isinstance(self.origin, str) else self.origin(op)


def ideal() -> Source:
    """Everything at its peak: ``analyze(…, engine="ideal")``."""
    return Source("ideal", lambda op, dims, terms: terms.roofline, lambda op: "the data sheet's peak, nothing lost")


def given(
    flops: float = 1.0,
    hbm: float = 1.0,
    intra: float = 1.0,
    inter: float = 1.0,
    places: Mapping[str, Place] | None = None,
) -> Source:
    """``given(flops=0.7, hbm=0.85)``: constant shares of each peak; ``inter`` where an axis spans nodes."""
    across_nodes = {axis for axis, place in (places or {}).items() if place.spans_nodes}

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        link = inter if op.axis in across_nodes else intra
        return maximum_of(maximum_of(terms.compute / flops, terms.memory / hbm), terms.link / link + terms.latency)

    return Source(
        "given", answer, lambda op: f"{flag('efficiency')} flops={flops:g},hbm={hbm:g},intra={intra:g},inter={inter:g}"
    )


def assumed(engine: Engine) -> Source:
    """The engine file's constants per kind of kernel: fixed + ‖compute, memory‖ₚ, each at its share of peak."""
    default = Kernel(flops=0.7, hbm=0.8, link=0.75, fixed=3e-6, source="assumed")
    p = engine.smooth

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        kernel = engine.kernels.get(op.kind, default)
        if op.kind in LINKED:
            busy = terms.link / kernel.link + terms.latency
        else:
            busy = p_norm(terms.compute / kernel.flops, terms.memory / kernel.hbm, p)
        fixed = kernel.fixed * op.calls * (terms.unfused if op.kind in FUSED else 1.0)
        return busy + fixed * (busy > 0)

    def note(op: Op) -> str:
        k = engine.kernels.get(op.kind, default)
        return (
            f"engine {engine.name}, kind {op.kind}: {op.calls} × {k.fixed * 1e6:.3g} µs + "
            f"‖compute/{k.flops:g}, memory/{k.hbm:g}‖ with p = {p:g} ({k.source})"
        )

    return Source("assumed", answer, note)


def rounding(engine: Engine, device: Hardware) -> Callable[[Value], Value]:
    """Seconds to round a product's input from 16 to 8 bits, by its elements: a pass of 3 bytes each through memory."""
    kernel = engine.kernels.get("rounding", Kernel())
    return lambda elements: kernel.fixed + 3 * elements / (device.memory_bandwidth * kernel.hbm)


def p_norm(a: Value, b: Value, p: float) -> Value:
    """(aᵖ + bᵖ)^(1/p), scaled so that it neither over- nor underflows; cubes and squares without the slow power."""
    big = maximum_of(a, b)
    if p >= 100:
        return big
    ratio = minimum_of(a, b) / maximum_of(big, 1e-300)
    if p == 3:
        return big * _cube_root(1 + ratio * ratio * ratio)
    return big * (1 + ratio**p) ** (1 / p)


def _cube_root(a: Value) -> Value:
    if scalar(a):
        return a ** (1 / 3)
    import numpy as np

    return np.cbrt(a)
