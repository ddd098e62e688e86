"""A report as pictures: where the parameters, FLOPs, bytes and seconds are, the roofline, the memory, the structure.

report, model = …
write_plots(report, "out", model)     # [out/distribution_prefill.png, …, out/structure_decode.svg]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...base.errors import BadValue
from ...base.units import count, seconds, si, size
from ...costs.parallelism import pipeline_stages
from ...inference.report import Memory, OpRow, Phase, Report
from ...inference.weights import parameters_by_op
from ...network.adapters import with_lora
from ...network.graph import Model
from ...specs.structs import Lora, Plan
from ...training.training_report import TrainMemory
from .. import files
from ..text.terminal import header, kv_per_token
from .canvas import BOUNDS, FORMATS, bounds, clean, page, picture, share_text, style
from .palette import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, OVERHEAD, SKY, SLATE, VERMILLION
from .roofline import roofline
from .structure import structure

_ROWS = 16  # bars of a distribution, before the rest is summed up
_MEMORY = (("weights", BLUE), ("kv_cache", ORANGE), ("activation", SKY), ("overhead", OVERHEAD))
_MEMORY_LABELS = {"weights": "weights", "kv_cache": "KV cache", "activation": "activations", "overhead": "overhead"}


def write_plots(
    report: Report, folder: str | Path, model: Model | None = None, fmt: tuple[str, ...] = ("png",)
) -> list[Path]:
    """Write every picture of a report; without its ``model`` those that need the graph (parameters, structure) lack."""
    for word in fmt:
        if word not in FORMATS:
            raise BadValue(f"plots are written as {', '.join(FORMATS)}, not {word!r}")
    target = files.folder(folder)
    model = None if model is None else with_adapters(report, model)
    made: list[Path] = []

    def save(name: str, figure: Any, kinds: tuple[str, ...] = fmt) -> None:
        made.extend(files.write(target / f"{name}.{kind}", picture(figure, kind)) for kind in kinds)

    with style():
        for phase in report.phases:
            params = parameters_on_gpu(report, model, phase) if model is not None else None
            save(f"distribution_{phase}", distribution(report, phase, params))
        if report.phases:
            save("roofline", roofline(report))
        save("memory", memory(report))
        for phase in report.phases if model is not None else ():
            assert model is not None
            scene = structure(report, model, phase)
            made.append(files.write(target / f"structure_{phase}.svg", scene.svg()))
            save(f"structure_{phase}", scene.figure(), tuple(f for f in fmt if f != "svg"))
    return made


def with_adapters(report: Report, model: Model) -> Model:
    """The model with the adapters of the report's plan, if it has some."""
    return with_lora(model, msgspec.convert(report.plan["lora"], Lora)) if report.plan.get("lora") else model


def _figure(width: float, height: float, report: Report, title: str) -> Any:
    """A page with its title: what it shows, and of which plan."""
    return page(width, height, title, header(report))


def patch_legend(axes: Any, entries: list[tuple[str, str]], **where: Any) -> None:
    """A legend of patches of colour: ``patch_legend(axes, [("forward", BLUE)], loc="upper left")``"""
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=color, label=word) for word, color in entries]
    axes.legend(handles=patches, frameon=False, fontsize=8.5, handlelength=1, handleheight=1, labelcolor=MUTED, **where)


# ------------------------------------------------------------------ distributions


def parameters_on_gpu(report: Report, model: Model, phase: str) -> dict[str, float]:
    """Parameters by operator that the GPU keeps whose work a phase shows: one of the slowest pipeline stage."""
    plan = msgspec.convert({name: report.plan[name] for name in Plan.__struct_fields__}, Plan)
    names = {op.block for op in report.phases[phase].ops}
    stages = pipeline_stages(model, plan.pipeline_parallel_size)
    return parameters_by_op(max(stages, key=lambda stage: sum(block.name in names for block in stage.blocks)), plan)


class Bar(NamedTuple):
    """One row of the distribution: the totals of all operators of a name."""

    name: str
    params: float
    flops: float
    traffic: tuple[float, float, float]  # weights, activations, cache
    time: dict[str, float]  # bound -> seconds

    @property
    def values(self) -> tuple[float, float, float, float]:
        """Parameters, FLOPs, bytes, seconds."""
        return self.params, self.flops, sum(self.traffic), sum(self.time.values())


