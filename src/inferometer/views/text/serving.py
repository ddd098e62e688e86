"""A run of requests on a terminal, for two minutes of reading: latencies, rates, the engine over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ...base.units import milliseconds, percent, seconds

NAMES = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "between two tokens",
    "e2el": "end to end",
}
STATISTICS = ("mean", "median", "p90", "p99", "std")
SHADES = "▁▂▃▄▅▆▇█"
WIDTH = 52


def run(result: Mapping[str, Any], series: Mapping[str, np.ndarray] | None = None) -> Group:
    """The result of a simulation or a benchmark, from its JSON; ``series`` are the engine's columns over time."""
    parts: list[Any] = [Text(header(result), style="bold")]
    if result.get("reason"):
        parts.append(Text(f"✗ does not work: {result['reason']}", style="bold red"))
    else:
        parts += [latency_table(result), Text(""), *_rates(result), *_over_time(series or {}), *_rejections(result)]
    parts += [Text(f"! {warning}", style="yellow") for warning in result.get("warnings", ())]
    return Group(*parts)


def capacity(result: Mapping[str, Any]) -> Group:
    """The highest rate that holds, the rates that were tried, and the latencies at the highest."""
    limits = ", ".join(f"{key} ≤ {value:g} ms" for key, value in result["goodput"].items())
    promise = f"{percent(result['share'])} of the requests keep {limits}"
    rate = result["request_rate"]
    if result.get("interrupted"):
        held = f"{rate:,.2f} requests/s held" if rate else "no rate held"
        verdict = Text(f"interrupted: so far {held} ({promise})", style="bold yellow")
    elif rate:
        half = percent((result["request_rate_high"] - result["request_rate_low"]) / 2 / rate)
        verdict = Text(f"{rate:,.2f} ± {half} requests/s is the highest rate at which {promise}", style="bold green")
    else:
        verdict = Text(f"✗ at no rate do so many keep the limits: {promise}", style="bold red")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("requests/s", "good", ""):
        table.add_column(column, justify="right" if column else "left")
    for tried in result["tried"]:
        mark = "✓" if tried["holds"] else "✗"
        table.add_row(
            f"{tried['request_rate']:,.3f}", percent(tried["good"]), Text(mark, "green" if tried["holds"] else "red")
        )
    parts: list[Any] = [Text(header(result), style="bold"), verdict, table]
    parts += [latency_table(result)] if rate and not result.get("interrupted") else []
    return Group(*parts, *(Text(f"! {warning}", style="yellow") for warning in result.get("warnings", ())))


def header(result: Mapping[str, Any]) -> str:
    """``llama-3.1-8b · bf16 · 1 × NVIDIA H200 · vLLM · 150 requests of chat.csv``"""
    keys = ("model", "quantization", "machine", "engine", "base_url")
    versions = {"engine": f" {result['engine_version']}"} if result.get("engine_version") else {}
    pieces = [f"{result[key]}{versions.get(key, '')}" for key in keys if result.get(key)]
    count = result["num_prompts"]
    return " · ".join([*pieces, f"{count:,} request{'s' if count != 1 else ''}", str(result["traffic"])])


def latency_table(result: Mapping[str, Any]) -> Table:
    """Mean, median, percentiles and spread of the four latencies."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("")
    for word in STATISTICS:
        table.add_column(word, justify="right", style="bold" if word == "mean" else "")
    for key, name in NAMES.items():
        table.add_row(name, *(milliseconds(result[f"{word}_{key}_ms"]) for word in STATISTICS))
    return table


def _rates(result: Mapping[str, Any]) -> list[Text]:
    def rate(key: str, digits: int) -> str:
        return "–" if result[key] is None else f"{result[key]:,.{digits}f}"

    lines = [
        f"{result['completed']:,} requests done in {seconds(result['duration'])}, at most "
        f"{result['max_concurrent_requests']:,} at once",
        f"{rate('request_throughput', 2)} requests/s, {rate('output_throughput', 0)} output tokens/s, "
        f"{rate('total_token_throughput', 0)} tokens/s with the prompts'",
    ]
    if result.get("failed"):
        lines.append(f"{result['failed']:,} did not end")
    if result.get("goodput"):
        limits = ", ".join(f"{key} ≤ {value:g} ms" for key, value in result["goodput"].items())
        share = result["request_goodput"] / result["request_throughput"] if result["request_throughput"] else 0.0
        lines.append(f"goodput {rate('request_goodput', 2)} requests/s: {percent(share)} keep {limits}")
    if result.get("autoscaling"):
        lines.append(_autoscaled(result["autoscaling"]))
    cache = []
    if result.get("prefix_cache_hit_rate"):
        cache.append(f"{percent(result['prefix_cache_hit_rate'])} of the prompts' tokens came from the prefix cache")
    if result.get("preemptions"):
        cache.append(f"{result['preemptions']:,} preemptions")
    return [Text(line) for line in [*lines, *([", ".join(cache)] if cache else [])]]


def _autoscaled(use: Mapping[str, Any]) -> str:
    """``autoscaled: 1 to 5 replicas, 2.31 in the mean: 18.4 GPU-hours, $66``"""
    cost = "" if use["cost"] is None else f", ${use['cost']:,.2f}"
    least, most = min(use["replicas"]), use["peak_replicas"]
    return (
        f"autoscaled: {least} to {most} replicas, {use['mean_replicas']:.2f} in the mean: "
        f"{use['gpu_hours']:,.2f} GPU-hours{cost}"
    )


def _over_time(series: Mapping[str, np.ndarray]) -> list[Any]:
    """Lines of blocks: how full the engine was from the beginning to the end."""
    labels = {"running": "running", "waiting": "waiting", "kv_used": "KV cache", "busy": "busy"}
    kept = {label: series[key] for key, label in labels.items() if key in series and len(series[key]) > 1}
    if not kept or "time_s" not in series:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for label, values in kept.items():
        shares = label in ("KV cache", "busy")
        top = float(np.nanmax(values))
        most = percent(top) if shares else f"{top:,.0f}"
        table.add_row(label, Text(spark(series["time_s"], values, 1.0 if shares else top), "cyan"), f"at most {most}")
    return [Text(""), table]


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


def _rejections(result: Mapping[str, Any]) -> list[Text]:
    """The reasons, with how often each was given."""
    reasons: Mapping[str, int] = result.get("rejection_reasons", {})
    return [
        Text(f"✗ {count:,} rejected{', such as' if count > 1 else ''}: {reason}", style="red")
        for reason, count in reasons.items()
    ]
