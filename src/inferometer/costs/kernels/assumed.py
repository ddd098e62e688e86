"""Sources that know no shapes: the data sheet, shares of peak that were given, an engine file's constants by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ...base.symbols import Value, maximum_of
from ...network.operators import Op
from ...specs.structs import Engine, Hardware, Kernel
from ..parallelism import Place
from .source import FUSED, LINKED, Source, Terms, joined


def ideal() -> Source:
    """Everything at its peak."""
    return Source("ideal", lambda op, dims, terms: terms.roofline, lambda op: "the data sheet's peak, nothing lost")


def given(
    flops: float = 1.0,
    hbm: float = 1.0,
    intra: float = 1.0,
    inter: float = 1.0,
    places: Mapping[str, Place] | None = None,
) -> Source:
    """``--efficiency flops=0.7,hbm=0.85``: constant shares of each peak; ``inter`` where an axis spans nodes."""
    wide = {axis for axis, place in (places or {}).items() if place.spans_nodes}

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        link = inter if op.axis in wide else intra
        return maximum_of(maximum_of(terms.compute / flops, terms.memory / hbm), terms.link / link + terms.latency)

    return Source(
        "given", answer, lambda op: f"--efficiency flops={flops:g},hbm={hbm:g},intra={intra:g},inter={inter:g}"
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
            busy = joined(terms.compute / kernel.flops, terms.memory / kernel.hbm, p)
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
