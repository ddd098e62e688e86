"""Reports on a terminal, for two minutes of reading."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ...base.units import count, milliseconds, percent, seconds, si, size
from ...costs.kernels import ORIGINS
from ...inference.explain import Explanation
from ...inference.report import Memory, OpRow, Phase, Report

QUIET = ("host", "wait", "draft")  # rows without work of their own
BOUND_WORD = {"communication": "link"}
BOUND_STYLE = {"memory": "cyan", "compute": "yellow", "communication": "magenta", "host": "red"}


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; wide enough for the tables where there is none."""
    width = None if sys.stdout.isatty() else max(110, shutil.get_terminal_size((110, 40)).columns)
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def analysis(report: Report, every: bool = False) -> Group:
    """Header, what limits, metrics beside the bound, memory, operators."""
    parts: list[Any] = [Text(header(report), style="bold")]
    if not report.feasible:
        parts.append(Text(f"✗ does not work: {report.reason}", style="bold red"))
    if report.plan["placement"]:
        layout = " · ".join(f"{axis} {place}" for axis, place in report.plan["placement"].items())
        parts.append(Text(f"layout: {layout}", style="dim"))
    if report.engine["defaults"]:
        parts.append(Text(engine_defaults(report.engine), style="dim"))
    parts += [Text(report.summary), Text(""), _metrics(report)]
    if report.turns:
        parts.append(_turns(report))
    parts += [Text(""), _memory(report.memory)]
    parts += [_operators(name, phase, report, every) for name, phase in report.phases.items()]
    origins = {op.origin for phase in report.phases.values() for op in phase.ops if op.seconds > 0}
    parts.append(
        Text("origin of each efficiency: " + "  ".join(f"{ORIGINS[o]} {o}" for o in ORIGINS if o in origins), "dim")
    )
    parts += [Text(f"! {warning}", style="yellow") for warning in report.warnings]
    return Group(*parts)


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
        f"batch {w['batch_size']:,} · {text} in{out}{more}"
    )


_DEFAULT_TEXTS = {
    "max_num_batched_tokens": "{:,} tokens a step",
    "max_num_seqs": "{:,} sequences",
    "gpu_memory_utilization": "{:g} of memory",
    "max_cudagraph_capture_size": "CUDA graphs up to {:,}",
    "prefill_graph_tokens": "of prompts up to {:,}",
}


def engine_defaults(engine: dict[str, Any]) -> str:
    """``by default: 8,192 tokens a step · 1,024 sequences · 0.92 of memory · …``; JSON says why, `show` from where."""
    values = {default["name"]: default["value"] for default in engine["defaults"]}
    texts = [template.format(values[name]) for name, template in _DEFAULT_TEXTS.items() if name in values]
    return "by default: " + " · ".join(texts) + (f" · host: {engine['host']}" if engine["host"] else "")


def _metrics(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for name in ("", "predicted", "bound", "of bound", "", ""):
        table.add_column(name, justify="right" if name else "left", style="bold" if name == "predicted" else "")
    m, b = report.metrics, report.roofline
    first = (
        "time to first token" if m.tpot_ms is not None or report.model.family != "dit" else "time per denoising step"
    )
    left = [
        (first, milliseconds(m.ttft_ms), milliseconds(b.ttft_ms), _ratio(b.ttft_ms, m.ttft_ms)),
        ("time per output token", milliseconds(m.tpot_ms), milliseconds(b.tpot_ms), _ratio(b.tpot_ms, m.tpot_ms)),
        ("end to end", milliseconds(m.e2el_ms), "", ""),
        ("", "", "", ""),
    ]
    right = [
        ("prompt tokens/s", _rate(m.prefill_throughput)),
        ("output tokens/s", _rate(m.output_throughput)),
        (
            "$ per million output tokens",
            f"{m.cost_per_million_output_tokens:.3g}" if m.cost_per_million_output_tokens else "–",
        ),
        ("joules per output token", f"{m.joules_per_output_token:.3g}" if m.joules_per_output_token else "–"),
    ]
    for a, c in zip(left, right, strict=True):
        table.add_row(*a, *c)
    return table


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _ratio(bound: float | None, value: float | None) -> str:
    return percent(bound / value) if bound and value else ""


def _turns(report: Report) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="turns", title_justify="left", pad_edge=False)
    for name in ("turn", "context before", "in", "out", "TTFT", "TPOT", "total"):
        table.add_column(name, justify="right")
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


