"""A trace through a deployment: pools of replicas are built, run, and what became of every request is collected.

pool = build_pool(request, replicas=2, trace=trace)
serve(trace, [("both", pool)], ServingOptions(scheduler="vllm"))        # an Outcome
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..costs import host
from .arrivals import ClosedLoop, OpenLoop, RouterInbox, by_arrival, is_closed_loop
from .autoscaling import Autoscaler, AutoscalingOptions, check_autoscaling, with_lives, with_startup
from .engine import EngineCore
from .fast_path import FastPathEngine
from .inter_token import merge_gaps
from .kv_cache import PrefixTree, kv_transfer_seconds, lone_prompts
from .lockstep import LockstepServer, RankEngine
from .outcome import POINTS, HandOver, Interrupted, Outcome, ReplicaTimeline, infeasible, merge_series
from .pipeline import PipelineEngine
from .replica_pool import ReplicaPool, with_tables
from .request_table import AdmittedRequests, RequestTable, admit_trace, column
from .router import Cluster, Fleet, run_disaggregated
from .schedulers import NO_LIMIT, NO_THRESHOLD, SCHEDULERS, SchedulerLimits
from .sessions import Sessions
from .sticky_replicas import merge_parts, parts_of, rows_by_replica, serve_parts
from .tiered_replicas import replica_cache, tier_series, tier_uses, warm_caches
from .trace import Trace


class ServingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How replicas work, whatever they are made of; the names are those of `simulate`'s keywords."""

    scheduler: str = "vllm"
    policy: str = "fcfs"
    router: str = "round_robin"
    max_concurrency: int | None = None
    concurrent_sessions: int | None = None
    long_prefill_token_threshold: int = 0  # tokens; 0: no limit
    stops: str = "length"  # outputs end at their "length" or with a stop "token"
    enable_prefix_caching: bool | None = None  # None: as the engine does
    prefill_schedule_interval: int = 1
    prefill_max_requests: int | None = None
    scheduler_recv_interval: int = 1
    batch_wait_timeout_iters: int = 0
    batch_wait_max_tokens_ratio: float = 0.0
    attention_dp_timeout_iters: int = 0
    attention_dp_batching_wait_iters: int = 0
    api_server_count: int = 1  # front ends, each of which tokenizes one prompt at a time
    fast_forward: bool = True
    autoscale: AutoscalingOptions | None = None  # the number of replicas follows the load
    progress: Callable[[int, int], None] | None = None  # called with the requests that have finished, and all
    watch: Callable[[RequestTable], None] | None = None  # called with a table under way; an error of it ends the run


# ------------------------------------------------------------------ limits of an engine


