"""The highest request rate at which the goodput limits hold.

capacity = find_capacity("llama-3.1-8b", gpu="h200", trace=trace, goodput={"ttft": 500, "tpot": 50})
capacity.request_rate           # 37.2 requests a second: 90% of them keep both limits
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, UnknownName, abbreviate, check_positive, is_number
from ..base.parallel_map import worker_count, worker_pool
from ..specs.arguments import signature
from ..specs.command_args import ServingArgs
from .metrics import GOODPUT_METRICS, good_requests, latencies, metrics
from .outcome import Interrupted, Outcome
from .simulate import run_header, simulate
from .synthetic import load_traffic, scale_to_rate
from .trace import Trace

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import SimulateKwargs

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


class _RateCase(NamedTuple):
    """One simulation of the search, as data that can go to another process."""

    model: str
    gpu: str
    trace: Trace
    request_rate: float
    seed: int
    goodput: dict[str, float]
    share: float
    options: dict[str, Any]


@signature(ServingArgs)
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
    **kwargs: Unpack[SimulateKwargs],
) -> Capacity:
    """The highest rate of a trace's requests at which a ``share`` of them keeps all limits of ``goodput`` (ms).

    Arrivals are stretched to each rate, so that bursts stay bursts; a trace without any gets Poisson arrivals. The
    rates of a round are tried at once on ``jobs`` workers, and the next round lies between the last that held and the
    first that did not, until they are within ``precision`` of each other. Further keywords are those of `simulate`.
    """
    options: dict[str, Any] = {**kwargs}
    limits = {name: float(limit) for name, limit in goodput.items()}
    _check(limits, share, precision, trace, options)
    width = max(2, worker_count(backend, jobs))
    at_once = msgspec.structs.replace(trace, arrival_s=np.zeros(len(trace)))
    capacity = Capacity(request_rate=0.0, goodput=limits, share=share, highest=0.0, tried=[])

    def try_rates(run: Callable[..., list[TriedRate]], rates: list[float]) -> None:
        cases = [_RateCase(model, gpu, trace, rate, seed, limits, share, options) for rate in rates]
        capacity.tried += run(_try_rate, cases)
        capacity.tried.sort(key=lambda one: one.request_rate)
        if progress is not None:
            progress(len(capacity.tried), 0)

    try:
        capacity.highest = _throughput(simulate(model, gpu, trace=at_once, **options))
        if capacity.highest:
            with worker_pool(backend, jobs, address) as run:
                _search(capacity, precision, width, lambda rates: try_rates(run, rates))
    except KeyboardInterrupt:
        capacity.request_rate = _bracket(capacity.tried)[0]
        raise Interrupted(capacity) from None
    return capacity


def _check(limits: dict[str, float], share: Any, precision: Any, trace: Trace, options: dict[str, Any]) -> None:
    for name, limit in limits.items():
        if name not in GOODPUT_METRICS:
            raise UnknownName("`goodput` metric", name, GOODPUT_METRICS)
        check_positive(f"`goodput` {name}", limit)
    if not limits:
        raise BadValue("`find_capacity` needs limits that must hold: `goodput` ttft:500,tpot:50")
    if not is_number(share) or not 0 < share <= 1:
        raise BadValue(
            f"the share of requests that must keep the limits is above 0 and at most 1, not {abbreviate(share)}"
        )
    check_positive("precision", precision, 1.0)
    if len(trace) < 2:
        raise BadValue(f"a rate needs at least two requests, not {len(trace)}")
    if options.get("max_concurrency") is not None or (trace.after is not None and (trace.after >= 0).any()):
        raise BadValue(
            "`find_capacity` finds a rate of arrivals, which requests that wait for others have not "
            "(`max_concurrency`, the turns of a conversation)"
        )


def _search(capacity: Capacity, precision: float, width: int, try_rates: Callable[[list[float]], None]) -> None:
    """Try rates, a round at a time, until the last that held and the first that did not are close."""
    highest = capacity.highest
    try_rates([LOWEST * highest, *np.geomspace(highest / 8, 2 * highest, width + 1).tolist()])
    while True:
        low, high = _bracket(capacity.tried)
        capacity.request_rate = low
        if not low or high <= low * (1 + precision):
            break
        between = np.geomspace(low, high, width + 2)[1:-1] if high < float("inf") else low * 2.0 ** np.arange(1, 3)
        if high == float("inf") and low > 64 * highest:  # so few requests that even all at once are fine
            break
        try_rates(between.tolist())


def _bracket(tried: list[TriedRate]) -> tuple[float, float]:
    """The highest rate below which all held, 0 if there is none; and the lowest that did not hold."""
    high = min((one.request_rate for one in tried if not one.holds), default=float("inf"))
    return max((one.request_rate for one in tried if one.holds and one.request_rate < high), default=0.0), high


def _throughput(outcome: Outcome) -> float:
    """Finished requests a second."""
    finished = int(np.count_nonzero(~np.isnan(outcome.finished_s)))
    return finished / outcome.duration_s if outcome.duration_s else 0.0


def _try_rate(case: _RateCase) -> TriedRate:
    trace = scale_to_rate(case.trace, case.request_rate, case.seed)
    outcome = simulate(case.model, case.gpu, trace=trace, **case.options)
    served = len(trace) - len(outcome.rejected)
    good = int(good_requests(latencies(outcome), case.goodput).sum()) / served if served else 0.0
    return TriedRate(request_rate=case.request_rate, good=good, holds=good >= case.share)


def capacity_and_summarize(
    model: str,
    gpu: str,
    goodput: dict[str, float],
    search_options: dict[str, Any],
    scheduler_options: dict[str, Any],
    plan_options: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, Any]:
    """Find the highest rate that holds, and serve the requests once more at it; Ctrl-C leaves the rates tried by then.

    ``search_options`` are keywords of `find_capacity`; ``plan_options`` also say which requests there are. Gives the
    keys of ``simulate --find-capacity --json``.
    """
    if not goodput:
        raise BadValue("`find_capacity` needs limits that must hold: `goodput` ttft:500,tpot:50")
    if plan_options.get("request_rate") is not None:
        raise BadValue("`find_capacity` looks for the rate itself: leave `request_rate` away")
    plan_options = dict(plan_options)
    seed = plan_options.get("seed", 0)
    # synthetic requests get arrivals, so that their burstiness is stretched to every rate; a trace has its own
    is_synthetic = plan_options.get("trace") is None
    plan_options["request_rate"] = 1.0 if is_synthetic else None
    traffic = load_traffic(plan_options, None)
    if is_synthetic or traffic.trace.arrival_s is None:
        traffic = traffic._replace(schedule="at the highest rate")
    trace = traffic.trace
    header = run_header(model, gpu, plan_options, traffic.label, len(trace), scheduler_options)
    header["warnings"] += trace.notes
    result = {"schema": "inferometer.capacity/1", **header}
    options = {**scheduler_options, **plan_options}
    try:
        capacity = find_capacity(
            model,
            gpu,
            trace=trace,
            goodput=goodput,
            seed=seed,
            progress=lambda done, _: progress(done),
            **search_options,
            **options,
        )
    except Interrupted as stop:
        return {**result, **msgspec.to_builtins(stop.result), "interrupted": True}
    result |= {**msgspec.to_builtins(capacity), "interrupted": False}
    if not capacity.request_rate:
        return {**result, "completed": 0}
    again = scale_to_rate(trace, capacity.request_rate, seed)
    return {**result, **metrics(simulate(model, gpu, trace=again, **options), goodput)}
