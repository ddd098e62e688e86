"""What became of a trace: when every request was scheduled, had its first token and finished; the engine over time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..base.result import ComparableResult, kept
from ..base.units import ceil_div, milliseconds, plural
from .inter_token import GapHistogram
from .request_table import Rejection, RejectionKind
from .sessions import Sessions
from .trace import Trace

POINTS = 4000  # samples kept at most; when there are twice as many, every second one is dropped
TIER_POINTS = 512  # of what tiers hold and move
COLUMNS = ("time_s", "running", "waiting", "kv_used", "tokens_per_s", "busy", "batch_tokens")


class ReplicaLife(NamedTuple):
    """One replica, in seconds of the simulated clock; it holds its GPUs from ``launched_s`` to ``ended_s``."""

    launched_s: float
    ready_s: float  # it serves from then on; inf if it was stopped before
    drained_s: float  # it gets no more requests; inf if it served to the end
    ended_s: float  # its last request has finished; inf if it served to the end


class ReplicaTimeline(NamedTuple):
    """One engine over time, by its number."""

    role: str  # both, prefill or decode
    num_blocks: int  # of its KV cache
    block_size: int  # tokens
    series: dict[str, np.ndarray]  # the columns of `Outcome.series`
    end_s: float  # its clock at the end
    computed_tokens: int  # until then


class TierUse(NamedTuple):
    """A tier of the KV cache over a run, of all replicas together; the GPU is the first."""

    name: str  # gpu, cpu, disk or shared
    capacity_bytes: float
    used_bytes: float  # at the end
    hit_tokens: int  # of prompts that were found there
    hit_rate: float  # of all tokens of prompts
    request_tokens: np.ndarray  # of each request, tokens that came from there
    loaded_bytes: float = 0.0  # over the link to the tier above
    stored_bytes: float = 0.0
    load_s: float = 0.0  # seconds that the link was busy in each direction, summed over replicas
    store_s: float = 0.0
    evicted_bytes: float = 0.0

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: value for name, value in self._asdict().items() if name != "request_tokens"}


class HandOver(NamedTuple):
    """Disaggregated serving, one entry per request: where and when its prefill ended, and when its decode began."""

    prefill_replica: np.ndarray
    prefilled_s: np.ndarray
    decode_s: np.ndarray


class Outcome(ComparableResult, msgspec.Struct, kw_only=True, eq=False, dict=True):
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
    gaps: GapHistogram | None = None  # between the tokens of all requests; None where they were not seen
    reason: str = ""  # why nothing could be served at all: the plan does not fit
    warnings: tuple[str, ...] = ()
    lives: tuple[ReplicaLife, ...] = ()  # of replicas whose number follows the load
    timelines: tuple[ReplicaTimeline, ...] = ()  # of every replica, by its number
    hand_over: HandOver | None = None  # where prefill and decode are disaggregated
    pauses: tuple[tuple[int, float, float], ...] = ()  # request, preempted, admitted again
    sessions: Sessions | None = None  # whose turns the requests are
    kv_tiers: tuple[TierUse, ...] = ()  # where there are tiers below the GPU
    tier_series: dict[str, np.ndarray] = {}  # time_s, bytes that each tier holds, and those loaded and stored by then

    def __repr__(self) -> str:
        done = self.done
        if not done.any():
            return f"<Outcome of {plural(len(done), 'request')}: none ended>"
        ttft = np.mean(self.first_token_s[done] - self.arrival_s[done]) * 1e3
        return (
            f"<Outcome of {plural(len(done), 'request')}: {int(done.sum()):,} done in {self.duration_s:.3g} s, "
            f"{self.output_tokens[done].sum() / (self.duration_s or 1):,.0f} output tokens/s, "
            f"mean TTFT {milliseconds(float(ttft))}>"
        )

    def summary(self) -> dict[str, Any]:
        """What the run amounts to, under the keys of ``vllm bench serve``: ``outcome.summary()["p99_ttft_ms"]``"""
        summarize = kept(self, "summarize")
        if summarize is None:
            raise BadValue("this outcome has no plan: `summary` needs an outcome that `simulate` returned")
        summary: dict[str, Any] = summarize(self)
        return summary

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
        sessions=trace.sessions,
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


# ------------------------------------------------------------------ the engine over time


class Recorder:
    """Samples an engine from time to time, at ever longer intervals as the run grows long.

    ``recorder = Recorder(interval=0.5); recorder.sample(now=3.0, running=12, …); recorder.series()["running"]``
    """

    def __init__(self, interval: float = 0.0) -> None:
        self.next_sample = 0.0
        self.interval = interval  # s between two samples
        self.on_progress: Callable[[], None] | None = None  # called every hundred samples
        self.samples: list[tuple[float, int, int, float, int, float, int]] = []

    def sample(
        self,
        *,
        now: float,
        running: int,
        waiting: int,
        kv_used: float,
        computed_tokens: int,
        busy_s: float,
        steps: int,
    ) -> None:
        """Keep the engine's state; tokens, busy seconds and steps are totals since the beginning."""
        self.samples.append((now, running, waiting, kv_used, computed_tokens, busy_s, steps))
        if len(self.samples) >= 2 * POINTS:
            self.samples = self.samples[1::2]
            spacing = (self.samples[-1][0] - self.samples[0][0]) / len(self.samples)
            self.interval = max(2 * self.interval, spacing)
        self.next_sample = now + self.interval
        if self.on_progress is not None and len(self.samples) % 100 == 0:
            self.on_progress()

    def series(self) -> dict[str, np.ndarray]:
        """Columns over time; rates are those since the sample before."""
        if not self.samples:
            return {name: np.zeros(0) for name in COLUMNS}
        samples = self.samples if len(self.samples) <= POINTS else self.samples[1::2]
        time, running, waiting, kv_used, computed, busy, steps = np.array(samples, float).T
        spacing = np.maximum(np.diff(time, prepend=0.0), 1e-12)
        new_tokens, new_steps = np.diff(computed, prepend=0.0), np.diff(steps, prepend=0.0)
        return {
            "time_s": time,
            "running": running,
            "waiting": waiting,
            "kv_used": kv_used,
            "tokens_per_s": new_tokens / spacing,
            "busy": np.minimum(np.diff(busy, prepend=0.0) / spacing, 1.0),
            "batch_tokens": new_tokens / np.maximum(new_steps, 1),
        }


