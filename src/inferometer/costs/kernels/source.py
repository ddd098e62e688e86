"""Where the seconds of a kernel come from: one function of an operator's shape and its roofline terms, with its origin.

A source answers with the seconds of a call, nan where it has no figure; the first answer of a chain wins and its
``origin`` is kept. The sources here need no profile of kernels: data sheet peaks, given shares
of them, an engine's constants, and for collectives the model in `costs.collectives`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ...base.symbols import Value, maximum_of, minimum_of, scalar
from ...network.operators import Op
from ...specs.arguments import flag
from ...specs.structs import Engine, Hardware, Kernel
from .. import collectives
from ..parallelism import Place, link_limit

ORIGINS = {"measured": "●", "fitted": "◐", "assumed": "○", "given": "◇", "ideal": "·"}
LINKED = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send", "host_copy"})
FUSED = ("norm", "elementwise", "kv_write")  # kinds that fusion makes part of their neighbours
_NCCL_NAMES = {"send": "send_recv"}  # kinds that NCCL names otherwise


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
    """Everything at its peak: ``analyze(…, engine="roofline")``."""
    return Source("ideal", lambda op, dims, terms: terms.roofline, lambda op: "the data sheet's peak, without losses")


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


def assumed(engine: Engine, shares: tuple[float, float] = (1.0, 1.0)) -> Source:
    """The engine file's constants per kind of kernel, or for one operator by its name: fixed + ‖compute, memory‖ₚ, each
    at its share of peak.

    ``shares``: what the device reaches of its FLOP/s and its bandwidth, over what the one does that they were seen on.
    """
    default = Kernel(flops=0.7, hbm=0.8, link=0.75, fixed=3e-6, source="assumed")
    p = engine.smooth

    def reached(kernel: Kernel) -> tuple[float, float]:
        return min(1.0, kernel.flops * shares[0]), min(1.0, kernel.hbm * shares[1])

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        kernel = engine.kernels.get(op.name) or engine.kernels.get(op.kind, default)
        if op.kind in LINKED:
            busy = terms.link / kernel.link + terms.latency
        else:
            flops, hbm = reached(kernel)
            busy = p_norm(terms.compute / flops, terms.memory / hbm, p)
        fixed = kernel.fixed * op.calls * (terms.unfused if op.kind in FUSED else 1.0)
        return busy + fixed * (busy > 0)

    def note(op: Op) -> str:
        k = engine.kernels.get(op.name) or engine.kernels.get(op.kind, default)
        flops, hbm = reached(k)
        return (
            f"engine {engine.name}, kind {op.kind}: {op.calls} × {k.fixed * 1e6:.3g} µs + "
            f"‖compute/{flops:.3g}, memory/{hbm:.3g}‖ with p = {p:g} ({k.source})"
        )

    return Source("assumed", answer, note)


def rounding(engine: Engine, device: Hardware) -> Callable[[Value], Value]:
    """Seconds to round a product's input from 16 to 8 bits, by its elements: a pass of 3 bytes each through memory."""
    kernel = engine.kernels.get("rounding", Kernel())
    return lambda elements: kernel.fixed + 3 * elements / (device.memory_bandwidth * kernel.hbm)


def p_norm(a: Value, b: Value, p: float) -> Value:
    """(aᵖ + bᵖ)^(1/p), scaled so that it neither over- nor underflows; cubes and squares without the slow power."""
    if a.__class__ is float and b.__class__ is float and p < 100:
        most, least = (a, b) if a >= b else (b, a)
        share = least / (most if most > 1e-300 else 1e-300)
        exact: float = most * ((1 + share * share * share) ** (1 / 3) if p == 3 else (1 + share**p) ** (1 / p))
        return exact
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


# ------------------------------------------------------------------ collectives: curves along the message size


def linked(places: Mapping[str, Place], architecture: str, engine: str) -> Source:
    """Collectives by their own model: the algorithm and protocol that NCCL or the engine would choose."""
    curves = CollectiveCurves(places, architecture, engine)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        if scalar(terms.link) and terms.link == 0:
            return 0.0
        shape = dims()
        return maximum_of(curves.seconds(op, shape["bytes"], shape["ranks"]), terms.roofline)

    return Source(curves.origin, answer, curves.note, LINKED - {"host_copy"})


