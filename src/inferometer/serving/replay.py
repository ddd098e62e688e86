"""A run to be played again: in which phase every request is at any time, tokens over time, every replica over time.

counts_at(outcome, np.array([0.0, 1.5]))["queued"]      # array([0, 3]): requests that wait at 1.5 s
token_bins(outcome).output_tokens.sum()                 # all tokens of all answers, in eighty bins
replay(outcome)["requests"]["first_token_s"]            # bounded: what a page can hold
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.units import ceil_div
from .outcome import Outcome, ReplicaTimeline

BINS = 80  # of tokens over time
MAX_REQUESTS = 10_000  # that are played; of more, so many by lot
MAX_REPLICAS = 64
MAX_SAMPLES = 4000  # of all replicas together
MIN_SAMPLES = 100  # of each
MAX_PAUSES = 20_000
COUNTS = 1000  # moments at which all requests are counted
PHASES = ("not_arrived", "queued", "prefill", "transfer", "decode", "finished", "rejected")


# ------------------------------------------------------------------ requests


def end_of(outcome: Outcome) -> float:
    """Seconds of the clock at which the last request has finished."""
    return float(np.nanmax(outcome.finished_s, initial=0.0))


def phase_starts(outcome: Outcome) -> dict[str, np.ndarray]:
    """When each request enters each phase; inf where it never does: ``phase_starts(outcome)["decode"]``

    A rejected request is rejected when it arrives. Only disaggregated serving has a time of transfer, from the end of
    the prefill until a decode replica begins with the request; elsewhere decode follows at once.
    """
    hand_over = outcome.hand_over
    prefilled = outcome.first_token_s if hand_over is None else hand_over.prefilled_s
    decode = prefilled if hand_over is None else hand_over.decode_s
    finished = outcome.finished_s
    if hand_over is not None:  # an answer of one token ends with its prefill
        prefilled = np.where(np.isnan(prefilled), finished, prefilled)
        decode = np.where(np.isnan(decode), finished, decode)
    starts = {
        "queued": outcome.arrival_s,
        "prefill": outcome.scheduled_s,
        "transfer": prefilled,
        "decode": decode,
        "finished": finished,
        "rejected": np.full(len(outcome.arrival_s), np.nan),
    }
    rejected = list(outcome.rejected)
    for name, values in starts.items():
        starts[name] = np.where(np.isnan(values), np.inf, values)
        starts[name][rejected] = np.inf
    starts["rejected"][rejected] = np.nan_to_num(outcome.arrival_s)[rejected]
    return starts


def counts_at(outcome: Outcome, times: np.ndarray) -> dict[str, np.ndarray]:
    """How many requests are in each phase at each time; together they are all requests.

    A preempted request is queued until it is admitted again.
    """
    starts = phase_starts(outcome)
    begun = {name: _begun(values, times) for name, values in starts.items()}
    request, start, stop = np.array(outcome.pauses, float).reshape(-1, 3).T
    prefilling = start < starts["transfer"][request.astype(int)]
    paused = {
        name: _begun(start[which], times) - _begun(stop[which], times)
        for name, which in (("prefill", prefilling), ("decode", ~prefilling))
    }
    return {
        "not_arrived": len(outcome.arrival_s) - begun["queued"] - begun["rejected"],
        "queued": begun["queued"] - begun["prefill"] + paused["prefill"] + paused["decode"],
        "prefill": begun["prefill"] - begun["transfer"] - paused["prefill"],
        "transfer": begun["transfer"] - begun["decode"],
        "decode": begun["decode"] - begun["finished"] - paused["decode"],
        "finished": begun["finished"],
        "rejected": begun["rejected"],
    }


def _begun(starts: np.ndarray, times: np.ndarray) -> np.ndarray:
    """How many have begun by each time."""
    return np.searchsorted(np.sort(starts), times, side="right")


# ------------------------------------------------------------------ tokens over time


class TokenBins(NamedTuple):
    """Tokens between one edge and the next."""

    edges_s: np.ndarray
    computed_tokens: np.ndarray  # by the engines, prompts included
    output_tokens: np.ndarray  # of answers

    @property
    def width_s(self) -> float:
        """Seconds of one bin."""
        return float(self.edges_s[1] - self.edges_s[0])


def token_bins(outcome: Outcome, bins: int = BINS) -> TokenBins:
    """Tokens computed and tokens that came out, by equal parts of the run. No token is lost, none counted twice.

    The tokens of an answer are spread evenly from its first to its last one.
    """
    edges = np.linspace(0.0, end_of(outcome) or 1.0, bins + 1)
    done = outcome.done
    output = _spread_out(outcome.first_token_s[done], outcome.finished_s[done], outcome.output_tokens[done], edges)
    computed = np.zeros(len(edges))
    for timeline in outcome.timelines:
        times, totals = _totals(timeline)["time_s"], _totals(timeline)["tokens"]
        computed += np.where(edges >= edges[-1], totals[-1], np.interp(edges, times, totals))
    return TokenBins(edges, np.diff(computed), np.diff(output))


def _spread_out(start: np.ndarray, stop: np.ndarray, amount: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """How much there is before each edge when every amount is spread evenly from its start to its stop."""
    total = np.zeros(len(edges))
    for low in range(0, len(start), 4096):  # in pieces: requests × edges would be a large array
        part = slice(low, low + 4096)
        a, b, n = start[part, None], stop[part, None], amount[part, None]
        share = np.clip((edges - a) / np.maximum(b - a, 1e-12), 0, 1)
        total += (n * np.where(edges >= b, 1.0, share)).sum(axis=0)
    return total


# ------------------------------------------------------------------ replicas over time


def _totals(timeline: ReplicaTimeline) -> dict[str, np.ndarray]:
    """Tokens, busy seconds and steps since the beginning, from 0 at 0 s to what they were at the end."""
    s = timeline.series
    spacing = np.diff(s["time_s"], prepend=0.0)
    tokens = s["tokens_per_s"] * spacing
    steps = tokens / np.maximum(s["batch_tokens"], 1e-12)
    last = float(s["time_s"][-1]) if len(s["time_s"]) else 0.0
    end = max(timeline.end_s, last)
    totals = {name: np.cumsum(x) for name, x in (("tokens", tokens), ("busy_s", s["busy"] * spacing), ("steps", steps))}
    totals = {name: np.concatenate([[0.0], x, x[-1:] if len(x) else [0.0]]) for name, x in totals.items()}
    totals["tokens"][-1] = timeline.computed_tokens
    return {"time_s": np.concatenate([[0.0], s["time_s"], [end]]), **totals}


def replica_samples(timeline: ReplicaTimeline, most: int) -> dict[str, np.ndarray]:
    """A replica at some moments: KV blocks, and since the moment before tokens/s, steps, and a mean step."""
    s, totals = timeline.series, _totals(timeline)
    count = len(s["time_s"])
    at = np.arange(count)[:: -ceil_div(count, most)][::-1] if count else np.arange(0)
    since = {name: np.diff(x[np.concatenate([[0], at + 1])]) for name, x in totals.items()}
    steps = np.maximum(since["steps"], 1e-12)
    ran = since["steps"] > 0.5
    return {
        "time_s": s["time_s"][at],
        "running": s["running"][at],
        "waiting": s["waiting"][at],
        "kv_used": s["kv_used"][at],
        "tokens_per_s": since["tokens"] / np.maximum(since["time_s"], 1e-12),
        "steps": since["steps"].round(),
        "step_s": np.where(ran, since["busy_s"] / steps, np.nan),
        "batch_tokens": np.where(ran, since["tokens"] / steps, np.nan),
    }


# ------------------------------------------------------------------ all of it, bounded


def replay(outcome: Outcome) -> dict[str, Any]:
    """What a page plays: requests (of many, some by lot), counts of all, tokens in bins, replicas.

    ``pauses`` and ``rejected`` name requests by their place among the chosen ones.
    """
    total = len(outcome.arrival_s)
    chosen = np.arange(total)
    if total > MAX_REQUESTS:  # by lot: every second one of requests that are dealt out in turn leaves replicas without
        chosen = np.sort(np.random.default_rng(0).choice(total, MAX_REQUESTS, replace=False))
    starts = phase_starts(outcome)
    prefill_replica = outcome.replica if outcome.hand_over is None else outcome.hand_over.prefill_replica
    columns = {
        "arrival_s": outcome.arrival_s,
        "scheduled_s": starts["prefill"],
        "prefilled_s": starts["transfer"],
        "decode_s": starts["decode"],
        "first_token_s": outcome.first_token_s,
        "finished_s": outcome.finished_s,
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "cached_tokens": outcome.cached_tokens,
        "preemptions": outcome.preemptions,
        "replica": outcome.replica,
        "prefill_replica": prefill_replica,
    }
    times = np.linspace(0.0, end_of(outcome) or 1.0, COUNTS + 1)
    places = {request: place for place, request in enumerate(chosen.tolist())}
    pauses = [(places[i], start, stop) for i, start, stop in outcome.pauses if i in places]
    shown = outcome.timelines[:MAX_REPLICAS]
    most = max(MIN_SAMPLES, MAX_SAMPLES // max(len(shown), 1))
    return {
        "end_s": end_of(outcome),
        "num_requests": total,
        "num_replicas": len(outcome.timelines),
        "requests": {"index": chosen, **{name: values[chosen] for name, values in columns.items()}},
        "counts": {"time_s": times, **counts_at(outcome, times)},
        "tokens": token_bins(outcome)._asdict(),
        "replicas": [
            {"role": one.role, "num_blocks": one.num_blocks, "block_size": one.block_size, **replica_samples(one, most)}
            for one in shown
        ],
        "pauses": pauses[:MAX_PAUSES],
        "rejected": [places[i] for i in outcome.rejected if i in places],
    }