def merge_series(series: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Several replicas as one: sums of requests and tokens, means of shares, at times that all have."""
    recorded = [one for one in series if len(one["time_s"])]
    if len(series) == 1 or not recorded:
        return series[0] if series else Recorder().series()
    time = np.unique(np.concatenate([one["time_s"] for one in recorded]))
    time = time[:: ceil_div(len(time), POINTS)]
    merged = {"time_s": time}
    for name in COLUMNS[1:]:
        is_share = name in ("kv_used", "busy")
        total = np.sum([_value_at(one, name, time) for one in recorded], axis=0)
        merged[name] = total / (len(series) if is_share else 1)
    return merged


def merge_tier_series(series: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """What the tiers of several replicas hold and have moved, at times that all have; a shared store is one."""
    recorded = [one for one in series if len(one.get("time_s", ()))]
    if not recorded:
        return {}
    time = np.unique(np.concatenate([one["time_s"] for one in recorded]))
    chosen = np.linspace(0, len(time) - 1, min(len(time), TIER_POINTS)).round().astype(int)
    time = time[chosen]
    merged = {"time_s": time}
    for name in list(recorded[0])[1:]:
        each = []
        for one in recorded:
            at = np.searchsorted(one["time_s"], time, side="right") - 1
            each.append(np.where(at >= 0, one[name][np.maximum(at, 0)], 0.0))
        merged[name] = np.max(each, axis=0) if name == "shared_used_bytes" else np.sum(each, axis=0)
    return merged


def _value_at(one: dict[str, np.ndarray], name: str, time: np.ndarray) -> np.ndarray:
    """The value that held at each time; 0 before the first sample, and after the last."""
    index, sampled = np.searchsorted(one["time_s"], time), one["time_s"]
    within = (index < len(sampled)) & (time >= sampled[0])
    values: np.ndarray = np.where(within, one[name][np.minimum(index, len(one[name]) - 1)], 0.0)
    return values
