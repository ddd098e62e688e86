"""What vLLM tells Prometheus, under its names: counters, gauges and histograms of every engine.

metrics = VllmMetrics("llama-3.1-8b", max_model_len=8192, fleet=fleet)
metrics.text()      # b'# HELP vllm:num_requests_running …'

Names, help, labels and buckets as in vLLM v0.25.1, vllm/v1/metrics/loggers.py:455-935 (`PrometheusStatLogger`) and
:1284-1308 (`build_buckets`); reasons to finish from v1/engine/__init__.py:30, sources of prompt tokens from
v1/metrics/stats.py:292. Seconds are those of the simulated clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ...serving.live_fleet import LiveFleet, LiveRequest, StepRecord
from ..operations import metric_head, metric_labels

Values = list[tuple[int, dict[str, str], float]]  # engine, further labels, value
REASONS = ("stop", "length", "abort", "error", "repetition")
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_CHOICES = (1, 2, 5, 10, 20)
_FIRST_TOKEN: tuple[float, ...] = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_FIRST_TOKEN += (80.0, 160.0, 640.0, 2560.0)
_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST: tuple[float, ...] = (
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
    240.0,
    480.0,
)
_REQUEST += (960.0, 1920.0, 7680.0)


def buckets_1_2_5(most: int) -> tuple[int, ...]:
    """``buckets_1_2_5(100)  # (1, 2, 5, 10, 20, 50, 100)``"""
    powers = [digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5)]
    return tuple(bound for bound in powers if bound <= most)


class Histogram:
    """Values by size: ``Histogram((0.1, 1.0)).observe(0.3)``"""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, or several alike."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterator[str]:
        """Prometheus' text."""
        below = 0
        for bound, count in zip((*map(float, self.bounds), "+Inf"), self.counts, strict=True):
            below += count
            yield f"{name}_bucket{metric_labels({**labels, 'le': str(bound)})} {below}"
        yield f"{name}_count{metric_labels(labels)} {below}"
        yield f"{name}_sum{metric_labels(labels)} {self.total:.9g}"


def _histograms(longest: int) -> dict[str, tuple[str, Histogram]]:
    """Every histogram of one engine by its name, with its help."""
    lengths = buckets_1_2_5(longest)
    rows: list[tuple[str, str, Sequence[float]]] = [
        ("request_prompt_tokens", "Number of prefill tokens processed.", lengths),
        ("request_generation_tokens", "Number of generation tokens processed.", lengths),
        ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", _STEP_TOKENS),
        ("request_max_num_generation_tokens", "Histogram of maximum number of requested generation tokens.", lengths),
        ("request_params_n", "Histogram of the n request parameter.", _CHOICES),
        ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lengths),
        ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", _FIRST_TOKEN),
        ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", _TOKEN),
        ("request_time_per_output_token_seconds", "Histogram of time_per_output_token_seconds per request.", _TOKEN),
        ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", _REQUEST),
        ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", _REQUEST),
        ("request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.", _REQUEST),
        ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", _REQUEST),
        ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", _REQUEST),
        (
            "request_prefill_kv_computed_tokens",
            "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
            lengths,
        ),
    ]
    return {name: (text, Histogram(bounds)) for name, text, bounds in rows}


class EngineTotals:
    """What one engine has done."""

    def __init__(self, longest: int) -> None:
        self.histograms = _histograms(longest)
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = self.preemptions = 0
        self.finished = dict.fromkeys(REASONS, 0)
        self.iteration_tokens, self.iterations = 0, 0  # of the steps that were taken last

    def end_iterations(self, following: int) -> None:
        """The last steps are over: vLLM counts a whole prompt in the one that gives its first token."""
        if self.iterations:
            self.observe("iteration_tokens_total", self.iteration_tokens / self.iterations, self.iterations)
        self.iteration_tokens, self.iterations = 0, following

    def observe(self, name: str, value: float, times: int = 1) -> None:
        """Count a value in one of the histograms."""
        self.histograms[name][1].observe(value, times)


