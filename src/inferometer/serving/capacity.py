"""The highest request rate at which what was promised holds.

found = find_capacity("llama-3.1-8b", gpu="h200", trace=trace, goodput={"ttft": 500, "tpot": 50})
found.request_rate           # 37.2 requests a second: 90% of them keep both limits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_positive, is_number
from ..base.parallel_map import worker_count, worker_pool
from .metrics import GOODPUT_METRICS, good_requests, latencies
from .outcome import Interrupted, Outcome
from .simulate import simulate
from .synthetic import at_rate
from .trace import Trace

LOWEST = 1e-3  # of the throughput of all requests at once: practically one after another


class TriedRate(msgspec.Struct, kw_only=True):
    """One rate, and how requests fared at it."""

    request_rate: float
    good: float  # share of the requests that kept every limit
    holds: bool


class Capacity(msgspec.Struct, kw_only=True):
    """The highest rate that holds, and all that were tried, in order of the rate."""

    request_rate: float  # requests a second; 0 if not even single requests keep the limits
    goodput: dict[str, float]  # limits in ms
    share: float  # of the requests that must keep them
    highest: float  # requests a second when all come at once: no rate above it can last
    tried: list[TriedRate]


def find_capacity(
    model: str,
    gpu: str = "h100-sxm",
    *,
    trace: Trace,
    goodput: Mapping[str, float],
    share: float = 0.9,
    precision: float = 0.01,
    backend: str = "processes",
    jobs: int | None = None,
    address: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **words: Any,
) -> Capacity:
    """The highest rate of a trace's requests at which a ``share`` of them keeps all limits of ``goodput`` (ms).

    Arrivals are stretched to each rate, so that bursts stay bursts; a trace without any gets Poisson arrivals. The
    rates of a round are tried at once on ``jobs`` workers, and the next round lies between the last that held and the
    first that did not, until they are within ``precision`` of each other.
    """
    goals = {name: float(limit) for name, limit in goodput.items()}
    for name, limit in goals.items():
        if name not in GOODPUT_METRICS:
            raise UnknownName("--goodput metric", name, GOODPUT_METRICS)
        check_positive(f"--goodput {name}", limit)
    if not goals:
        raise BadValue("--find-capacity needs limits that must hold: --goodput ttft:500,tpot:50")
    if not is_number(share) or not 0 < share <= 1:
        raise BadValue(
            f"the share of requests that must keep the limits is above 0 and at most 1, not {abbreviate(share)}"
        )
    check_positive("precision", precision, 1.0)
    if len(trace) < 2:
        raise BadValue(f"a rate needs at least two requests, not {len(trace)}")
    if words.get("max_concurrency") is not None or (trace.after is not None and (trace.after >= 0).any()):
        raise BadValue(
            "--find-capacity finds a rate of arrivals, which requests that wait for others have not "
            "(--max-concurrency, the turns of a conversation)"
        )
    width = max(2, worker_count(backend, jobs))
    at_once = msgspec.structs.replace(trace, arrival_s=np.zeros(len(trace)))
    found = Capacity(request_rate=0.0, goodput=goals, share=share, highest=0.0, tried=[])

    def attempt(run: Callable[..., list[TriedRate]], rates: list[float]) -> None:
        found.tried += run(_try, [(model, gpu, trace, rate, seed, goals, share, words) for rate in rates])
        found.tried.sort(key=lambda one: one.request_rate)
        if progress is not None:
            progress(len(found.tried), 0)

    try:
        found.highest = _throughput(simulate(model, gpu, trace=at_once, **words))
        if found.highest:
            with worker_pool(backend, jobs, address) as run:
                _search(found, precision, width, lambda rates: attempt(run, rates))
    except KeyboardInterrupt:
        found.request_rate = _between(found.tried)[0]
        raise Interrupted(found) from None
    return found


def _search(found: Capacity, precision: float, width: int, attempt: Callable[[list[float]], None]) -> None:
    """Try rates, a round at a time, until the last that held and the first that did not are close."""
    highest = found.highest
    attempt([LOWEST * highest, *np.geomspace(highest / 8, 2 * highest, width + 1).tolist()])
    while True:
        found.request_rate, high = _between(found.tried)
        low = found.request_rate
        if not low or high <= low * (1 + precision):
            break
        between = np.geomspace(low, high, width + 2)[1:-1] if high < float("inf") else low * 2.0 ** np.arange(1, 3)
        if high == float("inf") and low > 64 * highest:  # so few requests that even all at once are fine
            break
        attempt(between.tolist())


def _between(tried: list[TriedRate]) -> tuple[float, float]:
    """The highest rate below which all held, 0 if there is none; and the lowest that did not hold."""
    high = min((one.request_rate for one in tried if not one.holds), default=float("inf"))
    return max((one.request_rate for one in tried if one.holds and one.request_rate < high), default=0.0), high


def _throughput(outcome: Outcome) -> float:
    done = int(np.count_nonzero(~np.isnan(outcome.finished_s)))
    return done / outcome.duration_s if outcome.duration_s else 0.0


def _try(asked: tuple[str, str, Trace, float, int, dict[str, float], float, dict[str, Any]]) -> TriedRate:
    model, gpu, trace, rate, seed, goals, share, words = asked
    outcome = simulate(model, gpu, trace=scale_to_rate(trace, rate, seed), **words)
    served = len(trace) - len(outcome.rejected)
    kept = int(good_requests(latencies(outcome), goals).sum()) / served if served else 0.0
    return TriedRate(request_rate=rate, good=kept, holds=kept >= share)


def scale_to_rate(trace: Trace, rate: float, seed: int = 0) -> Trace:
    """The trace with its arrivals at another mean rate: ``stretched(trace, 8.0)``"""
    times = trace.arrival_s
    span = float(times.max() - times.min()) if times is not None and len(trace) > 1 else 0.0
    if times is None or not span:
        return at_rate(trace, rate, 1.0, seed)
    return msgspec.structs.replace(trace, arrival_s=(times - times.min()) * ((len(trace) - 1) / span / rate))
