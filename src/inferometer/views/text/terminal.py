"""Reports on a terminal, for two minutes of reading."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TextIO

from ...base.units import count, figure, milliseconds, money, percent, plural, seconds, si, size
from ...costs.kernels import ORIGINS
from ...inference.expected_error import error_sentences
from ...inference.explain import Explanation
from ...inference.report import ExpectedError, Memory, OpRow, Phase, Report
from ...specs.arguments import flag
from .document import Cell, Column, Page, Paragraph, Part, StackedBar, TextTable

LEAST = 0.0005  # of a phase's time: operators with less are summed up
TIER_LABELS = {"gpu": "GPU", "cpu": "CPU memory", "disk": "disk", "shared": "shared store"}
QUIET = ("host", "wait", "draft")  # rows without work of their own
BOUND_WORD = {"communication": "link"}
BOUND_STYLE = {"memory": "cyan", "compute": "yellow", "communication": "magenta", "host": "red"}

OPERATOR_COLUMNS = (  # that the operators of every phase begin with
    Column("operator", "<", folds=True),
    Column("calls", priority=3),
    Column("time"),
    Column("share"),
    Column("bound", "<", priority=1),
)


def screen_width(stream: TextIO | None = None) -> int | None:
    """Columns of the terminal, or as many as COLUMNS says; None where there is neither: lines are not wrapped."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    try:
        return os.get_terminal_size((stream or sys.stdout).fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # a pipe, a file, or nothing at all
        return None


def has_color() -> bool:
    """Whether the output is a terminal with colours, and its owner wants them (no-color.org)."""
    terminal = os.environ.get("TERM", "")
    if os.environ.get("NO_COLOR") or terminal == "dumb":
        return False
    if os.name == "nt" and not (terminal or os.environ.get("WT_SESSION")):  # the old console shows codes as text
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stdout is not None and sys.stdout.isatty())


def analysis(report: Report, every: bool = False, least: float = LEAST) -> Page:
    """Header, what limits, metrics beside the bound, memory, operators."""
    parts: list[Part] = [Paragraph(header(report), style="bold")]
    if not report.feasible:
        parts.append(Paragraph(f"✗ infeasible: {report.reason}", style="bold red"))
    if report.plan["placement"]:
        layout = " · ".join(f"{axis} {place}" for axis, place in report.plan["placement"].items())
        parts.append(Paragraph(f"layout: {layout}", style="dim"))
    if report.engine["defaults"]:
        parts.append(Paragraph(engine_defaults(report.engine), style="dim"))
    parts += [Paragraph(report.summary), Paragraph(""), _metrics(report), *expected_error(report.expected_error)]
    if report.turns:
        parts.append(_turns(report))
    parts += [*_memory(report.memory), *_tiers(report), Paragraph(""), *command_flags(report), *tried_changes(report)]
    parts += [_operators(name, phase, report, every, least) for name, phase in report.phases.items()]
    parts += legend((op for phase in report.phases.values() for op in phase.ops), report.engine.get("kernels_of", []))
    parts += [Paragraph(f"! {warning}", style="yellow") for warning in report.warnings]
    return Page(parts)


def command_flags(report: Report) -> list[Part]:
    """The flags of a server's command that the plan was read from, and what each is here."""
    if report.server_command is None or not report.server_command.flags:
        return []
    columns = (
        Column("flag of the command", "<", folds=True),
        Column("value", "<", folds=True, priority=1),
        Column("here", "<"),
        Column("what it is", "<", folds=True),
    )
    table = TextTable(columns, elsewhere="--json")
    for use in report.server_command.flags:
        style = {"not modelled": "yellow", "unknown": "red"}.get(use.status, "")
        same = use.argument and f"= {flag(use.argument)}"
        table.add_row(use.flag, use.value, use.status, ", ".join(filter(None, (same, use.note))), style=style)
    return [table]


