"""All plans as columns, a row of them as people and simulations read it, and the Pareto front of their loads.

Every plan is kept, also those that fail, with the figures that say why. A load is on the front if no other beats it in
tokens/s per GPU, tokens/s per user and cost alike.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import pareto_front
from ..inference.expected_error import expected_errors
from ..inference.latency import cost_per_million_tokens, joules_per_token
from ..inference.report import ExpectedError
from .objective import Objective, Traffic
from .plan_simulation import PoolCase, SimulationCase
from .search_result import Candidate, PlanMetrics, PoolSpec, SimulationResult
from .server_table import ServerTable
from .space import Problem, Server, precision_label

SLACK = 1.1  # means are off by some percent: plans that miss a limit by less are left to the simulator


class Status(IntEnum):
    """What the estimates say of a plan."""

    MEETS_SLO = 0  # within SLACK
    MISSES_SLO = 1
    TOO_SLOW = 2  # cannot carry the given request rate
    NO_CAPACITY = 3  # no step or KV cache for a prompt


class Plans(NamedTuple):
    """One row per plan. Where one pool does prefill and decode, ``decode_server`` is -1."""

    prefill_server: np.ndarray  # row of the server table; it decodes, too, unless there is a decode server
    replicas: np.ndarray
    decode_server: np.ndarray
    decode_replicas: np.ndarray
    token_budget: np.ndarray  # index of max_num_batched_tokens
    seqs: np.ndarray  # index of max_num_seqs
    load: np.ndarray  # index of the load that the plan is estimated at
    gpus: np.ndarray
    request_rate: np.ndarray  # requests/s of the whole plan at that load; of a plan that is TOO_SLOW, its most
    optimistic_rate: np.ndarray  # the same at the best load with an SLO ratio up to SLACK
    ttft: np.ndarray  # s, mean
    ttft_at_slo_share: np.ndarray  # s, the percentile of goodput_share
    tpot: np.ndarray  # s, mean
    status: np.ndarray  # values of Status
    slo_ratio: np.ndarray  # the worst of metric over limit

    def at(self, rows: Any) -> Plans:
        """Some of the plans: ``plans.at(plans.status == Status.MEETS_SLO)``"""
        return Plans(*(column[rows] for column in self))


def concatenated(parts: list[Plans]) -> Plans:
    """All plans of several tables."""
    return Plans(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def latencies(traffic: Traffic, ttft: Any, tpot: Any) -> dict[str, Any]:
    """The metrics that an SLO may limit, by name, in seconds."""
    return {"ttft": ttft, "tpot": tpot, "e2el": ttft + traffic.decode_tokens * tpot}


def slo_ratio(objective: Objective, traffic: Traffic, ttft: Any, tpot: Any) -> Any:
    """The worst ratio of a metric to its limit: 1 is just kept, 0 where there are no limits."""
    values = latencies(traffic, ttft, tpot)
    worst: Any = np.zeros(np.broadcast_shapes(np.shape(ttft), np.shape(tpot)))
    with np.errstate(over="ignore"):  # a limit next to nothing is missed by infinity
        for name, limit in objective.slo.items():
            worst = np.maximum(worst, values[name] / limit)
    return worst


class LoadMetrics(NamedTuple):
    """Metrics of plans at all their loads, which are the last axis."""

    served: np.ndarray  # whether the plan can run at the load at all
    request_rate: np.ndarray
    ttft: np.ndarray
    ttft_at_slo_share: np.ndarray
    tpot: np.ndarray
    slo_ratio: np.ndarray

    def best_load(self, problem: Problem, slack: float = 1.0) -> Any:
        """Index of the best load with an SLO ratio up to ``slack``, or of the load that comes nearest to the SLO.

        The best is the one with the most requests, or for the objective latency the fastest answer.
        """
        kept = self.served & (self.slo_ratio <= slack)
        score = self.request_rate
        if problem.objective.name == "latency":
            score = -latencies(problem.traffic, self.ttft, self.tpot)["e2el"]
        best = np.where(kept, score, -np.inf).argmax(-1)
        return np.where(kept.any(-1), best, np.where(self.served, self.slo_ratio, np.inf).argmin(-1))


def value(plans: Plans, servers: ServerTable, problem: Problem) -> np.ndarray:
    """The objective as a number per plan, more is better. Without a given rate, idle GPUs count."""
    space, traffic, objective = problem.space, problem.traffic, problem.objective.name
    tokens = plans.request_rate * traffic.output_len
    gpu_seconds = plans.gpus / np.maximum(tokens, 1e-12)
    values: np.ndarray
    if objective == "latency":
        values = -latencies(traffic, plans.ttft, plans.tpot)["e2el"]
    elif objective == "throughput":
        values = tokens / (plans.gpus if traffic.request_rate else space.num_gpus)
    elif objective == "cost":
        values = -cost_per_million_tokens(gpu_seconds, servers.per_device("price_per_hour")[plans.prefill_server])
    else:
        values = -joules_per_token(gpu_seconds, mean_watts(plans, servers))
    return values


def mean_watts(plans: Plans, servers: ServerTable) -> np.ndarray:
    """Mean watts of a GPU of each plan at its load; prefill pools are idle where no prompt is there."""
    prefill, decode = plans.prefill_server, np.maximum(plans.decode_server, 0)
    most = plans.replicas * servers.prefill_rate[prefill, plans.token_budget]
    idle, full = servers.idle_watts[prefill], servers.prefill_watts[prefill, plans.token_budget]
    prefill_watts = idle + np.minimum(plans.request_rate / np.maximum(most, 1e-12), 1) * (full - idle)
    decode_share = plans.decode_replicas * servers.gpus[decode] / np.maximum(plans.gpus, 1)
    pools = prefill_watts + decode_share * (servers.decode_watts[decode, plans.load] - prefill_watts)
    watts: np.ndarray = np.where(
        plans.decode_server >= 0, pools, servers.watts[prefill, plans.token_budget, plans.load]
    )
    return watts


def ranking(plans: Plans, values: np.ndarray, servers: ServerTable) -> np.ndarray:
    """Rows, best first. Ties: fewer GPUs, aggregated, faster answers, the engine's own token budget, more sequences."""
    engine = servers.servers[0].request.engine
    budget_distance = np.abs(
        np.log2(servers.max_num_batched_tokens[plans.token_budget] / engine.max_num_batched_tokens)
    )
    e2el = plans.ttft + servers.loads.decode_tokens * plans.tpot
    disaggregated = plans.decode_server >= 0
    keys = (-servers.max_num_seqs[plans.seqs], budget_distance, e2el, disaggregated, plans.gpus, -values)
    rows: np.ndarray = np.lexsort(keys)  # the last key counts first
    return rows


