"""A trace through replicas: who serves, how requests reach them, and what became of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .arrivals import ClosedLoop, OpenLoop, RouterInbox, by_arrival, is_closed_loop
from .cluster import Cluster, run_disaggregated
from .deployment import ReplicaPool, kv_transfer_seconds, scheduler_limits
from .engine import EngineCore
from .kv_cache import KVCache, PrefixCache, PrefixTree, prefix_tree
from .outcome import Interrupted, Outcome
from .pipeline import PipelineEngine
from .recorder import POINTS, merge_series
from .request_table import AdmittedRequests, RequestTable, admit_trace, column
from .router import Fleet
from .schedulers import SCHEDULERS
from .trace import Trace


class ServingOptions(NamedTuple):
    """How replicas work, whatever they are made of."""

    scheduler: str = "vllm"
    policy: str = "fcfs"
    router: str = "round_robin"
    max_concurrency: int | None = None
    piece: int = 0  # the longest piece of one prompt; 0: no limit
    wasted: bool = False  # answers end with a stop token
    prefix_caching: bool | None = None  # None: as the engine does
    lag: bool | None = None
    interval: int = 1  # steps from one look at who has come to the next
    hold: int = 0  # steps that prompts are held back for company
    company: float = 0.0  # share of a step's tokens that is company enough
    fast: bool = True
    progress: Callable[[int, int], None] | None = None


def serve(trace: Trace, pools: list[tuple[str, ReplicaPool]], how: ServingOptions) -> Outcome:
    """Serve a trace on pools of replicas, each with its role (both, prefill or decode)."""
    warnings = tuple(dict.fromkeys(word for _, each in pools for word in each.warnings))
    reason = next((each.reason for _, each in pools if each.reason), "")
    if reason:
        return _nothing(trace, reason, warnings)
    caching = pools[0][1].bound_plan.engine.prefix_caching if how.prefix_caching is None else how.prefix_caching
    caching = caching and how.scheduler != "static"
    known = caching and trace.blocks is not None and trace.block_tokens > 0
    shared = (
        prefix_tree(trace.blocks, trace.block_tokens, trace.input_tokens)
        if known and trace.blocks is not None
        else None
    )
    longest = min(each.bound_plan.plan.max_model_len or 10**9 for _, each in pools)
    # a prompt that is all cached computes its last block again, beside what others have cached of it
    spare = trace.block_tokens + max(each.bound_plan.plan.block_size for _, each in pools) if shared else 0
    held = min(each.blocks * each.bound_plan.plan.block_size - spare for _, each in pools)
    taken = admit_trace(trace, longest, held)

    priority = trace.priority.tolist() if trace.priority is not None and how.policy == "priority" else None
    split = pools[0][0] != "both"
    outputs = np.ones_like(taken.outputs) if split else taken.outputs
    front = RequestTable(taken.inputs.tolist(), outputs.tolist(), priority)
    back = RequestTable(taken.inputs.tolist(), taken.outputs.tolist(), priority) if split else front
    feed = _feed(trace, pools[0][1], front, taken, how)
    apart = 2 * feed.times[-2] / POINTS if isinstance(feed, OpenLoop) and feed.ids else 0.0
    fleets: list[Fleet] = []
    for roles, ledger in ((("both", "prefill"), front), (("decode",), back)):
        mine = [each for role, each in pools if role in roles]
        if mine:
            first = len(fleets[0].replicas) if fleets else 0
            keeps = caching and ledger is front  # who only answers gets the cache of every prompt anew
            fleets.append(_fleet(mine, ledger, how, keeps, shared, first, apart))
    replicas = [replica for fleet in fleets for replica in fleet.replicas]
    if how.progress is not None:
        _report(replicas, back, len(trace), how.progress)
    try:
        if split:
            back.given = (taken.inputs - 1).tolist()
            readers, writers = (next(each for role, each in pools if role == word) for word in ("prefill", "decode"))
            short = (taken.outputs < 2).tolist()
            sent = kv_transfer_seconds(readers, writers, taken.inputs)
            staged = any(len(each.stages) > 1 for _, each in pools)
            if isinstance(feed, OpenLoop) and how.router == "round_robin" and not staged:
                run_disaggregated(feed, fleets[0], fleets[1], sent, short)
            else:
                Cluster(feed, fleets, sent, short).run()
        else:
            _run(feed, fleets[0], how, front)
    except KeyboardInterrupt:
        raise Interrupted(_outcome(taken, front, back, replicas, warnings)) from None
    return _outcome(taken, front, back, replicas, warnings)


def _feed(
    trace: Trace, pool: ReplicaPool, ledger: RequestTable, taken: AdmittedRequests, how: ServingOptions
) -> OpenLoop | ClosedLoop:
    """When requests reach the engine, its front end's time included."""
    engine = pool.bound_plan.engine
    http = pool.bound_plan.plan.frontend == "http"
    overhead = engine.request_overhead + (engine.http_overhead if http else 0.0)
    reading = (engine.token_overhead * taken.inputs).tolist() if http and engine.token_overhead else ()
    if is_closed_loop(trace, how.max_concurrency):
        most = how.max_concurrency or (1 if trace.arrival_s is None else None)
        return ClosedLoop(trace, ledger.arrival, most, overhead, taken.rejected, reading)
    ids, times = by_arrival(trace)
    if taken.rejected:
        column(ledger.arrival)[ids] = times
        kept = [(i, time) for i, time in zip(ids, times, strict=True) if i not in taken.rejected]
        ids, times = [i for i, _ in kept], [time for _, time in kept]
    return OpenLoop(ids, times, ledger.arrival, overhead, reading)


