"""Results of load generators, a JSON object or more: vllm bench serve, SGLang, GuideLLM, AIPerf and genai-perf.

A format is one function that turns such an object into runs. A run has columns of a `Trace` where the file says what
each request did; else only what the benchmark reports of all of them, and requests of the mean lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadFile, is_number
from .trace_formats import MAX_TOKENS, Columns

NAN = float("nan")
METRICS = ("ttft", "tpot", "itl", "e2el")
SUMMARIES = ("mean", "median", "p90", "p99")
RATES = ("request_throughput", "output_throughput")


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


@benchmark_format(
    "result of vllm bench serve or SGLang's bench_serving", "completed", "total_input_tokens", "total_output_tokens"
)
def _bench_serve(result: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """One result; with ``--save-detailed`` or ``--output-details`` request by request, in seconds."""
    is_sglang = "mean_e2e_latency_ms" in result
    rate, notes = _rate(result, where)
    run = BenchmarkRun(
        tool="sglang.bench_serving" if is_sglang else "vllm bench serve",
        request_rate=rate,
        burstiness=_number(result, "burstiness", where, default=1.0),
        max_concurrency=int(_number(result, "max_concurrency", where)) if result.get("max_concurrency") else None,
        metrics=_reported(result),
    )
    if "input_lens" not in result or "output_lens" not in result:
        yield _of_means(
            run,
            _number(result, "completed", where),
            _number(result, "total_input_tokens", where),
            _number(result, "total_output_tokens", where),
            where,
            notes,
        )
        return
    columns, gaps, failed = _details(result, where)
    run = msgspec.structs.replace(run, metrics=_summaries(columns, gaps) | run.metrics)
    yield BenchmarkRequests({**columns, "failed": failed}, run, notes if "arrival_s" not in columns else ())


def _rate(result: Mapping[str, Any], where: str) -> tuple[float | None, tuple[str, ...]]:
    """Requests a second, from a number, 'inf', or the run itself where its rate varied."""
    rate = result.get("request_rate")
    if rate == "trace" or result.get("ramp_up_strategy") is not None:
        mean = _number(result, "request_throughput", where)
        return mean, (f"the rate varied: requests come at its mean, {mean:.3g}/s",)
    if rate is None:
        return math.inf, ()
    return _number({"request_rate": math.inf if rate == "inf" else rate}, "request_rate", where), ()


def _reported(result: Mapping[str, Any]) -> dict[str, float]:
    """What it says of all requests, under the names of vLLM; SGLang's differ for the whole latency."""
    names = {f"{summary}_{metric}_ms": f"{summary}_{metric}_ms" for summary in SUMMARIES for metric in METRICS}
    names |= {f"{summary}_e2e_latency_ms": f"{summary}_e2el_ms" for summary in SUMMARIES}
    names |= {rate: rate for rate in RATES}
    return {ours: float(result[key]) for key, ours in names.items() if is_number(result.get(key))}


def _details(result: Mapping[str, Any], where: str) -> tuple[Columns, np.ndarray, int]:
    """Columns of the requests that were answered, all gaps between tokens in ms, and how many requests failed."""
    lengths = {
        "input_tokens": _numbers(result, "input_lens", where),
        "output_tokens": _numbers(result, "output_lens", where),
    }
    count = len(lengths["input_tokens"])
    errors, gaps = result.get("errors") or [""] * count, result.get("itls") or [[]] * count
    ttfts = _numbers(result, "ttfts", where) if "ttfts" in result else np.full(count, NAN)
    starts = _numbers(result, "start_times", where) if "start_times" in result else np.full(count, NAN)
    columns_by_key = {"output_lens": lengths["output_tokens"], "errors": errors, "ttfts": ttfts, "itls": gaps}
    for key, column in (*columns_by_key.items(), ("start_times", starts)):
        _check_length(column, count, key, where)
    try:
        spread = np.array([math.fsum(row) for row in gaps])
        answered = np.array([not error for error in errors], bool)
    except (TypeError, ValueError):
        raise BadFile(f"{where}: itls must be a list of numbers for each request") from None
    answered &= (lengths["output_tokens"] > 0) | (ttfts > 0)
    columns: Columns = {name: values[answered].astype(np.int64) for name, values in lengths.items()}
    if "ttfts" in result and "itls" in result:
        more = np.maximum(columns["output_tokens"] - 1, 0)
        columns["TTFT"] = ttfts[answered] * 1e3
        columns["E2E"] = (ttfts + spread)[answered] * 1e3
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["TPOT"] = np.where(more > 0, spread[answered] * 1e3 / more, NAN)
    if "start_times" in result:
        columns["arrival_s"] = starts[answered] - starts[answered].min(initial=math.inf)
    kept = [row for row, good in zip(gaps, answered, strict=True) if good]
    return columns, np.array([gap * 1e3 for row in kept for gap in row]), int((~answered).sum())


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


