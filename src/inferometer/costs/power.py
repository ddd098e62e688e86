"""Watts of a device from what it does, and what a power cap does to its kernels.

model = power_model(hardware("h100"))
model.watts(Activity(seconds=1.0, busy=0.95, compute=0.05, memory=0.6))      # 492 W: decoding
power_model(hardware("h100"), cap=400).slowdown(terms, seconds)               # 1.34 for a long product

A watt is idle, or of kernels that run, or of bytes through memory, or of FLOPs; together they stay under the limit.
A cap lowers the clocks of the SMs until they do. What computing takes grows as the clocks fall; memory keeps its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from ..base.symbols import Value, maximum_of, minimum_of, scalar
from ..network.operators import Op
from ..specs.catalog import constants
from ..specs.structs import Hardware, Spec
from .kernels.source import LINKED, Source, Terms, p_norm

_SMOOTH = 3  # of the corner of a kernel's roofline, as of the engines' kernels


class PowerConstants(Spec, frozen=True, kw_only=True):
    """data/power.toml: shares of a device's power limit."""

    idle: float
    busy: float
    linked: float  # share of ``busy`` that a collective takes
    memory: float
    compute: float
    clock_exponent: float  # watts of the SMs grow with so much a power of their clock
    least_cap: float
    source: dict[str, str]


@functools.cache
def power_constants() -> PowerConstants:
    """data/power.toml, read once."""
    return constants("power", PowerConstants)


class Activity(NamedTuple):
    """What a GPU does in some time, in seconds: all of it, kernels, and its work at the peaks of its two resources."""

    seconds: Value
    busy: Value
    compute: Value
    memory: Value

    def plus(self, other: Activity, times: Value = 1.0) -> Activity:
        """This, and so many times another after it: ``NOTHING.plus(prefill).plus(step, 127)``"""
        return Activity(*(a + times * b for a, b in zip(self, other, strict=True)))

    def per(self, number: Value) -> Activity:
        """Divided by a number, all but the seconds: the mean of so many GPUs that work side by side."""
        return Activity(self.seconds, self.busy / number, self.compute / number, self.memory / number)


NOTHING = Activity(0.0, 0.0, 0.0, 0.0)


class PowerModel(NamedTuple):
    """Watts of one device: at rest, and at the full use of each resource."""

    limit: float  # what it never exceeds: its own limit, or a cap below that
    power: float  # its own limit
    idle: float
    busy: float
    memory: float
    compute: float
    clock_exponent: float

    def watts(self, activity: Activity) -> Value:
        """Mean watts over some time, from idle up to the limit."""
        time = maximum_of(activity.seconds, 1e-30)
        work = self.busy * activity.busy + self.memory * activity.memory + self.compute * activity.compute
        above = work / time
        fourth = (
            (above / (self.limit - self.idle)) ** 2
        ) ** 2  # p = 8: firmware lowers clocks a little before the limit
        return self.idle + above / (((1 + fourth * fourth) ** 0.5) ** 0.5) ** 0.5  # roots are faster than a power

    def slowdown(self, terms: Terms, seconds: Value) -> Value:
        """How many times as long a kernel takes under the cap that takes ``seconds`` without one."""
        time = maximum_of(seconds, 1e-30)
        fixed = self.idle + self.memory * minimum_of(terms.memory / time, 1.0)  # what clocks do not change
        uncapped = minimum_of(fixed + self.busy + self.compute * terms.compute / time, self.power)
        clock = minimum_of((self.limit - fixed) / (uncapped - fixed), 1.0) ** (1 / self.clock_exponent)
        compute, memory = maximum_of(terms.compute, 1e-30), maximum_of(terms.memory, 1e-30)
        return p_norm(compute / clock, memory, _SMOOTH) / p_norm(compute, memory, _SMOOTH)


def power_model(device: Hardware, cap: float = 0.0) -> PowerModel | None:
    """The watts of a device, under a cap if there is one; None if its power is not known."""
    if not device.power:
        return None
    shares, power = power_constants(), device.power
    return PowerModel(
        limit=min(cap, power) if cap else power,
        power=power,
        idle=device.idle_power or shares.idle * power,
        busy=shares.busy * power,
        memory=shares.memory * power,
        compute=shares.compute * power,
        clock_exponent=shares.clock_exponent,
    )


def idle_watts(device: Hardware) -> float:
    """Watts of a device at rest; 0 if its power is not known."""
    model = power_model(device)
    return model.idle if model else 0.0


def least_cap(device: Hardware) -> float:
    """The lowest cap (W) that clocks can keep: memory and what is always on do not depend on them."""
    model = power_model(device)
    return model.idle + model.memory + power_constants().least_cap * model.power if model else 0.0


def capped(sources: tuple[Source, ...], device: Hardware, cap: float) -> tuple[Source, ...]:
    """Sources whose kernels run under a power cap; the same ones where it is 0 or not below the device's power."""
    model = power_model(device, cap)
    if model is None or model.limit >= model.power:
        return sources
    return tuple(source._replace(answer=_capped_answer(source, model)) for source in sources)


def _capped_answer(source: Source, model: PowerModel) -> Callable[[Op, Callable[[], dict[str, Value]], Terms], Value]:
    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        seconds = source.answer(op, dims, terms)
        if op.kind in LINKED or (scalar(seconds) and seconds != seconds):  # links have own clocks; nan: unknown
            return seconds
        return seconds * model.slowdown(terms, seconds)

    return answer
