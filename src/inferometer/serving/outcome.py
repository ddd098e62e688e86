"""What became of a trace: when every request was scheduled, spoke first and ended; the engine over time."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np


class Outcome(msgspec.Struct, kw_only=True, eq=False):
    """One entry per request, in the trace's order; seconds of the simulated clock, nan where it never came to that."""

    arrival_s: np.ndarray
    scheduled_s: np.ndarray
    first_token_s: np.ndarray
    finished_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    cached_tokens: np.ndarray  # prompt tokens found in the prefix cache
    preemptions: np.ndarray
    replica: np.ndarray  # which replica served it
    rejected: dict[int, str]  # index -> reason, one sentence as vLLM's
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
        ended: np.ndarray = ~(np.isnan(self.finished_s) | np.isnan(self.first_token_s))
        return ended


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in the middle of a run: ``found`` is what there was by then (an `Outcome`, or a search's result)."""

    def __init__(self, found: Any) -> None:
        super().__init__()
        self.found = found
