"""A run of requests on a terminal, for two minutes of reading: latencies, rates, the engine over time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from ...base.units import milliseconds, percent, plural, seconds
from ...inference.report import ExpectedError
from ...serving.metrics import LABELS, limits_text
from .document import Cell, Column, Draw, Page, Paragraph, Part, TextTable
from .terminal import TIER_LABELS, expected_error

LEFT_OUT_LAST = {"mean": 0, "p90": 1, "median": 2, "std": 4}  # columns where there is no room; other percentiles: 3
SHADES = "▁▂▃▄▅▆▇█"
WIDTH = 52


def run(result: Mapping[str, Any], series: Mapping[str, np.ndarray] | None = None) -> Page:
    """The result of a simulation or a benchmark, from its JSON; ``series`` are the engine's columns over time."""
    parts: list[Part] = [Paragraph(header(result), style="bold")]
    if result.get("reason"):
        parts.append(Paragraph(f"✗ infeasible: {result['reason']}", style="bold red"))
    else:
        parts += [
            latency_table(result),
            *_expected_error(result),
            *_rates(result),
            *_sessions(result.get("sessions")),
            *_tiers(result),
            *_over_time(series or {}, result.get("tier_series") or {}, result.get("kv_tiers") or ()),
            *_rejections(result),
        ]
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in result.get("warnings", ())]
    return Page(parts)


def _expected_error(result: Mapping[str, Any]) -> list[Part]:
    """How far means of such simulations were off; a benchmark has none."""
    bands = msgspec.convert(result.get("expected_error") or {}, dict[str, ExpectedError])
    return expected_error(bands)


def capacity(result: Mapping[str, Any]) -> Page:
    """The highest rate that holds, the rates that were tried, and the latencies at the highest."""
    promise = f"{percent(result['share'])} of requests meet {limits_text(result['goodput'])}"
    rate = result["request_rate"]
    if result.get("interrupted"):
        held = f"{rate:,.2f} requests/s meet the limits" if rate else "no rate meets the limits"
        verdict = Paragraph(f"interrupted: so far {held} ({promise})", style="bold yellow")
    elif rate:
        half = percent((result["request_rate_high"] - result["request_rate_low"]) / 2 / rate)
        verdict = Paragraph(
            f"capacity: {rate:,.2f} ± {half} requests/s, the highest rate at which {promise}", style="bold green"
        )
    else:
        verdict = Paragraph(f"✗ no rate meets the limits: {promise}", style="bold red")
    table = TextTable([Column("requests/s"), Column("good"), Column("", "<", name="holds")])
    for tried in result["tried"]:
        mark = Cell("✓", "green", ascii="yes") if tried["holds"] else Cell("✗", "red", ascii="no")
        table.add_row(f"{tried['request_rate']:,.3f}", percent(tried["good"]), mark)
    parts: list[Part] = [Paragraph(header(result), style="bold"), verdict, table]
    parts += [latency_table(result)] if rate and not result.get("interrupted") else []
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in result.get("warnings", ()))])


def header(result: Mapping[str, Any]) -> str:
    """``llama-3.1-8b · bf16 · 1 × NVIDIA H200 · vLLM · 150 requests of chat.csv``"""
    keys = ("model", "quantization", "machine", "engine", "base_url")
    versions = {"engine": f" {result['engine_version']}"} if result.get("engine_version") else {}
    pieces = [f"{result[key]}{versions.get(key, '')}" for key in keys if result.get(key)]
    return " · ".join([*pieces, plural(result["num_prompts"], "request"), str(result["traffic"])])


def latency_table(result: Mapping[str, Any]) -> TextTable:
    """Mean, median, percentiles and spread of the four latencies."""
    statistics = _statistics(result)
    columns = [
        Column(word, priority=LEFT_OUT_LAST.get(word, 3), style="bold" if word == "mean" else "") for word in statistics
    ]
    table = TextTable([Column("", "<", name="latency"), *columns], elsewhere="--json")
    for key, name in LABELS.items():
        table.add_row(name, *(milliseconds(result.get(f"{word}_{key}_ms")) for word in statistics))
    return table


def _statistics(result: Mapping[str, Any]) -> list[str]:
    """Mean, median, the percentiles that the result has, and spread."""
    keys = (re.fullmatch(r"(p[\d.]+)_(?:ttft|tpot|itl|e2el)_ms", key) for key in result)
    percentiles = {match[1]: None for match in keys if match}
    return ["mean", "median", *sorted(percentiles, key=lambda word: float(word[1:])), "std"]


