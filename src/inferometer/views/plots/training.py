"""A training step as pictures: its parts, the schedule of its passes, and the memory of every stage over time.

write_training(report, "out")     # [out/step.png, out/schedule.png, out/memory.png]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...base.units import percent, plural, seconds, size
from ...training.train import timeline_of
from ...training.training_report import TrainReport
from ...training.training_timeline import Fold, PassParts, StageTimeline, StepTimeline, TrainStage
from .. import files
from ..text import training
from .analysis import memory_bars, memory_limits, patch_legend
from .canvas import brief, clean, page, picture, share_text, style
from .palette import (
    BLUE,
    FAINT,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    OVERHEAD,
    PURPLE,
    SKY,
    SLATE,
    VERMILLION,
    tint,
)

STORED = {  # what a training step stores; what does not change over a step first
    "weights": BLUE,
    "gradients": SKY,
    "optimizer": GREEN,
    "buffers": SLATE,
    "overhead": OVERHEAD,
    "activation": ORANGE,
    "working": PURPLE,
}
_NAMES = {"activation": "activations", "working": "working memory", "optimizer": "optimizer state"}
PART_COLORS = {  # of what computes; all other parts of a step are communication or waiting
    "forward": BLUE,
    "backward": GREEN,
    "recomputation": ORANGE,
    "optimizer": PURPLE,
    "pipeline bubble": FAINT,
    "host": OVERHEAD,
}
_COMM = ("tp_comm", "cp_comm", "ep_comm", "pp_comm", "dp_comm")
_GAP = 0.05  # of the width: what stands for the fold of a long schedule
_HIGH = 0.84  # of a row: a pass
_DIGIT = 0.062  # inches of a digit of a micro-batch's number


def write_training(report: TrainReport, folder: str | Path) -> list[Path]:
    """``step.png``, ``schedule.png`` and ``memory.png``."""
    target = files.folder(folder)
    with style():
        return [files.write(target / f"{name}.png", picture(draw(report))) for name, draw in PICTURES.items()]


def _figure(high: float, title: str, report: TrainReport, wide: float = 10.0) -> Any:
    """A page with two lines below its title: what is trained where, and how."""
    first, _, more = training.header(report).partition(" · recompute ")
    figure = page(wide, high, title, first)
    figure.text(0.28 / wide, 1 - 0.8 / high, clean(f"recompute {more}"), fontsize=9, color=MUTED, parse_math=False)
    return figure


def _batches(number: int) -> str:
    return f"{number:,} micro-batch{'es' if number > 1 else ''}"


# ------------------------------------------------------------------ parts


def training_step(report: TrainReport) -> Any:
    """Seconds of a step part by part, largest first, and the memory of the fullest GPU below."""
    parts = [(label, float(getattr(report.breakdown, key))) for key, label in training.PARTS.items()]
    parts = sorted((part for part in parts if part[1] > 0), key=lambda part: -part[1])
    m, high = report.memory, 3.2 + 0.3 * len(parts)
    title = (
        f"{seconds(report.step_seconds)} a step: {report.model_flops_utilization * 100:.1f}% of the GPUs' FLOP/s, "
        f"{report.tokens_per_second_per_gpu:,.0f} tokens/s per GPU"
    )
    figure = _figure(high, title, report)
    upper = figure.add_axes((0.27, 2.1 / high, 0.7, 0.3 * len(parts) / high))
    longest = max((value for _, value in parts), default=1.0)
    for y, (label, value) in enumerate(parts):
        color = PART_COLORS.get(label, VERMILLION)
        upper.barh(y, value, height=0.68, color=color, linewidth=0)
        text = f"{share_text(value / report.step_seconds)}  {seconds(value)}"
        upper.text(value + longest * 0.015, y, text, va="center", fontsize=8.5, color=INK)
        upper.text(-longest * 0.015, y, label, va="center", ha="right", fontsize=8.5, color=INK)
    upper.set(xlim=(0, longest * 1.25), ylim=(len(parts) - 0.4, -0.6))
    upper.axis("off")
    lower = figure.add_axes((0.03, 0.72 / high, 0.94, 0.62 / high))
    end = max(m.total_bytes, m.capacity_bytes) * 1.02
    legend = memory_bars(lower, m, [part for part in _stored(m) if part[1] > 0], end)
    memory_limits(lower, m, end)
    lower.set(xlim=(0, end * 1.03), ylim=(-0.6, 0.6))
    lower.axis("off")
    patch_legend(lower, legend, loc="upper left", bbox_to_anchor=(-0.005, -0.04), ncols=3, columnspacing=1.6)
    of_stage = f" of stage {m.stage}, the fullest of {len(report.stages)}" if len(report.stages) > 1 else ""
    over = "" if m.total_bytes <= m.usable_bytes else ": it does not fit"
    head = f"Memory of a GPU{of_stage}: {size(m.total_bytes)} of {size(m.usable_bytes)} usable{over}"
    figure.text(0.028, 1.72 / high, head, fontsize=10, weight="bold", color=VERMILLION if over else INK)
    return figure


def _stored(memory: Any) -> list[tuple[str, float, str]]:
    """Name, bytes and colour of everything that a stage holds."""
    return [(_NAMES.get(key, key), float(getattr(memory, f"{key}_bytes")), color) for key, color in STORED.items()]


# ------------------------------------------------------------------ time, with a fold in it


class FoldedTime(NamedTuple):
    """Seconds of a step along an axis, on which a long steady part is a gap: ``FoldedTime.of(timeline).at(2.5)``"""

    end: float
    fold: Fold | None
    gap: float  # seconds of the axis that stand for the fold

    @classmethod
    def of(cls, timeline: StepTimeline) -> FoldedTime:
        """The axis of a timeline."""
        fold = timeline.fold
        shown = timeline.step_seconds - (fold.to_s - fold.from_s if fold else 0.0)
        return cls(timeline.step_seconds, fold, shown * _GAP if fold else 0.0)

    def at(self, second: float) -> float:
        """The place of a second outside of the fold."""
        if self.fold is None or second <= self.fold.from_s:
            return second
        return max(second, self.fold.to_s) - (self.fold.to_s - self.fold.from_s) + self.gap

    @property
    def width(self) -> float:
        """Of the whole axis."""
        return self.at(self.end)

    def shown(self, start: float, end: float) -> tuple[float, float]:
        """From where to where a pass is seen; one that reaches into the fold is cut there."""
        if self.fold is not None:
            before = start < self.fold.from_s
            start, end = (start, min(end, self.fold.from_s)) if before else (max(start, self.fold.to_s), end)
        return self.at(start), self.at(end)


def _time_axis(axes: Any, time: FoldedTime, bottom: float, top: float) -> None:
    """Ticks at round seconds on both sides of the fold, and the gap with what it leaves out."""
    from matplotlib.ticker import MaxNLocator

    ticks = [t for t in MaxNLocator(nbins=10, steps=[1, 2, 2.5, 5, 10]).tick_values(0, time.width) if t >= 0]
    step = ticks[1] - ticks[0]
    spots = [step * i for i in range(int(time.end / step) + 1)]
    if time.fold is not None:
        margin = time.width * 0.06  # room for what the gap leaves out
        spots = [t for t in spots if t < time.fold.from_s - margin or t > time.fold.to_s + margin]
    axes.set_xticks([time.at(t) for t in spots], [brief(t) if t else "0" for t in spots])
    axes.set(xlim=(0, time.width), ylim=(bottom, top))
    axes.tick_params(axis="x", labelsize=8.5, length=3, colors=MUTED)
    if time.fold is None:
        return
    left = time.at(time.fold.from_s)
    axes.axvspan(left, left + time.gap, facecolor="white", edgecolor="none", zorder=5)
    for x in (left, left + time.gap):
        axes.axvline(x, color=MUTED, linewidth=1, linestyle=(0, (2, 2)), zorder=6)
    text = f"{time.fold.micro_batches:,} more, {seconds(time.fold.to_s - time.fold.from_s)}"
    place = {"xy": (left + time.gap / 2, bottom), "xytext": (0, -6), "textcoords": "offset points"}
    axes.annotate(text, **place, ha="center", va="top", fontsize=8.5, color=INK, annotation_clip=False)


# ------------------------------------------------------------------ the schedule


def schedule(report: TrainReport) -> Any:
    """Every pass of every stage: forward, backward, what waits for communication, and the bubble between them."""
    timeline = report.timeline or timeline_of(report)
    time, rows = FoldedTime.of(timeline), timeline.stages
    each = 0.36 if len(rows) <= 12 else 0.24 if len(rows) <= 24 else 6.0 / len(rows)
    wide, high = 12.0, 1.98 + max(each * len(rows), 0.5)
    figure = _figure(high, _title(report, timeline), report, wide)
    left, right = 0.72 / wide, 1 - 0.85 / wide
    axes = figure.add_axes((left, 0.88 / high, right - left, max(each * len(rows), 0.5) / high))
    inches = (right - left) * wide / time.width
    for y, stage in enumerate(rows):
        axes.broken_barh([(0, time.at(timeline.passes_end_s))], (y - _HIGH / 2, _HIGH), facecolor=GRID, linewidth=0)
        for bars, (low, part), color in _bars(stage, timeline, time):
            wide_enough = inches * bars[0][1] > 0.05
            look = {"edgecolor": "white", "linewidth": 0.4} if wide_enough else {"linewidth": 0}
            place = (y - _HIGH / 2 + _HIGH * low, _HIGH * part)
            axes.broken_barh(bars if wide_enough else _merged(bars), place, facecolor=color, **look)
        if each >= 0.2:
            _numbers(axes, y, stage, timeline, time, inches)
    _time_axis(axes, time, len(rows) - 0.5, -0.5)
    every = -(-len(rows) // 26)
    axes.set_yticks(range(0, len(rows), every), [f"stage {row.stage}" for row in rows[::every]])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.spines[["left", "bottom"]].set_visible(False)
    for y in range(0, len(rows) if len(rows) > 1 else 0, every):
        own = report.stages[rows[y].stage]
        idle = f"{percent(own.idle_seconds / timeline.step_seconds)} idle"
        axes.text(time.width * 1.008, y, idle, va="center", fontsize=8, color=MUTED)
    entries = _schedule_legend(timeline)
    patch_legend(
        axes,
        entries,
        loc="upper left",
        bbox_to_anchor=(-0.005, -0.42 / max(each * len(rows), 0.5)),
        ncols=len(entries),
        columnspacing=1.5,
    )
    return figure


def _title(report: TrainReport, timeline: StepTimeline) -> str:
    stages, v = len(report.stages), timeline.virtual_stages
    virtual = f" × {v} virtual stages" if v > 1 else ""
    batches = _batches(timeline.micro_batches)
    bubble = report.breakdown.pp_bubble / report.step_seconds
    waits = f", {percent(bubble)} of it the bubble" if stages > 1 else ""
    return f"Schedule of a step: {plural(stages, 'stage')}{virtual}, {batches}, {seconds(report.step_seconds)}{waits}"


Bars = tuple[list[tuple[float, float]], tuple[float, float], str]  # (left, width) of bars; their share of a row; colour


def _bars(stage: StageTimeline, timeline: StepTimeline, time: FoldedTime) -> Iterator[Bars]:
    """Passes of a kind together. Below in each: the part of it that recomputes, and that communicates."""
    p = stage.passes
    for chunk in range(timeline.virtual_stages):
        for backward, parts in ((False, stage.forward[chunk]), (True, stage.backward[chunk])):
            chosen = [i for i, c in enumerate(p.chunk) if c == chunk and p.backward[i] == backward]
            spans = [time.shown(p.start_s[i], p.end_s[i]) for i in chosen]
            bars = [(start, end - start) for start, end in spans if end > start]
            if not bars or not parts.total:
                continue
            low = 0.0
            for share, color in pass_shares(parts, shade(GREEN if backward else BLUE, chunk, timeline.virtual_stages)):
                yield bars, (low, share), color
                low += share
    yield from _end_bars(stage, timeline, time)


def _merged(bars: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Bars that touch as one: too thin to see one by one, they would leave hairlines between them."""
    merged: list[tuple[float, float]] = []
    for left, width in bars:
        if merged and left - sum(merged[-1]) < width * 1e-6:
            left, width = merged[-1][0], left + width - merged[-1][0]
            merged.pop()
        merged.append((left, width))
    return merged


