"""A plan under real arrivals: at a rate, or at the highest rate at which it holds its SLO.

The runs are those of ``simulate --find-capacity`` (`serving.steady_run`), so both say the same of a deployment.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..inference.request import build_request
from ..serving.deployment import ServingOptions
from ..serving.replica_pool import ReplicaPool, build_pool
from ..serving.steady_run import DRAWS, MaxRate, RateRun, SteadyServer
from .objective import Objective, Traffic
from .search_result import SimulationResult

SURE = 1.04  # two rates nearer than this need more than one draw of requests to be ranked


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
    """What `simulate_case` and `challenge` give."""

    simulations: int
    final: SimulationResult | None  # at the given rate, or at the highest that holds, or where it failed
    reason: str = ""  # why the plan cannot run at all
    estimate: float = 0.0  # requests/s: where its highest rate is by what was tried


class PlanSimulator:
    """Simulates one plan at any rate: ``PlanSimulator(table.simulation_case(row)).simulate(4.0).holds``"""

    def __init__(self, case: SimulationCase, server_cache: dict[str, ReplicaPool] | None = None) -> None:
        """``server_cache``: servers of other plans, so that their tables of step times need not be made anew."""
        self.case = case
        supply = case.traffic.supply
        cache = server_cache if server_cache is not None else {}
        pools: list[tuple[str, ReplicaPool]] = []
        for one in case.pools:
            key = repr(sorted(one.request_kwargs.items(), key=lambda pair: pair[0]))
            if key not in cache:
                cache[key] = build_pool(build_request(case.model, **one.request_kwargs), 1, supply.sample())
            ranks = one.replicas * cache[key].bound_plan.plan.data_parallel_size
            pools.append((one.role, cache[key]._replace(replicas=ranks)))
        self.options = ServingOptions(scheduler=pools[0][1].bound_plan.engine.scheduler)
        limits = {name: limit * 1e3 for name, limit in case.objective.slo.items()}
        share = case.objective.goodput_share
        self.server = SteadyServer(pools, self.options, supply, limits, share, case.estimated_e2el)
        self.pools = self.server.pools  # of one of the equal parts
        self.reason = self.server.reason

    def simulate(self, rate: float, *, sure: bool = True) -> SimulationResult:
        """At so many requests/s of the whole plan; ``sure``: with further draws of requests if it is not clear."""
        return self._result(self.server.judged(rate) if sure else self.server.glance(rate))

    def confirm(self, rate: float) -> SimulationResult:
        """The same with all DRAWS draws of requests."""
        return self._result(self.server.at(rate, DRAWS))

    def max_rate(self, start: float) -> SimulationResult | None:
        """The highest rate that holds, with its confidence interval; None if not even a hundredth of ``start`` does."""
        best = self.server.max_rate(start)
        return self._result(best.run, best) if best is not None else None

    def _result(self, run: RateRun, best: MaxRate | None = None) -> SimulationResult:
        share, e2el = self.case.objective.goodput_share, run.latencies["e2el"]
        mean_e2el = float(np.nanmean(e2el)) / 1e3 if not np.isnan(e2el).all() else 0.0
        return SimulationResult(
            request_rate=run.request_rate,
            request_rate_low=best.low if best is not None else None,
            request_rate_high=best.high if best is not None else None,
            good=run.good,
            slo_ratio=run.slo_ratio if np.isfinite(run.slo_ratio) else None,
            requests=len(run.ratio),
            seeds=len(run.draws),
            concurrency=run.request_rate * mean_e2el,
            holds=run.holds,
            saturation_rate=run.carried if np.isfinite(run.carried) else None,
            **{f"{name}_ms": _distribution(run.latencies[name], share) for name in ("ttft", "tpot", "e2el")},
        )


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
        return SimulatedCase(0, None, simulator.reason)
    final: SimulationResult | None
    if case.traffic.request_rate is not None:
        final = simulator.simulate(case.traffic.request_rate)
    elif case.objective.name == "latency":
        final = simulator.simulate(case.estimated_rate)
    else:
        final = simulator.max_rate(case.estimated_rate)
        if final is None:
            final = simulator.simulate(min(simulator.server.tried))
    return SimulatedCase(simulator.server.simulations, final)


def confirm_case(case: SimulationCase, server_cache: dict[str, ReplicaPool] | None = None) -> SimulatedCase:
    """The same at a fixed rate with DRAWS draws of requests, however clear the first was."""
    simulator = PlanSimulator(case, server_cache)
    rate = case.traffic.request_rate if case.traffic.request_rate is not None else case.estimated_rate
    final = simulator.confirm(rate)
    return SimulatedCase(simulator.server.simulations, final)


def max_rate_case(
    case: SimulationCase, start: float, server_cache: dict[str, ReplicaPool] | None = None
) -> SimulatedCase:
    """The highest rate of a plan, looked for from ``start`` on."""
    simulator = PlanSimulator(case, server_cache)
    final = simulator.max_rate(start)
    return SimulatedCase(simulator.server.simulations, final)


def challenge(
    case: SimulationCase, low: float, high: float, server_cache: dict[str, ReplicaPool] | None = None
) -> SimulatedCase:
    """A rival at ``low`` requests/s; if it holds that, at ``high``; if that, too, at the highest rate that it holds.

    ``high`` would make it better than the best plan, ``low`` worse by what predictions are off: one that fails there is
    beaten, one that holds it is a tie. Gives its highest rate, or ``low`` if it failed one of the two.
    """
    simulator = PlanSimulator(case, server_cache)
    if simulator.reason:
        return SimulatedCase(0, None, simulator.reason)
    final = simulator.simulate(low, sure=high < low * SURE)
    if final.holds and simulator.simulate(high).holds:
        final = simulator.max_rate(high) or final
    return SimulatedCase(simulator.server.simulations, final, estimate=simulator.server.estimate())
