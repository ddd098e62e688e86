"""The search for sessions: servers, CPU memory and router that serve agents for least, with their turns in time.

result = session_search("llama-3.1-8b", "h200", agents="coding-agent", request_rate=0.05, goodput="ttft:2000")
result.winner.label, result.winner.cost_per_session

Turns wait for each other, so no steady state stands for a session: plans are simulated with all of them. Few need be:

- a plan whose GPUs cost more than the best plan, even if every turn met an idle server and an endless cache, is dearer
  (`session_bounds`); those that would save less than CLOSE are not tried either;
- servers that are slower and whose caches hold less serve no cheaper than as many others, and where a plan fails, so do
  fewer replicas of it;
- a simulation ends as soon as so many turns were late that the plan cannot hold.

The first and the last are bounds. The second is what is expected of servers, not a law: tests compare with all plans.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import ranges
from ..base.errors import BadValue, UnknownName, check_int, check_positive
from ..base.units import milliseconds, money, percent, plural
from ..inference.analyze import provenance_warnings
from ..inference.request import build_request
from ..serving.agent_generator import fit_profile, parse_agents
from ..serving.metrics import LABELS, good_requests, latencies, limits_text, parse_goodput
from ..serving.router import ROUTERS
from ..serving.trace import Trace, read_trace
from ..serving.traffic import LoadedTraffic, load_traffic
from ..specs.arguments import arguments, check_names, flag, signature
from ..specs.catalog import gpu_names, hardware
from ..specs.command_args import SearchArgs, SessionSearchArgs
from ..specs.plan_args import PlanArgs
from .explanation import lossy_precisions
from .launch.plan_launch import launches
from .launch.processes import Launch, Process
from .objective import MAX_RATE, parse_rate
from .relaxation import MORE_GPUS, round_up
from .search_result import Candidate, PlanMetrics, Relaxation
from .served_plan import served_model, start_lines
from .session_plans import CLOSE, STEP_LIMITS, Progress, SessionCase, SessionProblem, SessionSearchRun
from .session_search_result import SessionPlan, SessionSearch
from .space import Space, build_space, cluster_size

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import SessionSearchKwargs

SIZES = (256.0, 64.0, 0.0)  # GiB of CPU memory that are tried, the largest first
TRIED_ROUTERS = ("session_affinity", "prefix_aware")
ANSWER_ROOM = 0.05  # of the longest sequence: room for an answer above the prompts of generated sessions
NEAREST = 3  # plans that are simulated to the end where none holds
MOST_GPUS = 1024  # that are tried where fewer do not do
OF_REQUESTS = ("input_len", "output_len", "prefix_len", "window", "autoscale")  # keywords of the other search
OF_TRAFFIC = ("agents", "like", "num_sessions", "max_idle", "warm_cache", "request_rate", "burstiness", "seed")
OF_SEARCH = (
    *("num_gpus", "nodes", "goodput", "goodput_share", "objective", "mode", "finalists", "backend", "jobs"),
    *("concurrent_sessions", "router", "kv_offloading_size", *OF_REQUESTS, *OF_TRAFFIC),
)


@signature(SearchArgs, SessionSearchArgs)
def session_search(
    model: str,
    gpu: str | Sequence[str] = "h100-sxm",
    *,
    trace: Trace | str | PathLike[str] | None = None,
    relax: bool = True,
    progress: Progress | None = None,
    **kwargs: Unpack[SessionSearchKwargs],
) -> SessionSearch:
    """The servers, CPU memory and router that serve sessions of agents for least, with their turns within limits.

    ``session_search("llama-3.1-8b", "h200", agents="coding-agent", request_rate=0.05, goodput="ttft:2000")``

    Sessions are those of ``agents``, ``like`` a trace, or recorded in a ``trace``. Sizes and precisions may be given as
    one value or several. ``relax``: where no plan holds, say what would help.
    """
    started = time.perf_counter()
    given: dict[str, Any] = {name: value for name, value in kwargs.items() if value is not None}
    check_names(SearchArgs, given, *arguments(SessionSearchArgs), *arguments(PlanArgs))
    problem = session_problem(model, gpu, trace, given)
    run = SessionSearchRun(problem, progress or (lambda stage, done: None))
    winner = run.search()
    return to_result(run, winner, started, relax)


def session_problem(
    model: str, gpu: str | Sequence[str], trace: Trace | str | PathLike[str] | None, given: dict[str, Any]
) -> SessionProblem:
    """The checked problem."""
    args = SearchArgs(**{name: given[name] for name in given if name in arguments(SearchArgs)})
    for name in OF_REQUESTS:
        if given.get(name):
            raise BadValue(f"a search for sessions takes no `{name}`: sessions say what their turns are", field=name)
    if args.objective not in ("throughput", "cost"):
        raise BadValue("a search for sessions looks for the lowest cost per session: leave out `objective`")
    if args.mode == "disaggregated":
        raise BadValue("a search for sessions tries aggregated servers only: leave out `mode` disaggregated")
    if args.request_rate == MAX_RATE:
        raise BadValue("a search for sessions needs a `request_rate` of new sessions, not max", field="request_rate")
    limits = parse_goodput(args.goodput or ())
    if not limits:
        raise BadValue("a search for sessions needs limits of every turn, such as `goodput` ttft:2000")
    check_positive("goodput_share", args.goodput_share, 1.0)
    check_int("finalists", args.finalists, most=1000)
    gpus = gpu_names(gpu) if isinstance(gpu, str) else list(gpu)
    num_gpus, per_node = cluster_size(gpus, args.num_gpus, args.nodes, given.get("gpus_per_node"))
    request_kwargs = {name: value for name, value in given.items() if name not in OF_SEARCH}
    request_kwargs |= {"frontend": "http", **request_kwargs} | ({"gpus_per_node": per_node} if per_node else {})
    space = _space(model, gpus, num_gpus, given, request_kwargs)
    traffic, notes, again = _sessions(model, gpus[0], trace, given, request_kwargs)
    return SessionProblem(
        model=model,
        space=space,
        routers=_routers(given.get("router")),
        traffic=traffic,
        limits=limits,
        goodput_share=float(args.goodput_share),
        concurrent_sessions=given.get("concurrent_sessions"),
        given=again,
        finalists=args.finalists,
        notes=notes,
    )


def _space(model: str, gpus: list[str], num_gpus: int, given: dict[str, Any], request_kwargs: dict[str, Any]) -> Space:
    """The servers that are tried: no pipeline stages unless they are given, and the engine's own limits of a step."""
    sizes = given.get("kv_offloading_size", 0.0 if given.get("kv_tiers") else SIZES)
    axes = {"pipeline_parallel_size": 1, **request_kwargs, "kv_offloading_size": sizes}
    refused = ("enable_hierarchical_cache", "kv_offloading_backend", "hicache_storage_backend")
    space = build_space(model, gpus, num_gpus, modes=("aggregated",), refused=refused, **axes)
    for device in map(hardware, gpus if len(gpus) > 1 else ()):
        if not device.price_per_hour:
            raise BadValue(
                f"to compare GPU types, the price_per_hour of {device.name} must be known: give it as `gpu` "
                f"{device.name}:price_per_hour=…"
            )
    own: tuple[Any, ...] = (None,)  # the engine's
    return space._replace(
        max_num_batched_tokens=space.max_num_batched_tokens if given.get("max_num_batched_tokens") else own,
        max_num_seqs=space.max_num_seqs if given.get("max_num_seqs") else own,
    )


