"""Two results of a kind beside each other: metric by metric, the parts that moved most, and what was set otherwise.

comparison = compare(bf16, fp8)
comparison.metrics["tpot_ms"].change        # -0.38: 38% less
comparison.to_pandas()
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue
from ..base.result import Result, kept
from ..base.units import figure, milliseconds, money, percent, seconds, size
from .text.document import Cell, Column, Page, Paragraph, Part, TextTable

MOVED = 5  # parts of a phase that are shown
SAME = 0.0005  # a change below which figures are alike
LABELS = {
    "ttft_ms": "time to first token (TTFT)",
    "tpot_ms": "time per output token (TPOT)",
    "e2el_ms": "end to end (E2E)",
    "image_latency_ms": "image",
    "prefill_throughput": "prompt tokens/s",
    "output_throughput": "output tokens/s",
    "output_throughput_per_gpu": "output tokens/s per GPU",
    "output_throughput_per_user": "output tokens/s per user",
    "request_throughput": "requests/s",
    "request_goodput": "goodput, requests/s",
    "request_rate": "requests/s",
    "highest": "requests/s when saturated",
    "cost_per_million_output_tokens": "$ per million output tokens",
    "joules_per_output_token": "joules per output token",
    "images_per_second": "images/s",
    "total_bytes": "memory per GPU",
    "max_batch_size": "max batch",
    "gpus": "GPUs",
    "preemptions": "preemptions",
    "step_seconds": "step",
    "tokens_per_second": "tokens/s",
    "model_flops_utilization": "model FLOPs utilization",
    "days": "days",
    "cost": "cost",
}
SHORT = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2E"}
HIGHER_IS_BETTER = (
    "throughput",
    "goodput",
    "rate",
    "per_gpu",
    "per_user",
    "per_second",
    "utilization",
    "highest",
    "batch_size",
)


PartSeconds = dict[tuple[str, str], float]  # by phase and operator


class MetricChange(NamedTuple):
    """A metric of both results; ``change`` is relative, 0.1 is 10% more."""

    label: str
    before: float
    after: float
    change: float | None  # None: there was nothing before
    better: bool | None  # None: alike


class PartChange(NamedTuple):
    """An operator of a phase in both results, in seconds; None where a result does not have it."""

    phase: str
    part: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float:
        """Seconds more, or less."""
        return (self.after or 0.0) - (self.before or 0.0)

    @property
    def moved(self) -> bool:
        """Whether it takes another time: rounding in the last digits is none."""
        return abs(self.difference) > SAME * max(self.after or 0.0, self.before or 0.0)


class Comparison(Result):
    """What changes from one result to another of its kind; it shows itself as results do."""

    def __init__(self, before: Any, after: Any) -> None:
        kind = type(before).__name__
        if type(after) is not type(before) or kind not in FACTS:
            raise BadValue(f"`compare` takes another {kind}, not {type(after).__name__}")
        facts = FACTS[kind]
        self.before, self.after = repr(before), repr(after)
        self.metrics = _metric_changes(facts.metrics(before), facts.metrics(after))
        self.settings = _differences(facts.settings(before), facts.settings(after))
        moved = _part_changes(facts.parts(before), facts.parts(after))
        self.parts = sorted(moved, key=lambda part: -abs(part.difference))

    def __repr__(self) -> str:
        pieces = [f"{name} {_signed(one.change)}" for name, one in self.metrics.items() if one.change is not None]
        return f"<Comparison: {', '.join(pieces[:5]) or 'nothing in common'}>"

    def rows(self) -> list[dict[str, Any]]:
        """Metrics as rows of a table."""
        return [{"metric": name, **one._asdict()} for name, one in self.metrics.items()]

    def page(self) -> Page:
        """Both results by their first line, what differs, metrics, and the parts that moved most."""
        parts: list[Part] = [Paragraph(text.strip("<>"), style="bold") for text in (self.before, self.after)]
        if self.settings:
            parts.append(self._settings_table())
        elif self.metrics:
            parts.append(Paragraph("nothing is set otherwise", style="dim"))
        parts.append(self._metric_table())
        moved = [part for part in self.parts if part.moved]
        phases = dict.fromkeys(part.phase for part in moved)
        tables = (_moved_table(phase, [part for part in moved if part.phase == phase][:MOVED]) for phase in phases)
        return Page([*parts, *tables])

    def _settings_table(self) -> TextTable:
        table = TextTable(
            [Column("what differs", "<"), Column("before", "<", folds=True), Column("after", "<", folds=True)]
        )
        for name, (before, after) in self.settings.items():
            table.add_row(name, _text(before), _text(after))
        return table

    def _metric_table(self) -> TextTable:
        columns = [Column("", "<", name="metric"), Column("before"), Column("after", style="bold"), Column("change")]
        table = TextTable(columns, elsewhere="to_pandas()")
        for name, one in self.metrics.items():
            style = "" if one.better is None else "green" if one.better else "red"
            form = _form(name)
            table.add_row(one.label, form(one.before), form(one.after), Cell(_signed(one.change), style))
        return table


def compare(before: Any, after: Any) -> Comparison:
    """``compare(analyze("llama-3.1-8b"), analyze("llama-3.1-8b", quantization="fp8"))``"""
    return Comparison(before, after)


def _moved_table(phase: str, parts: list[PartChange]) -> TextTable:
    columns = [
        Column(f"{phase}: moved most", "<", folds=True),
        Column("before"),
        Column("after"),
        Column("difference", style="bold"),
    ]
    table = TextTable(columns, elsewhere="to_pandas()")
    for one in parts:
        sign = "+" if one.difference > 0 else "−"
        table.add_row(one.part, seconds(one.before), seconds(one.after), f"{sign}{seconds(abs(one.difference))}")
    return table


def _metric_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, MetricChange]:
    changes = {}
    for name, label in _labelled(before):
        old, new = before[name], after.get(name)
        if old is None or new is None:
            continue
        change = new / old - 1 if old else None if new else 0.0
        alike = new == old or (change is not None and abs(change) < SAME)
        better = None if alike else (new > old) is name.endswith(HIGHER_IS_BETTER)
        changes[name] = MetricChange(label, float(old), float(new), change, better)
    return changes


def _labelled(metrics: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names with their labels; ``mean_ttft_ms`` is ``TTFT, mean``."""
    labels = {}
    for name in metrics:
        statistic, _, rest = name.partition("_")
        latency = SHORT.get(rest.removesuffix("_ms"))
        labels[name] = LABELS.get(name) or (f"{latency}, {statistic}" if latency else name.replace("_", " "))
    return list(labels.items())


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*before, *after])
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def _part_changes(before: PartSeconds, after: PartSeconds) -> list[PartChange]:
    return [PartChange(*key, before.get(key), after.get(key)) for key in dict.fromkeys([*before, *after])]