def scheduler_limits(pool: ReplicaPool, options: ServingOptions) -> SchedulerLimits:
    """What the engine of a pool allows itself in a step."""
    bound_plan, engine, tokens_per_decode = pool.bound_plan, pool.bound_plan.engine, pool.stages[0].tokens_per_decode
    plan = bound_plan.plan
    max_tokens, max_seqs = plan.max_num_batched_tokens, min(plan.max_num_seqs, pool.max_num_seqs)
    if max_tokens < max_seqs and options.scheduler in ("vllm", "sarathi"):
        raise BadValue(
            f"`max_num_batched_tokens` {max_tokens:,} must be at least `max_num_seqs` {max_seqs:,}: every "
            "decoding sequence takes one token of the budget"
        )
    is_static = options.scheduler == "static"
    return SchedulerLimits(
        max_num_batched_tokens=max_tokens,
        max_num_seqs=max(1, min(max_seqs, max_tokens // tokens_per_decode)),
        tokens_per_decode=tokens_per_decode,
        long_prefill_token_threshold=options.long_prefill_token_threshold or NO_THRESHOLD,
        reserve_full_prompt=options.scheduler == "sarathi",
        async_scheduling=engine.async_scheduling and not is_static,
        ends_on_stop_token=options.stops == "token",
        static_batch=is_static,
        priority=options.policy == "priority",
        prefill_schedule_interval=options.prefill_schedule_interval,
        prefill_max_requests=options.prefill_max_requests or NO_LIMIT,
        launch_s=sum(host.launch_seconds(bound_plan.model, engine)) if engine.launches_before_results else 0.0,
        load_steps=engine.load_steps if engine.async_scheduling and not is_static else 0,
        results_after_launches=engine.results_after_launches and engine.async_scheduling and not is_static,
        scheduler_recv_interval=options.scheduler_recv_interval,
        batch_wait_timeout_iters=options.batch_wait_timeout_iters,
        batch_wait_min_tokens=math.ceil(options.batch_wait_max_tokens_ratio * max_tokens),
        attention_dp_timeout_iters=options.attention_dp_timeout_iters,
        attention_dp_batching_wait_iters=options.attention_dp_batching_wait_iters,
    )


# ------------------------------------------------------------------ build, run, collect

Pools = list[tuple[str, ReplicaPool]]  # each with its role: both, prefill or decode


class Deployment(NamedTuple):
    """Replicas with their requests, ready to run. Where it is not disaggregated, both tables are the same one."""

    admitted: AdmittedRequests
    source: OpenLoop | ClosedLoop
    fleets: list[Fleet]  # one that does both, or those that prefill and decode
    prefill_table: RequestTable
    decode_table: RequestTable
    kv_transfer_s: list[float]
    warnings: tuple[str, ...]
    sessions: Sessions | None = None
    launch: Callable[[], Fleet] | None = None  # builds one more replica, where their number follows the load

    @property
    def replicas(self) -> list[EngineCore]:
        """The replicas of all fleets."""
        return [replica for fleet in self.fleets for replica in fleet.replicas]


def serve(trace: Trace, pools: Pools, options: ServingOptions, samples: int = POINTS) -> Outcome:
    """Serve a trace on pools of replicas, each with its role (both, prefill or decode).

    ``samples``: about as many points has the series over time, where requests come at times of their own.
    """
    warnings = tuple(dict.fromkeys(warning for _, pool in pools for warning in pool.warnings))
    reason = next((pool.reason for _, pool in pools if pool.reason), "")
    if reason:
        return infeasible(trace, reason, warnings)
    rows = _rows_that_stay(trace, pools, options)
    if rows is not None:
        return _serve_by_replica(trace, rows, pools, options)
    deployment = _build(trace, pools, options, warnings, samples)
    _report_progress(deployment, len(trace), options)
    try:
        if options.autoscale is not None:
            return _run_autoscaled(deployment, pools, options)
        _run(deployment, options)
    except KeyboardInterrupt:
        for replica in deployment.replicas:
            replica.forget_unseen_results()
        raise Interrupted(_collect(deployment)) from None
    return _collect(deployment)


def _rows_that_stay(trace: Trace, pools: Pools, options: ServingOptions) -> list[np.ndarray] | None:
    """The requests of every replica, where sessions stay on theirs whatever happens on others; None elsewhere."""
    pool = pools[0][1]
    at_once = options.max_concurrency is not None or options.concurrent_sessions is not None
    if at_once or options.router != "session_affinity" or options.autoscale is not None or len(pools) > 1:
        return None
    tiers = pool.bound_plan.plan.kv_offload.tiers if pool.bound_plan.plan.kv_offload else ()
    if pool.replicas == 1 or pool.ranks_per_server > 1 or any(tier.name == "shared" for tier in tiers):
        return None
    return rows_by_replica(trace, pool.replicas)


def _serve_by_replica(trace: Trace, rows: list[np.ndarray], pools: Pools, options: ServingOptions) -> Outcome:
    """Every replica with its sessions, as if it were alone; after Ctrl-C what there was by then."""
    pool, progress, done = pools[0][1]._replace(replicas=1), options.progress, 0
    parts = parts_of(trace, rows)

    def tell(outcome: Outcome) -> None:
        nonlocal done
        done += len(outcome.finished_s)
        if progress is not None:
            progress(done, len(trace))

    alone = ServeAlone(pool, msgspec.structs.replace(options, progress=None))
    outcomes, interrupted = serve_parts(parts, alone, alone.unserved, tell)
    merged = merge_parts(trace.sessions, rows, outcomes)
    if interrupted:
        raise Interrupted(merged)
    return merged


class ServeAlone:
    """``ServeAlone(pool, options)(trace)``: the one replica of a pool; tables are made anew in another process."""

    def __init__(self, pool: ReplicaPool, options: ServingOptions) -> None:
        self.pool, self.options = pool, options

    def __getstate__(self) -> dict[str, Any]:
        fields = self.pool._asdict()
        return {"fields": {**fields, "bound_plan": None, "stages": []}, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pool, self.options = ReplicaPool(**state["fields"]), state["options"]

    def __call__(self, trace: Trace) -> Outcome:
        """What becomes of the requests."""
        if not self.pool.stages:
            self.pool = with_tables(self.pool, trace)
        return serve(trace, [("both", self.pool)], self.options)

    def unserved(self, trace: Trace) -> Outcome:
        """The requests before any has come."""
        return _collect(_build(trace, [("both", self.pool)], self.options, ()))


def _run_autoscaled(deployment: Deployment, pools: Pools, options: ServingOptions) -> Outcome:
    """As many replicas as the policy says over time, each all the engines of the one pool."""
    assert options.autoscale is not None, "see `serve`"
    source = check_autoscaling(options.autoscale, deployment.source, len(pools), options.router)
    assert deployment.launch is not None, "one pool has it"
    autoscaler = Autoscaler(
        source, deployment.launch, with_startup(options.autoscale, pools[0][1].bound_plan), options.progress
    )
    autoscaler.run()
    return with_lives(_collect(deployment), autoscaler.lives(), len(deployment.replicas))


def _build(
    trace: Trace, pools: Pools, options: ServingOptions, warnings: tuple[str, ...], samples: int = POINTS
) -> Deployment:
    """Admit the requests, and build the replicas that serve them."""
    prefix_caching = caches_prefixes(pools, options)
    tree = trace.prefix_tree() if prefix_caching else None
    if tree is None and prefix_caching and any(pool.bound_plan.plan.kv_offload for _, pool in pools):
        tree = lone_prompts(trace.input_tokens)
    admitted = _admit(trace, pools, tree)
    priority = trace.priority.tolist() if trace.priority is not None and options.policy == "priority" else None
    inputs, outputs = admitted.input_tokens, admitted.output_tokens
    table = RequestTable(inputs.tolist(), outputs.tolist(), priority)
    roles = dict(reversed(pools))  # the first pool of each role
    sessions = trace.sessions
    if "both" in roles:
        source = _source(trace, pools[0][1], table, admitted, options)
        interval = _sample_interval(source, samples)
        same_work = [pool for _, pool in pools]
        if options.autoscale is not None:
            fleet = Fleet([], [], [], options.router, tree, sessions)

            def launch() -> Fleet:
                new = build_fleet(same_work, table, options, prefix_caching, tree, len(fleet.replicas), interval)
                fleet.replicas += new.replicas
                return new

            return Deployment(admitted, source, [fleet], table, table, [], warnings, sessions, launch)
        fleets = [build_fleet(same_work, table, options, prefix_caching, tree, 0, interval, sessions)]
        warm_caches([engine.kv_cache for engine in fleets[0].replicas], trace, admitted.rejected)
        return Deployment(admitted, source, fleets, table, table, [], warnings, sessions)
    prefill_table = RequestTable(inputs.tolist(), np.ones_like(outputs).tolist(), priority)
    source = _source(trace, pools[0][1], prefill_table, admitted, options)
    interval = _sample_interval(source, samples)
    prefill_pools, decode_pools = ([pool for role, pool in pools if role == name] for name in ("prefill", "decode"))
    prefill = build_fleet(prefill_pools, prefill_table, options, prefix_caching, tree, 0, interval, sessions)
    warm_caches([engine.kv_cache for engine in prefill.replicas], trace, admitted.rejected)
    # a decode replica gets the KV cache of every prompt anew: it caches no prefixes
    decode = build_fleet(decode_pools, table, options, False, tree, len(prefill.replicas), interval)
    table.transferred_tokens = (inputs - 1).tolist()
    gpus = sum(
        pool.replicas * pool.bound_plan.plan.gpus // pool.bound_plan.plan.data_parallel_size for _, pool in pools
    )
    transfer = kv_transfer_seconds(roles["prefill"].bound_plan, roles["decode"].bound_plan, inputs, gpus)
    return Deployment(admitted, source, [prefill, decode], prefill_table, table, transfer, warnings, sessions)


def caches_prefixes(pools: Pools, options: ServingOptions) -> bool:
    """Whether the replicas keep the blocks of prompts for others to use."""
    if options.scheduler == "static":
        return False
    engine = pools[0][1].bound_plan.engine
    return engine.prefix_caching if options.enable_prefix_caching is None else options.enable_prefix_caching


def _admit(trace: Trace, pools: Pools, tree: PrefixTree | None) -> AdmittedRequests:
    """The requests that every pool can serve."""
    plans = [pool.bound_plan.plan for _, pool in pools]
    max_model_len = min(plan.max_model_len or 10**9 for plan in plans)
    # a prompt that is all cached computes its last block again, beside what others have cached of it
    spare = trace.block_tokens + max(plan.block_size for plan in plans) if tree else 0
    return admit_trace(trace, max_model_len, min(pool.kv_cache_tokens for _, pool in pools) - spare)


def _sample_interval(source: OpenLoop | ClosedLoop, samples: int) -> float:
    """Seconds between two samples of an engine's state; 0: every step, until there are too many."""
    return 2 * source.last_arrival / samples if isinstance(source, OpenLoop) else 0.0


def _source(
    trace: Trace, pool: ReplicaPool, table: RequestTable, admitted: AdmittedRequests, options: ServingOptions
) -> OpenLoop | ClosedLoop:
    """When requests reach the engine, its front end's time included."""
    engine = pool.bound_plan.engine
    is_http = pool.bound_plan.plan.frontend == "http"
    overhead = engine.request_overhead + (engine.http_overhead if is_http else 0.0)
    tokenizes = is_http and engine.token_overhead
    tokenize_s = (engine.token_overhead * admitted.input_tokens).tolist() if tokenizes else ()
    if is_closed_loop(trace, options.max_concurrency, options.concurrent_sessions):
        untimed = trace.arrival_s is None and options.concurrent_sessions is None
        return ClosedLoop(
            trace,
            table.arrival_s,
            options.max_concurrency or (1 if untimed else None),
            overhead,
            admitted.rejected,
            tokenize_s,
            options.api_server_count,
            options.concurrent_sessions,
        )
    ids, times = by_arrival(trace)
    if admitted.rejected:
        column(table.arrival_s)[ids] = times
        kept = [(i, time) for i, time in zip(ids, times, strict=True) if i not in admitted.rejected]
        ids, times = [i for i, _ in kept], [time for _, time in kept]
    return OpenLoop(ids, times, table.arrival_s, overhead, tokenize_s, options.api_server_count)


def build_fleet(
    pools: list[ReplicaPool],
    table: RequestTable,
    options: ServingOptions,
    prefix_caching: bool,
    tree: PrefixTree | None,
    first_number: int,
    sample_interval: float,
    sessions: Sessions | None = None,
) -> Fleet:
    """The replicas of some pools that do the same work, numbered from ``first_number`` on."""
    servers: list[EngineCore | LockstepServer] = []
    inboxes: list[RouterInbox] = []
    speeds: list[float] = []
    for pool in pools:
        replicas: list[EngineCore] = []
        for _ in range(pool.replicas):
            inboxes.append(RouterInbox())
            number = first_number + len(inboxes) - 1
            replicas.append(_replica(pool, table, options, prefix_caching, tree, inboxes[-1], number, sample_interval))
        speeds += [pool.speed() if len(pools) > 1 else 1.0] * pool.replicas
        ranks, count = [one for one in replicas if isinstance(one, RankEngine)], pool.ranks_per_server
        servers += [LockstepServer(ranks[k : k + count]) for k in range(0, len(ranks), count)] or replicas
    return Fleet(servers, inboxes, speeds, options.router, tree, sessions)


def _replica(
    pool: ReplicaPool,
    table: RequestTable,
    options: ServingOptions,
    prefix_caching: bool,
    tree: PrefixTree | None,
    inbox: RouterInbox,
    number: int,
    sample_interval: float,
) -> EngineCore:
    """One replica of a pool, of the kind that its plan needs."""
    limits = scheduler_limits(pool, options)
    kv_cache = replica_cache(pool.bound_plan, pool.num_blocks, table, tree, prefix_caching)
    parts = (limits, table, kv_cache, inbox, SCHEDULERS[options.scheduler])
    if len(pool.stages) > 1:
        return PipelineEngine(pool.stages, *parts, number=number, sample_interval=sample_interval)
    kind = RankEngine if pool.ranks_per_server > 1 else FastPathEngine
    return kind(
        pool.stages[0], *parts, number=number, fast_forward=options.fast_forward, sample_interval=sample_interval
    )


def _report_progress(deployment: Deployment, total: int, options: ServingOptions) -> None:
    """Tell how many requests have finished, from time to time."""
    table, progress, watch = deployment.decode_table, options.progress, options.watch
    finished_s = column(table.finished_s)

    def report() -> None:
        if progress is not None:
            progress(int(np.count_nonzero(finished_s == finished_s)), total)
        if watch is not None:
            watch(table)

    for replica in deployment.replicas if progress is not None or watch is not None else ():
        replica.recorder.on_progress = report


def _run(deployment: Deployment, options: ServingOptions) -> None:
    """Run all replicas; those that do not depend on each other one after the other."""
    source, fleets = deployment.source, deployment.fleets
    shares_store = any("shared" in table.tier_stores for table in (deployment.prefill_table, deployment.decode_table))
    deals_in_turn = isinstance(source, OpenLoop) and options.router == "round_robin" and not shares_store
    if len(fleets) > 1:
        ends_at_prefill = (deployment.admitted.output_tokens < 2).tolist()
        pipelined = any(isinstance(replica, PipelineEngine) for replica in deployment.replicas)
        if isinstance(source, OpenLoop) and deals_in_turn and not pipelined:
            run_disaggregated(source, fleets[0], fleets[1], deployment.kv_transfer_s, ends_at_prefill)
        else:
            Cluster(source, fleets, deployment.kv_transfer_s, ends_at_prefill).run()
        return
    replicas = fleets[0].replicas
    if len(replicas) == 1:
        replicas[0].source = source
        if isinstance(source, ClosedLoop):
            replicas[0].on_finished = source.finished
        replicas[0].run()
    elif isinstance(source, OpenLoop) and deals_in_turn:
        for number, replica in enumerate(replicas):
            replica.source = source.every(number, len(replicas))
        for server in fleets[0].servers:
            server.run()
    else:
        Cluster(source, fleets).run()


def _collect(deployment: Deployment) -> Outcome:
    """What became of every request, and the engines over time."""
    admitted, prefill, decode = deployment.admitted, deployment.prefill_table, deployment.decode_table
    replicas = deployment.replicas
    rejected = dict(admitted.rejected)
    for engine in replicas:
        rejected |= engine.refused
    first_token, finished = column(decode.first_token_s), column(decode.finished_s)
    replica, preemptions = column(decode.replica), column(decode.num_preemptions)
    if decode is not prefill:  # a request of one output token never came to a decode replica
        prefill_only = np.isnan(finished) & (admitted.output_tokens < 2)
        first_token = np.where(prefill_only, column(prefill.first_token_s), first_token)
        finished = np.where(prefill_only, column(prefill.finished_s), finished)
        replica = np.where(prefill_only, column(prefill.replica), replica)
        preemptions = preemptions + column(prefill.num_preemptions)
    arrival = column(prefill.arrival_s)
    ends, begins = finished[~np.isnan(finished)], arrival[~np.isnan(arrival)]
    hand_over = None
    if decode is not prefill:
        hand_over = HandOver(column(prefill.replica), column(prefill.first_token_s), column(decode.scheduled_s))
    timelines = _timelines(deployment)
    queried_tokens = sum(engine.kv_cache.queried_tokens for engine in replicas)
    hit_tokens = sum(engine.kv_cache.hit_tokens for engine in replicas)
    return Outcome(
        arrival_s=arrival,
        scheduled_s=column(prefill.scheduled_s),
        first_token_s=first_token,
        finished_s=finished,
        input_tokens=admitted.input_tokens,
        output_tokens=admitted.output_tokens,
        cached_tokens=column(prefill.num_cached_tokens),
        preemptions=preemptions,
        replica=replica,
        rejected=dict(sorted(rejected.items())),
        duration_s=float(ends.max() - begins.min()) if len(ends) else 0.0,
        series=merge_series([dict(one.series) for one in timelines]),
        steps=sum(engine.steps for engine in replicas),
        prefix_hit_rate=hit_tokens / queried_tokens if queried_tokens else 0.0,
        kv_cache_tokens=sum(engine.kv_cache.num_blocks * engine.kv_cache.block_size for engine in replicas),
        gaps=merge_gaps(engine.gaps for engine in replicas),
        warnings=deployment.warnings,
        timelines=timelines,
        hand_over=hand_over,
        kv_tiers=tier_uses([engine.kv_cache for engine in replicas], prefill, hit_tokens),
        tier_series=tier_series([engine.kv_cache for engine in replicas], [engine.now for engine in replicas]),
        pauses=tuple(decode.pauses if decode is prefill else [*prefill.pauses, *decode.pauses]),
        sessions=deployment.sessions,
    )


def _timelines(deployment: Deployment) -> tuple[ReplicaTimeline, ...]:
    """Every replica over time."""
    roles = ["both"] if len(deployment.fleets) == 1 else ["prefill", "decode"]
    return tuple(
        ReplicaTimeline(
            role=role,
            num_blocks=engine.kv_cache.num_blocks,
            block_size=engine.kv_cache.block_size,
            series=engine.recorder.series(),
            end_s=engine.now,
            computed_tokens=engine.computed_tokens,
        )
        for role, fleet in zip(roles, deployment.fleets, strict=True)
        for engine in fleet.replicas
    )