def tried_changes(report: Report) -> list[Part]:
    """Which flags are worth changing: each change was tried, alone."""
    if report.server_command is None or not report.feasible:
        return []
    if not report.tried:
        return [Paragraph("No change of one flag makes TTFT, TPOT or tokens/s per GPU 2% better."), Paragraph("")]
    columns = (
        Column("worth changing (each tried alone)", "<", folds=True),
        Column("GPUs", priority=1),
        Column("TTFT"),
        Column("TPOT"),
        Column("tokens/s per GPU"),
    )
    table = TextTable(columns, elsewhere="--json")
    for one in report.tried:
        moved = (one.ttft, one.tpot, one.output_throughput_per_gpu)
        table.add_row(
            one.flags,
            str(one.gpus),
            *("" if move is None else f"{move + 0.0:+.1%}".replace("-0.0%", "+0.0%") for move in moved),
        )
    notes = dict.fromkeys(one.note for one in report.tried if one.note)
    return [table, *(Paragraph(note, style="dim") for note in notes)]


def expected_error(errors: Mapping[str, ExpectedError]) -> list[Part]:
    """How far such predictions were off where something was measured."""
    return [Paragraph(f"expected error: {sentence}", style="dim") for sentence in error_sentences(errors)]


def legend(ops: Iterable[Any], lenders: list[str]) -> list[Part]:
    """What the marks of the operators mean, and whose kernels a device without measurements borrows."""
    origins = {op.origin for op in ops if op.seconds > 0}
    of = f" to kernels of the {' and '.join(name.upper() for name in lenders)}" if lenders else ""
    texts = {
        "measured": "measured at this shape",
        "fitted": f"fitted{of}",
        "assumed": "assumed",
        "given": "given by --efficiency",
        "ideal": "the roofline itself",
    }
    marks = " · ".join(f"{ORIGINS[o]} {texts[o]}" for o in ORIGINS if o in origins)
    return [Paragraph(f"origin of each efficiency: {marks}", style="dim")] if marks else []


def origin_mark(origin: str) -> Cell:
    """``●``, in ASCII ``measured``"""
    return Cell(ORIGINS.get(origin, "?"), ascii=origin)


def header(report: Report) -> str:
    """``llama-3.1-8b 8.03 B · bf16 · 1 × NVIDIA H200 · vLLM · batch 8 · 1,024 in · 128 out``"""
    m, w, plan = report.model, report.workload, report.plan
    active = f" ({count(m.active_params)} active)" if m.active_params < 0.8 * m.params else ""
    kv = "" if plan["kv_cache_dtype"] == plan["dtype"] else f", KV {plan['kv_cache_dtype']}"
    lengths = w["input_len"]
    text = f"{lengths:,}" if isinstance(lengths, int) else f"{max(lengths):,}…{min(lengths):,} per layer"
    if w["turns"]:
        text = " + ".join(f"{t['input_len']}→{t['output_len']}" for t in w["turns"])
    out = f" · {w['output_len']:,} out" if report.metrics.tpot_ms is not None and not w["turns"] else ""
    more = f" · {w['beam_width']} beams" if w["beam_width"] > 1 else ""
    if w["images"]:
        more += f" · {w['images']['count']} image {w['images']['height']}×{w['images']['width']}"
    gpus = f"{plan['gpus']} × {report.device['label'] or report.device['name']}"
    label = " ".join(filter(None, (report.engine["label"] or report.engine["name"], report.engine["version"])))
    return (
        f"{m.name} {count(m.params)}{active} · {plan['quantization']}{kv} · {gpus} · {label} · "
        f"batch {w['batch_size']:,} · {text} {'patches per image' if m.kind == 'diffusion' else f'in{out}'}{more}"
    )


_DEFAULT_TEXTS = {
    "max_num_batched_tokens": "{:,} tokens/step",
    "max_num_seqs": "{:,} sequences",
    "gpu_memory_utilization": "{:g} of memory",
    "max_cudagraph_capture_size": "CUDA graphs up to {:,} tokens",
    "prefill_graph_tokens": "prefill graphs up to {:,} tokens",
}


def engine_defaults(engine: dict[str, Any]) -> str:
    """``defaults: 8,192 tokens/step · 1,024 sequences · …``; JSON says why, `show` from where."""
    values = {default["name"]: default["value"] for default in engine["defaults"]}
    texts = [template.format(values[name]) for name, template in _DEFAULT_TEXTS.items() if name in values]
    return "defaults: " + " · ".join(texts) + (f" · host: {engine['host']}" if engine["host"] else "")