def _memory(m: Memory, width: int = 60) -> Group:
    """A bar against capacity, with the limit the engine may use."""
    pieces = [
        ("weights", m.weights_bytes, "█", "blue"),
        ("KV cache", m.kv_cache_bytes, "▓", "cyan"),
        ("activations", m.activation_bytes, "▒", "yellow"),
        ("overhead", m.overhead_bytes, "░", "magenta"),
    ]
    scale = max(m.capacity_bytes, m.total_bytes)
    bar, used = Text("memory  ▕"), 0
    for _, amount, mark, colour in pieces:
        cells = max(1, round(amount / scale * width)) if amount else 0
        cells = max(0, min(cells, width - used))
        bar.append(mark * cells, colour)
        used += cells
    limit = min(width - 1, round(m.usable_bytes / scale * width))
    rest = [" "] * (width - used)
    if used <= limit < width:
        rest[limit - used] = "┊"
    bar.append("".join(rest) + "▏ ")
    bar.append(
        f"{size(m.total_bytes)} of {size(m.usable_bytes)} usable, {size(m.capacity_bytes)} in all",
        "red bold" if m.total_bytes > m.usable_bytes else "bold",
    )
    legend = Text("         ")
    for name, amount, mark, colour in pieces:
        legend.append(f"{mark} ", colour)
        legend.append(f"{name} {size(amount)}  ")
    tokens = f" · room for {m.max_total_tokens:,} tokens of KV cache" if m.max_total_tokens else ""
    per = f" · {kv_per_token(m)}" if m.kv_bytes_per_token else ""
    most = f"         max batch {m.max_batch_size:,} at these lengths"
    return Group(bar, legend, Text(most + tokens + per))


def kv_per_token(m: Memory) -> str:
    """``131 kB per token``; where windows or states make it less for long requests, of those and of short ones."""
    short = m.kv_bytes_per_token
    if m.max_total_tokens:
        long = m.kv_capacity_bytes / m.max_total_tokens
        if abs(long / short - 1) > 0.02:
            return f"{size(long)} per token ({size(short)} while short)"
    return f"{size(short)} per token"


def _operators(name: str, phase: Phase, report: Report, every: bool) -> Table:
    steps = f" in {phase.steps:,.0f} steps" if phase.steps > 1 else ""
    table = Table(
        box=box.SIMPLE_HEAD,
        title=f"{name}: {seconds(phase.seconds)}{steps}",
        title_justify="left",
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title_style="bold",
    )
    longest = max((len(op.name) for op in phase.ops), default=8)
    for column, justify, width in (
        ("operator", "left", min(28, longest)),
        ("calls", "right", 5),
        ("time", "right", 7),
        ("share", "right", 5),
        ("bound", "left", 7),
        ("achieved / peak", "right", 17),
        ("eff.", "right", 5),
        ("", "center", 1),
        ("shape", "left", None),
    ):
        table.add_column(column, justify=justify, no_wrap=True, min_width=width)  # type: ignore[arg-type]
    shown = [op for op in phase.ops if every or (op.seconds > 0 and op.share >= 0.0005)]
    blocks = list(dict.fromkeys(op.block for op in shown))
    here = ""
    for op in shown:
        if len(blocks) > 4 and op.block != here:  # more than embedding, one kind of layer, head and engine
            here = op.block
            took = sum(o.seconds for o in phase.ops if o.block == here)
            table.add_row(Text(here, "dim italic"), "", Text(seconds(took), "dim italic"))
        table.add_row(
            escape(op.name),
            f"{op.count:,.0f}",
            seconds(op.seconds),
            percent(op.share),
            Text(BOUND_WORD.get(op.bound, op.bound), BOUND_STYLE.get(op.bound, "")),
            _achieved(op, report),
            percent(op.efficiency) if op.bound not in QUIET else "",
            ORIGINS.get(op.origin, "?"),
            _shape(op),
        )
        if op.kind == "wait":
            _other_stages(table, phase, every)
    hidden = [op for op in phase.ops if op not in shown and op.seconds > 0]
    if hidden:
        table.add_row(
            f"{len(hidden)} more",
            "",
            seconds(sum(op.seconds for op in hidden)),
            percent(sum(op.share for op in hidden)),
        )
    return table


