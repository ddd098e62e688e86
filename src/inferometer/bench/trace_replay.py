"""Between a trace and a live server: prompts to send, and replies as the outcome and the trace that they were."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..base.units import ceil_div
from ..serving.outcome import Outcome
from ..serving.request_table import Rejection, RejectionKind
from ..serving.trace import Trace
from .load_generator import PlannedRequest, Reply

WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "was",
    "on",
    "are",
    "as",
    "with",
    "they",
    "be",
    "at",
    "one",
    "have",
    "this",
    "from",
    "or",
    "had",
    "by",
    "but",
    "not",
    "what",
    "all",
    "were",
    "we",
    "when",
    "your",
    "can",
    "said",
    "there",
    "use",
    "an",
    "each",
    "which",
    "she",
    "do",
    "how",
    "their",
    "if",
    "will",
    "up",
    "other",
    "about",
    "out",
    "many",
    "then",
    "them",
    "these",
    "so",
    "some",
    "her",
    "would",
    "make",
    "like",
    "him",
    "into",
    "time",
    "has",
    "look",
    "two",
    "more",
    "write",
    "go",
    "see",
    "number",
    "no",
    "way",
    "could",
    "people",
)
FIRST, VOCABULARY = 1000, 30000  # token ids that every large vocabulary has and that are ordinary words


class RampUp(NamedTuple):
    """A rate that grows from request to request: ``RampUp("linear", 1, 20).rates(100)``"""

    strategy: str  # linear or exponential
    start_rps: float
    end_rps: float

    def rates(self, count: int) -> np.ndarray:
        """Requests a second at each of so many requests."""
        progress = np.arange(count) / max(count - 1, 1)
        if self.strategy == "linear":
            return np.asarray(self.start_rps + (self.end_rps - self.start_rps) * progress)
        return np.asarray(self.start_rps * (self.end_rps / self.start_rps) ** progress)

    def of(self, trace: Trace, burstiness: float, seed: int) -> Trace:
        """The requests of a trace, sent at this rate; gaps are gamma distributed, as of a constant one."""
        gaps = np.random.default_rng(seed).gamma(burstiness, 1 / (self.rates(len(trace)) * burstiness))
        gaps[:1] = 0.0
        return msgspec.structs.replace(trace, arrival_s=np.cumsum(gaps))


def parse_ramp_up(strategy: str | None, start_rps: float | None, end_rps: float | None) -> RampUp | None:
    """Three flags as one rate, None without any: ``parse_ramp_up("linear", 1, 20)``"""
    if strategy is None:
        if start_rps is not None or end_rps is not None:
            raise BadValue("`ramp_up_start_rps` and `ramp_up_end_rps` need `ramp_up_strategy`: linear or exponential")
        return None
    if start_rps is None or end_rps is None:
        raise BadValue("`ramp_up_strategy` needs `ramp_up_start_rps` and `ramp_up_end_rps`, in requests per second")
    if start_rps > end_rps:
        raise BadValue(f"`ramp_up_start_rps` {start_rps:g} is above `ramp_up_end_rps` {end_rps:g}")
    return RampUp(strategy, start_rps, end_rps)


def planned_requests(trace: Trace, *, text: bool, vocabulary: int | None = None, seed: int = 0) -> list[PlannedRequest]:
    """What to send for a trace: random prompts of its lengths that share what its blocks say they share.

    As ``text`` a token is a common word, which most vocabularies have as one token, so that lengths are nearly right.
    """
    top = max(2, min(vocabulary or VOCABULARY, 10**7))
    spread = (min(FIRST, top // 2), top)
    requests: list[PlannedRequest] = []
    for index, (given, made) in enumerate(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True)):
        ids = trace.blocks[index] if trace.blocks is not None else np.empty(0, np.int64)
        make = partial(_prompt, given, ids, trace.block_tokens, spread, (seed, index), text)
        requests.append(
            PlannedRequest(
                prompt=make,
                output_tokens=made,
                due=None if trace.arrival_s is None else float(trace.arrival_s[index]),
                after=-1 if trace.after is None else int(trace.after[index]),
                think=0.0 if trace.think_s is None else float(trace.think_s[index]),
            )
        )
    return requests


def warm_ups(trace: Trace, count: int, *, text: bool, vocabulary: int | None, seed: int) -> list[PlannedRequest]:
    """Requests as long as the first ones, whose prompts are none of the run's: no prefix cache is filled for it."""
    rows = np.arange(count) % len(trace)
    alike = Trace(input_tokens=trace.input_tokens[rows], output_tokens=trace.output_tokens[rows])
    return planned_requests(alike, text=text, vocabulary=vocabulary, seed=seed + 10**6)


