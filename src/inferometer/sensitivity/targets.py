"""Targets: the value of each parameter alone at which one is met, and the machine that just keeps several limits.

parse_targets("tpot:20,ttft:500")                                               # {'tpot': 20.0, 'ttft': 500.0}
solve(request, parameters(request)["memory_bandwidth"], METRICS["tpot"], 20.0).factor     # 1.31
demand(request, {"ttft": 200, "tpot": 20}).memory_bandwidth                     # 2.4

A prefill waits for FLOP/s and a decode step for memory bandwidth, each a little for the other. So `demand` asks the
TTFT for FLOP/s and the TPOT for bandwidth, each beside the other as it is, or as it must be if that is more.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping

from ..base.errors import BadValue, UnknownName, check_positive
from ..inference.request import Request
from .evaluation import METRICS, TargetMetric, bind_request, evaluate_metric
from .parameters import ALL_SPEEDS, Parameter, parameters
from .sensitivity_report import Demand, Solution, Target

REACH = 6  # octaves that a parameter is scaled at most: to a 64th, to 64 times
UNLIMITED = 20  # octaves that stand for no limit at all
_CLOSE = 1e-4  # octaves between the last value that fails and the first that holds
_EXACT = 1e-5  # octaves that a metric may stay below its limit
_ROUNDS = 8  # at most, until FLOP/s and bandwidth no longer move each other
_SETTLED = 1e-3  # octaves that count as not moving


# ------------------------------------------------------------------ what was given


def parse_targets(
    given: str | Iterable[str] | Mapping[str, float] | None,
    metrics: Mapping[str, TargetMetric] = METRICS,
    example: str = "tpot:20 (ms)",
) -> dict[str, float]:
    """Limits by metric, from ``"tpot:20"``, several such texts, or a mapping."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    else:
        texts = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        pairs = [
            _parse_pair(pair, example) for text in texts for pair in re.split(r"[,\s]+", str(text).strip()) if pair
        ]
        if not pairs:
            raise BadValue(f"`target` needs pairs such as {example}")
    limits: dict[str, float] = {}
    for name, value in pairs:
        metric = name.lower().replace("_", "-")
        if metric not in metrics:
            raise UnknownName("`target` metric", name, metrics)
        check_positive(f"`target` {metric}", value)
        if metric in limits:
            raise BadValue(f"`target` sets {metric} twice: {limits[metric]:g} and {value:g}")
        limits[metric] = float(value)
    return limits


def _parse_pair(text: str, example: str) -> tuple[str, float]:
    name, colon, number = text.partition(":")
    if not colon:
        raise BadValue(f"`target` takes pairs such as {example}, not {text!r}")
    try:
        return name, float(number)
    except ValueError:
        raise BadValue(f"`target` {name} must be a number, not {number!r}") from None


def current_value(request: Request, name: str) -> float | None:
    """A metric as it is now, None while not even one sequence fits; one that the plan never has is refused."""
    now = evaluate_metric(request, METRICS[name])
    has_price = "cost" not in name or request.device.price_per_hour > 0
    if now is not None or (name.startswith("full") and request.model.kind == "decoder" and has_price):
        return now
    label, device = METRICS[name].label, request.device.name
    if not has_price:
        raise BadValue(f"`target` {name}: {device} has no price; give one as `gpu` {device}:price_per_hour=2.5")
    if name == "energy" and not request.device.power:
        raise BadValue(f"`target` {name}: {device} has no power; give one as `gpu` {device}:power=700")
    raise BadValue(f"`target` {name}: {request.model.name} has no {label} with this workload")


# ------------------------------------------------------------------ one parameter alone


def solve_target(request: Request, name: str, limit: float) -> Target:
    """What every parameter alone can do for one target."""
    metric, now = METRICS[name], current_value(request, name)
    solutions = {key: solve(request, parameter, metric, limit) for key, parameter in parameters(request).items()}
    return Target(metric=metric.field, limit=limit, now=now, holds=metric.holds(now, limit), figures=solutions)


def solve(request: Request, parameter: Parameter, metric: TargetMetric, limit: float) -> Solution:
    """The least that a parameter must become, or the worst that it may be where the target holds already."""

    def gap(scaled: Request) -> float:
        if parameter.key == "memory" and not bind_request(scaled).fits:
            return math.inf
        return metric.gap(evaluate_metric(scaled, metric), limit)

    return solved(request, parameter, gap, lambda scaled: evaluate_metric(scaled, metric))


def solved(
    request: Request,
    parameter: Parameter,
    gap_of: Callable[[Request], float],
    value_of: Callable[[Request], float | None],
) -> Solution:
    """One parameter alone, whatever the target: ``gap_of`` a request is above 0 where it misses it.

    ``reached``: with ``factor`` on the parameter. ``holds``: down (or up) to ``factor``, at any value if that is None.
    ``never``: not even with no limit on the parameter, where the metric is ``best``.
    """

    def gap(octaves: float) -> float:
        return gap_of(parameter.scaled_request(request, 2.0 ** (octaves * parameter.better)))

    def solution(status: str, octaves: float | None, best: float | None = None) -> Solution:
        factor = None if octaves is None else 2.0 ** (octaves * parameter.better)
        value = None if factor is None else parameter.scaled_value(factor)
        return Solution(status=status, factor=factor, value=value, best=best)

    now = gap(0)
    if not parameter.used:
        return solution("holds", None) if now <= 0 else solution("never", None, value_of(request))
    if now <= 0:
        lowest = bisect(gap, -REACH, 0)
        return solution("holds", None if lowest == -REACH else lowest)
    reached = bisect(gap, 0, REACH)
    if reached is not None:
        return solution("reached", reached)
    unlimited = parameter.scaled_request(request, 2.0 ** (UNLIMITED * parameter.better))
    return solution("never", None, value_of(unlimited))