def pass_shares(parts: PassParts, color: str) -> Iterator[tuple[float, str]]:
    """What a pass consists of, as shares with their colours."""
    comm = sum(getattr(parts, name) for name in _COMM)
    for took, own in (
        (parts.compute, color),
        (parts.recompute, ORANGE),
        (comm, VERMILLION),
        (parts.host, MUTED),
    ):
        if took > 0:
            yield took / parts.total, own


def shade(color: str, chunk: int, chunks: int) -> str:
    """The colour of a virtual stage: the first is strong, the last one faint."""
    return tint(color, 1 - 0.6 * chunk / max(chunks - 1, 1))


def _end_bars(stage: StageTimeline, timeline: StepTimeline, time: FoldedTime) -> Iterator[Bars]:
    """After the passes: gradients, the optimizer, weights, the host."""
    at = timeline.passes_end_s
    for took, color in (
        (stage.reduce_gradients_s, VERMILLION),
        (stage.optimizer_s, PURPLE),
        (stage.gather_weights_s, VERMILLION),
    ):
        if took > 0:
            yield [(time.at(at), took)], (0.0, 1.0), color
        at += took


def _numbers(axes: Any, y: int, stage: StageTimeline, timeline: StepTimeline, time: FoldedTime, inches: float) -> None:
    """The micro-batch of every pass that is wide enough for its number."""
    p = stage.passes
    for i, (microbatch, chunk) in enumerate(zip(p.microbatch, p.chunk, strict=True)):
        left, right = time.shown(p.start_s[i], p.end_s[i])
        parts = (stage.backward if p.backward[i] else stage.forward)[chunk]
        middle = y - _HIGH / 2 + _HIGH * parts.compute / parts.total / 2
        if (right - left) * inches > _DIGIT * (len(str(microbatch)) + 0.8):
            color = "white" if chunk < timeline.virtual_stages / 2 else INK
            axes.text((left + right) / 2, middle, microbatch, ha="center", va="center", fontsize=7, color=color)