def _metrics(report: Report) -> TextTable:
    columns = [Column("", "<", name="metric"), _predicted(report), Column("bound", priority=1)]
    table = TextTable([*columns, Column("bound ÷ predicted", priority=2)], elsewhere="--json")
    m, b = report.metrics, report.roofline
    if report.model.kind == "diffusion":
        return _image_metrics(table, report)
    for name, value, bound in (
        ("time to first token (TTFT)", m.ttft_ms, b.ttft_ms),
        ("time per output token (TPOT)", m.tpot_ms, b.tpot_ms),
    ):
        table.add_row(name, milliseconds(value), milliseconds(bound), _ratio(bound, value))
    table.add_row("end to end (E2E)", milliseconds(m.e2el_ms))
    table.add_row("prompt tokens/s", _rate(m.prefill_throughput))
    table.add_row("output tokens/s", _rate(m.output_throughput))
    table.add_row("$ per million output tokens", money(m.cost_per_million_output_tokens or None, ""))
    table.add_row("joules per output token", figure(m.joules_per_output_token))
    table.add_row("watts per GPU", figure(m.watts_per_gpu))
    return table


def _image_metrics(table: TextTable, report: Report) -> TextTable:
    """The figures of a model that draws."""
    m, b, steps = report.metrics, report.roofline, report.workload["num_inference_steps"]
    whole = None if b.ttft_ms is None else b.ttft_ms * steps
    table.add_row("denoising step", milliseconds(m.ttft_ms), milliseconds(b.ttft_ms), _ratio(b.ttft_ms, m.ttft_ms))
    name = f"image of {plural(steps, 'step')}"
    table.add_row(name, milliseconds(m.image_latency_ms), milliseconds(whole), _ratio(whole, m.image_latency_ms))
    table.add_row("images/s", figure(m.images_per_second))
    table.add_row("$ per 1,000 images", money(m.cost_per_thousand_images, ""))
    table.add_row("joules per image", figure(m.joules_per_image))
    return table


def _predicted(report: Report) -> Column:
    """The column of the figures: those of a plan that cannot run are dim, and say so."""
    if report.infeasibility is None:
        return Column("predicted", style="bold")
    return Column("if it fitted" if report.infeasibility.kind == "memory" else "if it ran", style="dim")


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _ratio(bound: float | None, value: float | None) -> str:
    return percent(bound / value) if bound and value else ""


def _turns(report: Report) -> TextTable:
    ranks = {"turn": 0, "context before": 3, "in": 2, "out": 2, "TTFT": 0, "TPOT": 0, "total": 1}
    table = TextTable([Column(name, priority=rank) for name, rank in ranks.items()], "turns", elsewhere="--json")
    for number, t in enumerate(report.turns, start=1):
        table.add_row(
            str(number),
            f"{t.context:,}",
            f"{t.input_len:,}",
            f"{t.output_len:,}",
            milliseconds(t.ttft_ms),
            milliseconds(t.tpot_ms),
            milliseconds(t.e2el_ms),
        )
    return table


def _tiers(report: Report) -> list[Part]:
    """The tiers of the KV cache: how large, and what TTFT is with the cached prefix there."""
    if not report.kv_tiers:
        return []
    ranks = {"a replica": 0, "a node": 2, "tokens": 1, "loads in": 1, "TTFT": 0}
    columns = [Column(name, priority=rank) for name, rank in ranks.items()]
    table = TextTable([Column("", "<", name="KV cache"), *columns], elsewhere="--json")
    for tier in report.kv_tiers:
        table.add_row(
            TIER_LABELS[tier.name],
            f"{tier.size_bytes / 2**30:,.4g} GiB",
            "–" if tier.name == "shared" else f"{tier.node_bytes / 2**30:,.4g} GiB",
            "–" if tier.tokens is None else f"{tier.tokens:,}",
            "–" if tier.name == "gpu" else milliseconds(tier.load_ms),
            milliseconds(tier.ttft_ms),
        )
    return [Paragraph(""), table]


