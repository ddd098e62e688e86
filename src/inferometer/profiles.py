"""Where efficiencies come from: sources that answer in order, each saying who it is.

A source is one function of an operator's shape and its roofline terms. It answers with the seconds of a call (a stored
efficiency is roofline seconds over real ones), nan where it does not know; the first answer wins and its ``origin`` is
kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from . import collectives
from .operators import Op
from .parallel import Place
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

    origin: str | Callable[[Op], str]
    answer: Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]
    note: Callable[[Op], str]
    kinds: frozenset[str] | None = None  # operator kinds it speaks for; None = all

    def whose(self, op: Op) -> str:
        """The origin of its answer for an operator."""
        return self.origin if isinstance(self.origin, str) else self.origin(op)


def ideal() -> Source:
    """Everything at its peak."""
    return Source("ideal", lambda op, dims, terms: terms.roofline, lambda op: "the data sheet's peak, nothing lost")


def given(flops: float = 1.0, hbm: float = 1.0, intra: float = 1.0, inter: float = 1.0,
          places: Mapping[str, Place] | None = None) -> Source:  # fmt: skip
    """``--efficiency flops=0.7,hbm=0.85``: constant shares of each peak; ``inter`` where an axis spans nodes."""
    wide = {axis for axis, place in (places or {}).items() if place.spans_nodes}

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        link = inter if op.axis in wide else intra
        return most(most(terms.compute / flops, terms.memory / hbm), terms.link / link + terms.latency)

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


def linked(places: Mapping[str, Place], architecture: str, engine: str) -> Source:
    """Collectives by their own model: the algorithm and protocol that NCCL or the engine would choose."""
    curves = Curves(places, architecture, engine)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        if scalar(terms.link) and terms.link == 0:
            return 0.0
        shape = dims()
        return most(curves.seconds(op, shape["bytes"], shape["ranks"]), terms.roofline)

    return Source(curves.origin, answer, curves.note, LINKED - {"host_copy"})


class Curves:
    """Collective times along the message size, eight nodes an octave, straight in log-log between them.

    The model tries every algorithm and protocol; a curve asks it once per node, so that sweeps and simulations do not.
    """

    NODES = 8

    def __init__(self, places: Mapping[str, Place], architecture: str, engine: str) -> None:
        self.places, self.architecture, self.engine = places, architecture, engine
        self.architecture = architecture
        self.known: dict[tuple[str, str, float, int], float] = {}
        self.origins: dict[tuple[str, str], str] = {}

    def style(self, op: Op) -> str:
        """How the link of an operator's axis behaves; looked up only where ranks talk at all."""
        return collectives.style(self.places[op.axis].name, self.architecture)

    def node(self, op: Op, ranks: float, index: int) -> float:
        """log₂ of the seconds at message size 2^(index/8)."""
        key = (op.kind, op.axis, ranks, index)
        if key not in self.known:
            place = self.places[op.axis]
            took = collectives.seconds(_KIND.get(op.kind, op.kind), 2.0 ** (index / self.NODES), ranks, link=place.link,
                                       style=self.style(op), network=place.network, per_node=place.per_node,
                                       engine=self.engine)  # fmt: skip
            self.known[key] = math.log2(took)
        return self.known[key]

    def seconds(self, op: Op, size: Value, ranks: Value) -> Value:
        """Seconds of an operator's collective for a message size and a number of ranks, floats or arrays."""
        if scalar(size, ranks):
            if ranks <= 1 or size <= 0:
                return 0.0
            place = math.log2(size) * self.NODES
            low = math.floor(place)
            a, b = self.node(op, float(ranks), low), self.node(op, float(ranks), low + 1)
            return 2.0 ** (a + (b - a) * (place - low))
        return self._many(op, size, ranks)

    def _many(self, op: Op, size: Value, ranks: Value) -> Value:
        import numpy as np

        size, ranks = np.broadcast_arrays(np.asarray(size, float), np.asarray(ranks))
        group = ranks.astype(np.intp)
        some = size > 0
        place = np.log2(size if some.all() else np.where(some, size, 1.0)) * self.NODES
        low = np.floor(place)
        index = low.astype(np.intp)
        first, last = int(index.min()), int(index.max()) + 1
        present = [int(n) for n in np.flatnonzero(np.bincount(group.ravel()))]
        row = np.zeros(present[-1] + 1, np.intp)
        row[present] = np.arange(len(present)) * (last - first + 1)
        nodes = [self.node(op, float(n), i) if n > 1 else -np.inf for n in present for i in range(first, last + 1)]
        index += row[group] - first
        curve = np.array(nodes)
        start = curve[index]
        with np.errstate(invalid="ignore"):
            took = np.exp2(start + (curve[index + 1] - start) * (place - low))
        return np.where(some & (group > 1), took, 0.0)

    def origin(self, op: Op) -> str:
        """Fitted or assumed, by the link that the axis runs over."""
        key = (op.kind, op.axis)
        if key not in self.origins:
            place = self.places[op.axis]
            self.origins[key] = collectives.origin(op.kind, place.name, self.architecture, self.engine,
                                                   spans_nodes=place.spans_nodes)  # fmt: skip
        return self.origins[key]

    def note(self, op: Op) -> str:
        """Which link and which model of it."""
        place, style = self.places[op.axis], self.style(op)
        far = " and the network" if place.spans_nodes and style != "network" else ""
        source = collectives.figures().styles[style].source
        return (f"{op.kind} over {op.axis} on {place.name} ({style}{far}), up to {place.per_node:g} ranks a node, the "
                f"fastest algorithm and protocol for its size ({source})")  # fmt: skip


_KIND = {"send": "send_recv"}


def sources(engine: Engine, efficiency: dict[str, float] | None = None, places: Mapping[str, Place] | None = None,
            architecture: str = "") -> tuple[Source, ...]:  # fmt: skip
    """The sources of a request, best first."""
    if efficiency:
        return (given(**efficiency, places=places),)
    if not engine.kernels:
        return (ideal(),)
    links = (linked(places, architecture, engine.name),) if places else ()
    return (*links, assumed(engine))


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