def _schedule_legend(timeline: StepTimeline) -> list[tuple[str, str]]:
    parts = [part for stage in timeline.stages for part in (*stage.forward, *stage.backward)]
    communicates = any(getattr(part, name) > 0 for part in parts for name in _COMM)
    communicates |= any(stage.reduce_gradients_s + stage.gather_weights_s > 0 for stage in timeline.stages)
    shades = " (virtual stages: strong to faint)" if timeline.virtual_stages > 1 else ""
    entries = [("forward", BLUE), (f"backward{shades}", GREEN)]
    entries += [("recomputation", ORANGE)] if any(part.recompute > 0 for part in parts) else []
    entries += [("communication that is not hidden, as a share of each pass", VERMILLION)] if communicates else []
    entries += [("waiting for the host", MUTED)] if any(part.host > 0 for part in parts) else []
    entries += [("optimizer", PURPLE)]
    return entries + ([("idle", GRID)] if len(timeline.stages) > 1 else [])


# ------------------------------------------------------------------ memory


def memory_over_time(report: TrainReport) -> Any:
    """The fullest stage over the step, and below it what every stage holds at its peak."""
    timeline = report.timeline or timeline_of(report)
    own, m = report.stages[report.memory.stage], report.memory
    stage = next(one for one in timeline.stages if one.stage == own.stage)
    rows = [report.stages[one.stage] for one in timeline.stages]
    each = 0.3 if len(rows) <= 12 else 0.2 if len(rows) <= 24 else 5.0 / len(rows)
    low = each * len(rows) if len(rows) > 1 else 0.0
    wide, high = 12.0, 4.6 + (low + 0.6 if low else 0.0)
    over = "" if m.total_bytes <= m.usable_bytes else ", which does not fit"
    of_stage = f" of stage {own.stage}, the fullest of {len(report.stages)}" if len(report.stages) > 1 else ""
    title = f"Memory of a GPU{of_stage}: {size(m.total_bytes)} of {size(m.usable_bytes)} usable{over}"
    figure = _figure(high, title, report, wide)
    left, right = 0.85 / wide, 1 - (1.5 if low else 0.85) / wide
    top = 1 - 1.42 / high
    upper = figure.add_axes((left, top - 2.6 / high, right - left, 2.6 / high))
    figure.text(0.28 / wide, 1 - 1.12 / high, peak_text(own), fontsize=9.5, color=INK, parse_math=False)
    _over_time(upper, own, stage, timeline, m.usable_bytes)
    entries = [(f"{name} {size(value)}", color) for name, value, color in _stored(own) if value > 0]
    patch_legend(
        upper, entries, loc="upper left", bbox_to_anchor=(-0.005, -0.105), ncols=len(entries), columnspacing=1.4
    )
    if low:
        kept = "passes" if len(own.in_flight) > 1 else "micro-batches"
        head = f"Every stage at its peak, and of how many {kept} it keeps activations"
        figure.text(0.28 / wide, (low + 0.42) / high, head, fontsize=10, weight="bold", color=INK)
        lower = figure.add_axes((left, 0.22 / high, right - left, low / high))
        _by_stage(lower, rows, m.usable_bytes, each)
    return figure


