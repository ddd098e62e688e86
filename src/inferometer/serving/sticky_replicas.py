"""Replicas that never meet: every session stays on one of them, so each is simulated by itself, one after the other.

    rows = rows_by_replica(trace, replicas=4)           # the requests of every replica
    merge_parts(trace, rows, [serve(rows_of(trace, some)) for some in rows])

Where new sessions come at times of their own, which replica a session goes to is known before anything is run: with
`session_affinity` each goes where the fewest went. What one replica needs in memory is given back before the next
begins, and many turns are shared out to processes. Every replica has front ends of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..base.parallel_map import worker_pool
from .inter_token import GapHistogram
from .outcome import Interrupted, Outcome, TierUse, merge_series, merge_tier_series
from .request_table import RejectionKind
from .sessions import Sessions
from .trace import Trace, rows_of

MANY_TURNS = 100_000  # from which on processes are worth their start


def rows_by_replica(trace: Trace, replicas: int) -> list[np.ndarray] | None:
    """The requests that every replica gets, in order of the trace; None where sessions do not say when they begin."""
    sessions = trace.sessions
    if sessions is None or trace.arrival_s is None or not len(trace):
        return None
    first_s = np.full(len(sessions), np.inf)
    after = trace.after if trace.after is not None else np.full(len(trace), -1, np.int64)
    waits = after >= 0
    if len(sessions.joins):
        waits = waits | np.isin(np.arange(len(trace)), sessions.joins[:, 0])
    roots = np.flatnonzero(~waits)
    np.minimum.at(first_s, sessions.session[roots], np.nan_to_num(trace.arrival_s[roots], nan=0.0))
    first_row = np.full(len(sessions), len(trace), np.int64)
    at_start = roots[np.nan_to_num(trace.arrival_s[roots], nan=0.0) == first_s[sessions.session[roots]]]
    np.minimum.at(first_row, sessions.session[at_start], at_start)
    order = np.lexsort((first_row, first_s))
    replica = np.empty(len(sessions), np.int64)
    replica[order] = np.arange(len(sessions)) % replicas
    of_row = replica[sessions.session]
    return [np.flatnonzero(of_row == number) for number in range(replicas)]


def serve_parts(
    parts: Sequence[Trace],
    serve_one: Callable[[Trace], Outcome],
    unserved: Callable[[Trace], Outcome],
    on_done: Callable[[Outcome], None],
) -> tuple[list[Outcome], bool]:
    """Every part, served by one replica: on processes where there are many turns, else one after the other.

    Also whether it was interrupted by Ctrl-C: then parts that were not begun are ``unserved``.
    """
    done: dict[int, Outcome] = {}
    interrupted = False
    try:
        for number, outcome in _served(parts, serve_one):
            done[number] = outcome
            on_done(outcome)
    except Interrupted as partial:
        done[len(done)], interrupted = partial.result, True
    except KeyboardInterrupt:
        interrupted = True
    return [done[n] if n in done else unserved(part) for n, part in enumerate(parts)], interrupted


def _served(parts: Sequence[Trace], serve_one: Callable[[Trace], Outcome]) -> Iterator[tuple[int, Outcome]]:
    if sum(map(len, parts)) < MANY_TURNS:
        yield from ((number, serve_one(part)) for number, part in enumerate(parts))
        return
    with worker_pool("processes") as pool:
        yield from pool.completed(serve_one, parts)


def parts_of(trace: Trace, rows: Sequence[np.ndarray]) -> list[Trace]:
    """The requests of every replica, as traces: ``parts_of(trace, rows_by_replica(trace, 4))``"""
    return [rows_of(trace, some) for some in rows]


def merge_parts(sessions: Sessions | None, rows: Sequence[np.ndarray], parts: Sequence[Outcome]) -> Outcome:
    """What became of all requests, from what became of those of every replica."""
    total = sum(map(len, rows))

    def column(name: str) -> np.ndarray:
        values = np.empty(total, getattr(parts[0], name).dtype)
        for some, part in zip(rows, parts, strict=True):
            values[some] = getattr(part, name)
        return values

    replica = np.zeros(total, np.int64)  # of requests that reached one
    for number, (some, part) in enumerate(zip(rows, parts, strict=True)):
        refused = [i for i, why in part.rejected.items() if why.kind is RejectionKind.KV_BLOCKS]
        replica[some[~np.isnan(part.scheduled_s)]] = replica[some[refused]] = number
    finished, arrival, scheduled = column("finished_s"), column("arrival_s"), column("scheduled_s")
    inputs, cached = column("input_tokens"), column("cached_tokens")
    ends, begins = finished[~np.isnan(finished)], arrival[~np.isnan(arrival)]
    queried = int(inputs[~np.isnan(scheduled)].sum())
    rejected = {int(some[i]): why for some, one in zip(rows, parts, strict=True) for i, why in one.rejected.items()}
    timelines = tuple(timeline for part in parts for timeline in part.timelines)
    return Outcome(
        arrival_s=arrival,
        scheduled_s=scheduled,
        first_token_s=column("first_token_s"),
        finished_s=finished,
        input_tokens=inputs,
        output_tokens=column("output_tokens"),
        cached_tokens=cached,
        preemptions=column("preemptions"),
        replica=replica,
        rejected=dict(sorted(rejected.items())),
        duration_s=float(ends.max() - begins.min()) if len(ends) else 0.0,
        series=merge_series([dict(one.series) for one in timelines]),
        steps=sum(part.steps for part in parts),
        prefix_hit_rate=int(cached.sum()) / queried if queried else 0.0,
        kv_cache_tokens=sum(part.kv_cache_tokens for part in parts),
        gaps=_merged_gaps([part.gaps for part in parts if part.gaps is not None]),
        warnings=tuple(dict.fromkeys(warning for part in parts for warning in part.warnings)),
        timelines=timelines,
        kv_tiers=_merged_tiers(rows, parts, total, queried),
        tier_series=merge_tier_series([part.tier_series for part in parts]),
        pauses=tuple((int(some[i]), a, b) for some, one in zip(rows, parts, strict=True) for i, a, b in one.pauses),
        sessions=sessions,
    )


def _merged_gaps(each: Sequence[GapHistogram]) -> GapHistogram:
    seconds = np.concatenate([np.zeros(0), *(one.seconds for one in each)])
    counts = np.concatenate([np.zeros(0), *(one.counts for one in each)])
    order = np.argsort(seconds, kind="stable")
    return GapHistogram(seconds[order], counts[order])


def _merged_tiers(
    rows: Sequence[np.ndarray], parts: Sequence[Outcome], total: int, queried: int
) -> tuple[TierUse, ...]:
    """What each tier held, gave and took on all replicas."""
    merged = []
    for number, first in enumerate(parts[0].kv_tiers):
        uses, tokens = [part.kv_tiers[number] for part in parts], np.zeros(total, np.int64)
        for some, use in zip(rows, uses, strict=True):
            tokens[some] = use.request_tokens
        sums = {
            name: sum(getattr(use, name) for use in uses)
            for name in TierUse._fields
            if name not in ("name", "hit_rate", "request_tokens")
        }
        rate = sums["hit_tokens"] / queried if queried else 0.0
        merged.append(TierUse(name=first.name, hit_rate=rate, request_tokens=tokens, **sums))
    return tuple(merged)