def bars(phase: Phase, params: dict[str, float] | None) -> list[Bar]:
    """Operators by name, slowest first; those that are nowhere above 0.5% are one row at the end."""
    rows: dict[str, list[OpRow]] = {}
    for op in phase.ops:
        rows.setdefault(op.name, []).append(op)
    stored = params or {}
    every = [_bar(name, rows.get(name, []), stored.get(name, 0.0)) for name in dict.fromkeys([*rows, *stored])]
    every.sort(key=lambda bar: -bar.values[3])
    total = [sum(bar.values[i] for bar in every) for i in range(4)]
    large = [b for b in every if b.values[3] > 0 and any(v > 0.005 * t for v, t in zip(b.values, total, strict=True))]
    kept = large[:_ROWS]
    rest = [b for b in every if b not in kept and any(b.values)]
    if len(rest) == 1 and rest[0].values[3] > 0:
        kept, rest = [*kept, *rest], []
    if rest:
        ops = [op for bar in rest for op in rows.get(bar.name, [])]
        kept.append(
            _bar(
                f"{len(rest)} others" if len(rest) > 1 else f"{rest[0].name} (not run)",
                ops,
                sum(b.params for b in rest),
            )
        )
    return kept


def _bar(name: str, ops: list[OpRow], params: float) -> Bar:
    time: dict[str, float] = {}
    for op in ops:
        time[op.bound] = time.get(op.bound, 0.0) + op.seconds
    traffic = (
        sum(op.load_weight for op in ops),
        sum(op.load_act + op.store_act for op in ops),
        sum(op.load_kv_cache + op.store_kv_cache for op in ops),
    )
    return Bar(name, params, sum(op.flops for op in ops), traffic, time)


def distribution(report: Report, phase: str, params: dict[str, float] | None = None) -> Any:
    """Shares of each operator in parameters, FLOPs, bytes and seconds of one GPU, slowest operator on top."""
    rows = bars(report.phases[phase], params)
    kinds: list[tuple[str, Callable[[float], str], Callable[[Bar], list[tuple[float, str]]]]] = [
        ("Latency", seconds, lambda b: [(took, BOUNDS.get(k, MUTED)) for k, took in b.time.items()]),
        ("Memory traffic", size, lambda b: list(zip(b.traffic, (BLUE, SKY, ORANGE), strict=True))),
        ("FLOPs", lambda v: si(v, "FLOP"), lambda b: [(b.flops, SLATE)]),
        ("Parameters", count, lambda b: [(b.params, SLATE)]),
    ]
    if params is None:
        kinds.pop()
    height = 1.75 + 0.29 * len(rows)
    of = ", on one GPU" if report.plan["gpus"] > 1 else ""
    figure = _figure(3.1 * len(kinds) + 1.3, height, report, f"{phase.capitalize()} breakdown{of}")
    panels = figure.subplots(1, len(kinds), sharey=True)
    figure.subplots_adjust(
        left=1.95 / figure.get_figwidth(), right=0.985, top=1 - 1.12 / height, bottom=0.55 / height, wspace=0.1
    )
    for axes, (title, unit, pieces) in zip(panels, kinds, strict=True):
        total = sum(value for bar in rows for value, _ in pieces(bar))
        largest = max([sum(v for v, _ in pieces(bar)) for bar in rows] + [1e-300])
        for y, bar in enumerate(rows):
            x = 0.0
            for value, color in pieces(bar):
                axes.barh(y, value, left=x, height=0.68, color=color, linewidth=0)
                x += value
            if x > 0:
                axes.text(
                    x + largest * 0.025, y, f"{share_text(x / total)}  {unit(x)}", va="center", fontsize=8, color=INK
                )
        axes.set_title(f"{title} · {unit(total)}", loc="left", fontsize=10, weight="bold", pad=7)
        axes.set_xlim(0, largest * 1.72)
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)
        axes.spines["left"].set_color(FAINT)
        axes.tick_params(axis="y", length=0)
    panels[0].set_yticks(range(len(rows)), [clean(bar.name) for bar in rows], parse_math=False)
    panels[0].set_ylim(len(rows) - 0.4, -0.6)
    below: dict[str, Any] = {
        "loc": "upper left",
        "bbox_to_anchor": (-0.02, 0.0),
        "ncols": 2,
        "columnspacing": 1.0,
        "borderaxespad": 0.2,
    }
    patch_legend(panels[0], list(bounds(b for bar in rows for b in bar.time).items()), **below)
    classes = [("weights", BLUE), ("activations", SKY), ("cache", ORANGE)]
    moved = [entry for i, entry in enumerate(classes) if any(bar.traffic[i] for bar in rows)]
    patch_legend(panels[1], moved, **{**below, "ncols": 3})
    return figure