def _routers(given: Any) -> tuple[str, ...]:
    routers = TRIED_ROUTERS if given is None else ranges.choices("`router`", given)
    for name in routers:
        if name not in ROUTERS:
            raise UnknownName("`router`", name, ROUTERS, field="router")
    return routers


def _sessions(
    model: str,
    gpu: str,
    trace: Trace | str | PathLike[str] | None,
    given: dict[str, Any],
    request_kwargs: dict[str, Any],
) -> tuple[LoadedTraffic, tuple[str, ...], dict[str, Any]]:
    """All turns, what is to be said of them, and the keywords that ask for them.

    Generated sessions sum up their history before the model's longest sequence, as agents that know their model do.
    """
    given_traffic: dict[str, Any] = {name: given[name] for name in OF_TRAFFIC if name in given}
    rate = parse_rate(given_traffic.get("request_rate"))
    given_traffic |= {"request_rate": rate} if rate is not None else {}
    notes: tuple[str, ...] = ()
    if trace is None and not ("agents" in given_traffic or "like" in given_traffic):
        raise BadValue("a search for sessions needs `agents`, `like`, or a `trace` with sessions", field="agents")
    if trace is None:
        base = fit_profile(read_trace(given_traffic["like"])) if "like" in given_traffic else None
        profile, first = (
            parse_agents(given_traffic.get("agents", {}), base),
            build_request(model, gpu, **_single(request_kwargs)),
        )
        longest = first.plan.max_model_len or 0
        most = int(longest * (1 - ANSWER_ROOM)) // 1000 * 1000 or longest
        if longest and profile.context_limit >= longest:
            given_traffic["agents"] = _with_context_limit(given_traffic.get("agents"), most)
            notes = (
                f"the agents sum up their history at {most:,} tokens, not at {profile.context_limit:,}: the model "
                f"takes {longest:,} with the answer",
            )
    traffic = load_traffic({**given_traffic, "trace": trace}, None, given.get("concurrent_sessions"))
    if traffic.trace.sessions is None or not len(traffic.trace):
        raise BadValue(f"{traffic.trace.source} has no sessions: leave out what is about sessions", field="trace")
    if trace is not None:
        given_traffic["trace"] = traffic.trace.source
    return traffic, notes, given_traffic


