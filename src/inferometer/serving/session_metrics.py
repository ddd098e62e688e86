"""What a run amounts to by session: how long tasks took and what of it was the model, their tokens, hits and cost.

session_columns(outcome)["duration_s"]                  # one entry per session
session_metrics(outcome, dollars_per_hour=3.5)          # means and percentiles, for ``simulate --json``
prefix_reuse(read_trace("conversation_trace.jsonl"))    # share of prompt tokens that an endless cache would have
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .metrics import PERCENTILES
from .outcome import Outcome
from .trace import Trace

MAX_LANES, MAX_LANE_TURNS = 40, 4000  # agents and turns that are drawn
SESSION_TIMES = ("duration_s", "model_s", "idle_s")


def session_columns(outcome: Outcome) -> dict[str, np.ndarray]:
    """Sessions as columns, one entry for each; times are nan where a turn of it never ended.

    ``duration_s`` from its first turn to the end of its last one: ``model_s`` with a turn at the server, ``idle_s``
    without, when tools run and people think.
    """
    sessions = outcome.sessions
    assert sessions is not None, "the trace has sessions"
    number, count, done = sessions.session, len(sessions), outcome.done

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(number, weights=values, minlength=count)

    turns, finished = np.bincount(number, minlength=count), total(done).astype(np.int64)
    whole = (finished == turns) & (turns > 0)
    start, end = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(start, number, np.nan_to_num(outcome.arrival_s, nan=np.inf))
    np.maximum.at(end, number, np.nan_to_num(outcome.finished_s, nan=-np.inf))
    busy = _union(outcome, number, count)
    agents = np.zeros(count, np.int64)
    np.maximum.at(agents, number, sessions.agent + 1)
    never = np.where(whole, 0.0, np.nan)
    with np.errstate(invalid="ignore"):
        duration = end - start + never
    prompts = outcome.input_tokens.astype(float)
    return {
        "start_s": np.where(np.isinf(start), np.nan, start),
        "duration_s": duration,
        "model_s": busy + never,
        "idle_s": np.maximum(duration - busy, 0.0),
        "turns": turns,
        "finished_turns": finished,
        "agents": agents,
        "input_tokens": total(prompts).astype(np.int64),
        "output_tokens": total(outcome.output_tokens.astype(float)).astype(np.int64),
        "cached_tokens": total(outcome.cached_tokens.astype(float)).astype(np.int64),
    }


def _union(outcome: Outcome, number: np.ndarray, count: int) -> np.ndarray:
    """Seconds in which at least one turn of each session was at the server."""
    rows = np.flatnonzero(outcome.done)
    start, end, which = outcome.arrival_s[rows], outcome.finished_s[rows], number[rows]
    order = np.lexsort((start, which))
    start, end, which = start[order], end[order], which[order]
    span = float(end.max(initial=0.0)) + 1.0
    reached = np.maximum.accumulate(end + which * span)  # sessions lie apart, one after the other
    before = np.concatenate([[-np.inf], reached[:-1]]) - which * span
    seconds = np.maximum(end - np.maximum(start, before), 0.0)
    return np.bincount(which, weights=seconds, minlength=count)


def session_metrics(outcome: Outcome, dollars_per_hour: float | None = None) -> dict[str, Any] | None:
    """The run by session, None if its requests are of none. ``dollars_per_hour`` is the price of all its GPUs.

    ``cost_per_session``: the GPUs for as long as the run took, over the sessions that ended.
    """
    if outcome.sessions is None:
        return None
    columns = session_columns(outcome)
    whole, prompts = ~np.isnan(columns["duration_s"]), int(columns["input_tokens"].sum())
    ended = int(whole.sum())
    result: dict[str, Any] = {
        "sessions": len(whole),
        "completed": ended,
        "turns_per_session": float(columns["turns"].mean()),
        "agents_per_session": float(columns["agents"].mean()),
        "input_tokens_per_session": float(columns["input_tokens"].mean()),
        "output_tokens_per_session": float(columns["output_tokens"].mean()),
        "cached_share": int(columns["cached_tokens"].sum()) / prompts if prompts else 0.0,
        "sessions_per_hour": ended / outcome.duration_s * 3600 if outcome.duration_s else None,
    }
    for name in SESSION_TIMES:
        values = columns[name][whole]
        points = np.percentile(values, (50, *PERCENTILES)).tolist() if ended else [None] * 3
        labels = ("median", *(f"p{p}" for p in PERCENTILES))
        result |= {f"mean_{name}": float(values.mean()) if ended else None}
        result |= {f"{label}_{name}": value for label, value in zip(labels, points, strict=True)}
    hours = outcome.duration_s / 3600
    result["cost_per_session"] = dollars_per_hour * hours / ended if dollars_per_hour and ended else None
    return result


def session_lanes(outcome: Outcome) -> dict[str, Any]:
    """The turns of the first sessions of a run one by one, by agent: as many as a page can show.

    ``session_lanes(outcome)["first_token_s"]``
    """
    sessions = outcome.sessions
    assert sessions is not None, "the trace has sessions"
    lanes = np.zeros(len(sessions), np.int64)
    np.maximum.at(lanes, sessions.session, sessions.agent + 1)
    shown = max(1, int(np.searchsorted(np.cumsum(lanes), MAX_LANES, side="right")))
    rows = np.flatnonzero((sessions.session < shown) & outcome.done)[:MAX_LANE_TURNS]
    return {
        "shown": shown,
        "names": [name or f"session {number}" for number, name in enumerate((sessions.names or [""] * shown)[:shown])],
        "session": sessions.session[rows],
        "agent": sessions.agent[rows],
        "turn": sessions.turn[rows],
        "start_s": outcome.arrival_s[rows],
        "first_token_s": outcome.first_token_s[rows],
        "finished_s": outcome.finished_s[rows],
        "input_tokens": outcome.input_tokens[rows],
        "output_tokens": outcome.output_tokens[rows],
        "cached_tokens": outcome.cached_tokens[rows],
    }


def prefix_reuse(trace: Trace) -> float:
    """Share of the prompts' whole blocks that requests before had: what an endless prefix cache would hit.

    ``prefix_reuse(read_trace("synthetic_trace.jsonl"))  # 0.66``
    """
    hits, blocks = reuse_by_request(trace)
    return float(hits.sum() / blocks.sum()) if blocks.sum() else 0.0


def reuse_by_request(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Of every request, blocks of its prompt that requests before it had, and its whole blocks; tokens without ids."""
    prompts = trace.input_tokens
    hits = np.zeros(len(trace), np.int64)
    if trace.prefixes is not None:
        tree = trace.prefixes
        filled = np.zeros(len(tree.first), np.int64)  # tokens that are there, counted from the root
        ends = (prompts + trace.output_tokens).tolist()
        for i, (prompt, end) in enumerate(zip(prompts.tolist(), ends, strict=True)):
            known, unbroken = 0, True
            for segment in tree.of(i):
                if unbroken:
                    known = max(known, int(filled[segment]))
                    unbroken = filled[segment] >= tree.last[segment]
                filled[segment] = max(filled[segment], min(end, tree.last[segment]))
            hits[i] = min(known, prompt)
        return hits, prompts
    if trace.blocks is None or not trace.block_tokens:
        return hits, prompts
    whole, seen = prompts // trace.block_tokens, set[int]()
    for i, ids in enumerate(trace.blocks):
        own = ids.tolist()
        known = next((k for k, number in enumerate(own) if number not in seen), len(own))
        hits[i] = min(known, int(whole[i]))
        seen.update(own)
    return hits, whole
