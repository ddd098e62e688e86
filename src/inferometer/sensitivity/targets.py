"""What a task asks of a machine: the FLOP/s, memory bandwidth and memory of each GPU that just keep its limits.

A prompt waits for FLOP/s and an answer for bandwidth, each a little for the other. So the time to the first token asks
for FLOP/s and the time per token for bandwidth, each beside the other as it is, or as it must be if that is more.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping

from ..base.errors import BadValue, UnknownName, check_positive
from ..inference.request import Request
from .evaluation import METRICS, Metric, point, read, unusable
from .parameters import TOGETHER, Knob, knobs
from .sensitivity_report import Demand, Row, Solution, Target
from .sizing import smallest

_TURNS = 8  # rounds at most until the two no longer move
_STILL = 1e-3  # octaves


def demand(request: Request, limits: Mapping[str, float]) -> Demand:
    """The factors on a GPU's figures at which the limits just hold: ``demand(asked, {"ttft": 200, "tpot": 20})``"""
    every, here = knobs(request), point(request)
    flops, bandwidth = every["flops"], every["memory_bandwidth"]
    pair = _pair(request, flops, bandwidth, limits)
    if None in pair:
        pair = _even(request, flops, bandwidth, limits) or pair
    factors = {"flops": pair[0], "memory_bandwidth": pair[1], "memory": here.needed / request.device.memory}
    known = {key: factor for key, factor in factors.items() if factor is not None}
    return Demand(
        flops=pair[0],
        memory_bandwidth=pair[1],
        memory=here.needed / request.device.memory,
        flops_value=flops.scaled(pair[0]) if pair[0] else None,
        memory_bandwidth_value=bandwidth.scaled(pair[1]) if pair[1] else None,
        memory_value=here.needed,
        binding=_obstacle(request, limits) if None in pair else max(known, key=lambda key: known[key]),
    )


Pair = tuple[float | None, float | None]  # factors on FLOP/s and on bandwidth


def _pair(request: Request, flops: Knob, bandwidth: Knob, limits: Mapping[str, float]) -> Pair:
    """FLOP/s and bandwidth, found in turns; None where none is enough."""
    f: float | None = None
    b: float | None = None
    for _ in range(_TURNS):
        before = f
        if "tpot" in limits:
            b = _needed(flops.turned(request, _factor(f)), bandwidth, {"tpot": limits["tpot"]})
        f = _needed(bandwidth.turned(request, _factor(b)), flops, {"ttft": limits["ttft"]})
        if f is None or (before is not None and abs(f - before) < _STILL):
            break
    return None if f is None else 2.0**f, (None if b is None else 2.0**b) if "tpot" in limits else 1.0


def _factor(octaves: float | None) -> float:
    """On the other figure: what it must be, but not less than it is; as good as can be while that is not known."""
    return 2.0 ** (REACH if octaves is None else max(0.0, octaves))


def _even(request: Request, flops: Knob, bandwidth: Knob, limits: Mapping[str, float]) -> Pair | None:
    """One factor on both, for a prompt that waits for memory as well."""
    both = flops._replace(turned=lambda a, factor: bandwidth.turned(flops.turned(a, factor), factor))
    octaves = _needed(request, both, limits)
    return None if octaves is None else (2.0**octaves, 2.0**octaves)


def _needed(request: Request, knob: Knob, limits: Mapping[str, float]) -> float | None:
    """The lowest octave of a knob at which the limits hold."""

    def gap(octaves: float) -> float:
        turned = knob.turned(request, 2.0**octaves)
        return max(METRICS[word].gap(read(turned, METRICS[word]), limit) for word, limit in limits.items())

    return least(gap, -REACH, REACH)


def _obstacle(request: Request, limits: Mapping[str, float]) -> str:
    """What holds the limits up when the chip's speed does not help: the links, or else the host."""
    faster = knobs(request)[TOGETHER].turned(request, 2.0**REACH)
    return "links" if all(METRICS[w].holds(read(faster, METRICS[w]), limit) for w, limit in limits.items()) else "host"


def row(
    request: Request,
    limits: Mapping[str, float],
    name: str,
    label: str,
    reason: str | None,
    params: int,
    alone: Iterable[str] = (),
) -> Row:
    """A model or use case on the same machine; for figures in ``alone`` also what each would have to be by itself."""
    here = point(request)
    seen = here.metrics()
    fits = here.fits and not unusable(request)
    kept = {w: METRICS[w].holds(getattr(seen, METRICS[w].field), limit) for w, limit in limits.items()}
    work = request.workload
    every = knobs(request)
    single: dict[str, dict[str, Solution]] = {
        key: {w: solved(request, every[key], METRICS[w], limit) for w, limit in limits.items()} for key in alone
    }
    return Row(
        name=name,
        label=label,
        params=params,
        fits=fits,
        reason=reason,
        meets=fits and all(kept.values()),
        workload={
            "input_len": work.input_len,
            "output_len": work.output_len,
            "batch_size": work.batch_size,
            "beam_width": work.beam_width,
        },
        limits=dict(limits),
        ttft_ms=seen.ttft_ms,
        tpot_ms=seen.tpot_ms,
        output_throughput=seen.output_throughput,
        demand=demand(request, limits),
        alone=single,
        size=smallest(request, limits),
    )


