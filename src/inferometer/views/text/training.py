"""A training step for people in a terminal: where the time goes, what fills the memory, every operator."""

from __future__ import annotations

from ...base.units import count, percent, seconds, si, size
from ...training.training_report import TrainMemory, TrainPhase, TrainReport
from ...training.training_run import TrainRun
from .document import Cell, Column, Draw, Page, Paragraph, Part, TextTable
from .terminal import LEAST, OPERATOR_COLUMNS, add_hidden_row, legend, memory_bar, origin_mark, unique_labels

PARTS = {
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "optimizer": "optimizer",
    "tp_comm": "tensor-parallel communication",
    "cp_comm": "context-parallel communication",
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
    ("buffers", "▓", "magenta"),
    ("overhead", "░", "magenta"),
)
WIDTH = 60
MAX_STAGES = 16  # of a table


def training(report: TrainReport, every: bool = False, least: float = LEAST) -> Page:
    """Header, verdict, rates, the step part by part, memory, operators of each pass."""
    parts: list[Part] = [Paragraph(header(report), style="bold")]
    if not report.feasible:
        parts.append(Paragraph(f"✗ infeasible: {report.reason}", style="bold red"))
    parts += [Paragraph(report.summary), Paragraph(""), _rates(report), Paragraph(""), _step(report), Paragraph("")]
    parts += [*_memory(report.memory), Paragraph("")]
    parts += [_stages(report), Paragraph("")] if len(report.stages) > 1 else []
    parts += [_operators(name, phase, every, least) for name, phase in report.phases.items()]
    parts += legend((op for phase in report.phases.values() for op in phase.ops), [])
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in report.warnings]
    return Page(parts)


def header(report: TrainReport) -> str:
    """``llama-3.1-8b 8.03 B · bf16 · 8 × NVIDIA H100 · tp 2 pp 1 dp 4 · ZeRO-1 · batch 64 × 4,096 tokens``"""
    m, r, p = report.model, report.recipe, report.plan
    active = f" ({count(m.active_params)} active)" if m.active_params < 0.8 * m.params else ""
    lengths = r["seq_len"]
    text = f"{lengths:,}" if isinstance(lengths, int) else f"{max(lengths):,}…{min(lengths):,} (by layer)"
    layout = f"tp {p['tensor_parallel_size']} pp {p['pipeline_parallel_size']} dp {p['data_parallel_size']}"
    more = f" cp {p['context_parallel_size']}" if p["context_parallel_size"] > 1 else ""
    more += " sp" if p["sequence_parallel"] else ""
    more += f" ep {p['expert_model_parallel_size']}" if p["expert_model_parallel_size"] > 1 else ""
    more += f" × {r['interleave']} virtual stages" if r["interleave"] > 1 else ""
    return (
        f"{m.name} {count(m.params)}{active} · {r['precision']} · {r['optimizer']} · {p['gpus']} × "
        f"{report.device['label'] or report.device['name']} · {layout}{more} · ZeRO-{r['zero']} · recompute "
        f"{r['recompute']} · batch {r['global_batch_size']:,} × {text} tokens"
    )


def _rates(report: TrainReport) -> TextTable:
    table = TextTable([Column("", "<"), Column("", "<", style="bold", folds=True)], header=False)
    table.add_row("step", f"{seconds(report.step_seconds)} (bound {seconds(report.roofline_step_seconds)})")
    table.add_row("tokens/s", f"{report.tokens_per_second:,.0f}")
    table.add_row("tokens/s per GPU", f"{report.tokens_per_second_per_gpu:,.0f}")
    table.add_row("model FLOPs utilization (MFU)", percent(report.model_flops_utilization))
    table.add_row("hardware FLOPs utilization (HFU)", percent(report.hardware_flops_utilization))
    table.add_row("micro-batches", f"{report.micro_batches:,} × {report.recipe['micro_batch_size']}")
    for label, value in run_lines(report.run):
        table.add_row(label, value)
    return table