def _prompt(
    length: int, ids: np.ndarray, block_tokens: int, spread: tuple[int, int], seed: tuple[int, int], text: bool
) -> Sequence[int] | str:
    """Equal block ids give equal tokens; the rest is this request's own."""
    low, high = (0, len(WORDS)) if text else spread
    parts = [
        np.random.default_rng((seed[0], 1, abs(int(i)))).integers(low, high, block_tokens)
        for i in ids[: ceil_div(length, block_tokens) if block_tokens else 0]
    ]
    known = sum(map(len, parts))
    if known < length:
        parts.append(np.random.default_rng((seed[0], 0, seed[1])).integers(low, high, length - known))
    tokens = np.concatenate(parts)[:length].tolist()
    return " ".join(WORDS[t] for t in tokens) if text else tokens


def outcome_of_replies(trace: Trace, replies: Sequence[Reply | None]) -> Outcome:
    """Replies as the outcome of a run, so that one table and one file show both; nan where a request failed."""
    nothing = Reply()
    rows = [reply or nothing for reply in replies]
    counts = {"input_tokens": trace.input_tokens, "output_tokens": trace.output_tokens}
    for name, planned in counts.items():  # the server's own count where it gave one
        reported = np.array([getattr(row, name) for row in rows], np.int64)
        counts[name] = np.where(reported > 0, reported, planned)
    zeros = np.zeros(len(rows), np.int64)
    columns = {name: np.array([getattr(row, name) for row in rows]) for name in ("sent", "first", "last")}
    errors = {i: Rejection(RejectionKind.SERVER_ERROR, row.error) for i, row in enumerate(rows) if row.error}
    return Outcome(
        arrival_s=columns["sent"],
        scheduled_s=np.full(len(rows), np.nan),
        first_token_s=columns["first"],
        finished_s=columns["last"],
        input_tokens=counts["input_tokens"],
        output_tokens=counts["output_tokens"],
        cached_tokens=zeros,
        preemptions=zeros,
        replica=zeros,
        rejected=errors,
        duration_s=float(np.nanmax(columns["last"])) if np.isfinite(columns["last"]).any() else 0.0,
        series={},
        steps=0,
        prefix_hit_rate=float("nan"),
    )


def measured_trace(trace: Trace, outcome: Outcome, closed: bool) -> Trace:
    """The requests that were answered, as they were sent, with what was measured: what a prediction is compared with.

    Of a ``closed`` loop the moments are left out: they follow from the answers.
    """
    from ..serving.metrics import latencies

    done = np.flatnonzero(np.isfinite(outcome.finished_s))
    latency = latencies(outcome)
    renumbered = np.full(len(trace) + 1, -1)  # the last one stands for -1
    renumbered[done] = np.arange(len(done))
    columns = {"TTFT": latency["ttft"], "TPOT": latency["tpot"], "E2E": latency["e2el"]}
    waits = closed or trace.after is not None
    return msgspec.structs.replace(
        trace,
        input_tokens=outcome.input_tokens[done],
        output_tokens=outcome.output_tokens[done],
        arrival_s=None
        if closed
        else trace.arrival_s[done]
        if waits and trace.arrival_s is not None
        else outcome.arrival_s[done],
        blocks=None if trace.blocks is None else tuple(trace.blocks[i] for i in done),
        after=None if trace.after is None else renumbered[trace.after[done]],
        think_s=None if trace.think_s is None else trace.think_s[done],
        priority=None if trace.priority is None else trace.priority[done],
        measured={name: column[done] for name, column in columns.items()},
    )