def _other_stages(table: Table, phase: Phase, every: bool) -> None:
    """Below the row in which a pipeline stage waits: what the others do meanwhile."""
    for row in phase.other_stages if every else phase.other_stages[:6]:
        bound = Text(BOUND_WORD.get(row.bound, row.bound), f"dim {BOUND_STYLE.get(row.bound, '')}".strip())
        table.add_row(Text(f"  {row.name}", "dim"), "", seconds(row.seconds), percent(row.share), bound)


def _achieved(op: OpRow, report: Report) -> str:
    if not op.seconds or op.bound in QUIET:
        return ""
    if op.bound == "compute":
        return f"{_unit(op.flops / op.seconds, op.flops / (op.roofline_seconds or op.seconds))}FLOP"
    if op.bound == "communication":
        return f"{si(op.sent / op.seconds, 'B/s')}"
    return f"{_unit(op.bytes / op.seconds, report.device['memory_bandwidth'])}B/s"


def _unit(value: float, peak: float) -> str:
    scale, prefix = next(((s, p) for s, p in ((1e15, "P"), (1e12, "T"), (1e9, "G")) if peak >= s), (1e6, "M"))
    return f"{value / scale:.3g} / {peak / scale:.3g} {prefix}"


def _shape(op: OpRow) -> str:
    """``1024×4096 → 6144``: what goes in, and what of it changes."""
    first = next(iter(op.shape.values()), [])
    last = op.shape.get("output") or []
    if len(last) > 1 and last[0] == first[0]:
        last = last[1:]
    return " → ".join("×".join(f"{v:.0f}" if v >= 10 else f"{v:.3g}" for v in vs) for vs in (first, last) if vs)


def explanation(explanations: list[Explanation]) -> Group:
    """Formulas, values and origin of an operator, phase by phase."""
    parts: list[Any] = []
    for e in explanations:
        parts.append(Text(f"{e.op} in {e.block}, {e.phase}: {e.count} × {seconds(e.seconds)}", style="bold"))
        if e.bound in QUIET:
            parts += [Text(f"  {ORIGINS.get(e.origin, '?')} {e.origin}: {e.note}"), Text("")]
            continue
        table = Table(box=None, pad_edge=True, show_header=False)
        for style in ("", "green", "bold"):
            table.add_column(style=style)
        values: dict[str, float] = {}
        for line in e.lines:
            table.add_row(line.quantity, escape(line.formula), f"= {_amount(line.quantity, line.result)}")
            values |= line.values
        parts.append(table)
        parts.append(Text("  with " + ", ".join(f"{k} = {v:,.6g}" for k, v in values.items()), style="dim"))
        parts.append(
            Text(
                f"  at peak: compute {seconds(e.compute_seconds)}, memory {seconds(e.memory_seconds)}, link "
                f"{seconds(e.link_seconds)} → {e.bound}-bound, roofline {seconds(e.roofline_seconds)}"
            )
        )
        parts.append(
            Text(f"  {ORIGINS.get(e.origin, '?')} {e.origin}: {percent(e.efficiency)} of the roofline; {e.note}")
        )
        parts.append(Text(""))
    return Group(*parts) if parts else Group(Text("no work in this workload"))


def _amount(quantity: str, value: float) -> str:
    if quantity == "flops":
        return si(value, "FLOP")
    return f"{value:,.0f}" if quantity in ("hops",) else count(value) if quantity == "params" else size(value)