def run_lines(run: TrainRun | None) -> list[tuple[str, str]]:
    """What is said of a whole run: ``[("1 T tokens", "12.3 days"), …]``; nothing without a budget of tokens."""
    if run is None:
        return []
    lines = [(f"{si(run.tokens)} tokens", f"{run.days:,.1f} days, {run.steps:,.0f} steps")]
    lines += [("GPU-hours", f"{run.gpu_hours:,.0f}"), ("cost", f"${run.cost:,.0f}" if run.cost else "–")]
    if run.checkpoint_interval_s is not None:
        often = seconds(run.checkpoint_interval_s)
        best = " (Young/Daly's optimum)" if run.checkpoint_interval_origin != "given" else ""
        lines.append(("goodput", f"{percent(run.goodput)} with a checkpoint every {often} of training{best}"))
    if run.mtbf_hours is not None:
        lines.append(("failures", f"{run.failures:,.0f} expected, one in {seconds(run.mtbf_hours * 3600)}"))
    return lines


def _step(report: TrainReport) -> TextTable:
    name = Column("", "<", folds=True)
    table = TextTable([name, Column(""), Column(""), Column("", "<", elastic=WIDTH)], header=False)
    for part, label in PARTS.items():
        took = getattr(report.breakdown, part)
        if took:
            share = took / report.step_seconds
            table.add_row(label, seconds(took), percent(share), _share_bar(share))
    return table


def _share_bar(share: float) -> Draw:
    return lambda width: [Cell("█" * round(share * width), "cyan")]


def _memory(m: TrainMemory) -> list[Part]:
    """A bar against capacity, with the limit that may be used."""
    names = {"activation": "activations"}
    pieces = [(names.get(kind, kind), getattr(m, f"{kind}_bytes"), mark, color) for kind, mark, color in MEMORY_KINDS]
    return memory_bar(pieces, m.total_bytes, m.usable_bytes, m.capacity_bytes)


def _stages(report: TrainReport) -> TextTable:
    """What every pipeline stage holds at its peak and how long it waits; of many, those that matter."""
    stages = report.stages
    kept = "passes kept" if report.recipe["interleave"] > 1 else "in flight"
    columns = [Column("stage", "<"), Column("layers", priority=2), Column("weights", priority=4)]
    columns += [Column("gradients", priority=5), Column("optimizer", priority=5), Column("activations", priority=3)]
    table = TextTable([*columns, Column(kept, priority=1), Column("memory"), Column("idle")], "stages at their peak")
    slowest = max(stages, key=lambda stage: stage.busy_seconds)
    shown = stages if len(stages) <= MAX_STAGES else [stages[0], stages[1], stages[report.memory.stage], slowest]
    shown = sorted({stage.stage: stage for stage in (*shown, stages[-1])}.values(), key=lambda stage: stage.stage)
    for stage in shown:
        held = (stage.weights_bytes, stage.gradients_bytes, stage.optimizer_bytes, stage.activation_bytes)
        idle = percent(stage.idle_seconds / report.step_seconds)
        flying = f"{sum(stage.in_flight):,}"
        table.add_row(str(stage.stage), str(stage.layers), *map(size, held), flying, size(stage.total_bytes), idle)
    if len(shown) < len(stages):
        table.add_row(f"{len(stages) - len(shown)} more", style="dim")
    return table


def _operators(name: str, phase: TrainPhase, every: bool, least: float) -> TextTable:
    table = TextTable(
        [
            *OPERATOR_COLUMNS,
            Column("FLOP", priority=4),
            Column("bytes", priority=5),
            Column("sent", priority=6),
            Column("eff.", priority=2),
            Column("", "^", priority=2, name="origin"),
        ],
        f"{name}: {seconds(phase.seconds)}",
    )
    shown = [op for op in phase.ops if every or (op.seconds > 0 and op.share >= least)]
    labels = unique_labels(phase.ops)
    for op in shown:
        amounts = (si(op.flops) if op.flops else "", *(size(x) if x else "" for x in (op.bytes, op.sent)))
        table.add_row(
            labels[id(op)],
            f"{op.count:,.0f}",
            seconds(op.seconds),
            Cell(percent(op.share), bar=op.share),
            op.bound,
            *amounts,
            percent(op.efficiency),
            origin_mark(op.origin),
        )
    add_hidden_row(table, phase.ops, shown)
    return table