# ------------------------------------------------------------------ target
# The value of each figure alone at which a target is met, or how close it comes.
#
# targets("tpot:20,ttft:500")                                  # {'tpot': 20.0, 'ttft': 500.0}
# solved(asked, knobs(asked)["memory_bandwidth"], METRICS["tpot"], 20.0).factor     # 1.31


REACH = 6  # octaves that a figure is turned at most: to a 64th, to 64 times
ENDLESS = 20  # octaves that stand for no limit at all
_CLOSE = 1e-4  # octaves between the last value that fails and the first that holds
_EXACT = 1e-5  # octaves that a metric may stay below its limit


def targets(given: str | Iterable[str] | Mapping[str, float] | None) -> dict[str, float]:
    """Limits by metric, from ``"tpot:20"``, several such words, or a mapping."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        pairs = [(str(name), value) for name, value in given.items()]
    else:
        words = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        pairs = [_pair_target(piece) for word in words for piece in re.split(r"[,\s]+", str(word).strip()) if piece]
        if not pairs:
            raise BadValue("--target needs pairs such as tpot:20 (ms)")
    found: dict[str, float] = {}
    for name, value in pairs:
        word = name.lower().replace("_", "-")
        if word not in METRICS:
            raise UnknownName("--target metric", name, METRICS)
        check_positive(f"--target {word}", value)
        if word in found:
            raise BadValue(f"--target sets {word} twice: {found[word]:g} and {value:g}")
        found[word] = float(value)
    return found


def _pair_target(piece: str) -> tuple[str, float]:
    name, colon, number = piece.partition(":")
    if not colon:
        raise BadValue(f"--target takes pairs such as tpot:20 (ms), not {piece!r}")
    try:
        return name, float(number)
    except ValueError:
        raise BadValue(f"--target {name} must be a number, not {number!r}") from None


def known(request: Request, word: str) -> float | None:
    """A metric as it is now, None while not even one sequence fits; what a plan never has cannot be a target."""
    now = read(request, METRICS[word])
    if now is not None or (word.startswith("full") and request.model.kind == "decoder" and _priced(request, word)):
        return now
    what, device = METRICS[word].label, request.device.name
    if not _priced(request, word):
        raise BadValue(f"--target {word}: {device} has no price; give one as --gpu {device}:price_per_hour=2.5")
    if word == "energy" and not request.device.power:
        raise BadValue(f"--target {word}: {device} has no power; give one as --gpu {device}:power=700")
    raise BadValue(f"--target {word}: {request.model.name} has no {what} with this workload")


def _priced(request: Request, word: str) -> bool:
    return "cost" not in word or request.device.price_per_hour > 0


def met(request: Request, word: str, limit: float) -> Target:
    """What every figure alone can do for one target."""
    metric, now = METRICS[word], known(request, word)
    found = {key: solved(request, knob, metric, limit) for key, knob in knobs(request).items()}
    return Target(metric=metric.field, limit=limit, now=now, holds=metric.holds(now, limit), figures=found)


def solved(request: Request, knob: Knob, metric: Metric, limit: float) -> Solution:
    """The least that a figure must become, or the worst that it may be where the target holds already.

    ``reached``: with ``factor`` on the figure. ``holds``: down (or up) to ``factor``, whatever it is if that is None.
    ``never``: not even with no limit on the figure, where the metric is ``best``.
    """

    def gap(octaves: float) -> float:
        turned = knob.turned(request, 2.0 ** (octaves * knob.better))
        if knob.key == "memory" and not point(turned).fits:
            return math.inf
        return metric.gap(read(turned, metric), limit)

    def answer(status: str, octaves: float | None, best: float | None = None) -> Solution:
        factor = None if octaves is None else 2.0 ** (octaves * knob.better)
        value = None if factor is None else knob.scaled(factor)
        return Solution(status=status, factor=factor, value=value, best=best)

    now = gap(0)
    if not knob.used:
        return answer("holds", None) if now <= 0 else answer("never", None, read(request, metric))
    if now <= 0:
        lowest = least(gap, -REACH, 0)
        return answer("holds", None if lowest == -REACH else lowest)
    reached = least(gap, 0, REACH)
    if reached is not None:
        return answer("reached", reached)
    return answer("never", None, read(knob.turned(request, 2.0 ** (ENDLESS * knob.better)), metric))


def least(gap: Callable[[float], float], low: float, high: float) -> float | None:
    """Where a gap that falls closes: the lowest number at which it is not above 0; None if it is at ``high``.

    By straight lines between the ends, because gaps are logarithms and nearly straight; every third time by halves, so
    that a kink or a step cannot hold it up.
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