def bisect(gap: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a falling gap closes: the lowest x at which ``gap(x)`` is not above 0; None if it is above 0 at ``high``.

    By straight lines between the ends (regula falsi), because gaps are logarithms and nearly straight; every third
    time by halves, so that a kink or a step cannot hold it up.
    """
    lower, upper = gap(low), gap(high)
    if lower <= 0 or upper > 0:
        return low if lower <= 0 else None
    for turn in itertools.count(1):
        if high - low < _CLOSE or upper > -_EXACT:
            break
        straight = (low * upper - high * lower) / (upper - lower) if turn % 3 and math.isfinite(lower) else math.nan
        middle = straight if low < straight < high else (low + high) / 2
        there = gap(middle)
        if there <= 0:
            high, upper = middle, there
        else:
            low, lower = middle, there
    return high


# ------------------------------------------------------------------ several limits at once

Factors = tuple[float | None, float | None]  # on FLOP/s and on bandwidth; None where none is enough


def demand(request: Request, limits: Mapping[str, float]) -> Demand:
    """The factors on a GPU's figures at which the limits just hold: ``demand(request, {"ttft": 200, "tpot": 20})``"""
    scalable, needed = parameters(request), bind_request(request).memory_needed
    flops, bandwidth = scalable["flops"], scalable["memory_bandwidth"]
    factors = _factors_in_turns(request, flops, bandwidth, limits)
    if None in factors:
        factors = _one_factor(request, flops, bandwidth, limits) or factors
    memory = needed / request.device.memory
    every = {"flops": factors[0], "memory_bandwidth": factors[1], "memory": memory}
    solved = {key: factor for key, factor in every.items() if factor is not None}
    return Demand(
        flops=factors[0],
        memory_bandwidth=factors[1],
        memory=memory,
        flops_value=flops.scaled_value(factors[0]) if factors[0] else None,
        memory_bandwidth_value=bandwidth.scaled_value(factors[1]) if factors[1] else None,
        memory_value=needed,
        binding=_obstacle(request, limits) if None in factors else max(solved, key=lambda key: solved[key]),
    )


def _factors_in_turns(request: Request, flops: Parameter, bandwidth: Parameter, limits: Mapping[str, float]) -> Factors:
    """FLOP/s for the TTFT and bandwidth for the TPOT, solved in turns until they settle."""
    f: float | None = None  # octaves
    b: float | None = None
    for _ in range(_ROUNDS):
        before = f
        if "tpot" in limits:
            b = _octaves_needed(flops.scaled_request(request, _factor(f)), bandwidth, {"tpot": limits["tpot"]})
        f = _octaves_needed(bandwidth.scaled_request(request, _factor(b)), flops, {"ttft": limits["ttft"]})
        if f is None or (before is not None and abs(f - before) < _SETTLED):
            break
    return None if f is None else 2.0**f, (None if b is None else 2.0**b) if "tpot" in limits else 1.0


def _factor(octaves: float | None) -> float:
    """On the other parameter: what it must be, but not less than it is; as good as can be while that is not known."""
    return 2.0 ** (REACH if octaves is None else max(0.0, octaves))


def _one_factor(
    request: Request, flops: Parameter, bandwidth: Parameter, limits: Mapping[str, float]
) -> Factors | None:
    """One factor on both, for a prefill that waits for memory as well."""

    def scaled(request: Request, factor: float) -> Request:
        return bandwidth.scaled_request(flops.scaled_request(request, factor), factor)

    octaves = _octaves_needed(request, flops._replace(scaled_request=scaled), limits)
    return None if octaves is None else (2.0**octaves, 2.0**octaves)


def _octaves_needed(request: Request, parameter: Parameter, limits: Mapping[str, float]) -> float | None:
    """The lowest octave of a parameter at which the limits hold."""

    def gap(octaves: float) -> float:
        scaled = parameter.scaled_request(request, 2.0**octaves)
        return max(METRICS[m].gap(evaluate_metric(scaled, METRICS[m]), limit) for m, limit in limits.items())

    return bisect(gap, -REACH, REACH)


def _obstacle(request: Request, limits: Mapping[str, float]) -> str:
    """What holds the limits up when the chip's speed does not help: the links, or else the host."""
    faster = parameters(request)[ALL_SPEEDS].scaled_request(request, 2.0**REACH)
    held = (METRICS[m].holds(evaluate_metric(faster, METRICS[m]), limit) for m, limit in limits.items())
    return "links" if all(held) else "host"