def _form(name: str) -> Callable[[float], str]:
    """How a metric is written, by its name."""
    if name.endswith("_ms"):
        return milliseconds
    if name.endswith("_bytes"):
        return size
    if name.endswith("_seconds"):
        return seconds
    if name.endswith("utilization"):
        return percent
    if name.startswith("cost"):
        return lambda value: money(value, "" if "tokens" in name else "$")
    return lambda value: f"{value:,.0f}" if value >= 100 or float(value).is_integer() else figure(value)


def _signed(change: float | None) -> str:
    if change is None:
        return "–"
    if abs(change) < SAME:
        return "same"
    return f"{'+' if change > 0 else '−'}{percent(abs(change))}"


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple | list) and len(set(value)) < len(value):  # a number per layer: 2 × 640, 30 × 352
        return ", ".join(f"{len(list(run))} × {_text(one)}" for one, run in groupby(value))
    return f"{value:,}" if isinstance(value, int) else str(value)


# ------------------------------------------------------------------ what each kind of result has


class Facts(NamedTuple):
    """What is compared of a kind of result."""

    metrics: Callable[[Any], Mapping[str, Any]]
    settings: Callable[[Any], Mapping[str, Any]]
    parts: Callable[[Any], PartSeconds] = lambda result: {}


def _flat(*groups: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings as one, those inside with a dot: ``{"speculation.method": "mtp"}``"""
    flat: dict[str, Any] = {}
    for group in groups:
        for name, value in group.items():
            inner = _flat(value) if isinstance(value, Mapping) else None
            flat |= {name: value} if inner is None else {f"{name}.{key}": one for key, one in inner.items()}
    return flat


def _named(result: Any) -> dict[str, Any]:
    """Model, GPU and engine of a report."""
    engine = " ".join(filter(None, (result.engine["name"], result.engine.get("version"))))
    return {"model": result.model.name, "gpu": result.device["name"], "engine": engine}


def _report_metrics(report: Any) -> Mapping[str, Any]:
    metrics = {name: value for name, value in msgspec.to_builtins(report.metrics).items() if name in LABELS}
    return metrics | {"total_bytes": report.memory.total_bytes, "max_batch_size": report.memory.max_batch_size}


def _operators(report: Any) -> PartSeconds:
    """Seconds by phase and operator."""
    taken: PartSeconds = {}
    for phase, table in report.phases.items():
        for op in table.ops:
            taken[phase, op.name] = taken.get((phase, op.name), 0.0) + op.seconds
    return taken


def _run_metrics(outcome: Any) -> Mapping[str, Any]:
    from ..serving.metrics import metrics

    named = kept(outcome, "summarize") is not None
    result = outcome.summary() if named else metrics(outcome)
    names = ["request_throughput", "output_throughput", "request_goodput", "preemptions"]
    names += [f"{word}_{name}_ms" for name in ("ttft", "tpot", "itl", "e2el") for word in ("mean", "p99")]
    return {name: result.get(name) for name in names}


def _run_settings(result: Any) -> Mapping[str, Any]:
    """How a run was set up, where that is known."""
    settings = kept(result, "settings")
    return {} if settings is None else _flat(settings())


def _plan_metrics(result: Any) -> Mapping[str, Any]:
    winner = result.winner
    if winner is None:
        return {}
    return {**msgspec.to_builtins(winner.simulated or winner.priced), "gpus": winner.gpus}


def _search_settings(result: Any) -> Mapping[str, Any]:
    label = result.winner.label if result.winner is not None else "none"
    work = {name: result.workload[name] for name in ("input_len", "output_len", "request_rate", "trace")}
    own = {"winner": label, "model": result.model, "num_gpus": result.num_gpus, "engine": result.engine}
    return _flat(own, {"objective": result.objective}, work, {"goodput": result.goodput}, {"gpu": result.space["gpu"]})


def _train_metrics(report: Any) -> Mapping[str, Any]:
    names = ("step_seconds", "tokens_per_second", "model_flops_utilization", "days", "cost")
    return {**{name: getattr(report, name) for name in names}, "total_bytes": report.memory.total_bytes}


FACTS = {
    "Report": Facts(_report_metrics, lambda report: _flat(_named(report), report.plan, report.workload), _operators),
    "TrainReport": Facts(_train_metrics, lambda report: _flat(_named(report), report.plan, report.recipe), _operators),
    "Outcome": Facts(_run_metrics, _run_settings),
    "Search": Facts(_plan_metrics, _search_settings),
    "Capacity": Facts(
        lambda capacity: {"request_rate": capacity.request_rate, "highest": capacity.highest}, _run_settings
    ),
}