def _memory(m: Memory) -> list[Part]:
    """A bar against capacity, with the limit the engine may use."""
    cache = [("KV cache", m.kv_cache_bytes, "▓", "cyan")] if m.kv_cache_bytes or m.kv_bytes_per_token else []
    pieces = [
        ("weights", m.weights_bytes, "█", "blue"),
        *cache,
        ("activations", m.activation_bytes, "▒", "yellow"),
        ("overhead", m.overhead_bytes, "░", "magenta"),
    ]
    tokens = f" · room for {m.max_total_tokens:,} tokens of KV cache" if m.max_total_tokens else ""
    per = f" · {kv_per_token(m)}" if m.kv_bytes_per_token else ""
    most = f"max batch {m.max_batch_size:,}" + (" at these lengths" if m.kv_bytes_per_token else "")
    return [
        *memory_bar(pieces, m.total_bytes, m.usable_bytes, m.capacity_bytes),
        Paragraph(f"        {most}{tokens}{per}"),
    ]


def memory_bar(pieces: list[tuple[str, float, str, str]], total: float, usable: float, capacity: float) -> list[Part]:
    """Amounts by name, mark and colour, as a bar against the capacity and as a line."""
    amounts = f"{size(total)} of {size(usable)} usable, {size(capacity)} in all"
    bar = TextTable([Column("", "<"), Column("", "<", elastic=62), Column("", "<", folds=True)], header=False)
    bar.add_row(
        "memory",
        StackedBar(pieces, usable, max(capacity, total)),
        Cell(amounts, "red bold" if total > usable else "bold"),
    )
    texts: list[str | Cell] = ["        "]
    for name, amount, mark, colour in pieces:
        texts += [Cell(f"{mark}\u00a0", colour, ascii=""), f"{name} {size(amount)}".replace(" ", "\u00a0") + "  "]
    return [bar, Paragraph(*texts)]


def kv_per_token(m: Memory) -> str:
    """``131 kB per token``; where windows or states make it less for long requests, of those and of short ones."""
    short = m.kv_bytes_per_token
    if m.max_total_tokens:
        long = m.kv_capacity_bytes / m.max_total_tokens
        if abs(long / short - 1) > 0.02:
            return f"{size(long)} per token ({size(short)} while short)"
    return f"{size(short)} per token"


def _operators(name: str, phase: Phase, report: Report, every: bool, least: float) -> TextTable:
    steps = f" in {phase.steps:,.0f} steps" if phase.steps > 1 else ""
    table = TextTable(
        [
            *OPERATOR_COLUMNS,
            Column("achieved / peak", priority=4),
            Column("eff.", priority=2),
            Column("", "^", priority=2, name="origin"),
            Column("shape", "<", priority=5),
        ],
        f"{'denoising step' if report.model.kind == 'diffusion' else name}: {seconds(phase.seconds)}{steps}",
    )
    shown = [op for op in phase.ops if every or (op.seconds > 0 and op.share >= least)]
    labels = unique_labels(phase.ops)
    blocks = list(dict.fromkeys(op.block for op in shown))
    here = ""
    for op in shown:
        if len(blocks) > 4 and op.block != here:  # more than embedding, one kind of layer, head and engine
            here = op.block
            took = sum(o.seconds for o in phase.ops if o.block == here)
            table.add_row(here, "", seconds(took), style="dim italic")
        table.add_row(
            labels[id(op)],
            f"{op.count:,.0f}",
            seconds(op.seconds),
            Cell(percent(op.share), bar=op.share),
            Cell(BOUND_WORD.get(op.bound, op.bound), BOUND_STYLE.get(op.bound, "")),
            _achieved(op, report),
            percent(op.efficiency) if op.bound not in QUIET else "",
            origin_mark(op.origin),
            _shape(op),
        )
        if op.kind == "wait":
            _other_stages(table, phase, every)
    add_hidden_row(table, phase.ops, shown)
    return table


def unique_labels(ops: Sequence[Any]) -> dict[int, str]:
    """Names by operator (its id); of those that come twice, with what they follow: ``all_reduce after o_proj``"""
    times = Counter(op.name for op in ops)
    before = {id(op): last.name for last, op in pairwise(ops)}
    return {
        id(op): f"{op.name} after {before[id(op)]}" if times[op.name] > 1 and id(op) in before else op.name
        for op in ops
    }


