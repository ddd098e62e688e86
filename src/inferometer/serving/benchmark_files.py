"""Results of load generators, a JSON object or more: vllm bench serve, SGLang, GuideLLM, AIPerf and genai-perf.

A format is one function that turns such an object into runs. A run has columns of a `Trace` where the file says what
each request did; else only what the benchmark reports of all of them, and requests of the mean lengths.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadFile, abbreviate, is_number
from ..base.files import convert
from .trace_formats import MAX_TOKENS, Columns

NAN = float("nan")
METRICS = ("ttft", "tpot", "itl", "e2el")
SUMMARIES = ("mean", "median", "p90", "p99")
RATES = ("request_throughput", "output_throughput")
MOST_ALIKE = 100_000  # requests of one length that are simulated


class BenchmarkRun(msgspec.Struct, frozen=True, kw_only=True):
    """The load of a run of a benchmark, and what it reports under the names of ``vllm bench serve``."""

    tool: str
    request_rate: float | None = None  # requests a second; inf: all at once; None: a closed loop
    burstiness: float = 1.0
    max_concurrency: int | None = None
    at_client: bool = True  # whether its clock stood at an HTTP client
    metrics: dict[str, float] = {}  # mean_ttft_ms, p99_itl_ms, output_throughput …

    @property
    def closed_loop(self) -> bool:
        """Whether a request was sent when another ended, so that arrivals follow from the answers."""
        return self.max_concurrency is not None and (self.request_rate is None or math.isinf(self.request_rate))

    @property
    def label(self) -> str:
        """``'vllm bench serve at 8/s'``, for headers and choices."""
        limit = f"{self.max_concurrency} at a time" if self.max_concurrency is not None else ""
        rate = f"at {self.request_rate:g}/s" if self.request_rate not in (None, math.inf) else ""
        return f"{self.tool} {', '.join(part for part in (rate, limit) if part) or 'all at once'}"


class BenchmarkRequests(NamedTuple):
    """A run: columns of its requests, its load and figures, and what should be known about it."""

    columns: Columns
    run: BenchmarkRun
    notes: tuple[str, ...] = ()


class BenchmarkFormat(NamedTuple):
    """A way to write results: the keys that it is known by, and its reader."""

    name: str
    needs: tuple[str, ...]
    read: Callable[[Mapping[str, Any], str], Iterator[BenchmarkRequests]]


BENCHMARK_FORMATS: list[BenchmarkFormat] = []


def benchmark_format(name: str, *needs: str) -> Callable[[Any], Any]:
    """Register a reader for objects with these keys; keys inside objects have dots."""

    def register(read: Any) -> Any:
        BENCHMARK_FORMATS.append(BenchmarkFormat(name, needs, read))
        return read

    return register


# ------------------------------------------------------------------ vllm bench serve, SGLang's bench_serving, ours

Tokens = Annotated[float, msgspec.Meta(ge=0, le=MAX_TOKENS)]  # of a request
Total = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
Requests = Annotated[float, msgspec.Meta(ge=1, le=1e8)]
Rate = Annotated[float, msgspec.Meta(gt=0)]  # requests a second, or inf
Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class BenchServeResult(msgspec.Struct):
    """What `_bench_serve` needs of a result; lists are there with the details of each request, and in seconds."""

    completed: Requests
    total_input_tokens: Total
    total_output_tokens: Total
    request_rate: Rate | str | None = None
    burstiness: Rate = 1.0
    max_concurrency: Requests | None = None
    request_throughput: Rate | None = None
    ramp_up_strategy: str | None = None
    traffic: str = "all at once"  # in our own results, whose rate may be that of a trace
    input_lens: list[Tokens] | None = None
    output_lens: list[Tokens] | None = None
    ttfts: list[Time] | None = None
    itls: list[list[Time]] | None = None
    start_times: list[Time] | None = None
    errors: list[Any] | None = None


@benchmark_format("a benchmark's result", "completed", "total_input_tokens", "total_output_tokens")
def _bench_serve(data: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """One result; with ``--save-detailed`` or ``--output-details`` request by request."""
    result = convert(data, BenchServeResult, where)
    rate, notes = _rate(result, where)
    run = BenchmarkRun(
        tool="sglang.bench_serving" if "mean_e2e_latency_ms" in data else "vllm bench serve",
        request_rate=rate,
        burstiness=result.burstiness,
        max_concurrency=int(result.max_concurrency) if result.max_concurrency else None,
        metrics=_reported(data, where),
    )
    if result.input_lens is None or result.output_lens is None:
        yield _of_means(run, result.completed, result.total_input_tokens, result.total_output_tokens, where, notes)
        return
    columns, gaps = _details(result, where)
    run = msgspec.structs.replace(run, metrics=_summaries(columns, gaps) | run.metrics)
    yield BenchmarkRequests(columns, run, notes if "arrival_s" not in columns else ())


def _rate(result: BenchServeResult, where: str) -> tuple[float, tuple[str, ...]]:
    """Requests a second, from a number, 'inf', or the run itself where its rate varied."""
    rate = result.request_rate
    is_replay = rate is None and not result.max_concurrency and "all at once" not in result.traffic
    own_rate = any(text in result.traffic for text in ("as recorded", "as they came"))  # the latter until 0.1
    is_replay |= own_rate and not result.max_concurrency
    if is_replay or rate == "trace" or result.ramp_up_strategy is not None:
        if result.request_throughput is None:
            raise BadFile(f"{where}: a rate that varied needs request_throughput")
        mean = result.request_throughput
        return mean, (f"the rate varied: requests arrive at its mean, {mean:.3g}/s",)
    if isinstance(rate, str) and rate != "inf":
        raise BadFile(f"{where}: request_rate must be a number or 'inf', not {abbreviate(rate, 60)}")
    return math.inf if rate is None or isinstance(rate, str) else rate, ()


def _reported(result: Mapping[str, Any], where: str) -> dict[str, float]:
    """What it says of all requests, under the names of vLLM; SGLang's differ for the whole latency."""
    names = {f"{summary}_{metric}_ms": f"{summary}_{metric}_ms" for summary in SUMMARIES for metric in METRICS}
    names |= {f"{summary}_e2e_latency_ms": f"{summary}_e2el_ms" for summary in SUMMARIES}
    names |= {rate: rate for rate in RATES}
    return {ours: _number(result, key, where) for key, ours in names.items() if _is_finite(result.get(key))}


