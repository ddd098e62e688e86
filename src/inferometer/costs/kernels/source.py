"""What a source is: one function of an operator's shape and its roofline terms, and who it is.

It answers with the seconds of a call (a stored efficiency is roofline seconds over real ones), nan where it does not
know; the first answer wins and its ``origin`` is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ...base.symbols import Value, minimum_of, maximum_of, scalar
from ...network.operators import Op

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
    """Who answers, and how: ``answer(op, dims, terms)`` gives seconds, never less than the roofline, or nan."""

    origin: str | Callable[[Op], str]
    answer: Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]
    note: Callable[[Op], str]
    kinds: frozenset[str] | None = None  # operator kinds it speaks for; None = all

    def whose(self, op: Op) -> str:
        """The origin of its answer for an operator."""
        return self.origin if isinstance(self.origin, str) else self.origin(op)


def joined(a: Value, b: Value, p: float) -> Value:
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
