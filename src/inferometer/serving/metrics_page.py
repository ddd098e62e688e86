"""What a server's /metrics page says, and what happened between two readings of it: vLLM's names and SGLang's.

before, after = read_metrics(first_text), read_metrics(second_text)
seen = server_statistics(before, after, seconds=60)
seen.metrics["mean_ttft_ms"], seen.preemptions, seen.kv_cache_usage

Names of vLLM as in vllm/v1/metrics/loggers.py of vllm-project/vllm at a014e35 (22 August 2026, after 0.28.0rc2) and at
v0.9.2 where they differ; names of SGLang as in python/sglang/srt of sgl-project/sglang at cce0a12 (23 August 2026). The
format is Prometheus' text exposition: one sample a line, histograms as cumulative buckets.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadFile
from .benchmark_files import SUMMARIES

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
NAMES = {  # ours -> theirs, the first that is there
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "itl": (
        "vllm:inter_token_latency_seconds",
        "vllm:time_per_output_token_seconds",
        "sglang:inter_token_latency_seconds",
    ),
    "tpot": ("vllm:request_time_per_output_token_seconds",),
    "e2el": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
    "queue": ("vllm:request_queue_time_seconds", "sglang:queue_time_seconds"),
    "prefill": ("vllm:request_prefill_time_seconds",),
    "prompt_lengths": ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    "output_lengths": ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
    "computed_lengths": ("vllm:request_prefill_kv_computed_tokens",),
    "step_tokens": ("vllm:iteration_tokens_total",),
    "requests": ("vllm:request_success_total", "sglang:num_requests_total"),
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "kv_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "kv_tokens": ("sglang:max_total_num_tokens",),
}
MOST = 1e18  # of anything that a server counts
_SHARES = {"kv_usage"}  # gauges of which several engines have a mean, not a sum


class MetricsPage(NamedTuple):
    """One reading: values summed over engines, histograms by upper bound, and labels of what is configured."""

    values: dict[str, float]
    buckets: dict[str, dict[float, float]]  # cumulative
    series: dict[str, int]  # how many label sets a value is the sum of
    cache_config: dict[str, str]
    time_s: float = math.nan  # where the page has timestamps

    def name_of(self, ours: str) -> str:
        """The server's own name of a metric, '' if it has none."""
        there = (name for name in NAMES[ours] if name in self.values or f"{name}_count" in self.values)
        return next(there, "")

    def value(self, ours: str) -> float:
        """A counter or gauge; nan if the page has none."""
        name = self.name_of(ours)
        if not name:
            return math.nan
        return self.values[name] / (self.series[name] if ours in _SHARES else 1)