def add_hidden_row(table: TextTable, ops: Sequence[Any], shown: Sequence[Any]) -> None:
    """The last row: how many operators are not shown, and what they take together."""
    hidden = [op for op in ops if op not in shown and op.seconds > 0]
    if hidden:
        took, share = sum(op.seconds for op in hidden), sum(op.share for op in hidden)
        table.add_row(f"{len(hidden)} more", "", seconds(took), percent(share), style="dim")


def _other_stages(table: TextTable, phase: Phase, every: bool) -> None:
    """Below the row in which a pipeline stage waits: what the others do meanwhile."""
    for row in phase.other_stages if every else phase.other_stages[:6]:
        bound = Cell(BOUND_WORD.get(row.bound, row.bound), f"dim {BOUND_STYLE.get(row.bound, '')}".strip())
        table.add_row(Cell(f"  {row.name}", "dim"), "", seconds(row.seconds), percent(row.share), bound)


def _achieved(op: OpRow, report: Report) -> str:
    if not op.seconds or op.bound in QUIET:
        return ""
    if op.bound == "compute":
        return f"{_unit(op.flops / op.seconds, op.flops / (op.roofline_seconds or op.seconds))}FLOP/s"
    if op.bound == "communication":
        return f"{si(op.sent / op.seconds, 'B/s')}"
    return f"{_unit(op.bytes / op.seconds, report.device['memory_bandwidth'])}B/s"


def _unit(value: float, peak: float) -> str:
    scale, prefix = next(((s, p) for s, p in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if peak >= s), (1e6, "M"))
    return f"{figure(value / scale)} / {figure(peak / scale)} {prefix}"


def _shape(op: OpRow) -> str:
    """``1024×4096 → 6144``: what goes in, and what of it changes."""
    first = next(iter(op.shape.values()), [])
    last = op.shape.get("output") or []
    if len(last) > 1 and last[0] == first[0]:
        last = last[1:]
    return " → ".join("×".join(f"{v:.0f}" if v >= 10 else f"{v:.3g}" for v in vs) for vs in (first, last) if vs)


def explanation(explanations: list[Explanation]) -> Page:
    """Formulas, values and origin of an operator, phase by phase."""
    parts: list[Part] = []
    for e in explanations:
        parts.append(Paragraph(f"{e.op} in {e.block}, {e.phase}: {e.count} × {seconds(e.seconds)}", style="bold"))
        if e.bound in QUIET:
            parts += [Paragraph(f"  {ORIGINS.get(e.origin, '?')} {e.origin}: {e.note}"), Paragraph("")]
            continue
        columns = [Column("quantity", "<"), Column("formula", "<", style="green", folds=True), Column("value", "<")]
        table = TextTable(columns, header=False)
        values: dict[str, float] = {}
        for line in e.lines:
            result = f"= {_amount(line.quantity, line.result)}"
            table.add_row(f"  {line.quantity}", line.formula, Cell(result, "bold"))
            values |= line.values
        parts.append(table)
        put_in = ", ".join(f"{k} = {v:,.6g}".replace(" ", "\u00a0") for k, v in values.items())
        parts += [
            Paragraph(f"  with {put_in}", style="dim"),
            Paragraph(
                f"  at peak: compute {seconds(e.compute_seconds)}, memory {seconds(e.memory_seconds)}, link "
                f"{seconds(e.link_seconds)} → {e.bound}-bound, roofline {seconds(e.roofline_seconds)}"
            ),
            Paragraph(f"  {ORIGINS.get(e.origin, '?')} {e.origin}: {percent(e.efficiency)} of the roofline; {e.note}"),
            Paragraph(""),
        ]
    return Page(parts or [Paragraph("no work in this workload")])


def _amount(quantity: str, value: float) -> str:
    if quantity == "flops":
        return si(value, "FLOP")
    return f"{value:,.0f}" if quantity in ("hops",) else count(value) if quantity == "params" else size(value)