def _single(request_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Those that are not axes of the space."""
    axes = (*arguments(SearchArgs),)
    kept = ("frontend", "engine", "gpus_per_node", "assume_decoder", "hf_token", "dtype")
    return {name: value for name, value in request_kwargs.items() if name in kept or name not in axes}


def _with_context_limit(agents: Any, most: int) -> Any:
    if isinstance(agents, Mapping):
        return {**agents, "context_limit": most}
    return f"{agents},context_limit={most}" if agents is not None else f"context_limit={most}"


# ------------------------------------------------------------------ the result


def to_result(run: SessionSearchRun, best: SessionCase | None, started: float, relax: bool) -> SessionSearch:
    """The result of a search that is over: alternatives are simulated, or changes that would help."""
    problem, space = run.problem, run.problem.space
    changes: list[Relaxation] = []
    reason, why, starts, commands = "", [], {}, {}
    warnings = [*problem.notes, *problem.trace.notes]
    if best is not None:
        _simulate_alternatives(run, best)
        why = _why(run, best)
        starts = _launches(run, best)
        commands = start_lines(starts)
        warnings = [*_provenance(run, best), *warnings]
    else:
        reason, closest = _infeasible(run)
        changes = _relaxations(run, closest) if relax else []
    ordered = sorted(run.plans.items(), key=lambda item: (not item[1].holds, item[0] != best, _order(run, item[0])))
    request = run.servers[0].request if run.servers else None
    return SessionSearch(
        model=request.model.name if request else problem.model,
        engine=request.engine.name if request else "",
        num_gpus=space.num_gpus,
        traffic=problem.traffic.label,
        sessions=run.sessions,
        turns=len(problem.trace),
        goodput=problem.limits,
        goodput_share=problem.goodput_share,
        feasible=best is not None,
        reason=reason,
        winner=run.plans[best] if best is not None else None,
        why=why,
        plans=[plan for _, plan in ordered],
        rejections=run.rejections,
        space=_space_dict(problem),
        counts=run.counts(best),
        commands=commands,
        launches=starts,
        relaxations=changes,
        seconds=time.perf_counter() - started,
        warnings=list(dict.fromkeys(warnings)),
    )


def _order(run: SessionSearchRun, case: SessionCase) -> float:
    """Plans that hold by their cost, others by the share of their turns that are in time."""
    plan = run.plans[case]
    return run.cost(case) if plan.holds else -plan.good_share


def _space_dict(problem: SessionProblem) -> dict[str, Any]:
    axes = problem.space.to_dict()
    own = {name: ["the engine's" if one is None else one for one in axes[name]] for name in STEP_LIMITS}
    return {**axes, **own, "router": list(problem.routers)}


def _simulate_alternatives(run: SessionSearchRun, best: SessionCase) -> None:
    """Plans one step away from the best, for comparison: other CPU memory, routers and precisions; as many GPUs."""
    near = [*run.of_all_sizes(best), *(case for case in run.cases if case[::2] == best[::2])]
    own = run.servers[best.server].server
    near += [
        case
        for case in run.cases
        if case[1:] == best[1:]
        and run.servers[case.server].server.layout == own.layout
        and run.size(case) == run.size(best)
        and run.servers[case.server].server.kv_cache_dtype_arg == own.kv_cache_dtype_arg
    ]
    for case in [case for case in dict.fromkeys(near) if case not in run.plans][: run.problem.finalists]:
        run.simulate(case)


def _why(run: SessionSearchRun, best: SessionCase) -> list[str]:
    """The winner's cost and lead, the limit nearest to it, what fewer GPUs do, and what its CPU memory is for."""
    winner, others = run.plans[best], [case for case in run.plans if case != best and run.plans[case].holds]
    costs = f"{_cost(run, best)} a session on {plural(winner.gpus, 'GPU')}"
    second = min(others, key=run.cost, default=None)
    close = [case for case in others if run.cost(case) <= run.cost(best) * (1 + CLOSE)]
    lead = "; no other plan that was simulated holds"
    if close:
        names = ", ".join(run.plans[case].label for case in close[:2]) + (" and others" if close[2:] else "")
        lead = f"; {names} cost{'s' if len(close) == 1 else ''} as much (within {CLOSE:.0%})"
    elif second is not None:
        less = 1 - run.cost(best) / run.cost(second)
        lead = f", {percent(less)} less than the runner-up, {run.plans[second].label} ({_cost(run, second)})"
    return [
        sentence
        for sentence in (
            f"{winner.label} serves the sessions for {costs}{lead}.",
            _nearest_limit(run, winner),
            _fewer_gpus(run, winner),
            _memory(run, best),
        )
        if sentence
    ]


def _cost(run: SessionSearchRun, case: SessionCase) -> str:
    if run.plans[case].cost_per_session is None:
        return f"{run.cost(case):.3g} GPU-hours"
    return money(run.cost(case))


def _nearest_limit(run: SessionSearchRun, winner: SessionPlan) -> str:
    """Which limit is nearest, and how near."""
    limits = run.problem.limits
    kept = {name: value for name in limits if (value := getattr(winner, f"{name}_ms").get("share")) is not None}
    if not kept:
        return ""
    name = max(kept, key=lambda one: kept[one] / limits[one])
    return (
        f"The tightest limit is {LABELS[name]}: {percent(run.problem.goodput_share)} of the turns stay within "
        f"{milliseconds(kept[name])}, and the limit is {milliseconds(limits[name])}."
    )


def _fewer_gpus(run: SessionSearchRun, winner: SessionPlan) -> str:
    """The best of the plans on fewer GPUs, which all fail."""
    fewer = [plan for plan in run.plans.values() if plan.gpus < winner.gpus and not plan.holds]
    if not fewer:
        return ""
    plan = max(fewer, key=lambda one: (one.gpus, one.good_share))
    most = "at most " if plan.stopped else ""
    return (
        f"On {plural(plan.gpus, 'GPU')}, {plan.label} keeps the limits for {most}{percent(plan.good_share)} of turns."
    )


def _memory(run: SessionSearchRun, best: SessionCase) -> str:
    """What the CPU memory of the winner holds, and how it is without."""
    winner = run.plans[best]
    none = next((case for case in run.of_all_sizes(best) if not run.size(case) and case in run.plans), None)
    if not run.size(best) or none is None:
        return ""
    other, from_cpu = run.plans[none], percent(winner.tier_shares.get("cpu", 0.0))
    share = f"{'at most ' if other.stopped else ''}{percent(other.good_share)}"
    return f"{from_cpu} of prompt tokens come from CPU memory; without it {share} of the turns keep the limits."


def _infeasible(run: SessionSearchRun) -> tuple[str, SessionCase | None]:
    """Why no plan holds, and the plan that comes nearest, simulated to its end."""
    limits = limits_text(run.problem.limits)
    share = percent(run.problem.goodput_share)
    if not run.servers:
        main = max(run.rejections, key=lambda reason: run.rejections[reason], default="no server is legal")
        if run.too_slow:
            quickest = min(run.too_slow, key=lambda one: one.floors.ttft_s.sum())
            late = {
                name: float(np.percentile(getattr(quickest.floors, f"{name}_s"), 100 * run.problem.goodput_share))
                for name in run.problem.limits
            }
            main = "even where nothing else runs and every cache is endless, " + ", ".join(
                f"{share} of the turns take {LABELS[name]} up to {milliseconds(value * 1e3)}"
                for name, value in late.items()
            )
        return f"no plan keeps {limits} for {share} of the turns: {main}", None
    most = max(plan.gpus for plan in run.plans.values())
    largest = [case for case, plan in run.plans.items() if plan.gpus == most]
    largest.sort(key=lambda case: -run.plans[case].good_share)
    closest = max(largest[:NEAREST], key=lambda case: run.simulate(case, whole=True).good_share)
    plan = run.plans[closest]
    figures = ", ".join(
        f"{LABELS[name]} p{run.problem.goodput_share * 100:g} {milliseconds(value)}"
        for name, value in plan.missed.items()
        if value is not None
    )
    detail = f" ({figures})" if figures else ""
    return (
        f"no plan keeps {limits} for {share} of the turns; the closest is {plan.label}: {plan.reason}{detail}",
        closest,
    )


def _relaxations(run: SessionSearchRun, closest: SessionCase | None) -> list[Relaxation]:
    """What would make a plan hold: other limits, more GPUs, more CPU memory."""
    if closest is None:
        return []
    changes = _looser(run, closest)
    server, num_gpus = run.servers[closest.server], run.problem.space.num_gpus
    for times in MORE_GPUS:
        case = SessionCase(closest.server, run.problem.routers[0], times * num_gpus // server.gpus)
        if times * num_gpus <= MOST_GPUS and run.simulate(case).holds:
            changes.append(_changed(run, f"{flag('num_gpus')} {times * num_gpus}", case))
            break
    for case in list(run.plans):  # those of other GPUs are no plans of this search
        if run.plans[case].gpus > num_gpus:
            del run.plans[case]
    return changes


def _looser(run: SessionSearchRun, closest: SessionCase) -> list[Relaxation]:
    """The limits that the closest plan misses, so much longer that it holds."""
    limits, outcome, share = run.problem.limits, run.outcomes.get(closest), run.problem.goodput_share
    missed = list(run.plans[closest].missed) or list(limits)
    if outcome is None:
        return []
    latency = latencies(outcome)
    others = good_requests(latency, {name: limit for name, limit in limits.items() if name not in missed})
    ratio = np.max([np.nan_to_num(latency[name] / limits[name], nan=0.0) for name in missed], axis=0)
    factor = float(np.sort(np.where(others, ratio, np.inf))[math.ceil(len(ratio) * share - 1e-9) - 1])
    if not math.isfinite(factor):
        return []
    changed = {name: round_up(limits[name] * factor) if name in missed else limits[name] for name in limits}
    text = ",".join(f"{name}:{limit:g}" for name, limit in changed.items())
    return [_changed(run, f"{flag('goodput')} {text}", closest)]


def _changed(run: SessionSearchRun, change: str, case: SessionCase) -> Relaxation:
    return Relaxation(change=change, plan=run.label(case), simulated=True)


# ------------------------------------------------------------------ how it is started


def _launches(run: SessionSearchRun, best: SessionCase) -> dict[str, Launch]:
    """How to start the winner with each engine, and its simulation."""
    server, pool = run.servers[best.server], run.pool_spec(best)
    trace, plan = run.problem.trace, run.plans[best]
    longest = int((trace.input_tokens + trace.output_tokens).max())
    longest = min(longest, server.request.plan.max_model_len or longest)
    given = run.problem.space.request_kwargs
    model = served_model(run.problem.model, server.server, [server.request], [pool], longest, given)
    seconds = {name: (getattr(plan, f"{name}_ms").get("mean") or 0.0) for name in ("ttft", "tpot", "e2el")}
    priced = PlanMetrics(
        request_rate=len(trace) / (plan.duration_s or 1.0),
        output_throughput=0.0,
        output_throughput_per_gpu=0.0,
        output_throughput_per_user=0.0,
        **{f"{name}_ms": value for name, value in seconds.items()},
        cost_per_million_output_tokens=None,
        joules_per_output_token=None,
    )
    candidate = Candidate(gpu=plan.gpu, mode="aggregated", pools=[pool], gpus=plan.gpus, idle_gpus=0, priced=priced)
    again = Process(name="simulate", engine="inferometer", argv=_simulate_command(run, best))
    return launches(candidate, model, again, best.router if best.replicas > 1 else "round_robin")


def _simulate_command(run: SessionSearchRun, case: SessionCase) -> list[str]:
    """The command that simulates a plan of the search again."""
    problem, server = run.problem, run.servers[case.server]
    kwargs = {**problem.space.request_kwargs, **server.server.request_kwargs(), **problem.given}
    kwargs |= server.limits
    kwargs |= {"concurrent_sessions": problem.concurrent_sessions, "hf_token": None}
    defaults = {"frontend": "http", "kv_cache_dtype": "auto", "enable_expert_parallel": False}
    argv = ["inferometer", "simulate", problem.model]
    for name, value in kwargs.items():
        if value is None or value == defaults.get(name) or (name.endswith("parallel_size") and value == 1):
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            argv += [flag(name)] if one is True else [flag(name), _word(one)]
    argv += [flag("goodput"), ",".join(f"{name}:{limit:g}" for name, limit in problem.limits.items())]
    return [
        *argv,
        *([flag("pool"), f"replicas={case.replicas}", flag("router"), case.router] if case.replicas > 1 else []),
    ]


def _word(value: Any) -> str:
    """A value as a flag takes it: ``_word({"disk": {"size": 2000}})  # 'disk:size=2000'``"""
    if not isinstance(value, Mapping):
        return f"{value:g}" if isinstance(value, float) else str(value)
    nested = any(isinstance(inner, Mapping) for inner in value.values())
    sign, between = (":", " ") if nested else ("=", ",")
    return between.join(f"{key}{sign}{_word(inner)}" for key, inner in value.items())


def _provenance(run: SessionSearchRun, best: SessionCase) -> list[str]:
    """What the winner's figures rest on, and precisions that change the model's answers."""
    server, outcome = run.servers[best.server], run.outcomes.get(best)
    request = server.request
    lossy = lossy_precisions(request.model, run.pool_spec(best))
    of_run = outcome.warnings if outcome is not None else ()
    return [*request.warnings, *provenance_warnings(request), *request.bind().notes, *of_run, *lossy]