def peak_text(stage: TrainStage) -> str:
    """``At the peak 8 micro-batches are kept for the backward pass, 1.23 GB each; 141 MB are alive beside that.``"""
    flying = sum(stage.in_flight)
    if len(stage.in_flight) > 1:
        counts = " + ".join(str(n) for n in stage.in_flight)
        together = f"together {size(stage.activation_bytes)}"
        what = f"activations of {flying} passes are kept ({counts} by virtual stage), {together}"
    else:
        each = f"{size(stage.microbatch_bytes[0])}{' each' if flying > 1 else ''}"
        what = f"{_batches(flying)} {'are' if flying > 1 else 'is'} kept for the backward pass, {each}"
    return f"At the peak {what}; {size(stage.working_bytes)} are alive beside that."


def memory_steps(own: TrainStage, stage: StageTimeline, end: float) -> tuple[list[float], list[float], list[float]]:
    """Seconds, and from each of them on the bytes of activations and of what is alive beside them."""
    static = own.total_bytes - own.activation_bytes - own.working_bytes
    times, kept, working, p = [0.0], [0.0], [0.0], stage.passes
    for i, chunk in enumerate(p.chunk):
        beside = stage.working_bytes[chunk] if p.backward[i] else 0.0
        now = p.memory_bytes[i] - static - beside
        after = now - (own.microbatch_bytes[chunk] if p.backward[i] else 0.0)
        times += [p.start_s[i], p.end_s[i]]
        kept += [now, after]
        working += [beside, 0.0]
    return [*times, end], [*kept, kept[-1]], [*working, 0.0]


