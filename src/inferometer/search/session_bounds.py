"""What no plan of a server can beat: how soon each turn of sessions is answered where nothing else runs.

    floors = turn_floors(pool, shareable_tokens(trace), trace)
    floors.ttft_s                           # of every turn, s
    span_floor(trace, floors.e2el_s)        # seconds that all sessions take at least

A floor takes every token from the cache that may be there by then, however small the cache is; the turn is alone on an
engine whose host is ahead of the device. More sequences, a queue, evictions and a slower router only add to that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ..serving.kv_cache import PrefixTree
from ..serving.replica_pool import ReplicaPool
from ..serving.step_clock import ContextList
from ..serving.step_cost import StepCost
from ..serving.trace import Trace

SAFE = 0.95  # some measured steps are a few percent faster with more sequences in them
_AHEAD = 1e9  # s: all work of the host is hidden


class TurnFloors(NamedTuple):
    """The least seconds of every turn."""

    ttft_s: np.ndarray
    tpot_s: np.ndarray  # 0 where the answer is one token
    e2el_s: np.ndarray


def shareable_tokens(trace: Trace) -> np.ndarray:
    """Tokens of each prompt that some cache may have when the turn comes: what others of other sessions and agents
    share with it, or turns before it."""
    tree = trace.prefix_tree()
    shared = np.zeros(len(trace), np.int64) if tree is None else _shareable(trace, tree)
    if trace.warm_history is not None:
        shared = np.maximum(shared, np.minimum(trace.warm_history, trace.input_tokens - 1))
    return shared


def _shareable(trace: Trace, tree: PrefixTree) -> np.ndarray:
    prompts = trace.input_tokens.tolist()
    ends = (trace.input_tokens + trace.output_tokens).tolist()
    session = trace.sessions.session.tolist() if trace.sessions is not None else range(len(trace))
    agent = trace.sessions.agent.tolist() if trace.sessions is not None else [0] * len(trace)
    first, last = tree.first.tolist(), tree.last.tolist()
    owner: list[tuple[int, int] | None] = [None] * len(first)  # session and agent; of several: those of none
    for i in range(len(trace)):
        own = (session[i], agent[i])
        for segment in tree.of(i):
            if first[segment] < prompts[i]:
                owner[segment] = own if owner[segment] in (None, own) else (-1, -1)
    filled = [0] * len(first)  # tokens that turns before have left
    shared = np.zeros(len(trace), np.int64)
    for i, (prompt, end) in enumerate(zip(prompts, ends, strict=True)):
        known, unbroken = 0, True
        for segment in tree.of(i):
            upto = last[segment] if owner[segment] == (-1, -1) else filled[segment]
            if unbroken:
                known = max(known, upto)
                unbroken = upto >= last[segment]
            filled[segment] = max(filled[segment], min(end, last[segment]))
        shared[i] = min(known, prompt - 1)
    return shared


def turn_floors(pool: ReplicaPool, shared: np.ndarray, trace: Trace) -> TurnFloors:
    """The floors of every turn on a server; 0 where its steps are of several ranks or stages."""
    count, zero = len(trace), np.zeros(len(trace))
    if len(pool.stages) != 1 or pool.bound_plan.plan.data_parallel_size > 1:
        return TurnFloors(zero, zero, zero)
    cost, plan = pool.stages[0], pool.bound_plan.plan
    longest = plan.max_model_len or 10**9
    served = trace.input_tokens < longest
    new = _coarse(trace.input_tokens - shared)
    cached, context = _coarse(shared), _coarse(np.minimum(trace.input_tokens, longest - 1))
    prefill = _by_pair(new, cached, lambda n, c: _prefill_seconds(cost, n, c, plan.max_num_batched_tokens))
    each = _by_pair(context, context, lambda n, _: cost.decode_seconds(ContextList([n]))) / cost.accepted_per_step
    gaps = np.maximum(np.minimum(trace.output_tokens, longest - trace.input_tokens) - 1, 0)
    ttft = np.where(served, prefill * SAFE, 0.0)
    tpot = np.where(served & (gaps > 0), each * SAFE, 0.0)
    assert len(ttft) == count
    return TurnFloors(ttft, tpot, ttft + gaps * tpot)


def _prefill_seconds(cost: StepCost, new: int, cached: int, budget: int) -> float:
    """Seconds of a prompt's chunks; later ones see more tokens than those before them."""
    whole, rest = divmod(new, budget)
    seconds = whole * cost.mixed_seconds(None, [(0, budget, cached)], 1, 0.0, _AHEAD) if whole else 0.0
    return seconds + (cost.mixed_seconds(None, [(0, rest, cached)], 1, 0.0, _AHEAD) if rest else 0.0)


def _coarse(tokens: np.ndarray) -> np.ndarray:
    """Tokens, rounded down by up to a tenth, so that few different numbers are left."""
    step = np.maximum(2 ** np.floor(np.log2(np.maximum(tokens, 1))).astype(np.int64) // 8, 1)
    rounded: np.ndarray = tokens // step * step
    return rounded


def _by_pair(a: np.ndarray, b: np.ndarray, seconds: Callable[[int, int], float]) -> np.ndarray:
    """A function of two whole numbers, called once for every pair that there is."""
    pairs, which = np.unique(np.column_stack([a, b]), axis=0, return_inverse=True)
    values = np.array([seconds(n, c) for n, c in pairs.tolist()], dtype=np.float64)
    each: np.ndarray = values[which.reshape(-1)]
    return each


def span_floor(trace: Trace, e2el_s: np.ndarray, concurrent_sessions: int | None = None) -> float:
    """Seconds from the first turn to the end of the last one, if each takes so long: the longest chain of turns.

    With so many ``concurrent_sessions`` the sessions' own times, one after the other, are another bound.
    """
    count = len(trace)
    arrival = (np.zeros(count) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s, nan=0.0)).tolist()
    after = [-1] * count if trace.after is None else trace.after.tolist()
    wait = [0.0] * count if trace.think_s is None else np.nan_to_num(trace.think_s, nan=0.0).tolist()
    joins: dict[int, list[int]] = {}
    for i, other in trace.sessions.joins.tolist() if trace.sessions is not None else ():
        joins.setdefault(i, []).append(other)
    end, takes = [0.0] * count, e2el_s.tolist()
    start = [0.0] * count
    for i in range(count):
        before = [end[one] for one in (after[i], *joins.get(i, ())) if 0 <= one < i]
        start[i] = max(arrival[i], max(before) + wait[i]) if before else arrival[i]
        end[i] = start[i] + takes[i]
    span = max(end, default=0.0) - min(arrival, default=0.0)
    if concurrent_sessions is not None and trace.sessions is not None:
        number, sessions = trace.sessions.session, len(trace.sessions)
        begins, ends = np.full(sessions, np.inf), np.zeros(sessions)
        np.minimum.at(begins, number, np.array(start))
        np.maximum.at(ends, number, np.array(end))
        span = max(span, float((ends - begins).sum()) / concurrent_sessions)
    return span