def _run(feed: OpenLoop | ClosedLoop, fleet: Fleet, how: ServingOptions, ledger: RequestTable) -> None:
    """Replicas that do everything; those that need not look at each other run one after the other."""
    replicas = fleet.replicas
    if len(replicas) == 1:
        replicas[0].feed = feed
        if isinstance(feed, ClosedLoop):
            replicas[0].ends = feed.ended
        replicas[0].run()
    elif isinstance(feed, OpenLoop) and how.router == "round_robin":
        for number, replica in enumerate(replicas):
            mine = slice(number, len(feed.ids), len(replicas))
            replica.feed = OpenLoop(feed.ids[mine], feed.times[mine], ledger.arrival, feed.overhead, feed.reading)
            replica.run()
    else:
        Cluster(feed, [fleet]).run()


def _fleet(
    pools: list[ReplicaPool],
    ledger: RequestTable,
    how: ServingOptions,
    caching: bool,
    shared: PrefixTree | None,
    first: int,
    apart: float,
) -> Fleet:
    replicas: list[EngineCore] = []
    inboxes: list[RouterInbox] = []
    speeds: list[float] = []
    plan = SCHEDULERS[how.scheduler]
    for each in pools:
        engine, size = each.bound_plan.engine, each.bound_plan.plan.block_size
        allowed = scheduler_limits(
            each,
            how.scheduler,
            how.policy,
            piece=how.piece,
            wasted=how.wasted,
            interval=how.interval,
            hold=how.hold,
            company=how.company,
            lag=engine.async_scheduling if how.lag is None else how.lag,
        )
        for _ in range(each.replicas):
            cache = PrefixCache(each.blocks, size, shared) if caching else KVCache(each.blocks, size)
            inbox, number = RouterInbox(), first + len(replicas)
            if len(each.stages) > 1:
                made: EngineCore = PipelineEngine(
                    each.stages, allowed, ledger, cache, inbox, plan, number=number, apart=apart
                )
            else:
                made = EngineCore(
                    each.stages[0], allowed, ledger, cache, inbox, plan, number=number, fast=how.fast, apart=apart
                )
            replicas.append(made)
            inboxes.append(inbox)
        speeds += [each.speed() if len(pools) > 1 else 1.0] * each.replicas
    return Fleet(replicas, inboxes, speeds, how.router, shared)


def _report(replicas: list[EngineCore], ledger: RequestTable, total: int, progress: Callable[[int, int], None]) -> None:
    """Tell how many requests have ended, whenever a replica is looked at."""
    done = column(ledger.finished)
    for replica in replicas:
        replica.watch.tell = lambda: progress(int(np.count_nonzero(done == done)), total)


# ------------------------------------------------------------------ what became of it


def _nothing(trace: Trace, reason: str, warnings: tuple[str, ...]) -> Outcome:
    """No replica can work."""
    n = len(trace)
    never, none = np.full(n, np.nan), np.zeros(n, np.int64)
    arrival = np.zeros(n) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s)
    return Outcome(
        arrival_s=arrival,
        scheduled_s=never,
        first_token_s=never,
        finished_s=never,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=none,
        preemptions=none,
        replica=none,
        rejected=dict.fromkeys(range(n), reason),
        duration_s=0.0,
        series=merge_series([]),
        steps=0,
        prefix_hit_rate=0.0,
        reason=reason,
        warnings=warnings,
    )


def _outcome(
    taken: AdmittedRequests,
    front: RequestTable,
    back: RequestTable,
    replicas: list[EngineCore],
    warnings: tuple[str, ...],
) -> Outcome:
    rejected = dict(taken.rejected)
    for replica in replicas:
        rejected |= replica.refused
    first, finished, where, preempted = (column(x) for x in (back.first, back.finished, back.replica, back.preempted))
    if back is not front:  # what is over after one token never came to those who answer
        here = np.isnan(finished) & (taken.outputs < 2)
        first, finished = np.where(here, column(front.first), first), np.where(here, column(front.finished), finished)
        where, preempted = np.where(here, column(front.replica), where), preempted + column(front.preempted)
    arrival = column(front.arrival)
    ends, begins = finished[~np.isnan(finished)], arrival[~np.isnan(arrival)]
    asked = sum(replica.cache.asked for replica in replicas)
    return Outcome(
        arrival_s=arrival,
        scheduled_s=column(front.scheduled),
        first_token_s=first,
        finished_s=finished,
        input_tokens=taken.inputs,
        output_tokens=taken.outputs,
        cached_tokens=column(front.cached),
        preemptions=preempted,
        replica=where,
        rejected=dict(sorted(rejected.items())),
        duration_s=float(ends.max() - begins.min()) if len(ends) else 0.0,
        series=merge_series([replica.watch.series() for replica in replicas]),
        steps=sum(replica.steps for replica in replicas),
        prefix_hit_rate=sum(replica.cache.hits for replica in replicas) / asked if asked else 0.0,
        kv_cache_tokens=sum(replica.cache.blocks * replica.cache.size for replica in replicas),
        warnings=warnings,
    )
