"""A sweep for people in a terminal: how many points there are, the best of them, and why others cannot be used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...base.units import figure, milliseconds, money, percent, plural, seconds, si, size
from ...sweep.grid import Grid
from ...sweep.sweep import WORKLOAD_AXES, Digest, spread
from .document import Column, Page, Paragraph, Part, TextTable

if TYPE_CHECKING:
    from ...sweep.partitions import Tally
    from ...sweep.training_sweep import TrainingSweep

SHORT = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "batch_size": "batch",
    "decode_context_parallel_size": "dcp",
    "enable_expert_parallel": "ep",
    "sequence_parallel": "sp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "expert_tensor_parallel_size": "etp",
    "global_batch_size": "batch",
    "micro_batch_size": "micro-batch",
    "quantization": "weights",
    "kv_cache_dtype": "KV",
    "input_len": "input",
    "output_len": "output",
    "prefix_len": "prefix",
    "max_num_batched_tokens": "budget",
    "max_num_seqs": "seqs",
    "gpu_memory_utilization": "share",
}
REASONS = 4  # lines about why points cannot be used


def counted(digest: Digest | Tally, took: float | None) -> str:
    """``1,584 points, 1,203 feasible (75.9%), in 0.41 s``"""
    share = f" ({percent(digest.feasible / digest.points)})" if digest.feasible < digest.points else ""
    time = "" if took is None else f", in {seconds(took)}"
    return f"{plural(digest.points, 'point')}, {digest.feasible:,} feasible{share}{time}"


def summary(grid: Grid, digest: Digest, took: float | None = None) -> Page:
    """The result of a sweep, short enough for a screen."""
    fixed = [
        str(values[0]) if name in ("model", "gpu") else f"{short(name)} {values[0]}"
        for name, values in grid.axes.items()
        if len(values) == 1
    ]
    axes = [f"{len(values):,} {short(name)}" for name, values in grid.axes.items() if len(values) > 1]
    parts: list[Part] = [Paragraph(" · ".join([*fixed, " × ".join(axes)]).strip(" ·"), style="bold")]
    parts.append(Paragraph(counted(digest, took)))
    rows = digest.table()
    if rows:
        parts += [Paragraph(""), Paragraph(_caption(grid, digest, len(rows))), best_points(grid, rows)]
    kinds = reasons(digest.reasons)
    parts += [Paragraph(f"✗ {line}", style="dim" if rows else "red") for line in kinds[:REASONS]]
    if len(kinds) > REASONS:
        parts.append(Paragraph(f"  and {len(kinds) - REASONS} more reasons", style="dim"))
    return Page(
        [*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in spread(list(grid.warnings), REASONS))]
    )


TRAINING_ROWS = 12  # of the fastest points that are shown


def training_summary(table: TrainingSweep) -> Page:
    """A sweep over training: the fastest points that fit, and why others do not work."""
    fixed = [
        str(values[0]) if name in ("model", "gpu") else f"{short(name)} {values[0]}"
        for name, values in table.axes.items()
        if len(values) == 1
    ]
    axes = [f"{len(values):,} {short(name)}" for name, values in table.axes.items() if len(values) > 1]
    points, feasible = len(table.points), table.feasible
    share = f" ({percent(len(feasible) / points)})" if len(feasible) < points else ""
    parts: list[Part] = [Paragraph(" · ".join([*fixed, " × ".join(axes)]).strip(" ·"), style="bold")]
    parts.append(Paragraph(f"{plural(points, 'point')}, {len(feasible):,} feasible{share}"))
    best = sorted(feasible, key=lambda row: -row["tokens_per_second_per_gpu"])[:TRAINING_ROWS]
    if best:
        caption = f"{len(best)} of {plural(len(feasible), 'point')} with the most tokens/s per GPU"
        parts += [Paragraph(""), Paragraph(caption), _training_points(table, best)]
    why = reasons(Counter(str(row["reason"]) for row in table.points if row["reason"]))
    parts += [Paragraph(f"✗ {line}", style="dim" if best else "red") for line in why[:REASONS]]
    return Page([*parts, *(Paragraph(f"! {warning}", style="yellow") for warning in table.warnings)])


def _training_points(table: TrainingSweep, rows: list[dict[str, Any]]) -> TextTable:
    axes = [name for name, values in table.axes.items() if len(values) > 1]
    figures = {"step": 1, "tok/s/GPU": 0, "MFU": 2, "memory": 3}
    shown = TextTable(
        [
            *(Column(short(name), "<" if isinstance(rows[0][name], str) else ">") for name in axes),
            *(Column(title, priority=rank) for title, rank in figures.items()),
        ]
    )
    for row in rows:
        shown.add_row(
            *(_cell(row[name]) for name in axes),
            seconds(row["step_seconds"]),
            f"{row['tokens_per_second_per_gpu']:,.0f}",
            percent(row["model_flops_utilization"]),
            f"{size(row['total_bytes'])} of {size(row['usable_bytes'])}",
        )
    return shown


def short(name: str) -> str:
    """A column's name in few letters: ``short("tensor_parallel_size")  # 'tp'``"""
    return SHORT.get(name, name.replace("_", " "))


def reasons(counts: Mapping[str, int]) -> list[str]:
    """Reasons with their counts, the most frequent first; those that differ by numbers only are one line."""
    alike: dict[str, dict[str, int]] = {}
    for reason, number in counts.items():
        alike.setdefault(re.sub(r"\d[\d,.]*", "", reason), {})[reason] = number
    most = sorted(alike.values(), key=lambda kind: -sum(kind.values()))
    return [
        f"{plural(sum(kind.values()), 'point')}{', such as' if len(kind) > 1 else ''}: {next(iter(kind))}"
        for kind in most
    ]


def _caption(grid: Grid, digest: Digest, rows: int) -> str:
    if len(digest.fronts) == 1:
        front = len(next(iter(digest.fronts.values())))
        some = f"{rows} of {front} points" if front > rows else f"{front} points" if front > 1 else "the one point"
        return f"{some} on the Pareto front of tokens/s per user and tokens/s per GPU"
    workloads = 1
    for name in WORKLOAD_AXES:
        workloads *= len(grid.axes.get(name, (None,)))
    some = f"{rows} of {workloads:,} workloads" if workloads > rows else f"{rows} workloads"
    return f"{some}, each with the plan of most tokens/s per GPU"


def best_points(grid: Grid, rows: list[dict[str, Any]]) -> TextTable:
    """Rows with the axes that vary, and the figures that people ask for."""
    axes = [name for name, values in grid.axes.items() if len(values) > 1]
    figures = {"TTFT": 2, "TPOT": 1, "tok/s/user": 4, "tok/s/GPU": 0, "$/M out": 3, "memory": 5}
    table = TextTable(
        [
            *(Column(short(name), "<" if isinstance(rows[0][name], str) else ">") for name in axes),
            *(Column(title, priority=rank) for title, rank in figures.items()),
        ]
    )
    for row in rows:
        table.add_row(
            *(_cell(row[name]) for name in axes),
            milliseconds(row["ttft_ms"]),
            milliseconds(row["tpot_ms"]),
            _number(row["output_throughput_per_user"]),
            _number(row["output_throughput_per_gpu"]),
            money(row["cost_per_million_output_tokens"], ""),
            f"{size(row['total_bytes'])[:-3]} of {size(row['usable_bytes'])}",
        )
    return table


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float | None) -> str:
    return "–" if value is None else si(value) if value >= 1e6 else figure(value)
