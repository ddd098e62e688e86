"""The search for the best deployment: ``search("llama-3.1-70b", gpu="h200", num_gpus=16, input_len=4000,
output_len=500, goodput="ttft:500,tpot:50")`` gives `Search`: the winner, why it won, the other plans, how to start it.

A plan goes through these shapes:

    Server           an engine on its GPUs with a `Layout` and precisions          space.servers
    ServerTable row  its means under every token budget, max_num_seqs and load     server_table.estimate_servers
    Plans row        replicas of one server, or a prefill and a decode pool,       modes.aggregated, .disaggregated
                     at the best load; a `PlanTable` has all of them
    SimulationCase   the same as plain data, for the simulator in any process      plan_table.PlanTable.simulation_case
    Finalist         a row of plans with its simulations                           finalists.simulate_finalists
    Candidate        a plan in the result, for people and JSON                     explanation.to_candidate
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from math import gcd
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

from ..base.errors import BadValue, check_int
from ..base.result import keep
from ..base.units import plural
from ..inference.request import build_request
from ..inference.step_cliffs import budget_cliff
from ..serving.replica_pool import ReplicaPool
from ..serving.trace import Trace, read_trace
from ..specs.arguments import arguments, check_names, signature
from ..specs.catalog import gpu_names, hardware
from ..specs.command_args import SearchArgs
from ..specs.plan_args import PlanArgs
from . import explanation
from .day_plan import DayPlanner, check_day, day_window
from .finalists import Finalist, SimulationOptions, ranked, simulate_finalists, simulation_options
from .launch.bench_command import bench, num_prompts
from .launch.plan_launch import launches
from .launch.processes import Launch
from .modes import aggregated, disaggregated
from .objective import build_objective, build_traffic
from .plan_simulation import PlanSimulator
from .plan_table import Plans, PlanTable, Status, concatenated, front_rows
from .relaxation import Relaxer
from .search_result import Candidate, Day, Relaxation, Search
from .served_plan import served_model, start_lines
from .server_table import estimate_servers
from .session_search import session_search
from .session_search_result import SessionSearch
from .space import Problem, RejectedServer, Server, build_space, cluster_size, servers
from .steady_state import concurrency_grid

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import SearchKwargs

MODES = ("aggregated", "disaggregated")
MAX_POINTS = 10**7  # loads of limits of servers that are estimated
MAX_PAIRED_GPUS = 128  # on which, at a given rate, any numbers of prefill and decode servers are paired
Progress = Callable[[str, int], None]
RUN_ONLY = (
    "num_gpus",
    "nodes",
    "finalists",
    "backend",
    "jobs",
    "window",
    "autoscale",
)  # not those of a search with a relaxation
OWN = (  # arguments of the search itself; all others go to the space, or to every request
    *RUN_ONLY,
    "input_len",
    "output_len",
    "prefix_len",
    "request_rate",
    "burstiness",
    "goodput",
    "goodput_share",
    "objective",
    "mode",
    "seed",
)


@overload
def search(
    model: str, gpu: str | Sequence[str] = ..., *, agents: str | Mapping[str, Any], **kwargs: Any
) -> SessionSearch:
    """Sessions of agents: `session_search`."""


@overload
def search(model: str, gpu: str | Sequence[str] = ..., *, like: str, **kwargs: Any) -> SessionSearch:
    """Sessions like those of a trace: `session_search`."""


@overload
def search(
    model: str,
    gpu: str | Sequence[str] = ...,
    *,
    trace: Trace | str | PathLike[str] | None = ...,
    relax: bool = ...,
    address: str | None = ...,
    progress: Progress | None = ...,
    **kwargs: Unpack[SearchKwargs],
) -> Search:
    """Requests that wait for no others."""


@signature(SearchArgs)
def search(
    model: str,
    gpu: str | Sequence[str] = "h100-sxm",
    *,
    trace: Trace | str | PathLike[str] | None = None,
    relax: bool = True,
    address: str | None = None,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Search | SessionSearch:
    """Estimate every legal plan on the GPUs, simulate the best ones, and recommend one.

    ``search("llama-3.1-8b", gpu="h200", num_gpus=4, goodput="ttft:500,tpot:50").winner.label``

    Without ``request_rate`` (or a trace with arrivals), or with "max", the highest rate that meets the limits of
    ``goodput`` (ms) is found; with one, the plan that serves it best. A trace with arrivals is stretched to any
    other rate. Sizes, precisions and limits may be given as one value or several (``tensor_parallel_size=[2, 4]``);
    else the values in ``Search.space`` are tried. ``relax``: where no plan is feasible, say what would make one
    feasible. ``address``: of a Dask or Ray cluster. With ``agents``, or sessions ``like`` a trace, it is
    `session_search`, and so are its keywords and its result.
    """
    if kwargs.get("agents") is not None or kwargs.get("like") is not None:
        return session_search(model, gpu, trace=trace, relax=relax, progress=progress, **kwargs)
    requests = trace if trace is None or isinstance(trace, Trace) else read_trace(trace)
    return search_with_table(model, gpu, trace=requests, relax=relax, address=address, progress=progress, **kwargs)[0]


@signature(SearchArgs)
def search_with_table(
    model: str,
    gpu: str | Sequence[str] = "h100-sxm",
    *,
    trace: Trace | None = None,
    relax: bool = True,
    address: str | None = None,
    progress: Progress | None = None,
    **kwargs: Unpack[SearchKwargs],
) -> tuple[Search, PlanTable | None, list[RejectedServer]]:
    """As `search`: the result, the table of all plans (None if no server can be started), and the servers that cannot
    be started."""
    started = time.perf_counter()
    given: dict[str, Any] = {name: value for name, value in kwargs.items() if value is not None}
    check_names(SearchArgs, given, *arguments(PlanArgs))
    args = SearchArgs(**{name: value for name, value in given.items() if name in OWN})
    with simulation_options(args.finalists, args.backend, args.jobs, address) as options:
        gpus = gpu_names(gpu) if isinstance(gpu, str) else list(gpu)
        request_kwargs = {"frontend": "http", **{name: value for name, value in given.items() if name not in OWN}}
        num_gpus, per_node = cluster_size(gpus, args.num_gpus, args.nodes, request_kwargs.get("gpus_per_node"))
        request_kwargs |= {"gpus_per_node": per_node} if per_node is not None else {}
        problem = _problem(model, gpus, num_gpus, trace, args, request_kwargs)
        legal, illegal = servers(problem.space, model)
        _check_size(problem, len(legal))
        run = SearchRun(problem, progress or (lambda stage, done: None))
        run.note_seconds("enumerate", started)
        table = run.estimate(legal, illegal)
        finalists = run.simulate(table, options) if table is not None else []
        result = run.to_result(table, finalists)
        result.warnings += options.lost
    if table is not None and result.winner is not None:
        result.day = run.plan_day(table, finalists[0], result.winner, args)
    if not result.feasible and relax:
        again = {name: value for name, value in given.items() if name in OWN and name not in RUN_ONLY}
        again |= {**request_kwargs, "gpu": gpus, "num_gpus": num_gpus, "trace": trace}
        result.relaxations = run.relax(table, again)
    run.note_seconds("total", started)
    rejected = [*run.illegal, *run.too_large]
    return keep(result, table=table, rejected=rejected), table, rejected


def _problem(
    model: str, gpus: list[str], num_gpus: int, trace: Trace | None, args: SearchArgs, request_kwargs: dict[str, Any]
) -> Problem:
    """The checked problem: requests, objective and space."""
    traffic = build_traffic(
        trace=trace,
        input_len=args.input_len,
        output_len=args.output_len,
        prefix_len=args.prefix_len,
        request_rate=args.request_rate,
        burstiness=args.burstiness,
        seed=args.seed,
        block_tokens=check_int("block_size", request_kwargs.get("block_size") or 16, most=10**6),
    )
    objective = build_objective(args.objective, args.goodput, args.goodput_share)
    if not objective.slo and traffic.request_rate is None and objective.name != "latency":
        raise BadValue(
            "a search needs a goal: latency limits such as `goodput` ttft:500,tpot:50, a `request_rate`, or both"
        )
    if args.mode not in (*MODES, "both"):
        raise BadValue(f"`mode` must be aggregated, disaggregated or both, not {args.mode!r}")
    check_day(args.window, args.autoscale, traffic, objective)
    check_int("finalists", args.finalists, most=1000)
    modes = MODES if args.mode == "both" else (args.mode,)
    space = build_space(model, gpus, num_gpus, modes=modes, **request_kwargs)
    figure = {"cost": "price_per_hour", "energy": "power"}.get(objective.name)
    for device in map(hardware, space.gpus if figure else ()):
        if not getattr(device, str(figure)):
            raise BadValue(
                f"`objective` {objective.name} needs the {figure} of {device.name}, which is "
                f"not known: give it as `gpu` {device.name}:{figure}=…"
            )
    return Problem(model, space, traffic, objective)


def _check_size(problem: Problem, num_servers: int) -> None:
    """Refuse what would take memory and minutes rather than seconds."""
    space = problem.space
    budgets, seqs = len(space.max_num_batched_tokens), len(space.max_num_seqs)
    points = num_servers * budgets * seqs * len(concurrency_grid(max(space.max_num_seqs)))
    if points > MAX_POINTS:
        raise BadValue(
            f"{num_servers:,} servers × {budgets:,} token budgets × {seqs:,} sequence limits at every load are "
            f"{points:,} points, more than {MAX_POINTS:,}: give fewer values"
        )
    paired = problem.traffic.request_rate is not None and "disaggregated" in space.modes
    if paired and space.num_gpus > MAX_PAIRED_GPUS:
        raise BadValue(
            f"at a given rate pools are paired on up to {MAX_PAIRED_GPUS} GPUs, not {space.num_gpus:,}: leave "
            "out `request_rate`, or give `mode` aggregated"
        )


class SearchRun:
    """One search under way: its stages in order, what they counted, and how long they took."""

    def __init__(self, problem: Problem, progress: Progress) -> None:
        self.problem, self.progress = problem, progress
        self.seconds: dict[str, float] = {}  # of each stage
        self.counts: dict[str, int] = {}
        self.illegal: list[RejectedServer] = []
        self.too_large: list[RejectedServer] = []
        self.server_cache: dict[str, ReplicaPool] = {}  # simulated servers: plans have many in common

    def note_seconds(self, stage: str, since: float) -> None:
        """Note how long a stage took."""
        self.seconds[stage] = time.perf_counter() - since

    def estimate(self, legal: list[Server], illegal: list[RejectedServer]) -> PlanTable | None:
        """All plans of the legal servers; None if no server can be started."""
        since = time.perf_counter()
        self.illegal = illegal
        self.counts = {"servers": len(legal) + len(illegal), "servers_illegal": len(illegal)}

        def report(done: int) -> None:
            self.progress("pricing", done)

        table, shortfalls = estimate_servers(legal, self.problem, report) if legal else (None, [])
        self.too_large = [
            RejectedServer(server, str(lack), lack.needed_bytes)
            for server, lack in zip(legal, shortfalls, strict=True)
            if lack is not None
        ]
        self.counts["servers_too_large"] = len(self.too_large)
        if table is None:
            self.note_seconds("price", since)
            return None
        parts: list[Plans] = []
        if "aggregated" in self.problem.space.modes:
            parts.append(aggregated(table, self.problem))
            self.counts["plans_aggregated"] = len(parts[0].gpus)
        if "disaggregated" in self.problem.space.modes:
            pairs, considered = disaggregated(table, self.problem)
            parts += [pairs] if pairs is not None else []
            self.counts["plans_disaggregated"] = considered
            self.counts["plans_dominated"] = considered - (len(pairs.gpus) if pairs is not None else 0)
        self.counts["points"] = table.points
        self.note_seconds("price", since)
        if not any(len(part.gpus) for part in parts):
            return None
        plans = concatenated(parts)
        self.counts["plans_possible"] = int((plans.status == Status.MEETS_SLO).sum())
        return PlanTable(self.problem, table, plans)

    def simulate(self, table: PlanTable, options: SimulationOptions) -> list[Finalist]:
        """The finalists under real arrivals."""
        since = time.perf_counter()
        rows, values = ranked(table)
        self.counts["layouts_possible"] = len(rows)

        def report(done: int) -> None:
            self.progress("simulating", done)

        report(0)
        options = options._replace(progress=report, server_cache=self.server_cache)
        finalists = simulate_finalists(table, rows, values, options)
        self.counts["plans_simulated"] = len(finalists)
        self.counts["simulations"] = sum(one.simulations for one in finalists)
        self.note_seconds("simulate", since)
        return finalists

    def plan_day(self, table: PlanTable, best: Finalist, winner: Candidate, args: SearchArgs) -> Day | None:
        """The winner over the trace's day; None where its load hardly varies and no window was given."""
        since, traffic = time.perf_counter(), self.problem.traffic
        width = day_window(traffic, args.window, args.autoscale is not None)
        if width is None or not self.problem.objective.slo:
            return None
        device = table.servers.servers[int(table.plans.prefill_server[best.row])].request.device
        simulator = PlanSimulator(table.simulation_case(best.row), self.server_cache)
        planner = DayPlanner(simulator, width, device.price_per_hour or None, self.progress)
        parts = gcd(*(pool.replicas for pool in winner.pools))
        day = planner.plan(winner.unit_label, parts, args.autoscale, self.problem.space.num_gpus)
        self.note_seconds("day", since)
        return day

    def relax(self, table: PlanTable | None, kwargs: dict[str, Any]) -> list[Relaxation]:
        """What would make a plan possible; ``kwargs`` are those of this search, except how it is run."""
        since = time.perf_counter()
        limits = {name: limit * 1e3 for name, limit in self.problem.objective.slo.items()}
        again = {**kwargs, "model": self.problem.model, "finalists": 1, "relax": False}
        relaxations = Relaxer(search, again, limits, self.progress).relaxations(table)
        self.note_seconds("relax", since)
        return relaxations

    def to_result(self, table: PlanTable | None, finalists: list[Finalist]) -> Search:
        """The result; relaxations are added later."""
        space, traffic, objective = self.problem.space, self.problem.traffic, self.problem.objective
        best = finalists[0] if finalists and finalists[0].holds else None
        plans = [explanation.to_candidate(table, one, best) for one in finalists] if table is not None else []
        winner = plans[0] if best is not None else None
        request = table.servers.servers[0].request if table is not None else None
        won = table is not None and winner is not None
        starts = self._launches(table, best, winner) if table is not None and best and winner else {}
        for one, plan in zip(finalists, plans, strict=True):
            if table is not None and one.holds:
                plan.commands = start_lines(starts if plan is winner else self._launches(table, one, plan))
        refusals = starts[request.engine.name].refusals if request and request.engine.name in starts else []
        return Search(
            model=request.model.name if request else self.problem.model,
            engine=request.engine.name if request else "",
            engine_version=request.engine.version if request else "",
            num_gpus=space.num_gpus,
            objective=objective.name,
            goodput_share=objective.goodput_share,
            workload={
                "input_len": traffic.input_len,
                "output_len": traffic.output_len,
                "prefix_len": traffic.prefix_len,
                "request_rate": traffic.request_rate,
                "trace": self._trace_source(),
                "stretch": traffic.stretch,
            },
            goodput={name: limit * 1e3 for name, limit in objective.slo.items()},
            feasible=winner is not None,
            reason="" if winner is not None else self._infeasible_reason(table, finalists),
            winner=winner,
            plans=[plan for plan in plans if plan.verdict != "fails"],
            why=explanation.explain_winner(table, finalists, plans) if table is not None and won else [],
            margin=explanation.margin(table, finalists) if table is not None and won else {},
            rejected=explanation.rejected_plans(table, finalists, best) if table is not None else [],
            rejections=explanation.rejections(table, self.illegal, self.too_large),
            front=front_rows(table)[0] if table is not None else [],
            space=space.to_dict(),
            counts=self.counts,
            relaxations=[],
            seconds=self.seconds,
            origins=explanation.origins(table, best.row, winner) if table is not None and best and winner else {},
            expected_error=table.expected_errors(best.row) if table is not None and best else {},
            warnings=[*(self._warnings(table, best, winner) if table is not None else []), *refusals],
            commands=winner.commands if winner is not None else {},
            launches=starts,
        )

    def _trace_source(self) -> str | None:
        return self.problem.traffic.trace.source if self.problem.traffic.trace is not None else None

    def _infeasible_reason(self, table: PlanTable | None, finalists: list[Finalist]) -> str:
        """Why no plan is possible, and how far the closest is away."""
        if table is None and self.too_large:
            smallest = min(self.too_large, key=lambda one: one.needed_bytes)
            return (
                f"the model does not fit on {plural(self.problem.space.num_gpus, 'GPU')}: "
                f"{smallest.server.layout} {smallest.reason}"
            )
        if table is None:
            reasons = explanation.rejections(None, self.illegal, [])
            return f"no layout is legal: {next(iter(reasons), 'no layout was given')}"
        if finalists:
            nearest = max(finalists, key=lambda one: one.final.good if one.final is not None else -1.0)
            label = table.candidate(nearest.row).label
            failure = explanation.failure_reason(table, nearest)
            return f"no plan meets the limits in simulation; the closest is {label}: {failure}"
        row = explanation.nearest_row(table)
        label = table.candidate(row).label
        return f"no plan meets the goal; the closest is {label}: {explanation.status_reason(table, row)}"

    def _warnings(self, table: PlanTable, best: Finalist | None, winner: Candidate | None) -> list[str]:
        """Those of the request and its trace; what the winner's figures rest on; idle GPUs; lossy precisions."""
        request, trace = table.servers.servers[0].request, self.problem.traffic.trace
        notes = trace.notes if trace is not None else ()
        if winner is None or best is None:
            return [*request.warnings, *notes]
        warnings = [*explanation.provenance(table, best.row), *notes, *self._cliffs(table, best, winner)]
        if winner.idle_gpus:
            idle = f"{winner.idle_gpus} of the {self.problem.space.num_gpus} GPUs"
            warnings.append(f"{idle} stay{'s' if winner.idle_gpus == 1 else ''} idle")
        warnings += explanation.lossy_precisions(request.model, winner.pools[0])
        return warnings

    def _cliffs(self, table: PlanTable, best: Finalist, winner: Candidate) -> list[str]:
        """A token budget that prompts fill, so that the winner is the best of slow plans: where budgets were given."""
        pool, case = winner.pools[0], table.simulation_case(best.row)
        request = build_request(case.model, **case.pools[0].request_kwargs)
        fits = table.servers.fits[int(table.plans.prefill_server[best.row])].any((0, 1))  # [load]
        seats = float(table.servers.loads.decoding[fits].max(initial=1.0))
        cliff = budget_cliff(
            request.engine, request.plan, self.problem.traffic.input_len, min(seats, pool.max_num_seqs)
        )
        return [cliff] if cliff and pool.role == "both" else []

    def _launches(self, table: PlanTable, best: Finalist, winner: Candidate) -> dict[str, Launch]:
        """How to start the winner with each engine, and how to measure it."""
        server = table.servers.servers[int(table.plans.prefill_server[best.row])]
        case = table.simulation_case(best.row)
        model = served_model(
            self.problem.model,
            server,
            [build_request(case.model, **pool.request_kwargs) for pool in case.pools],
            winner.pools,
            self.problem.traffic.max_len,
            self.problem.space.request_kwargs,
        )
        rate = best.final.request_rate if best.final is not None else winner.priced.request_rate
        check = bench(
            self.problem.traffic,
            self.problem.objective,
            request_rate=rate,
            count=num_prompts(rate, winner.priced.e2el_ms / 1e3),
        )
        return launches(winner, model, check)
