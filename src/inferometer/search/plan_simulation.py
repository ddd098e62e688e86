"""A plan under real arrivals: simulated at a rate, or at the highest rate at which it holds its SLO.

Round robin sends every n-th request to a replica. So one of n replicas stands for all of them, and one is simulated; of
prefill and decode pools, the smallest part that has both in the same proportion.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import numpy as np

from ..inference.request import build_request
from ..serving.deployment import ReplicaPool, ServingOptions, build_pool, serve
from ..serving.metrics import good_requests, latencies
from ..serving.outcome import Outcome
from .objective import Objective, Traffic
from .search_result import SimulationResult

MIN_REQUESTS, MAX_REQUESTS = 300, 8000  # of a simulation
POISSON_REQUESTS = 1000  # requests that a simulation takes where arrivals are Poisson
CONFIRM = 3  # times as many requests confirm a winner
STRIDE = 1.07  # first factor from a rate to the next; estimates are that good
PRECISION = 0.035  # of the highest rate
KEEPS_UP = 0.95  # arrivals and completions of the counted requests may differ in duration by this factor


class PoolCase(NamedTuple):
    """Identical servers to be simulated."""

    role: str  # both, prefill, decode
    replicas: int
    request_kwargs: dict[str, Any]  # of `build_request`


class SimulationCase(NamedTuple):
    """A plan to be simulated, as plain data that can go to another process."""

    model: str
    pools: tuple[PoolCase, ...]
    traffic: Traffic
    objective: Objective
    estimated_rate: float  # requests/s
    estimated_e2el: float  # s


class SimulatedCase(NamedTuple):
    """What `simulate_case` gives."""

    results: list[SimulationResult]  # of all simulations
    final: SimulationResult | None  # at the given rate, or at the highest that holds
    reason: str = ""  # why the plan cannot run at all


class PlanSimulator:
    """Simulates one plan at any rate: ``PlanSimulator(table.simulation_case(row)).simulate(4.0).holds``"""

    def __init__(self, case: SimulationCase, server_cache: dict[str, ReplicaPool] | None = None) -> None:
        """``server_cache``: servers of other plans, so that their tables of step times need not be made anew."""
        self.case = case
        traffic = case.traffic
        sample = traffic.requests(MIN_REQUESTS, 1.0, 1) if traffic.trace is None else traffic.trace
        cache = server_cache if server_cache is not None else {}
        servers: list[ReplicaPool] = []
        for one in case.pools:
            key = repr(sorted(one.request_kwargs.items(), key=lambda pair: pair[0]))
            if key not in cache:
                cache[key] = build_pool(build_request(case.model, **one.request_kwargs), 1, sample)
            servers.append(cache[key])
        # data-parallel ranks of a mixture step together: a server of them is not cut; dense ones stand alone
        together = [server.ranks_per_server for server in servers]
        units = [
            one.replicas * server.bound_plan.plan.data_parallel_size // ranks
            for one, server, ranks in zip(case.pools, servers, together, strict=True)
        ]
        self.parts = gcd(*units)  # equal parts of the plan, of which one is simulated
        self.pools = [
            (one.role, server._replace(replicas=count // self.parts * ranks))
            for one, server, count, ranks in zip(case.pools, servers, units, together, strict=True)
        ]
        self.reason = next((server.reason for _, server in self.pools if server.reason), "")
        self.options = ServingOptions(scheduler=servers[0].bound_plan.engine.scheduler)
        self.results: list[SimulationResult] = []

    def simulate(self, rate: float, longer: int = 1) -> SimulationResult:
        """At so many requests/s of the whole plan; ``longer`` times as many requests as else, and other ones."""
        part_rate = rate / self.parts
        in_flight = max(1.0, part_rate * self.case.estimated_e2el)
        # Poisson arrivals vary more than even ones, so fewer parts need more requests
        count = max(MIN_REQUESTS, 2.5 * in_flight + 100, POISSON_REQUESTS / self.parts)
        traffic = self.case.traffic
        trace = traffic._replace(seed=traffic.seed + longer - 1).requests(
            int(min(MAX_REQUESTS, longer * count)), part_rate, self.parts
        )
        outcome = serve(trace, self.pools, self.options)
        warm_up = min(int(in_flight), len(trace) // 4)  # the engine fills up, and runs empty in the end
        result = self._result(outcome, slice(warm_up, len(trace) - warm_up // 2), rate)
        self.results.append(result)
        return result

    def _result(self, outcome: Outcome, counted: slice, rate: float) -> SimulationResult:
        share = self.case.objective.goodput_share
        metrics = {name: values[counted] for name, values in latencies(outcome).items()}
        kept = good_requests(metrics, {name: limit * 1e3 for name, limit in self.case.objective.slo.items()})
        arrivals, ends = outcome.arrival_s[counted], np.sort(outcome.finished_s[counted])
        arriving = float(np.ptp(arrivals))
        ending = float(ends[-1] - ends[0]) if len(ends) and not np.isnan(ends).any() else np.inf
        goodput = float(kept.mean()) if len(kept) else 0.0
        e2el = metrics["e2el"]
        mean_e2el = float(np.nanmean(e2el)) / 1e3 if kept.any() or not np.isnan(e2el).all() else 0.0
        return SimulationResult(
            request_rate=rate,
            good=goodput,
            requests=len(arrivals),
            concurrency=rate * mean_e2el,
            holds=bool(goodput >= share and ending * KEEPS_UP <= max(arriving, mean_e2el)),
            **{f"{name}_ms": _distribution(metrics[name], share) for name in ("ttft", "tpot", "e2el")},
        )

    def max_rate(self, start: float) -> SimulationResult | None:
        """The highest rate that holds, within PRECISION; None if not even a hundredth of ``start`` does.

        From ``start`` up or down by growing factors until one rate holds and one does not, then bisection (geometric).
        """
        low: SimulationResult | None = None
        high, rate, stride = np.inf, start, STRIDE
        for _ in range(24):
            result = self.simulate(rate)
            low, high = (result, high) if result.holds else (low, min(high, rate))
            if low is None and rate < start / 100:
                break
            if low is not None and high <= low.request_rate * (1 + PRECISION):
                break
            if low is not None and high < np.inf:
                rate = (low.request_rate * high) ** 0.5
            else:
                rate, stride = (rate / stride if low is None else rate * stride), stride**1.5
        return low

    def confirm(self, start: float) -> SimulationResult | None:
        """The highest rate, from ``start`` down, that a longer run with other requests holds, too."""
        for step in range(12):
            result = self.simulate(start * (1 - PRECISION) ** step, CONFIRM)
            if result.holds:
                return result
        return None


def _distribution(values: np.ndarray, share: float) -> dict[str, float]:
    """Mean and percentiles of what is not nan."""
    x = values[~np.isnan(values)]
    if not len(x):
        return {}
    percentiles = np.percentile(x, (50, 90, 99, 100 * share)).tolist()
    return {"mean": float(x.mean()), **dict(zip(("p50", "p90", "p99", "share"), percentiles, strict=True))}


def simulate_case(case: SimulationCase, server_cache: dict[str, ReplicaPool] | None = None) -> SimulatedCase:
    """One plan at the rate that is given; without one at the highest that holds, or for the objective latency at the
    rate that it is estimated at."""
    simulator = PlanSimulator(case, server_cache)
    if simulator.reason:
        return SimulatedCase([], None, simulator.reason)
    final: SimulationResult | None
    if case.traffic.request_rate is not None:
        final = simulator.simulate(case.traffic.request_rate)
    elif case.objective.name == "latency":
        final = simulator.simulate(case.estimated_rate)
    else:
        final = simulator.max_rate(case.estimated_rate)
    return SimulatedCase(simulator.results, final)