def _rates(result: Mapping[str, Any]) -> list[Part]:
    def rate(key: str, digits: int) -> str:
        return "–" if result[key] is None else f"{result[key]:,.{digits}f}"

    lines = [
        f"{plural(result['completed'], 'request')} completed in {seconds(result['duration'])}, "
        f"{result['max_concurrent_requests']:,} in flight at the peak",
        f"{rate('request_throughput', 2)} requests/s, {rate('output_throughput', 0)} output tokens/s, "
        f"{rate('total_token_throughput', 0)} total tokens/s",
    ]
    if result.get("failed"):
        lines.append(f"{plural(result['failed'], 'request')} failed")
    if result.get("cancelled"):
        lines.append(f"{plural(result['cancelled'], 'request')} cancelled when the run was interrupted")
    if result.get("goodput"):
        share = result["request_goodput"] / result["request_throughput"] if result["request_throughput"] else 0.0
        lines.append(
            f"goodput {rate('request_goodput', 2)} requests/s: {percent(share)} meet {limits_text(result['goodput'])}"
        )
    if result.get("autoscaling"):
        lines.append(_autoscaled(result["autoscaling"]))
    cache = []
    if result.get("prefix_cache_hit_rate"):
        cache.append(f"{percent(result['prefix_cache_hit_rate'])} of prompt tokens came from the prefix cache")
    if result.get("preemptions"):
        cache.append(plural(result["preemptions"], "preemption"))
    return [Paragraph(line) for line in [*lines, *([", ".join(cache)] if cache else [])]]


SESSION_ROWS = {"duration_s": "session", "model_s": "at the server", "idle_s": "tools and people"}


def _sessions(sessions: Mapping[str, Any] | None) -> list[Part]:
    """How long sessions took, what of it was the model, their turns and tokens, and what one costs."""
    if not sessions:
        return []
    agents = sessions["agents_per_session"]
    line = (
        f"{plural(sessions['completed'], 'session')} completed of {sessions['sessions']:,}: "
        f"{sessions['turns_per_session']:,.1f} turns each" + (f" by {agents:.1f} agents" if agents > 1 else "")
    )
    tokens = (
        f"{sessions['input_tokens_per_session']:,.0f} input and {sessions['output_tokens_per_session']:,.0f} output"
    )
    parts: list[Part] = [
        Paragraph(line),
        Paragraph(f"{tokens} tokens per session, {percent(sessions['cached_share'])} of the input from the cache"),
    ]
    if not sessions["completed"]:
        return parts
    cost = sessions["cost_per_session"]
    rate = f"{sessions['sessions_per_hour']:,.1f} sessions per hour"
    parts.append(Paragraph(rate + ("" if cost is None else f", ${cost:,.3f} per session")))
    table = TextTable([Column("", "<", name="time"), *(Column(word) for word in ("mean", "median", "p90", "p99"))])
    for key, label in SESSION_ROWS.items():
        table.add_row(label, *(seconds(sessions[f"{word}_{key}"]) for word in ("mean", "median", "p90", "p99")))
    return [*parts, table]


def _tiers(result: Mapping[str, Any]) -> list[Part]:
    """The tiers of the KV cache: where the tokens of prompts were found, and what went over the links."""
    if not result.get("kv_tiers"):
        return []
    columns = [Column(word, priority=rank) for word, rank in (("size", 1), ("full", 2), ("hits", 0))]
    traffic = [Column(word, priority=rank) for word, rank in (("loaded", 1), ("stored", 2), ("evicted", 3))]
    table = TextTable([Column("", "<", name="KV cache"), *columns, *traffic], elsewhere="--json")
    for tier in result["kv_tiers"]:
        size, used = tier["capacity_bytes"], tier["used_bytes"]
        moved = [f"{tier[key] / 1e9:,.0f} GB" for key in ("loaded_bytes", "stored_bytes", "evicted_bytes")]
        table.add_row(
            TIER_LABELS[tier["name"]],
            f"{size / 2**30:,.4g} GiB",
            percent(used / size if size else 0.0),
            percent(tier["hit_rate"]),
            *(moved if tier["name"] != "gpu" else ["–"] * 3),
        )
    return [Paragraph(""), table]