class PlanTable(NamedTuple):
    """All plans of a search, with everything that their columns refer to."""

    problem: Problem
    servers: ServerTable
    plans: Plans

    @property
    def compares_rates(self) -> bool:
        """Whether plans compete by the highest rate that they hold, so that one that fails at a rate may hold less."""
        return self.problem.traffic.request_rate is None and self.problem.objective.name != "latency"

    def expected_errors(self, row: int) -> dict[str, ExpectedError]:
        """How far predictions of such plans are off."""
        used = self.server_rows(row)
        load = "disaggregated" if len(used) > 1 else "online"
        return expected_errors(self.servers.servers[used[-1]].request, load)

    def prediction_error(self, row: int) -> float:
        """The median error of what the objective compares: of whole answers, which throughput and cost follow."""
        errors = self.expected_errors(row)
        return errors["e2el"].p50 if errors else 0.0

    def value(self, plans: Plans) -> np.ndarray:
        """`value` of some plans of this table, with other figures perhaps."""
        return value(plans, self.servers, self.problem)

    def server_rows(self, row: int) -> list[int]:
        """The rows of the server table that a plan uses: one, or those of its prefill and its decode pool."""
        pair = (int(self.plans.prefill_server[row]), int(self.plans.decode_server[row]))
        return [server for server in pair if server >= 0]

    def candidate(self, row: int) -> Candidate:
        """The plan of a row."""
        p, used = self.plans, self.server_rows(row)
        roles = ("prefill", "decode") if len(used) > 1 else ("both",)
        gpus = int(p.gpus[row])
        return Candidate(
            gpu=self.servers.servers[used[0]].request.device.name,
            mode="disaggregated" if len(used) > 1 else "aggregated",
            pools=[self._pool(role, server, row) for role, server in zip(roles, used, strict=True)],
            gpus=gpus,
            idle_gpus=0 if self.problem.traffic.request_rate else self.problem.space.num_gpus - gpus,
            priced=self.metrics(row, float(p.request_rate[row]), float(p.ttft[row]), float(p.tpot[row])),
        )

    def _pool(self, role: str, server_row: int, row: int) -> PoolSpec:
        p, server = self.plans, self.servers.servers[server_row]
        plan, layout = server.request.plan, server.layout
        token_budget = int(self.servers.max_num_batched_tokens[p.token_budget[row]])
        return PoolSpec.of(
            layout,
            plan,
            role=role,
            replicas=int((p.decode_replicas if role == "decode" else p.replicas)[row]),
            kv_offloading_size=server.kv_offloading_size,
            max_num_seqs=int(self.servers.max_num_seqs[p.seqs[row]]),
            max_num_batched_tokens=plan.max_num_batched_tokens if role == "decode" else token_budget,
        )

    def metrics(self, row: int, request_rate: float, ttft: float, tpot: float) -> PlanMetrics:
        """A plan at a rate, with these means in seconds."""
        traffic, gpus = self.problem.traffic, int(self.plans.gpus[row])
        tokens = request_rate * traffic.output_len
        device = self.servers.servers[int(self.plans.prefill_server[row])].request.device
        gpu_seconds = gpus / tokens if tokens else float("inf")  # of one output token
        price, watts = device.price_per_hour, mean_watts(self.plans.at(slice(row, row + 1)), self.servers).item()
        return PlanMetrics(
            request_rate=request_rate,
            output_throughput=tokens,
            output_throughput_per_gpu=tokens / (gpus if traffic.request_rate else self.problem.space.num_gpus),
            output_throughput_per_user=1 / tpot,
            ttft_ms=ttft * 1e3,
            tpot_ms=tpot * 1e3,
            e2el_ms=latencies(traffic, ttft, tpot)["e2el"] * 1e3,
            cost_per_million_output_tokens=cost_per_million_tokens(gpu_seconds, price) if price else None,
            joules_per_output_token=joules_per_token(gpu_seconds, watts) if watts else None,
        )

    def simulated_metrics(self, row: int, result: SimulationResult) -> PlanMetrics | None:
        """The same from a simulation; None if no answer had two tokens."""
        if not result.tpot_ms:
            return None
        return self.metrics(row, result.request_rate, result.ttft_ms["mean"] / 1e3, result.tpot_ms["mean"] / 1e3)

    def simulation_case(self, row: int) -> SimulationCase:
        """The plan of a row, ready to be simulated, here or in another process."""
        plan = self.candidate(row)
        pools = []
        for pool, server_row in zip(plan.pools, self.server_rows(row), strict=True):
            kwargs = {
                **self.problem.space.request_kwargs,
                **self.servers.servers[server_row].request_kwargs(),
                "max_num_seqs": pool.max_num_seqs,
                "max_num_batched_tokens": pool.max_num_batched_tokens,
            }
            pools.append(PoolCase(pool.role, pool.replicas, kwargs))
        return SimulationCase(
            model=self.problem.model,
            pools=tuple(pools),
            traffic=self.problem.traffic,
            objective=self.problem.objective,
            estimated_rate=plan.priced.request_rate,
            estimated_e2el=plan.priced.e2el_ms / 1e3,
        )


