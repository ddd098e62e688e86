"""A training step for people in a terminal: where the time goes, what fills the memory, every operator."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...base.units import count, percent, seconds, si, size
from ...costs.kernels import ORIGINS
from ...training.training_report import TrainMemory, TrainPhase, TrainReport

PARTS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "tp_comm": "tensor-parallel communication",
    "ep_comm": "expert all-to-all",
    "pp_comm": "pipeline sends",
    "dp_comm": "data-parallel communication",
    "pp_bubble": "pipeline bubble",
    "host": "host",
}
MEMORY_KINDS = (
    ("weights", "█", "blue"),
    ("gradients", "▓", "cyan"),
    ("optimizer", "▒", "green"),
    ("activation", "▚", "yellow"),
    ("working", "▞", "red"),
    ("overhead", "░", "magenta"),
)
WIDTH = 60


def training(report: TrainReport, every: bool = False) -> Group:
    """Header, verdict, rates, the step part by part, memory, operators of each pass."""
    parts: list[Any] = [Text(header(report), style="bold")]
    if not report.feasible:
        parts.append(Text(f"✗ does not work: {report.reason}", style="bold red"))
    parts += [Text(report.summary), Text(""), _rates(report), Text(""), _step(report), Text(""), _memory(report.memory)]
    parts += [_operators(name, phase, every) for name, phase in report.phases.items()]
    origins = {op.origin for phase in report.phases.values() for op in phase.ops}
    parts.append(
        Text("origin of each efficiency: " + "  ".join(f"{ORIGINS[o]} {o}" for o in ORIGINS if o in origins), "dim")
    )
    parts += [Text(f"! {warning}", style="yellow") for warning in report.warnings]
    return Group(*parts)


def header(report: TrainReport) -> str:
    """``llama-3.1-8b 8.03 B · bf16 · 8 × NVIDIA H100 · tp 2 pp 1 dp 4 · ZeRO-1 · batch 64 × 4,096 tokens``"""
    m, r, p = report.model, report.recipe, report.plan
    active = f" ({count(m.active_params)} active)" if m.active_params < 0.8 * m.params else ""
    lengths = r["seq_len"]
    text = f"{lengths:,}" if isinstance(lengths, int) else f"{max(lengths):,}…{min(lengths):,} (by layer)"
    layout = f"tp {p['tensor_parallel_size']} pp {p['pipeline_parallel_size']} dp {p['data_parallel_size']}"
    more = " sp" if p["sequence_parallel"] else ""
    more += " ep" if p["enable_expert_parallel"] else ""
    more += f" × {r['interleave']} virtual stages" if r["interleave"] > 1 else ""
    return (
        f"{m.name} {count(m.params)}{active} · {r['precision']} · {r['optimizer']} · {p['gpus']} × "
        f"{report.device['label'] or report.device['name']} · {layout}{more} · ZeRO-{r['zero']} · recompute "
        f"{r['recompute']} · batch {r['global_batch_size']:,} × {text} tokens"
    )


def _rates(report: TrainReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2), show_header=False)
    for justify in ("left", "right", "left", "right"):
        table.add_column(justify=justify)
    left = [
        ("step", f"{seconds(report.step_seconds)} (bound {seconds(report.roofline_step_seconds)})"),
        ("tokens/s", f"{report.tokens_per_second:,.0f}"),
        ("tokens/s per GPU", f"{report.tokens_per_second_per_gpu:,.0f}"),
    ]
    right = [
        ("model FLOPs utilization", percent(report.model_flops_utilization)),
        ("hardware FLOPs utilization", percent(report.hardware_flops_utilization)),
        ("micro-batches", f"{report.micro_batches:,} × {report.recipe['micro_batch_size']}"),
    ]
    if report.days is not None:
        price = f"${report.cost:,.0f}" if report.cost else "–"
        left.append((f"{si(report.recipe['tokens'])} tokens", f"{report.days:,.1f} days"))
        right.append((f"{report.gpu_hours:,.0f} GPU hours", price))
    for (a, b), (c, d) in zip(left, right, strict=True):
        table.add_row(a, Text(b, "bold"), c, Text(d, "bold"))
    return table


def _step(report: TrainReport) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify)
    for part, label in PARTS.items():
        took = getattr(report.breakdown, part)
        share = took / report.step_seconds
        if took:
            table.add_row(label, seconds(took), percent(share), Text("█" * round(share * WIDTH), "cyan"))
    return table


def _memory(m: TrainMemory) -> Group:
    """A bar against capacity, with the limit that may be used."""
    scale = max(m.capacity_bytes, m.total_bytes)
    bar, legend, used = Text("memory  ▕"), Text("         "), 0
    for kind, mark, colour in MEMORY_KINDS:
        amount = getattr(m, f"{kind}_bytes")
        cells = min(max(1, round(amount / scale * WIDTH)) if amount else 0, WIDTH - used)
        bar.append(mark * cells, colour)
        used += cells
        legend.append(f"{mark} ", colour)
        legend.append(f"{'activations' if kind == 'activation' else kind} {size(amount)}  ")
    bar.append(" " * (WIDTH - used) + "▏ ")
    bar.append(
        f"{size(m.total_bytes)} of {size(m.usable_bytes)} usable, {size(m.capacity_bytes)} in all",
        "red bold" if m.total_bytes > m.usable_bytes else "bold",
    )
    return Group(bar, legend)


def _operators(name: str, phase: TrainPhase, every: bool) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{name}: {seconds(phase.seconds)}",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title_style="bold",
    )
    for column, justify in (
        ("operator", "left"),
        ("calls", "right"),
        ("time", "right"),
        ("share", "right"),
        ("bound", "left"),
        ("FLOP", "right"),
        ("bytes", "right"),
        ("sent", "right"),
        ("eff.", "right"),
        ("", "center"),
    ):
        table.add_column(column, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    shown = [op for op in phase.ops if every or (op.seconds > 0 and op.share >= 0.0005)]
    for op in shown:
        amounts = (si(op.flops) if op.flops else "", *(size(x) if x else "" for x in (op.bytes, op.sent)))
        table.add_row(
            escape(op.name),
            f"{op.count:,.0f}",
            seconds(op.seconds),
            percent(op.share),
            op.bound,
            *amounts,
            percent(op.efficiency),
            ORIGINS.get(op.origin, "?"),
        )
    hidden = [op for op in phase.ops if op not in shown and op.seconds > 0]
    if hidden:
        table.add_row(
            f"{len(hidden)} more",
            "",
            seconds(sum(op.seconds for op in hidden)),
            percent(sum(op.share for op in hidden)),
        )
    return table
