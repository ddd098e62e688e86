"""What a task asks of a machine: the FLOP/s, memory bandwidth and memory of each GPU that just keep its limits.

A prompt waits for FLOP/s and an answer for bandwidth, each a little for the other. So the time to the first token asks
for FLOP/s and the time per token for bandwidth, each beside the other as it is, or as it must be if that is more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..request import Request
from .knobs import TOGETHER, Knob, knobs
from .reading import METRICS, point, read, unusable
from .report import Demand, Row, Solution
from .sizing import smallest
from .target import REACH, least, solved

_TURNS = 8  # rounds at most until the two no longer move
_STILL = 1e-3  # octaves


def demand(asked: Request, limits: Mapping[str, float]) -> Demand:
    """The factors on a GPU's figures at which the limits just hold: ``demand(asked, {"ttft": 200, "tpot": 20})``"""
    every, here = knobs(asked), point(asked)
    flops, bandwidth = every["flops"], every["memory_bandwidth"]
    pair = _pair(asked, flops, bandwidth, limits)
    if None in pair:
        pair = _even(asked, flops, bandwidth, limits) or pair
    factors = {"flops": pair[0], "memory_bandwidth": pair[1], "memory": here.needed / asked.device.memory}
    known = {key: factor for key, factor in factors.items() if factor is not None}
    return Demand(
        flops=pair[0], memory_bandwidth=pair[1], memory=here.needed / asked.device.memory,
        flops_value=flops.scaled(pair[0]) if pair[0] else None,
        memory_bandwidth_value=bandwidth.scaled(pair[1]) if pair[1] else None,
        memory_value=here.needed,
        binding=_obstacle(asked, limits) if None in pair else max(known, key=lambda key: known[key]),
    )  # fmt: skip


Pair = tuple[float | None, float | None]  # factors on FLOP/s and on bandwidth


def _pair(asked: Request, flops: Knob, bandwidth: Knob, limits: Mapping[str, float]) -> Pair:
    """FLOP/s and bandwidth, found in turns; None where none is enough."""
    f: float | None = None
    b: float | None = None
    for _ in range(_TURNS):
        before = f
        if "tpot" in limits:
            b = _needed(flops.turned(asked, _factor(f)), bandwidth, {"tpot": limits["tpot"]})
        f = _needed(bandwidth.turned(asked, _factor(b)), flops, {"ttft": limits["ttft"]})
        if f is None or (before is not None and abs(f - before) < _STILL):
            break
    return None if f is None else 2.0**f, (None if b is None else 2.0**b) if "tpot" in limits else 1.0


def _factor(octaves: float | None) -> float:
    """On the other figure: what it must be, but not less than it is; as good as can be while that is not known."""
    return 2.0 ** (REACH if octaves is None else max(0.0, octaves))


def _even(asked: Request, flops: Knob, bandwidth: Knob, limits: Mapping[str, float]) -> Pair | None:
    """One factor on both, for a prompt that waits for memory as well."""
    both = flops._replace(turned=lambda a, factor: bandwidth.turned(flops.turned(a, factor), factor))
    octaves = _needed(asked, both, limits)
    return None if octaves is None else (2.0**octaves, 2.0**octaves)


def _needed(asked: Request, knob: Knob, limits: Mapping[str, float]) -> float | None:
    """The lowest octave of a knob at which the limits hold."""

    def gap(octaves: float) -> float:
        turned = knob.turned(asked, 2.0**octaves)
        return max(METRICS[word].gap(read(turned, METRICS[word]), limit) for word, limit in limits.items())

    return least(gap, -REACH, REACH)


def _obstacle(asked: Request, limits: Mapping[str, float]) -> str:
    """What holds the limits up when the chip's speed does not help: the links, or else the host."""
    faster = knobs(asked)[TOGETHER].turned(asked, 2.0**REACH)
    return "links" if all(METRICS[w].holds(read(faster, METRICS[w]), limit) for w, limit in limits.items()) else "host"


def row(asked: Request, limits: Mapping[str, float], name: str, label: str, reason: str | None, params: int,
        alone: Iterable[str] = ()) -> Row:  # fmt: skip
    """A model or use case on the same machine; for figures in ``alone`` also what each would have to be by itself."""
    here = point(asked)
    seen = here.metrics()
    fits = here.fits and not unusable(asked)
    kept = {w: METRICS[w].holds(getattr(seen, METRICS[w].field), limit) for w, limit in limits.items()}
    work = asked.workload
    every = knobs(asked)
    single: dict[str, dict[str, Solution]] = {
        key: {w: solved(asked, every[key], METRICS[w], limit) for w, limit in limits.items()} for key in alone
    }
    return Row(
        name=name, label=label, params=params, fits=fits, reason=reason, meets=fits and all(kept.values()),
        workload={"input_len": work.input_len, "output_len": work.output_len, "batch_size": work.batch_size,
                  "beam_width": work.beam_width},
        limits=dict(limits), ttft_ms=seen.ttft_ms, tpot_ms=seen.tpot_ms, output_throughput=seen.output_throughput,
        demand=demand(asked, limits), alone=single, size=smallest(asked, limits),
    )  # fmt: skip