class CollectiveCurves:
    """Collective times along the message size, eight nodes an octave, straight in log-log between them.

    The model tries every algorithm and protocol; it is evaluated once per node of a curve, not once per step.
    """

    POINTS_PER_OCTAVE = 8

    def __init__(self, places: Mapping[str, Place], architecture: str, engine: str) -> None:
        self.places, self.architecture, self.engine = places, architecture, engine
        self.known: dict[tuple[str, str, float], dict[int, float]] = {}
        self.origins: dict[tuple[str, str], str] = {}

    def style(self, op: Op) -> str:
        """How the link of an operator's axis behaves; looked up only where ranks send anything."""
        place = self.places[op.axis]
        return collectives.style(place.name, self.architecture, place.link)

    def nodes(self, op: Op, ranks: float) -> dict[int, float]:
        """log₂ of the seconds at message sizes 2^(index/8), as far as they are known."""
        key = (op.kind, op.axis, ranks)
        if key not in self.known:
            self.known[key] = _shared(op.kind, self.places[op.axis], self.architecture, self.engine, ranks)
        return self.known[key]

    def fill(self, op: Op, ranks: float, first: int, last: int) -> dict[int, float]:
        """The nodes, of which those from ``first`` to ``last`` are known."""
        known = self.nodes(op, ranks)
        missing = [i for i in range(first, last + 1) if i not in known]
        if len(missing) > 4:  # worth an array
            import numpy as np

            seconds = self._model_seconds(op, ranks, 2.0 ** (np.array(missing) / self.POINTS_PER_OCTAVE))
            known |= zip(missing, np.log2(seconds).tolist(), strict=True)
        else:
            known |= {
                i: math.log2(self._model_seconds(op, ranks, 2.0 ** (i / self.POINTS_PER_OCTAVE))) for i in missing
            }
        return known

    def _model_seconds(self, op: Op, ranks: float, size: Value) -> Value:
        place = self.places[op.axis]
        return collectives.seconds(
            _NCCL_NAMES.get(op.kind, op.kind),
            size,
            ranks,
            link=place.link,
            style=self.style(op),
            network=place.network,
            per_node=place.per_node,
            engine=self.engine,
            fused=True,
        )

    def seconds(self, op: Op, size: Value, ranks: Value) -> Value:
        """Seconds of an operator's collective for a message size and a number of ranks, floats or arrays."""
        if scalar(size, ranks):
            if ranks <= 1 or size <= 0:
                return 0.0
            position = math.log2(size) * self.POINTS_PER_OCTAVE
            low = math.floor(position)
            known = self.fill(op, float(ranks), low, low + 1)
            return 2.0 ** (known[low] + (known[low + 1] - known[low]) * (position - low))
        return self._many(op, size, ranks)

    def _many(self, op: Op, size: Value, ranks: Value) -> Value:
        """Seconds for arrays that broadcast: a row of nodes per number of ranks, looked up as one flat array."""
        import numpy as np

        size, ranks = np.broadcast_arrays(np.asarray(size, float), np.asarray(ranks))
        group = ranks.astype(np.intp)
        some = size > 0
        position = np.log2(size if some.all() else np.where(some, size, 1.0)) * self.POINTS_PER_OCTAVE
        low = np.floor(position)
        index = low.astype(np.intp)
        first, last = int(index.min()), int(index.max()) + 1
        present = [int(n) for n in np.flatnonzero(np.bincount(group.ravel()))]
        offset = np.zeros(present[-1] + 1, np.intp)  # where the row of so many ranks begins
        offset[present] = np.arange(len(present)) * (last - first + 1)
        lines = np.full((len(present), last - first + 1), -np.inf)
        for line, n in zip(lines, present, strict=True):
            if n > 1:
                known = self.fill(op, float(n), first, last)
                line[:] = [known[i] for i in range(first, last + 1)]
        index += offset[group] - first
        curve = lines.ravel()
        start = curve[index]
        with np.errstate(invalid="ignore"):
            took = np.exp2(start + (curve[index + 1] - start) * (position - low))
        return np.where(some & (group > 1), took, 0.0)

    def origin(self, op: Op) -> str:
        """Fitted or assumed, by the link that the axis runs over."""
        key = (op.kind, op.axis)
        if key not in self.origins:
            place = self.places[op.axis]
            self.origins[key] = collectives.origin(
                op.kind,
                place.name,
                self.architecture,
                self.engine,
                ranks=place.ranks,
                link=place.link,
                spans_nodes=place.spans_nodes,
            )
        return self.origins[key]

    def note(self, op: Op) -> str:
        """Which link and which model of it."""
        place, style = self.places[op.axis], self.style(op)
        far = " and the network" if place.spans_nodes and style != "network" else ""
        source = collectives.constants().styles[style].source
        return (
            f"{op.kind} over {op.axis} on {place.name}{link_limit(place)} ({style}{far}), up to {place.per_node:g} "
            f"ranks a node, the fastest algorithm and protocol for its size ({source})"
        )


@functools.lru_cache(maxsize=1024)
def _shared(kind: str, place: Place, architecture: str, engine: str, ranks: float) -> dict[int, float]:
    """The nodes of one curve: plans that lay the same ranks over the same links share them."""
    return {}
