"""The plans of a search for sessions, simulated one after the other until no other can be cheaper.

run = SessionSearchRun(problem, progress)
run.search()                    # the case of the best plan
run.plans, run.simulations      # what was simulated
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..inference.kv_offload import GIB, block_bytes
from ..inference.request import Request, build_request
from ..serving.deployment import ServingOptions, serve
from ..serving.metrics import good_requests, latencies
from ..serving.outcome import Outcome
from ..serving.replica_pool import ReplicaPool, build_pool
from ..serving.request_table import RequestTable, column
from ..serving.session_metrics import session_metrics
from ..serving.step_clock import step_plan
from ..serving.sticky_replicas import MANY_TURNS, rows_by_replica
from ..serving.trace import Trace
from ..serving.traffic import LoadedTraffic
from .search_result import PoolSpec
from .session_bounds import TurnFloors, shareable_tokens, span_floor, turn_floors
from .session_search_result import SessionPlan
from .space import Server, Space, servers

STEP_LIMITS = ("max_num_batched_tokens", "max_num_seqs")
CLOSE = 0.02  # plans whose costs differ by less are the same
Progress = Callable[[str, int], None]


class SessionProblem(NamedTuple):
    """The sessions, the limits of their turns, and what may serve them."""

    model: str
    space: Space
    routers: tuple[str, ...]
    traffic: LoadedTraffic
    limits: dict[str, float]  # ms
    goodput_share: float
    concurrent_sessions: int | None
    given: dict[str, Any]  # keywords of the traffic, to say them again
    finalists: int
    notes: tuple[str, ...]

    @property
    def trace(self) -> Trace:
        """All turns."""
        return self.traffic.trace


# ------------------------------------------------------------------ plans, and what bounds them


class SessionCase(NamedTuple):
    """A plan: so many replicas of a server of the space, behind a router."""

    server: int
    router: str
    replicas: int


class SessionServer:
    """A server with limits of its steps: its tables, the size of its caches, and what no turn on it can beat."""

    def __init__(
        self,
        server: Server,
        request: Request,
        limits: dict[str, int | None],
        pool: ReplicaPool,
        floors: TurnFloors,
        span_s: float,
    ) -> None:
        self.server, self.request, self.pool, self.floors, self.span_s = server, request, pool, floors, span_s
        self.limits = limits  # of a step; None: the engine's
        self.gpus = server.layout.gpus
        self.price = request.device.price_per_hour or 1.0  # GPU-hours where there is no price

    @cached_property
    def cached_tokens(self) -> tuple[float, float]:
        """Tokens that the GPU and the CPU memory of one replica hold."""
        size, per_block = self.server.kv_offloading_size * GIB, block_bytes(self.pool.bound_plan)
        below = size / per_block * self.request.plan.block_size if per_block else 0.0
        return float(self.pool.kv_cache_tokens), below

    def no_better_than(self, other: SessionServer) -> bool:
        """Whether another server on as many GPUs is at least as fast, and its caches hold at least as much."""
        same = self.server.gpu == other.server.gpu and self.server.layout == other.server.layout
        if not same or any(own > others for own, others in zip(self.cached_tokens, other.cached_tokens, strict=True)):
            return False
        if self.limits != other.limits:
            return False
        pairs = zip(self.floors[:2], other.floors[:2], strict=True)
        return all(float(own.sum()) >= float(others.sum()) * (1 - 1e-9) for own, others in pairs)

    def cost_floor(self, replicas: int, sessions: int) -> float:
        """Dollars (or GPU-hours) per session that so many replicas cost at least."""
        return self.price * self.gpus * replicas * self.span_s / 3600 / sessions


class Stopped(Exception):
    """So many turns were late that the plan cannot hold."""


class LateTurns:
    """Counts late turns while a simulation runs, and ends it when there are more than ``allowed``."""

    def __init__(self, limits: dict[str, float], allowed: int, gaps: list[np.ndarray], late: int = 0) -> None:
        self.limits, self.allowed, self.gaps, self.before = limits, allowed, gaps, late
        self.late: dict[RequestTable, int] = {}  # replicas that never meet have a table each

    @property
    def total(self) -> int:
        """Late turns so far; those that are rejected are known beforehand."""
        return self.before + sum(self.late.values())

    def __call__(self, table: RequestTable) -> None:
        number = list(self.late).index(table) if table in self.late else len(self.late)
        arrival, first, end = map(column, (table.arrival_s, table.first_token_s, table.finished_s))
        late = np.zeros(len(arrival), bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            if "ttft" in self.limits:
                late |= (first - arrival) * 1e3 > self.limits["ttft"]
            if "e2el" in self.limits:
                late |= (end - arrival) * 1e3 > self.limits["e2el"]
            if "tpot" in self.limits:
                late |= (end - first) / self.gaps[number] * 1e3 > self.limits["tpot"]
        self.late[table] = int(late.sum())
        if self.total > self.allowed:
            raise Stopped


# ------------------------------------------------------------------ the search


class SessionSearchRun:
    """One search under way: ``run.search()`` gives the best plan's case, or None."""

    def __init__(self, problem: SessionProblem, progress: Progress) -> None:
        self.problem, self.progress, self.trace = problem, progress, problem.trace
        self.plans: dict[SessionCase, SessionPlan] = {}
        self.outcomes: dict[SessionCase, Outcome] = {}  # of the last few that were simulated to the end
        self.rejections: dict[str, int] = {}
        assert self.trace.sessions is not None, "see `_sessions`"
        self.sessions = len(self.trace.sessions)
        self.simulations = self.unused_memory = 0
        self.servers = self._servers()
        self.cases = self._cases(problem.space.num_gpus)

    def _servers(self) -> list[SessionServer]:
        """Servers that can be started and are quick enough where nothing else runs; the likeliest to hold first."""
        space, kept = self.problem.space, []
        legal, illegal = servers(space, self.problem.model)
        for rejected in illegal:
            self._reject(rejected.reason)
        shared = shareable_tokens(self.trace)
        known: dict[Any, tuple[ReplicaPool, TurnFloors, float]] = {}
        for server in legal:
            for budget in space.max_num_batched_tokens:
                for seqs in space.max_num_seqs:
                    limits: dict[str, int | None] = dict(zip(STEP_LIMITS, (budget, seqs), strict=True))
                    kwargs = {**space.request_kwargs, **server.request_kwargs(), **limits}
                    request = build_request(self.problem.model, **kwargs)
                    key = (server.gpu, server.layout, server.kind[1:3], budget, seqs)
                    if key not in known:
                        known[key] = self._estimated(request, shared)
                        self.progress("estimating", len(known))
                    pool, floors, span = known[key]
                    pool = pool._replace(request=request, bound_plan=step_plan(request))
                    kept.append(SessionServer(server, request, limits, pool, floors, span))
        fit = [one for one in kept if not one.pool.reason]
        for one in kept:
            if one.pool.reason:
                self._reject("does not fit in memory" if "room for the KV" in one.pool.reason else one.pool.reason)
        quick = [one for one in fit if self._quick(one.floors)]
        self.too_slow = [one for one in fit if not self._quick(one.floors)]
        for _ in self.too_slow:
            self._reject("too slow even where nothing else runs")
        return sorted(quick, key=lambda one: (one.price * one.gpus, -one.cached_tokens[1], one.floors.ttft_s.sum()))

    def _reject(self, reason: str) -> None:
        self.rejections[reason] = self.rejections.get(reason, 0) + 1

    def _estimated(self, request: Request, shared: np.ndarray) -> tuple[ReplicaPool, TurnFloors, float]:
        pool = build_pool(request, 1, self.trace)
        if pool.reason:
            return pool, TurnFloors(*(np.zeros(len(self.trace)),) * 3), 0.0
        floors = turn_floors(pool, shared, self.trace)
        return pool, floors, span_floor(self.trace, floors.e2el_s, self.problem.concurrent_sessions)

    def _quick(self, floors: TurnFloors) -> bool:
        """Whether enough turns keep every limit at their floors."""
        kept = np.ones(len(self.trace), bool)
        for name, limit in self.problem.limits.items():
            kept &= getattr(floors, f"{name}_s") * 1e3 <= limit
        return bool(kept.mean() >= self.problem.goodput_share)

    def _cases(self, num_gpus: int) -> list[SessionCase]:
        """All plans; one replica needs no router."""
        return [
            SessionCase(number, router, replicas)
            for number, server in enumerate(self.servers)
            for router in self.problem.routers
            for replicas in range(1, num_gpus // server.gpus + 1)
            if replicas > 1 or router == self.problem.routers[0]
        ]

    def search(self) -> SessionCase | None:
        """The case of the best plan; None if none holds."""
        ladders: dict[tuple[int, str], list[SessionCase]] = {}
        for case in self.cases:
            ladders.setdefault((case.server, case.router), []).append(case)
        for ladder in ladders.values():
            while (following := self._next(ladder)) is not None:
                self.simulate(following)
        best = self.best
        return self._least_memory(best) if best is not None else None

    @property
    def best(self) -> SessionCase | None:
        """The cheapest plan that holds so far."""
        return min((case for case, plan in self.plans.items() if plan.holds), key=self.cost, default=None)

    def cost(self, case: SessionCase) -> float:
        """Dollars (or GPU-hours) per session of a plan that was simulated; infinite if no session ended."""
        plan, server = self.plans[case], self.servers[case.server]
        per_hour = plan.sessions_per_hour
        return server.price * plan.gpus / per_hour if per_hour else math.inf

    def _next(self, ladder: list[SessionCase]) -> SessionCase | None:
        """Of the plans of one server and router, the next that must be simulated: up by doubling until one holds;
        afterwards the largest that may be cheaper, and then the middle of what is left below it."""
        best = self.best
        most = self.cost(best) * (1 - CLOSE) if best is not None else math.inf
        left = [
            case for case in ladder if case not in self.plans and self._floor(case) < most and not self.no_better(case)
        ]
        if not left:
            return None
        if best is None:
            failed = max((case.replicas for case in ladder if case in self.plans), default=0)
            return next((case for case in left if case.replicas >= 2 * failed), left[-1])
        held = [case for case in ladder if case in self.plans and self.plans[case].holds]
        return left[len(left) // 2] if held else left[-1]

    def _floor(self, case: SessionCase) -> float:
        return self.servers[case.server].cost_floor(case.replicas, self.sessions)

    def no_better(self, case: SessionCase) -> bool:
        """Whether a plan was simulated whose servers are as fast and remember as much: with as many replicas, so that
        this one is not cheaper, or with more that failed."""
        server = self.servers[case.server]
        return any(
            (other.replicas == case.replicas or (other.replicas > case.replicas and not plan.holds))
            and (other.router == case.router or case.replicas == 1)
            and server.no_better_than(self.servers[other.server])
            for other, plan in self.plans.items()
        )

    def _least_memory(self, best: SessionCase) -> SessionCase:
        """The same plan with the least CPU memory that costs as little and holds."""
        most = self.cost(best) * (1 + CLOSE)
        sizes = sorted(self.of_all_sizes(best), key=lambda case: self.size(case))
        low, high = -1, sizes.index(best)
        while high - low > 1:
            middle = (low + high) // 2
            case = sizes[middle]
            good = self.simulate(case).holds and self.cost(case) <= most
            low, high = (low, middle) if good else (middle, high)
        return sizes[high]

    def size(self, case: SessionCase) -> float:
        """GiB of CPU memory of a replica."""
        return self.servers[case.server].server.kv_offloading_size

    def of_all_sizes(self, case: SessionCase) -> list[SessionCase]:
        """The same plan with every size of CPU memory."""

        def kind(one: SessionServer) -> tuple[Any, ...]:
            return (one.server.gpu, one.server.layout, *one.server.kind[1:3], *one.limits.values())

        own = kind(self.servers[case.server])
        return [case._replace(server=number) for number, one in enumerate(self.servers) if kind(one) == own]

    def counts(self, best: SessionCase | None) -> dict[str, int]:
        """All plans, and how many of them were simulated, dearer by their bounds, or no better than one of these."""
        most = self.cost(best) * (1 - CLOSE) if best is not None else math.inf
        rest = [case for case in self.cases if case not in self.plans]
        worse = sum(self._floor(case) < most and self.no_better(case) for case in rest)
        return {
            "plans": len(self.cases),
            "plans_simulated": len(self.plans) - self.unused_memory,
            "plans_same": self.unused_memory,
            "plans_stopped": sum(plan.stopped for plan in self.plans.values()),
            "plans_dearer": sum(self._floor(case) >= most for case in rest),
            "plans_worse": worse,
            "simulations": self.simulations,
        }

    # ------------------------------------------------------------------ simulations

    def simulate(self, case: SessionCase, *, whole: bool = False) -> SessionPlan:
        """A plan with all sessions; unless the ``whole`` run is asked for, it ends once too many turns were late."""
        done = self.plans.get(case)
        if done is not None and not (whole and done.stopped):
            return done
        same = self._unused_memory(case)
        if same is not None:
            self.unused_memory += 1
            shares = same.tier_shares if self.size(case) else {k: v for k, v in same.tier_shares.items() if k != "cpu"}
            self.plans[case] = msgspec.structs.replace(
                same, label=self.label(case), pool=self.pool_spec(case), tier_shares=shares
            )
            return self.plans[case]
        self.simulations += 1
        self.progress("simulating", self.simulations)
        server, problem, trace = self.servers[case.server], self.problem, self.trace
        ranks = case.replicas * server.server.layout.dp
        gaps = np.maximum(trace.output_tokens - 1, 1)
        rows = rows_by_replica(trace, ranks) if case.router == "session_affinity" and ranks > 1 else None
        parts = [gaps] if rows is None or problem.concurrent_sessions else [gaps[some] for some in rows]
        longest = server.request.plan.max_model_len or 10**9
        late = LateTurns(
            problem.limits,
            math.floor(len(trace) * (1 - problem.goodput_share) + 1e-9),
            parts if len(parts) == 1 or server.pool.ranks_per_server == 1 else [gaps],
            int((trace.input_tokens >= longest).sum()),
        )
        options = ServingOptions(
            scheduler=server.request.engine.scheduler,
            router=case.router,
            concurrent_sessions=problem.concurrent_sessions,
            watch=None if whole or len(trace) >= MANY_TURNS else late,
        )
        try:
            outcome = serve(trace, [("both", server.pool._replace(replicas=ranks))], options)
        except Stopped:
            self.plans[case] = self._stopped_plan(case, late)
        else:
            self.plans[case] = self._plan(case, outcome)
            self.outcomes = {case: outcome}
        return self.plans[case]

    def _unused_memory(self, case: SessionCase) -> SessionPlan | None:
        """The same plan with more CPU memory, of which nothing was ever read: less of it makes no difference."""
        for other in self.of_all_sizes(case):
            plan = self.plans.get(other)
            unused = plan is not None and not plan.stopped and not any(list(plan.tier_shares.values())[1:])
            if unused and self.size(other) > self.size(case):
                return plan
        return None

    def label(self, case: SessionCase) -> str:
        """``2 × tp1 fp8, KV fp8 + 64 GiB, session_affinity``"""
        pool = self.pool_spec(case)
        router = f", {case.router}" if case.replicas > 1 else ""
        several = len(self.problem.space.gpus) > 1
        gpu = f" on {self.servers[case.server].request.device.name}" if several else ""
        return f"{case.replicas} × {pool.layout} {pool.precision}{router}{gpu}"

    def pool_spec(self, case: SessionCase) -> PoolSpec:
        """The servers of a plan."""
        server = self.servers[case.server]
        return PoolSpec.of(
            server.server.layout,
            server.request.plan,
            role="both",
            replicas=case.replicas,
            kv_offloading_size=server.server.kv_offloading_size,
        )

    def _stopped_plan(self, case: SessionCase, late: LateTurns) -> SessionPlan:
        total = len(self.trace)
        return self._named(
            case,
            holds=False,
            stopped=True,
            good_share=1 - late.total / total,
            reason=f"stopped when {late.total:,} of {total:,} turns were late",
        )

    def _named(self, case: SessionCase, **figures: Any) -> SessionPlan:
        server = self.servers[case.server]
        empty: dict[str, Any] = {
            "missed": {},
            "ttft_ms": {},
            "tpot_ms": {},
            "e2el_ms": {},
            "session_s": {},
            "tier_shares": {},
        }
        numbers = {"cost_per_session": None, "sessions_per_hour": None, "duration_s": 0.0, "cached_share": 0.0}
        return SessionPlan(
            label=self.label(case),
            gpu=server.request.device.name,
            pool=self.pool_spec(case),
            gpus=server.gpus * case.replicas,
            router=case.router,
            **{**empty, **numbers, **figures},
        )

    def _plan(self, case: SessionCase, outcome: Outcome) -> SessionPlan:
        """What a whole simulation says."""
        problem, server = self.problem, self.servers[case.server]
        latency, share = latencies(outcome), problem.goodput_share
        price = server.request.device.price_per_hour
        by_session = session_metrics(outcome, price * server.gpus * case.replicas if price else None)
        assert by_session is not None, "the trace has sessions"
        good = float(good_requests(latency, problem.limits).mean())
        figures = {f"{name}_ms": _distribution(latency[name], share) for name in ("ttft", "tpot", "e2el")}
        late = {name: figures[f"{name}_ms"].get("share") for name in problem.limits}
        missed = {name: value for name, value in late.items() if value is None or value > problem.limits[name]}
        holds = good >= share and by_session["completed"] > 0
        tiers = {tier.name: tier.hit_rate for tier in outcome.kv_tiers}
        reason = ""
        if good < share:
            reason = f"{good:.1%} of turns keep the limits"
        elif not holds:
            reason = "no session ended: each has a turn that the model or the cache is too small for"
        return self._named(
            case,
            holds=holds,
            stopped=False,
            good_share=good,
            missed=missed if good < share else {},
            cost_per_session=by_session["cost_per_session"],
            sessions_per_hour=by_session["sessions_per_hour"],
            duration_s=outcome.duration_s,
            session_s={"mean": by_session["mean_duration_s"], "p90": by_session["p90_duration_s"]},
            cached_share=by_session["cached_share"],
            tier_shares=tiers or {"gpu": outcome.prefix_hit_rate},
            reason=reason,
            **figures,
        )


def _distribution(values: np.ndarray, share: float) -> dict[str, float | None]:
    """Mean and percentiles of what is not nan."""
    x = values[~np.isnan(values)]
    if not len(x):
        return {}
    points = np.percentile(x, (50, 90, 99, 100 * share)).tolist()
    return {"mean": float(x.mean()), **dict(zip(("p50", "p90", "p99", "share"), points, strict=True))}