class MetricHistogram(NamedTuple):
    """A histogram: ``MetricHistogram(number, total, bounds, counts).quantile(0.99)``"""

    number: float  # of values
    total: float
    bounds: np.ndarray  # upper bounds, rising; the last may be inf
    counts: np.ndarray  # of each bucket

    @property
    def mean(self) -> float:
        """Mean of all values; nan without any."""
        return self.total / self.number if self.number > 0 else math.nan

    def quantile(self, share: float) -> float:
        """Where a share of the values lies below, on straight lines inside buckets, as Prometheus does it."""
        if not self.number > 0 or not len(self.counts):
            return math.nan
        finite = np.where(np.isinf(self.bounds), self.bounds[np.isfinite(self.bounds)].max(initial=0.0), self.bounds)
        below = np.cumsum(self.counts)
        return float(np.interp(share * below[-1], np.concatenate([[0.0], below]), np.concatenate([[0.0], finite])))

    def resolves(self, share: float) -> bool:
        """Whether a quantile lies between two bounds: in the first bucket and the last it could be anything."""
        below = np.cumsum(self.counts)
        if not self.number > 0 or not len(below):
            return False
        at = int(np.searchsorted(below, share * below[-1]))
        return 0 < at < len(below) and bool(np.isfinite(self.bounds[at]))

    def sample(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """So many whole values with this distribution and its mean, at least 1 each."""
        shares = (np.arange(count) + rng.random(count)) / count
        values = np.array([self.quantile(share) for share in shares])
        if not self.counts.sum() > 0:
            values = np.full(count, self.mean)
        elif values.mean() > 0:
            values = values * (self.mean / values.mean())
        drawn: np.ndarray = np.maximum(1, np.rint(rng.permutation(values))).astype(np.int64)
        return drawn


class ServerStatistics(msgspec.Struct, kw_only=True):
    """What a server did in some seconds, as its own counters say it. What they do not say is nan."""

    seconds: float  # for which it was watched
    requests: float = math.nan  # that finished
    request_rate: float = math.nan  # of them a second
    prompt_tokens: float = math.nan  # mean of a request
    output_tokens: float = math.nan  # the same of its answer
    steps: float = math.nan  # of the engine
    tokens_per_step: float = math.nan  # mean
    largest_step_tokens: float = math.nan  # of the largest step
    running: float = math.nan  # requests, mean of what was read
    waiting: float = math.nan  # the same in the engine's queue
    queue_ms: float = math.nan  # mean wait of a request in the engine's queue
    preemptions: float = math.nan  # while it was watched
    prefix_cache_hit_rate: float = math.nan  # share of the prompts' tokens
    kv_cache_usage: float = math.nan  # the largest that was read
    kv_cache_tokens: float = math.nan  # that its KV cache holds
    enforce_eager: bool | None = None  # as its log says
    max_num_batched_tokens: float = math.nan  # the same
    metrics: dict[str, float] = {}  # mean_ttft_ms, p99_itl_ms … under the names of ``vllm bench serve``


def read_pages(lines: Iterator[str] | list[str]) -> Iterator[MetricsPage]:
    """Readings that stand one after the other in a text: a new one begins where a sample comes again."""
    values: dict[str, float] = {}
    buckets: dict[str, dict[float, float]] = {}
    series: dict[str, int] = {}
    seen: set[tuple[str, str]] = set()
    config: dict[str, str] = {}
    time_s = math.nan
    for line in lines:
        sample = _SAMPLE.match(line)
        if sample is None or line.startswith("#"):
            continue
        name, labels, text, stamp = sample.group(1), sample.group(2) or "", sample.group(3), sample.group(4)
        if not name.startswith(("vllm:", "sglang:")):
            continue
        if (name, labels) in seen:
            yield MetricsPage(values, buckets, series, config, time_s)
            values, buckets, series, seen, config, time_s = {}, {}, {}, set(), {}, math.nan
        seen.add((name, labels))
        number = _number(text)
        if number is None:
            continue
        time_s = float(stamp) / 1e3 if stamp else time_s
        if name == "vllm:cache_config_info":
            config = dict(_LABEL.findall(labels))
        elif name.endswith("_bucket"):
            text = dict(_LABEL.findall(labels)).get("le", "")
            bound = math.inf if text == "+Inf" else _number(text)
            if bound is not None:
                at = buckets.setdefault(name.removesuffix("_bucket"), {})
                at[bound] = at.get(bound, 0.0) + number
        else:
            values[name] = values.get(name, 0.0) + number
            series[name] = series.get(name, 0) + 1
    if values:
        yield MetricsPage(values, buckets, series, config, time_s)


def _number(text: str) -> float | None:
    """What a counter or a gauge may be; None where it says nothing, as NaN does."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number <= MOST else None


def read_metrics(text: str, where: str = "/metrics") -> MetricsPage:
    """The first reading of a text: ``read_metrics(page).value("running")``"""
    page = next(read_pages(text.splitlines()), None)
    if page is None:
        raise BadFile(f"{where} has no metrics of vLLM or SGLang (names that begin with vllm: or sglang:)")
    return page


def growth(before: MetricsPage, after: MetricsPage, ours: str) -> float:
    """By how much a counter grew; nan where one page has none, or the server was started again in between."""
    change = after.value(ours) - before.value(ours)
    return change if change >= 0 else math.nan


def distribution(before: MetricsPage, after: MetricsPage, ours: str) -> MetricHistogram:
    """What a histogram gained between two readings."""
    name = after.name_of(ours)
    none = MetricHistogram(0.0, 0.0, np.zeros(0), np.zeros(0))
    if not name or not {f"{name}_count", f"{name}_sum"} <= after.values.keys():
        return none
    count, total = (
        after.values.get(name + end, 0.0) - before.values.get(name + end, 0.0) for end in ("_count", "_sum")
    )
    there, was = after.buckets.get(name, {}), before.buckets.get(name, {})
    bounds = np.array(sorted(there), float)
    gained = np.diff([there[bound] - was.get(bound, 0.0) for bound in bounds.tolist()], prepend=0.0)
    return MetricHistogram(count, total, bounds, np.maximum(gained, 0.0)) if count > 0 and total >= 0 else none


def kv_cache_tokens(page: MetricsPage) -> float:
    """What the KV cache holds, where the page says it: vLLM's blocks, or SGLang's tokens."""
    tokens, blocks, size = (
        page.cache_config.get(name, "") for name in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    if tokens.isdecimal():
        return float(tokens)
    if blocks.isdecimal() and size.isdecimal():
        return float(blocks) * float(size)
    return page.value("kv_tokens")


def server_statistics(before: MetricsPage, after: MetricsPage, seconds: float) -> ServerStatistics:
    """What happened between two readings: ``server_statistics(first, second, 60.0).preemptions``

    How large steps were is not known: vLLM's ``iteration_tokens_total`` counts a whole prompt at its first token, in
    however many steps it was computed (`IterationStats.update_from_output` of vllm/v1/metrics/stats.py, v0.25.1).
    """
    lengths, outputs, steps = (
        distribution(before, after, name) for name in ("prompt_lengths", "output_lengths", "step_tokens")
    )
    requests, hits = growth(before, after, "requests"), growth(before, after, "prefix_hits")
    queries = growth(before, after, "prefix_queries")
    metrics: dict[str, float] = {}
    for metric in ("ttft", "tpot", "itl", "e2el"):
        metrics |= _summaries(distribution(before, after, metric), metric)
    produced = growth(before, after, "output_tokens")
    if seconds > 0 and requests > 0:
        metrics |= {"request_throughput": requests / seconds, "output_throughput": produced / seconds}
    gauges = {name: (before.value(name), after.value(name)) for name in ("running", "waiting", "kv_usage")}
    return ServerStatistics(
        seconds=seconds,
        requests=requests,
        request_rate=requests / seconds if seconds > 0 else math.nan,
        prompt_tokens=lengths.mean if lengths.number else _ratio(growth(before, after, "prompt_tokens"), requests),
        output_tokens=outputs.mean if outputs.number else _ratio(produced, requests),
        steps=steps.number or math.nan,
        tokens_per_step=steps.mean,
        running=sum(gauges["running"]) / 2,
        waiting=sum(gauges["waiting"]) / 2,
        queue_ms=distribution(before, after, "queue").mean * 1e3,
        preemptions=growth(before, after, "preemptions"),
        prefix_cache_hit_rate=_ratio(hits, queries),
        kv_cache_usage=max(gauges["kv_usage"]),
        kv_cache_tokens=kv_cache_tokens(after),
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
    )


def _summaries(seen: MetricHistogram, metric: str) -> Mapping[str, float]:
    figures = (seen.mean, *(seen.quantile(share) if seen.resolves(share) else math.nan for share in (0.5, 0.9, 0.99)))
    return {f"{name}_{metric}_ms": value * 1e3 for name, value in zip(SUMMARIES, figures, strict=True)}


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else math.nan