def _over_time(axes: Any, own: TrainStage, stage: StageTimeline, timeline: StepTimeline, usable: float) -> None:
    time = FoldedTime.of(timeline)
    seconds_at, kept, working = memory_steps(own, stage, timeline.step_seconds)
    xs, floor = [time.at(t) for t in seconds_at], 0.0
    for _, value, color in _stored(own)[:-2]:
        axes.fill_between([0, time.width], floor, floor + value, color=color, linewidth=0)
        floor += value
    upper = [floor + value for value in kept]
    axes.fill_between(xs, floor, upper, step="post", color=STORED["activation"], linewidth=0)
    both = [low + value for low, value in zip(upper, working, strict=True)]
    axes.fill_between(xs, upper, both, step="post", color=STORED["working"], linewidth=0)
    top = max(own.total_bytes, usable) * 1.08
    _limit(axes, usable, own.total_bytes)
    axes.text(time.width * 1.008, usable, f"usable\n{size(usable)}", va="center", fontsize=8, color=INK)
    _time_axis(axes, time, 0, top)
    axes.yaxis.set_major_formatter(lambda y, _: size(y) if y else "0")
    axes.locator_params(axis="y", nbins=6)
    axes.tick_params(axis="y", labelsize=8.5, length=3, colors=MUTED)


def _limit(axes: Any, usable: float, total: float, upright: bool = False) -> None:
    """A line at what may be used."""
    color = GREEN if total <= usable else VERMILLION
    (axes.axvline if upright else axes.axhline)(usable, color=color, linewidth=1.6, zorder=8)


def _by_stage(axes: Any, rows: list[TrainStage], usable: float, each: float) -> None:
    """What every stage holds at its peak; beside it, of how many micro-batches."""
    end = max(usable, *(row.total_bytes for row in rows)) * 1.02
    for y, row in enumerate(rows):
        x = 0.0
        for _, value, color in _stored(row):
            axes.barh(y, value, left=x, height=0.76, color=color, linewidth=0)
            x += value
        if each >= 0.15:
            text = (
                f"{size(row.total_bytes)}, {sum(row.in_flight)} {'passes' if len(row.in_flight) > 1 else 'in flight'}"
            )
            axes.text(end * 1.008, y, text, va="center", fontsize=8, color=MUTED)
    _limit(axes, usable, max(row.total_bytes for row in rows), upright=True)
    every = -(-len(rows) // 26)
    axes.set_yticks(range(0, len(rows), every), [f"stage {row.stage}" for row in rows[::every]])
    axes.set(xlim=(0, end), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0, labelsize=8.5)
    axes.spines[["left", "bottom"]].set_visible(False)


def pass_rows(report: TrainReport) -> Iterable[dict[str, Any]]:
    """A row per pass: stage, virtual stage, micro-batch, direction, seconds, bytes."""
    timeline = report.timeline or timeline_of(report)
    for stage in timeline.stages:
        p = stage.passes
        for i, start in enumerate(p.start_s):
            yield {
                "stage": stage.stage,
                "virtual_stage": p.chunk[i],
                "microbatch": p.microbatch[i],
                "pass": "backward" if p.backward[i] else "forward",
                "start_s": start,
                "end_s": p.end_s[i],
                "memory_bytes": p.memory_bytes[i],
            }


PICTURES: dict[str, Callable[[TrainReport], Any]] = {
    "step": training_step,
    "schedule": schedule,
    "memory": memory_over_time,
}
