"""What became of a trace: when every request was scheduled, had its first token and finished; the engine over time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from .recorder import merge_series
from .request_table import Rejection, RejectionKind
from .trace import Trace


class Outcome(msgspec.Struct, kw_only=True, eq=False):
    """One entry per request, in the trace's order; seconds of the simulated clock, nan where it never came to that."""

    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    finished_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray  # prompt tokens that the prefix cache had
    preemptions: np.ndarray
    replica: np.ndarray  # which replica served it
    rejected: dict[int, Rejection]  # index -> its kind, and a sentence as vLLM's
    duration_s: float
    series: dict[str, np.ndarray]  # time_s, running, waiting, kv_used, tokens_per_s, busy, batch_tokens: ~4,000 points
    steps: int  # engine steps simulated
    prefix_hit_rate: float
    kv_cache_tokens: int = 0  # that the caches of all replicas hold
    reason: str = ""  # why nothing could be served at all: the plan does not fit
    warnings: tuple[str, ...] = ()

    @property
    def done(self) -> np.ndarray:
        """Which requests have all their tokens."""
        finished: np.ndarray = ~(np.isnan(self.finished_s) | np.isnan(self.first_token_s))
        return finished


def infeasible(trace: Trace, reason: str, warnings: tuple[str, ...]) -> Outcome:
    """The outcome of a plan that cannot work: every request is rejected for the same reason."""
    n = len(trace)
    never, zero = np.full(n, np.nan), np.zeros(n, np.int64)
    return Outcome(
        arrival_s=np.zeros(n) if trace.arrival_s is None else np.nan_to_num(trace.arrival_s),
        scheduled_s=never,
        first_token_s=never,
        finished_s=never,
        input_tokens=trace.input_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=zero,
        preemptions=zero,
        replica=zero,
        rejected=dict.fromkeys(range(n), Rejection(RejectionKind.PLAN, reason)),
        duration_s=0.0,
        series=merge_series([]),
        steps=0,
        prefix_hit_rate=0.0,
        reason=reason,
        warnings=warnings,
    )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a run: ``result`` is what there was by then (an `Outcome`, or a search's result)."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result