# ------------------------------------------------------------------ the Pareto front of loads


class LoadPoints(NamedTuple):
    """Loads of plans as columns, whether they meet the SLO or not."""

    prefill_server: np.ndarray  # row of the server table; it decodes, too, unless there is a decode server
    decode_server: np.ndarray  # or -1
    replicas: np.ndarray
    decode_replicas: np.ndarray
    token_budget: np.ndarray  # index of max_num_batched_tokens
    per_gpu: np.ndarray  # output tokens/s, of all GPUs that are given
    per_user: np.ndarray  # output tokens/s
    ttft: np.ndarray  # s
    cost: np.ndarray  # USD for a million output tokens; 0 where no price is known


def load_points(table: PlanTable) -> LoadPoints:
    """Every load of every server, in as many replicas as there is room for; disaggregated plans at their best load."""
    servers, p, num_gpus = table.servers, table.plans, table.problem.space.num_gpus
    served = servers.served()
    server, token_budget, _ = np.nonzero(served)
    replicas = (num_gpus // servers.gpus)[server]
    pairs = p.at(p.decode_server >= 0)
    none = np.full(len(server), -1)
    prefill_server = np.concatenate([server, pairs.prefill_server])
    request_rate = np.concatenate([servers.request_rate[served] * replicas, pairs.request_rate])
    tokens = request_rate * table.problem.traffic.output_len
    gpus = np.concatenate([replicas * servers.gpus[server], pairs.gpus])
    price = servers.per_device("price_per_hour")[prefill_server]
    return LoadPoints(
        prefill_server=prefill_server,
        decode_server=np.concatenate([none, pairs.decode_server]),
        replicas=np.concatenate([replicas, pairs.replicas]),
        decode_replicas=np.concatenate([0 * none, pairs.decode_replicas]),
        token_budget=np.concatenate([token_budget, pairs.token_budget]),
        per_gpu=tokens / num_gpus,
        per_user=1 / np.concatenate([servers.tpot[served], pairs.tpot]),
        ttft=np.concatenate([servers.base_ttft[served], pairs.ttft]),
        cost=cost_per_million_tokens(gpus / np.maximum(tokens, 1e-12), price),
    )


def keeps_limits(table: PlanTable, points: LoadPoints) -> np.ndarray:
    """Which loads keep all limits, by their means."""
    kept: np.ndarray = slo_ratio(table.problem.objective, table.problem.traffic, points.ttft, 1 / points.per_user) <= 1
    return kept


def front_rows(table: PlanTable) -> tuple[list[dict[str, Any]], LoadPoints]:
    """The front as rows for people, and all points for a picture; cost counts where several GPU types have prices."""
    points = load_points(table)
    by_cost = len(table.problem.space.gpus) > 1 and bool((points.cost > 0).all())
    front = pareto_front(points.per_user, points.per_gpu, points.cost if by_cost else None)
    keeps = keeps_limits(table, points)
    return [{**_front_row(table, points, n), "keeps_limits": bool(keeps[n])} for n in front.tolist()], points


def _front_row(table: PlanTable, points: LoadPoints, n: int) -> dict[str, Any]:
    server = table.servers.servers[int(points.prefill_server[n])]
    disaggregated = bool(points.decode_server[n] >= 0)
    pools = [(server, points.replicas[n])]
    if disaggregated:
        pools.append((table.servers.servers[int(points.decode_server[n])], points.decode_replicas[n]))
    plan = " → ".join(f"{replicas} × {one.layout}" for one, replicas in pools)
    return {
        "plan": f"{plan} {precision_label(*server.kind[1:])}",
        "pools": [_front_pool(one, int(replicas)) for one, replicas in pools],
        "gpu": server.request.device.name,
        "mode": "disaggregated" if disaggregated else "aggregated",
        "max_num_batched_tokens": int(table.servers.max_num_batched_tokens[points.token_budget[n]]),
        "output_throughput_per_gpu": float(points.per_gpu[n]),
        "output_throughput_per_user": float(points.per_user[n]),
        "ttft_ms": float(points.ttft[n]) * 1e3,
        "cost_per_million_output_tokens": float(points.cost[n]) or None,
    }


def _front_pool(server: Server, replicas: int) -> dict[str, Any]:
    """Its keys are those of `PoolSpec`."""
    layout = server.layout
    return {
        "replicas": replicas,
        "tensor_parallel_size": layout.tp,
        "pipeline_parallel_size": layout.pp,
        "data_parallel_size": layout.dp,
        "enable_expert_parallel": layout.ep,
        "quantization": server.kind.quantization,
        "kv_cache_dtype": server.kind.kv_cache_dtype,
        "kv_offloading_size": server.kv_offloading_size,
    }
