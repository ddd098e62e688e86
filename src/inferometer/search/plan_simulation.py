"""A plan under real arrivals: simulated at a rate, or at the highest rate at which what was promised holds.

Round robin sends every n-th request to a replica. So what one of n replicas sees stands for all of them, and one is
simulated; of pools that read and answer, the smallest part that has both in the same proportion.
"""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..inference.request import build_request
from ..serving.deployment import ReplicaPool, build_pool
from ..serving.deployment_run import ServingOptions, serve
from ..serving.metrics import good_requests, latencies
from ..serving.outcome import Outcome
from .objective import Aim, Traffic

FEWEST, MOST = 300, 8000  # requests of a simulation
RANDOM = 1000  # requests that it takes where they come at random
LONGER = 3  # times as many requests confirm a winner
STRIDE = 1.07  # from a rate to the next, and more every time, until one holds and one does not: prices are that good
PRECISION = 0.035  # of the rate that is found
KEEPS_UP = 0.95  # of the requests that come must end meanwhile


class Trial(msgspec.Struct, kw_only=True, frozen=True):
    """What a simulation found. Latencies in ms, of the requests between filling up and running empty."""

    request_rate: float  # requests/s of the whole plan
    holds: bool
    good: float  # share of the requests that kept every limit
    requests: int  # that were counted
    concurrency: float  # requests under way at a time, in the mean, of the whole plan
    ttft_ms: dict[str, float]  # mean, p50, p90, p99, and what the share that must keep the limits does keep
    tpot_ms: dict[str, float]
    e2el_ms: dict[str, float]


class Contender(NamedTuple):
    """A plan to be simulated, in words, so that it can go to another process."""

    model: str
    pools: tuple[tuple[str, int, dict[str, Any]], ...]  # role, replicas, the words of a request
    rate: float  # that it is priced at
    answer: float  # s from a request to the end of its answer, as priced


class Bench:
    """Simulates one plan at any rate: ``Bench(contender, traffic, aim).at(4.0)``"""

    def __init__(
        self, plan: Contender, traffic: Traffic, aim: Aim, known: dict[str, ReplicaPool] | None = None
    ) -> None:
        """``known``: servers that other plans have, too; their tables of step times need not be made anew."""
        self.plan, self.traffic, self.aim = plan, traffic, aim
        sample = traffic.requests(FEWEST, 1.0, 1) if traffic.trace is None else traffic.trace
        servers = known if known is not None else {}
        made: list[ReplicaPool] = []
        for _, _, words in plan.pools:
            key = repr(sorted(words.items(), key=lambda pair: pair[0]))
            if key not in servers:
                servers[key] = build_pool(build_request(plan.model, **words), 1, sample)
            made.append(servers[key])
        ranks = [
            count * one.bound_plan.plan.data_parallel_size for (_, count, _), one in zip(plan.pools, made, strict=True)
        ]
        self.parts = gcd(*ranks)  # alike, of which one is simulated
        self.pools = [
            (role, one._replace(replicas=many // self.parts))
            for (role, _, _), one, many in zip(plan.pools, made, ranks, strict=True)
        ]
        self.reason = next((one.reason for _, one in self.pools if one.reason), "")
        self.how = ServingOptions(made[0].bound_plan.engine.scheduler)
        self.tried: list[Trial] = []

    def at(self, rate: float, longer: int = 1) -> Trial:
        """At so many requests a second of the whole plan; ``longer`` times as many requests as usual, and others."""
        mine = rate / self.parts
        under_way = max(1.0, mine * self.plan.answer)
        # those who come at random tell less, each, than those who come evenly
        count = int(min(MOST, longer * max(FEWEST, 2.5 * under_way + 100, RANDOM / self.parts)))
        trace = self.traffic._replace(seed=self.traffic.seed + longer - 1).requests(count, mine, self.parts)
        outcome = serve(trace, self.pools, self.how)
        skip = min(int(under_way), len(trace) // 4)  # the engine fills up, and runs empty
        found = self._trial(outcome, slice(skip, len(trace) - skip // 2), rate)
        self.tried.append(found)
        return found

    def _trial(self, outcome: Outcome, part: slice, rate: float) -> Trial:
        found = {name: values[part] for name, values in latencies(outcome).items()}
        kept = good_requests(found, {name: limit * 1e3 for name, limit in self.aim.limits.items()})
        come, end = outcome.arrival_s[part], np.sort(outcome.finished_s[part])
        lasted, took = float(np.ptp(come)), float(end[-1] - end[0]) if len(end) and not np.isnan(end).any() else np.inf
        share = float(kept.mean()) if len(kept) else 0.0
        mean = float(np.nanmean(found["e2el"])) / 1e3 if kept.any() or not np.isnan(found["e2el"]).all() else 0.0
        return Trial(
            request_rate=rate,
            good=share,
            requests=len(come),
            concurrency=rate * mean,
            holds=bool(share >= self.aim.share and took * KEEPS_UP <= max(lasted, mean)),
            **{f"{name}_ms": _spread(found[name], self.aim.share) for name in ("ttft", "tpot", "e2el")},
        )

    def highest(self, start: float) -> Trial | None:
        """The highest rate that holds, within a few percent; None if not even a light load does."""
        low: Trial | None = None
        high, rate, stride = np.inf, start, STRIDE
        for _ in range(24):
            found = self.at(rate)
            low, high = (found, high) if found.holds else (low, min(high, rate))
            if low is None and rate < start / 100:
                break
            if low is not None and high <= low.request_rate * (1 + PRECISION):
                break
            if low is not None and high < np.inf:
                rate = (low.request_rate * high) ** 0.5
            else:
                rate, stride = (rate / stride if low is None else rate * stride), stride**1.5
        return low

    def confirmed(self, start: float) -> Trial | None:
        """The highest rate, from one down, that a longer run with other requests holds, too."""
        for step in range(12):
            found = self.at(start * (1 - PRECISION) ** step, LONGER)
            if found.holds:
                return found
        return None


def _spread(values: np.ndarray, share: float) -> dict[str, float]:
    """Mean and percentiles of what is not nan."""
    x = values[~np.isnan(values)]
    if not len(x):
        return {}
    points = np.percentile(x, (50, 90, 99, 100 * share)).tolist()
    return {"mean": float(x.mean()), **dict(zip(("p50", "p90", "p99", "share"), points, strict=True))}


def tried(
    asked: tuple[Contender, Traffic, Aim, float | None], known: dict[str, ReplicaPool] | None = None
) -> tuple[list[Trial], Trial | None, str]:
    """One plan on the bench: all simulations, the one that counts, and why it cannot work at all.

    With a rate that is the one; without, the highest that holds, or for the fastest answers the load it is priced at.
    """
    plan, traffic, aim, rate = asked
    bench = Bench(plan, traffic, aim, known)
    if bench.reason:
        return [], None, bench.reason
    if rate is not None or aim.objective == "latency":
        found: Trial | None = bench.at(plan.rate if rate is None else rate)
    else:
        found = bench.highest(plan.rate)
    return bench.tried, found, ""