# ------------------------------------------------------------------ memory


def memory(report: Report) -> Any:
    """Weights, KV cache, activations and the engine's own against what may be used and what is there."""
    m = report.memory
    figure = _figure(10.0, 2.7, report, f"Memory per GPU · {size(m.total_bytes)} of {size(m.usable_bytes)} usable")
    axes = figure.add_axes((0.03, 0.36, 0.94, 0.26))
    end = max(m.total_bytes, m.capacity_bytes) * 1.02
    stored = [(_MEMORY_LABELS[key], float(getattr(m, f"{key}_bytes")), color) for key, color in _MEMORY]
    legend = memory_bars(axes, m, stored, end)
    memory_limits(axes, m, end)
    axes.set_xlim(0, end * 1.03)
    axes.set_ylim(-0.6, 0.6)
    axes.axis("off")
    patch_legend(axes, legend, loc="upper left", bbox_to_anchor=(-0.005, -0.04), ncols=4, columnspacing=1.6)
    note = [f"largest batch at these lengths {m.max_batch_size:,}"]
    if m.max_total_tokens:
        note.append(f"room for {m.max_total_tokens:,} tokens of KV cache ({kv_per_token(m)})")
    fits = m.total_bytes <= m.usable_bytes
    text = " · ".join(note) if fits else f"does not fit: {report.reason}"
    figure.text(0.028, 0.09, clean(text), fontsize=8.5, color=MUTED if fits else VERMILLION, parse_math=False)
    return figure


def memory_bars(
    axes: Any, m: Memory | TrainMemory, stored: list[tuple[str, float, str]], end: float
) -> list[tuple[str, str]]:
    """What is stored, side by side, and what is free or too much; returns the legend."""
    inside = {"ha": "center", "va": "center", "fontsize": 8.5, "linespacing": 1.3}
    x, legend = 0.0, []
    for name, value, color in stored:
        axes.barh(0, value, left=x, height=0.8, color=color, linewidth=0)
        if value > 0.09 * end:
            axes.text(x + value / 2, 0, f"{name}\n{size(value)}", color="white" if color == BLUE else INK, **inside)
        legend.append((f"{name} {size(value)} ({share_text(value / m.total_bytes)})", color))
        x += value
    free = m.usable_bytes - x
    if m.total_bytes > m.usable_bytes:
        hatched = {"facecolor": "none", "edgecolor": "white", "hatch": "////", "linewidth": 0}
        axes.axvspan(m.usable_bytes, x, ymin=0.02, ymax=0.98, **hatched)
        return legend
    axes.barh(0, free, left=x, height=0.8, facecolor="none", edgecolor=FAINT, linewidth=1, zorder=0)
    if free > 0.12 * end:
        axes.text(x + free / 2, 0, f"free\n{size(free)}", color=MUTED, **inside)
    return legend


def memory_limits(axes: Any, m: Memory | TrainMemory, end: float) -> None:
    """Lines at what may be used and what is there; where these are near, their labels stand one above the other."""
    near = m.capacity_bytes - m.usable_bytes < 0.2 * end
    usable_color = GREEN if m.total_bytes <= m.usable_bytes else VERMILLION
    for value, name, color, above in (
        (m.usable_bytes, "usable", usable_color, 0.6),
        (m.capacity_bytes, "capacity", INK, 0.86 if near else 0.6),
    ):
        axes.plot([value, value], [-0.52, above - 0.08], color=color, linewidth=1.6, clip_on=False)
        axes.text(value, above, f"{name} {size(value)}", ha="right", va="bottom", fontsize=8.5, color=INK)
