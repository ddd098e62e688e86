"""Collectives as a source: times by `costs.collectives`, kept as curves along the message size."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping

from ...base.symbols import Value, maximum_of, scalar
from ...network.operators import Op
from .. import collectives
from ..parallelism import Place
from .source import LINKED, Source, Terms


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

    NODES = 8

    def __init__(self, places: Mapping[str, Place], architecture: str, engine: str) -> None:
        self.places, self.architecture, self.engine = places, architecture, engine
        self.known: dict[tuple[str, str, float], dict[int, float]] = {}
        self.origins: dict[tuple[str, str], str] = {}

    def style(self, op: Op) -> str:
        """How the link of an operator's axis behaves; looked up only where ranks send anything."""
        return collectives.style(self.places[op.axis].name, self.architecture)

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

            seconds = self._model_seconds(op, ranks, 2.0 ** (np.array(missing) / self.NODES))
            known |= zip(missing, np.log2(seconds).tolist(), strict=True)
        else:
            known |= {i: math.log2(self._model_seconds(op, ranks, 2.0 ** (i / self.NODES))) for i in missing}
        return known

    def _model_seconds(self, op: Op, ranks: float, size: Value) -> Value:
        place = self.places[op.axis]
        return collectives.seconds(
            _KIND.get(op.kind, op.kind),
            size,
            ranks,
            link=place.link,
            style=self.style(op),
            network=place.network,
            per_node=place.per_node,
            engine=self.engine,
        )

    def seconds(self, op: Op, size: Value, ranks: Value) -> Value:
        """Seconds of an operator's collective for a message size and a number of ranks, floats or arrays."""
        if scalar(size, ranks):
            if ranks <= 1 or size <= 0:
                return 0.0
            position = math.log2(size) * self.NODES
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
        position = np.log2(size if some.all() else np.where(some, size, 1.0)) * self.NODES
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
                op.kind, place.name, self.architecture, self.engine, spans_nodes=place.spans_nodes
            )
        return self.origins[key]

    def note(self, op: Op) -> str:
        """Which link and which model of it."""
        place, style = self.places[op.axis], self.style(op)
        far = " and the network" if place.spans_nodes and style != "network" else ""
        source = collectives.constants().styles[style].source
        return (
            f"{op.kind} over {op.axis} on {place.name} ({style}{far}), up to {place.per_node:g} ranks a node, the "
            f"fastest algorithm and protocol for its size ({source})"
        )


_KIND = {"send": "send_recv"}


@functools.lru_cache(maxsize=1024)
def _shared(kind: str, place: Place, architecture: str, engine: str, ranks: float) -> dict[int, float]:
    """The nodes of one curve: plans that lay the same ranks over the same links share them."""
    return {}