def _details(result: BenchServeResult, where: str) -> tuple[Columns, np.ndarray]:
    """Columns of the requests that were answered, and all gaps between their tokens in ms."""
    inputs, outputs = np.array(result.input_lens, float), np.array(result.output_lens, float)
    count = len(inputs)
    lists = {name: getattr(result, name) for name in ("output_lens", "ttfts", "itls", "start_times", "errors")}
    for name, values in lists.items():
        if values is not None and len(values) != count:
            raise BadFile(f"{where}: {name} has {len(values):,} entries where input_lens has {count:,}")
    gaps = result.itls or [[]] * count
    ttfts, after_first = np.array(result.ttfts or [0.0] * count), np.array([math.fsum(row) for row in gaps])
    answered = np.array([not error for error in result.errors or [None] * count], bool)
    answered &= (inputs >= 1) & ((outputs > 0) | (ttfts > 0))
    columns: Columns = {"input_tokens": inputs[answered].astype(np.int64)}
    columns["output_tokens"] = outputs[answered].astype(np.int64)
    if result.ttfts is not None and result.itls is not None:
        more = np.maximum(columns["output_tokens"] - 1, 0)
        columns["TTFT"] = ttfts[answered] * 1e3
        columns["E2E"] = (ttfts + after_first)[answered] * 1e3
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["TPOT"] = np.where(more > 0, after_first[answered] * 1e3 / more, NAN)
    if result.start_times is not None:
        starts = np.array(result.start_times)[answered]
        columns["arrival_s"] = starts - starts.min(initial=math.inf)
    columns["failed"] = int((~answered).sum())
    kept = [row for row, good in zip(gaps, answered, strict=True) if good]
    return columns, np.array([gap * 1e3 for row in kept for gap in row])