class VllmMetrics:
    """Counts what a fleet does: its steps, tokens and requests."""

    def __init__(self, model_name: str, max_model_len: int, fleet: LiveFleet) -> None:
        self.model_name, self.fleet = model_name, fleet
        self.engines = [EngineTotals(max_model_len) for _ in fleet.fleet.replicas]
        fleet.on_step = self.on_step

    def on_step(self, step: StepRecord) -> None:
        """An engine took a step, or several alike."""
        self.engines[step.replica].end_iterations(step.steps)

    def on_tokens(self, request: LiveRequest, came: int, seconds: float) -> None:
        """Tokens of a request came out, so many seconds after the ones before; its first ones: nan."""
        engine = self.engines[request.replica]
        engine.generation_tokens += came
        engine.iteration_tokens += came
        if seconds == seconds:
            engine.observe("inter_token_latency_seconds", seconds / came, came)
            return
        engine.prompt_tokens += request.input_tokens
        engine.cached_tokens += request.num_cached_tokens
        engine.iteration_tokens += request.input_tokens - request.num_cached_tokens
        engine.observe("time_to_first_token_seconds", request.first_token_s - request.arrival_s)
        if came > 1:  # several steps at once
            gap = max(0.0, request.last_token_s - request.first_token_s) / (came - 1)
            engine.observe("inter_token_latency_seconds", gap, came - 1)

    def on_over(self, request: LiveRequest, reason: str, n: int, max_tokens: int | None) -> None:
        """A request is over."""
        engine = self.engines[request.replica]
        engine.finished[reason] += 1
        engine.preemptions += request.num_preemptions
        if reason in ("abort", "error"):
            return
        first, end, gaps = request.first_token_s, request.finished_s, request.num_tokens - 1
        for name, value in (
            ("request_prompt_tokens", request.input_tokens),
            ("request_generation_tokens", request.num_tokens),
            ("request_max_num_generation_tokens", request.num_tokens),
            ("request_params_n", n),
            ("e2e_request_latency_seconds", end - request.arrival_s),
            ("request_queue_time_seconds", request.scheduled_s - request.arrival_s),
            ("request_inference_time_seconds", end - request.scheduled_s),
            ("request_prefill_time_seconds", first - request.scheduled_s),
            ("request_decode_time_seconds", end - first),
            ("request_prefill_kv_computed_tokens", request.input_tokens - request.num_cached_tokens),
        ):
            engine.observe(name, value)
        if max_tokens is not None:
            engine.observe("request_params_max_tokens", max_tokens)
        if gaps:
            engine.observe("request_time_per_output_token_seconds", (end - first) / gaps)

    # ------------------------------------------------------------------ text

    def text(self) -> bytes:
        """All of it in Prometheus' text format."""
        lines: list[str] = []
        labels = [{"engine": str(k), "model_name": self.model_name} for k in range(len(self.engines))]
        for name, kind, text, values in self._values():
            lines += metric_head(f"vllm:{name}", text, kind)
            for k, more, value in values:
                lines.append(f"vllm:{name}{metric_labels({**labels[k], **more})} {value:.10g}")
        for name, (text, _) in self.engines[0].histograms.items():
            lines += metric_head(f"vllm:{name}", text, "histogram")
            for k, engine in enumerate(self.engines):
                lines += engine.histograms[name][1].lines(f"vllm:{name}", labels[k])
        return ("\n".join(lines) + "\n").encode()

    def _values(self) -> Iterator[tuple[str, str, str, Values]]:
        """Gauges and counters: name, kind, help, and each engine's values with further labels."""
        replicas, inboxes = self.fleet.fleet.replicas, self.fleet.fleet.inboxes
        caches = [one.kv_cache for one in replicas]
        waiting = [len(one.waiting) + len(inbox.queue) for one, inbox in zip(replicas, inboxes, strict=True)]
        running = [len(one.running) for one in replicas]
        yield "num_requests_running", "gauge", "Number of requests in model execution batches.", _each(running)
        yield "num_requests_waiting", "gauge", "Number of requests waiting to be processed.", _each(waiting)
        reasons = [{"capacity": number, "deferred": 0} for number in waiting]
        yield "num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", _by("reason", reasons)
        used = [1 - cache.free_blocks / cache.num_blocks for cache in caches]
        yield "kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", _each(used)
        info = {"block_size": str(caches[0].block_size), "num_gpu_blocks": str(caches[0].num_blocks), "engine": "0"}
        info["enable_prefix_caching"] = str(self.fleet.tree is not None)
        yield "cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", [(0, info, 1.0)]
        queries, hits = [cache.queried_tokens for cache in caches], [cache.hit_tokens for cache in caches]
        text = "Prefix cache queries, in terms of number of queried tokens."
        yield "prefix_cache_queries_total", "counter", text, _each(queries)
        yield (
            "prefix_cache_hits_total",
            "counter",
            "Prefix cache hits, in terms of number of cached tokens.",
            _each(hits),
        )
        for name, (text, count) in _COUNTERS.items():
            yield f"{name}_total", "counter", text, _each([count(engine) for engine in self.engines])
        for name, label, text, tables in (
            ("prompt_tokens_by_source", "source", "Number of prompt tokens by source.", map(_sources, self.engines)),
            (
                "request_success",
                "finished_reason",
                "Count of successfully processed requests.",
                (engine.finished for engine in self.engines),
            ),
        ):
            yield f"{name}_total", "counter", text, _by(label, tables)


_COUNTERS: dict[str, tuple[str, Callable[[EngineTotals], int]]] = {
    "num_preemptions": ("Cumulative number of preemption from the engine.", lambda engine: engine.preemptions),
    "prompt_tokens": ("Number of prefill tokens processed.", lambda engine: engine.prompt_tokens),
    "prompt_tokens_cached": (
        "Number of cached prompt tokens (local + external).",
        lambda engine: engine.cached_tokens,
    ),
    "generation_tokens": ("Number of generation tokens processed.", lambda engine: engine.generation_tokens),
}


def _each(values: Sequence[float]) -> Values:
    return [(k, {}, value) for k, value in enumerate(values)]


def _by(label: str, tables: Iterable[Mapping[str, float]]) -> Values:
    return [(k, {label: word}, value) for k, table in enumerate(tables) for word, value in table.items()]


def _sources(engine: EngineTotals) -> dict[str, int]:
    computed = engine.prompt_tokens - engine.cached_tokens
    return {"local_compute": computed, "local_cache_hit": engine.cached_tokens, "external_kv_transfer": 0}