def tier_sizes(result: Mapping[str, Any]) -> Page:
    """The same requests with several sizes of CPU memory, from the JSON: latencies and hits of each."""
    ranks = {"hits": 1, "CPU hits": 0, "TTFT mean": 1, "TTFT p90": 0, "TTFT p99": 2, "TPOT": 2, "tokens/s": 1}
    columns = [Column(name, priority=rank) for name, rank in ranks.items()]
    table = TextTable([Column("CPU memory"), *columns], elsewhere="--json")
    for row in result["kv_offloading_sizes"]:
        throughput = row["output_throughput"]
        table.add_row(
            f"{row['kv_offloading_size']:g} GiB",
            percent(row["prefix_cache_hit_rate"]),
            percent(row["cpu_hit_rate"]),
            *(milliseconds(row[key]) for key in ("mean_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")),
            "–" if throughput is None else f"{throughput:,.0f}",
        )
    parts: list[Part] = [Paragraph(header(result), style="bold"), Paragraph(result["summary"]), Paragraph(""), table]
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in result["warnings"])])


def _autoscaled(use: Mapping[str, Any]) -> str:
    """``autoscaled: 1 to 5 replicas, 2.31 on average: 18.4 GPU-hours, $66``"""
    cost = "" if use["cost"] is None else f", ${use['cost']:,.2f}"
    least, most = min(use["replicas"]), use["peak_replicas"]
    replicas = f"{least} to {most} replicas" if least != most else plural(most, "replica")
    return f"autoscaled: {replicas}, {use['mean_replicas']:.2f} on average: {use['gpu_hours']:,.2f} GPU-hours{cost}"


def _over_time(
    series: Mapping[str, np.ndarray],
    tier_series: Mapping[str, Sequence[float]],
    tiers: Sequence[Mapping[str, Any]],
) -> list[Part]:
    """Lines of blocks: how full the engine and the tiers below it were from the beginning to the end."""
    labels = {"running": "running", "waiting": "waiting", "kv_used": "KV cache", "busy": "busy"}
    kept = {label: series[key] for key, label in labels.items() if key in series and len(series[key]) > 1}
    if not kept or "time_s" not in series:
        return []
    table = TextTable([Column("", "<"), Column("", "<", elastic=WIDTH), Column("", "<")], header=False)
    for label, values in kept.items():
        shares = label in ("KV cache", "busy")
        top = float(np.nanmax(values))
        most = percent(top) if shares else f"{top:,.0f}"
        table.add_row(label, curve(series["time_s"], values, 1.0 if shares else top), f"up to {most}")
    for tier in tiers[1:] if len(tier_series.get("time_s", ())) > 1 else ():
        used = np.array(tier_series[f"{tier['name']}_used_bytes"]) / (tier["capacity_bytes"] or 1.0)
        line = curve(np.array(tier_series["time_s"]), used, 1.0)
        table.add_row(TIER_LABELS[tier["name"]], line, f"up to {percent(float(used.max()))}")
    return [Paragraph(""), table]


def curve(times: np.ndarray, values: np.ndarray, top: float) -> Draw:
    """A line of blocks as wide as the screen has room for: ``curve(series["time_s"], series["running"], 8.0)(40)``"""
    return lambda width: [Cell(spark(times, values, top, width), "cyan")]


def spark(times: np.ndarray, values: np.ndarray, top: float, width: int = WIDTH) -> str:
    """A line of blocks, one per equal share of the time, as high as the mean: ``▁▃█▆``"""
    edges = np.linspace(times[0], times[-1], width + 1)
    at = np.searchsorted(times, (edges[:-1] + edges[1:]) / 2, side="right") - 1
    sums = np.concatenate([[0.0], np.cumsum(values)])
    low = np.minimum(np.searchsorted(times, edges[:-1]), at)
    high = np.maximum(np.searchsorted(times, edges[1:]), at + 1)
    means = (sums[high] - sums[low]) / np.maximum(high - low, 1)
    levels = np.clip(np.ceil(means / (top or 1.0) * len(SHADES)), 0, len(SHADES)).astype(int)
    return "".join(" " if level == 0 else SHADES[level - 1] for level in levels)


def _rejections(result: Mapping[str, Any]) -> list[Part]:
    """The reasons, with how often each was given."""
    reasons: Mapping[str, int] = result.get("rejection_reasons", {})
    return [
        Paragraph(f"✗ {count:,} rejected{', such as' if count > 1 else ''}: {reason}", style="red")
        for reason, count in reasons.items()
    ]