def _summaries(columns: Columns, gaps: np.ndarray | None = None) -> dict[str, float]:
    """Mean, median and percentiles of what was seen of the requests."""
    series = {"ttft": columns.get("TTFT"), "tpot": columns.get("TPOT"), "e2el": columns.get("E2E"), "itl": gaps}
    summed: dict[str, float] = {}
    for metric, values in series.items():
        seen = values[np.isfinite(values)] if values is not None else np.empty(0)
        if len(seen):
            figures = (seen.mean(), *np.percentile(seen, (50, 90, 99)))
            summed |= {f"{summary}_{metric}_ms": float(x) for summary, x in zip(SUMMARIES, figures, strict=True)}
    return summed


# ------------------------------------------------------------------ sglang.bench_one_batch


class OneBatchResult(msgspec.Struct):
    """A batch that was computed at once, in seconds."""

    batch_size: Annotated[float, msgspec.Meta(ge=1, le=MOST_ALIKE)]
    input_len: Tokens
    output_len: Tokens
    prefill_latency: Time
    median_decode_latency: Time | None = None
    total_latency: Time | None = None


@benchmark_format("a result of sglang.bench_one_batch", "batch_size", "input_len", "output_len", "prefill_latency")
def _one_batch(data: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """One batch in the engine's own process: its prefill, and the median of its decode steps."""
    result = convert(data, OneBatchResult, where)
    count = int(result.batch_size)
    columns = _mean_lengths(count, count * result.input_len, count * result.output_len, where)
    times = {"TTFT": result.prefill_latency, "TPOT": result.median_decode_latency, "E2E": result.total_latency}
    columns |= {name: np.full(count, seconds * 1e3) for name, seconds in times.items() if seconds is not None}
    run = BenchmarkRun(
        tool=f"sglang.bench_one_batch of {count}",
        request_rate=math.inf,
        at_client=False,
        metrics=_summaries(columns),
    )
    yield BenchmarkRequests(columns, run)


# ------------------------------------------------------------------ GuideLLM


class GuidellmRequest(msgspec.Struct):
    """A request that was answered; ``start_time`` is its beginning before 0.4."""

    prompt_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    request_start_time: Time | None = None
    start_time: Time | None = None
    request_latency: Time = NAN
    time_to_first_token_ms: Time | None = None
    inter_token_latency_ms: Time | None = None


class GuidellmGroups(msgspec.Struct):
    """The requests by how they ended."""

    successful: list[GuidellmRequest] | None = None
    errored: list[Any] | None = None
    incomplete: list[Any] | None = None


class GuidellmBenchmark(msgspec.Struct):
    """One benchmark of a report; ``args`` is its ``config`` before 0.4."""

    requests: GuidellmGroups
    config: dict[str, Any] = {}
    args: dict[str, Any] = {}
    metrics: dict[str, Any] = {}


class GuidellmReport(msgspec.Struct):
    """The benchmarks that were run one after another."""

    benchmarks: list[GuidellmBenchmark]


@benchmark_format("a report of GuideLLM", "benchmarks")
def _guidellm(data: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """A run for each benchmark. Its inter-token latency is vLLM's TPOT: the mean after the first token."""
    for benchmark in convert(data, GuidellmReport, where).benchmarks:
        groups = benchmark.requests
        answered = [row for row in groups.successful or () if row.prompt_tokens and row.output_tokens]
        if not answered:
            continue
        starts = [row.start_time if row.request_start_time is None else row.request_start_time for row in answered]
        columns: Columns = {
            "input_tokens": _column([row.prompt_tokens for row in answered]).astype(np.int64),
            "output_tokens": _column([row.output_tokens for row in answered]).astype(np.int64),
            "TTFT": _column([row.time_to_first_token_ms for row in answered]),
            "TPOT": _column([row.inter_token_latency_ms for row in answered]),
            "E2E": _column([row.request_latency for row in answered]) * 1e3,
        }
        failed = len(groups.errored or ()) + len(groups.incomplete or ())
        if None not in starts:  # they are listed as they ended
            order = np.argsort(_column(starts), kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
            columns["arrival_s"] = _column(starts)[order] - min(_column(starts))
        strategy = _inner(benchmark.config, "strategy") or _inner(benchmark.args, "strategy")
        limit = strategy.get("streams") or strategy.get("max_concurrency")
        run = BenchmarkRun(
            tool="guidellm",
            **_load(strategy.get("rate"), 1 if strategy.get("type_") == "synchronous" else limit),
            metrics=_summaries(columns) | _guidellm_rates(benchmark.metrics),
        )
        yield BenchmarkRequests({**columns, "failed": failed}, run)


def _guidellm_rates(metrics: Mapping[str, Any]) -> dict[str, float]:
    names = {"request_throughput": "requests_per_second", "output_throughput": "output_tokens_per_second"}
    groups = {ours: _inner(metrics, key, "successful") for ours, key in names.items()}
    return {ours: float(group["mean"]) for ours, group in groups.items() if _is_finite(group.get("mean"))}


# ------------------------------------------------------------------ AIPerf and genai-perf


@benchmark_format(
    "a summary of AIPerf or genai-perf", "request_latency.avg", "input_sequence_length.avg", "input_config"
)
def _genai_perf(summary: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """Statistics in ms. Their inter-token latency is vLLM's TPOT: the mean after the first token."""
    config = _inner(summary, "input_config")
    load = {**_inner(config, "perf_analyzer", "stimulus"), **_inner(config, "loadgen")}
    count = _inner(summary, "request_count").get("avg") or load.get("request_count")
    metrics: dict[str, float] = {}
    names = {"time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2el"}
    for key, metric in names.items():
        figures = _inner(summary, key)
        for theirs, ours in zip(("avg", "p50", "p90", "p99"), SUMMARIES, strict=True):
            if _is_finite(figures.get(theirs)):
                metrics[f"{ours}_{metric}_ms"] = _number(figures, theirs, f"{where}: {key}")
    for key, ours in (("request_throughput", "request_throughput"), ("output_token_throughput", "output_throughput")):
        if _is_finite(_inner(summary, key).get("avg")):
            metrics[ours] = _number(_inner(summary, key), "avg", f"{where}: {key}")
    run = BenchmarkRun(
        tool="aiperf" if "was_cancelled" in summary or "loadgen" in config else "genai-perf",
        **_load(load.get("request_rate"), load.get("concurrency", 1)),  # 1 is the default of both
        metrics=metrics,
    )
    requests = _number({"request_count": count}, "request_count", where)
    inputs, outputs = (
        requests * _number(_inner(summary, key), "avg", f"{where}: {key}")
        for key in ("input_sequence_length", "output_sequence_length")
    )
    yield _of_means(run, requests, inputs, outputs, where)


class ProfileRequest(msgspec.Struct):
    """What perf_analyzer saw of a request: moments in ns, and the responses as text."""

    timestamp: Annotated[float, msgspec.Meta(ge=0, le=1e20)]
    response_timestamps: list[Annotated[float, msgspec.Meta(ge=0, le=1e20)]] = []
    response_outputs: list[dict[str, Any]] = []


class ProfileExperiment(msgspec.Struct):
    """One load: ``{"mode": "concurrency", "value": 8}``"""

    requests: list[ProfileRequest]
    experiment: dict[str, Any] = {}


class ProfileExport(msgspec.Struct):
    """The loads that were tried."""

    experiments: list[ProfileExperiment]


_CONTENT = re.compile(r'"(?:content|reasoning_content|text|text_output|generated_text)"\s*:\s*"[^"]')
_USAGE = re.compile(r'"(prompt_tokens|completion_tokens)"\s*:\s*(\d{1,9})\b')


@benchmark_format("a profile export of genai-perf", "experiments", "service_kind")
def _profile_export(data: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """Responses with text are timed, as genai-perf does it; tokens are counted by the server's ``usage``."""
    for experiment in convert(data, ProfileExport, where).experiments:
        rows = [row for row in map(_profile_row, experiment.requests) if row is not None]
        if not rows:
            raise BadFile(
                f"{where} has texts but no token counts (its server sent no usage); the summary that genai-perf "
                "writes beside it, profile_export_genai_perf.json, has them"
            )
        inputs, outputs, sent, first, last = np.array(sorted(rows, key=lambda row: row[2])).T
        with np.errstate(divide="ignore", invalid="ignore"):
            tpot = np.where(outputs > 1, (last - first) / 1e6 / (outputs - 1), NAN)
        columns: Columns = {
            "input_tokens": inputs.astype(np.int64),
            "output_tokens": outputs.astype(np.int64),
            "arrival_s": (sent - sent.min()) / 1e9,
            "TTFT": (first - sent) / 1e6,
            "TPOT": tpot,
            "E2E": (last - sent) / 1e6,
        }
        load = {str(experiment.experiment.get("mode")): experiment.experiment.get("value")}
        run = BenchmarkRun(
            tool="genai-perf",
            **_load(load.get("request_rate"), load.get("concurrency")),
            metrics=_summaries(columns),
        )
        yield BenchmarkRequests({**columns, "failed": len(experiment.requests) - len(rows)}, run)


def _profile_row(request: ProfileRequest) -> tuple[float, float, float, float, float] | None:
    """Tokens of prompt and answer, sent, first and last token in ns; None if that cannot be said."""
    texts = [str(output.get("response", "")) for output in request.response_outputs]
    usage = {name: float(count) for text in texts for name, count in _USAGE.findall(text)}
    times = [time for time, text in zip(request.response_timestamps, texts, strict=False) if _CONTENT.search(text)]
    if not times or not usage.get("prompt_tokens") or not usage.get("completion_tokens"):
        return None
    return usage["prompt_tokens"], usage["completion_tokens"], request.timestamp, times[0], times[-1]


# ------------------------------------------------------------------ pieces


def _load(rate: Any, limit: Any) -> dict[str, Any]:
    """At a rate, else so many at a time, else all at once."""
    if _is_finite(rate) and rate > 0:
        return {"request_rate": float(rate)}
    return {"max_concurrency": int(limit)} if _is_finite(limit) and limit >= 1 else {"request_rate": math.inf}


def _of_means(
    run: BenchmarkRun, requests: float, inputs: float, outputs: float, where: str, notes: tuple[str, ...] = ()
) -> BenchmarkRequests:
    columns = _mean_lengths(requests, inputs, outputs, where)
    note = "the file has totals only: every request gets the mean lengths"
    if len(columns["input_tokens"]) < int(requests):
        note += f", and {MOST_ALIKE:,} of {int(requests):,} are simulated"
    return BenchmarkRequests(columns, run, (*notes, note))


def _mean_lengths(requests: float, inputs: float, outputs: float, where: str) -> Columns:
    """Requests of the mean lengths, whole tokens, with the totals kept; no more of them than tell the rest."""
    count = int(requests)
    if not 1 <= count <= 1e8 or not count <= inputs <= MAX_TOKENS * count or not 0 <= outputs <= MAX_TOKENS * count:
        raise BadFile(f"{where}: {count:,} requests with {inputs:,.0f} and {outputs:,.0f} tokens are not a valid run")

    kept = min(count, MOST_ALIKE)

    def dealt(total: float) -> np.ndarray:
        tokens = round(total * kept / count)
        return tokens // kept + (np.arange(kept) < tokens % kept)

    return {"input_tokens": dealt(inputs), "output_tokens": dealt(outputs)}


def _inner(data: Any, *keys: str) -> dict[str, Any]:
    """An object inside objects; empty if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, dict) else {}


def _number(result: Mapping[str, Any], key: str, where: str) -> float:
    value: Any = result.get(key)
    if not _is_finite(value) or not value >= 0:
        raise BadFile(f"{where}: {key} must be a number of at least 0, not {abbreviate(value, 60)}")
    return float(value)


def _is_finite(value: Any) -> bool:
    return is_number(value) and abs(value) < 1e300


def _column(values: Sequence[float | None]) -> np.ndarray:
    return np.array([NAN if value is None else value for value in values])
