"""The value of each figure alone at which a target is met, or how close it comes.

targets("tpot:20,ttft:500")                                  # {'tpot': 20.0, 'ttft': 500.0}
solved(asked, knobs(asked)["memory_bandwidth"], METRICS["tpot"], 20.0).factor     # 1.31
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping

from ..errors import BadValue, UnknownName, positive
from ..request import Request
from .knobs import Knob, knobs
from .reading import METRICS, Metric, point, read
from .report import Solution, Target

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
        pairs = [_pair(piece) for word in words for piece in re.split(r"[,\s]+", str(word).strip()) if piece]
        if not pairs:
            raise BadValue("--target needs pairs such as tpot:20 (ms)")
    found: dict[str, float] = {}
    for name, value in pairs:
        word = name.lower().replace("_", "-")
        if word not in METRICS:
            raise UnknownName("--target metric", name, METRICS)
        positive(f"--target {word}", value)
        if word in found:
            raise BadValue(f"--target sets {word} twice: {found[word]:g} and {value:g}")
        found[word] = float(value)
    return found


def _pair(piece: str) -> tuple[str, float]:
    name, colon, number = piece.partition(":")
    if not colon:
        raise BadValue(f"--target takes pairs such as tpot:20 (ms), not {piece!r}")
    try:
        return name, float(number)
    except ValueError:
        raise BadValue(f"--target {name} must be a number, not {number!r}") from None


def known(asked: Request, word: str) -> float | None:
    """A metric as it is now, None while not even one sequence fits; what a plan never has cannot be a target."""
    now = read(asked, METRICS[word])
    if now is not None or (word.startswith("full") and asked.model.kind == "decoder" and _priced(asked, word)):
        return now
    what, device = METRICS[word].label, asked.device.name
    if not _priced(asked, word):
        raise BadValue(f"--target {word}: {device} has no price; give one as --gpu {device}:price_per_hour=2.5")
    if word == "energy" and not asked.device.power:
        raise BadValue(f"--target {word}: {device} has no power; give one as --gpu {device}:power=700")
    raise BadValue(f"--target {word}: {asked.model.name} has no {what} with this workload")


def _priced(asked: Request, word: str) -> bool:
    return "cost" not in word or asked.device.price_per_hour > 0


def met(asked: Request, word: str, limit: float) -> Target:
    """What every figure alone can do for one target."""
    metric, now = METRICS[word], known(asked, word)
    found = {key: solved(asked, knob, metric, limit) for key, knob in knobs(asked).items()}
    return Target(metric=metric.field, limit=limit, now=now, holds=metric.holds(now, limit), figures=found)


def solved(asked: Request, knob: Knob, metric: Metric, limit: float) -> Solution:
    """The least that a figure must become, or the worst that it may be where the target holds already.

    ``reached``: with ``factor`` on the figure. ``holds``: down (or up) to ``factor``, whatever it is if that is None.
    ``never``: not even with no limit on the figure, where the metric is ``best``.
    """

    def gap(octaves: float) -> float:
        turned = knob.turned(asked, 2.0 ** (octaves * knob.better))
        if knob.key == "memory" and not point(turned).fits:
            return math.inf
        return metric.gap(read(turned, metric), limit)

    def answer(status: str, octaves: float | None, best: float | None = None) -> Solution:
        factor = None if octaves is None else 2.0 ** (octaves * knob.better)
        value = None if factor is None else knob.scaled(factor)
        return Solution(status=status, factor=factor, value=value, best=best)

    now = gap(0)
    if not knob.used:
        return answer("holds", None) if now <= 0 else answer("never", None, read(asked, metric))
    if now <= 0:
        lowest = least(gap, -REACH, 0)
        return answer("holds", None if lowest == -REACH else lowest)
    reached = least(gap, 0, REACH)
    if reached is not None:
        return answer("reached", reached)
    return answer("never", None, read(knob.turned(asked, 2.0 ** (ENDLESS * knob.better)), metric))


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