@benchmark_format("result of sglang.bench_one_batch", "batch_size", "input_len", "output_len", "prefill_latency")
def _one_batch(result: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """One batch in the engine's own process: its prefill, and the median of its decode steps, in seconds."""
    count, output = (int(_number(result, name, where)) for name in ("batch_size", "output_len"))
    columns = _mean_lengths(count, count * _number(result, "input_len", where), count * output, where)
    columns["TTFT"] = np.full(count, _number(result, "prefill_latency", where) * 1e3)
    if output > 1 and "median_decode_latency" in result:
        columns["TPOT"] = np.full(count, _number(result, "median_decode_latency", where) * 1e3)
    if "total_latency" in result:
        columns["E2E"] = np.full(count, _number(result, "total_latency", where) * 1e3)
    run = BenchmarkRun(
        tool=f"sglang.bench_one_batch of {count}",
        request_rate=math.inf,
        at_client=False,
        metrics=_summaries(columns),
    )
    yield BenchmarkRequests(columns, run)


# ------------------------------------------------------------------ GuideLLM


@benchmark_format("report of GuideLLM", "benchmarks")
def _guidellm(report: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    """A run for each benchmark. Its inter-token latency is vLLM's TPOT: the mean after the first token."""
    benchmarks = report["benchmarks"]
    for number, benchmark in enumerate(benchmarks if isinstance(benchmarks, list) else [], 1):
        place = f"{where}, benchmark {number}"
        groups = _inner(benchmark, "requests")
        done = [row for row in groups.get("successful") or () if row.get("prompt_tokens") and row.get("output_tokens")]
        if not done:
            continue
        started = "request_start_time" if "request_start_time" in done[0] else "start_time"  # since and before 0.4
        arrival = _numbers_of(done, started, place)
        columns: Columns = {
            "input_tokens": _numbers_of(done, "prompt_tokens", place).astype(np.int64),
            "output_tokens": _numbers_of(done, "output_tokens", place).astype(np.int64),
            "arrival_s": arrival - arrival.min(),
            "TTFT": _numbers_of(done, "time_to_first_token_ms", place, NAN),
            "TPOT": _numbers_of(done, "inter_token_latency_ms", place, NAN),
            "E2E": _numbers_of(done, "request_latency", place, NAN) * 1e3,
            "failed": len(groups.get("errored") or ()) + len(groups.get("incomplete") or ()),
        }
        strategy = _inner(benchmark, "config", "strategy") or _inner(benchmark, "args", "strategy")
        limit = strategy.get("streams") or strategy.get("max_concurrency")
        run = BenchmarkRun(
            tool="guidellm",
            **_load(strategy.get("rate"), 1 if strategy.get("type_") == "synchronous" else limit),
            metrics=_summaries(columns) | _guidellm_rates(benchmark),
        )
        yield BenchmarkRequests(_in_order(columns), run)


def _guidellm_rates(benchmark: Mapping[str, Any]) -> dict[str, float]:
    names = {"request_throughput": "requests_per_second", "output_throughput": "output_tokens_per_second"}
    groups = {ours: _inner(benchmark, "metrics", key, "successful") for ours, key in names.items()}
    return {ours: float(group["mean"]) for ours, group in groups.items() if is_number(group.get("mean"))}


# ------------------------------------------------------------------ AIPerf and genai-perf


@benchmark_format("summary of AIPerf or genai-perf", "request_latency.avg", "input_sequence_length.avg", "input_config")
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
            if is_number(figures.get(theirs)):
                metrics[f"{ours}_{metric}_ms"] = float(figures[theirs])
    for key, ours in (("request_throughput", "request_throughput"), ("output_token_throughput", "output_throughput")):
        if is_number(_inner(summary, key).get("avg")):
            metrics[ours] = float(_inner(summary, key)["avg"])
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


@benchmark_format("profile export of genai-perf", "experiments", "service_kind")
def _profile_export(export: Mapping[str, Any], where: str) -> Iterator[BenchmarkRequests]:
    raise BadFile(
        f"{where} has texts and no numbers of tokens; the summary that genai-perf writes beside it "
        "(profile_export_genai_perf.json) has them"
    )


# ------------------------------------------------------------------ pieces


def _load(rate: Any, limit: Any) -> dict[str, Any]:
    """At a rate, else so many at a time, else all at once."""
    if is_number(rate):
        return {"request_rate": float(rate)}
    return {"max_concurrency": int(limit)} if is_number(limit) else {"request_rate": math.inf}


def _of_means(
    run: BenchmarkRun, requests: float, inputs: float, outputs: float, where: str, notes: tuple[str, ...] = ()
) -> BenchmarkRequests:
    columns = _mean_lengths(requests, inputs, outputs, where)
    note = "the file has totals only: every request has the mean lengths"
    return BenchmarkRequests(columns, run, (*notes, note))


def _mean_lengths(requests: float, inputs: float, outputs: float, where: str) -> Columns:
    """Requests of the mean lengths, whole tokens, with the totals kept."""
    count = int(requests)
    if not 1 <= count <= 10**8 or not count <= inputs <= MAX_TOKENS * count or not 0 <= outputs <= MAX_TOKENS * count:
        raise BadFile(f"{where}: {count:,} requests with {inputs:,.0f} and {outputs:,.0f} tokens are no run")

    def dealt(total: float) -> np.ndarray:
        tokens = round(total)
        return tokens // count + (np.arange(count) < tokens % count)

    return {"input_tokens": dealt(inputs), "output_tokens": dealt(outputs)}


def _in_order(columns: Columns) -> Columns:
    """By arrival: requests are listed as they ended."""
    order = np.argsort(columns["arrival_s"], kind="stable")
    return {name: column if name == "failed" else column[order] for name, column in columns.items()}


def _inner(data: Any, *keys: str) -> dict[str, Any]:
    """An object inside objects; empty if there is none."""
    for key in keys:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data if isinstance(data, dict) else {}


def _number(result: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = result.get(key, default)
    if not is_number(value) or not value >= 0:
        raise BadFile(f"{where}: {key} must be a number from 0 on, not {value!r:.60}")
    return float(value)


def _numbers(result: Mapping[str, Any], key: str, where: str) -> np.ndarray:
    cells = result[key]
    try:
        values = np.array(cells, float)
    except (TypeError, ValueError):
        values = np.full((1, 1), NAN)
    if values.ndim != 1 or not np.all(values >= 0) or (key.endswith("_lens") and not np.all(values <= MAX_TOKENS)):
        raise BadFile(f"{where}: {key} must be a list of numbers from 0 on")
    return values


def _numbers_of(rows: Sequence[Mapping[str, Any]], key: str, where: str, blank: float | None = None) -> np.ndarray:
    values = [row.get(key) for row in rows]
    if blank is not None:
        values = [blank if value is None else value for value in values]
    try:
        return np.array(values, float)
    except (TypeError, ValueError):
        raise BadFile(f"{where}: {key} of a request must be a number") from None


def _check_length(column: Any, count: int, name: str, where: str) -> None:
    if not isinstance(column, list | np.ndarray) or len(column) != count:
        given = f"has {len(column):,} entries" if hasattr(column, "__len__") else "is no list"
        raise BadFile(f"{where}: {name} {given} where input_lens has {count:,}")
