"""The search for the best training layout: ``training_search("llama-3.1-70b", num_gpus=1024, global_batch_size=1024,
seq_len=8192)`` gives `TrainingSearch`: the fastest layout that fits, the next ones, and how to start it.

A layout is estimated only if its lower bounds (`training_bounds`) leave it a chance: first of memory, then of time, the
most promising first, until no other one can be faster, or as fast in less memory. So the winner is that of all layouts.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..base.result import keep
from ..base.units import percent, plural, seconds, size
from ..specs.arguments import flag, signature
from ..specs.train_args import TrainArgs, TrainSearchArgs
from ..training.iteration import iteration_time, stage_times
from ..training.train import report_of
from ..training.training_memory import fullest_stage
from ..training.training_report import TrainReport
from ..training.training_run import training_run
from .launch.megatron_command import megatron_lines, train_line
from .search_result import Relaxation
from .training_bounds import TrainingBounds
from .training_search_result import (
    ESTIMATED,
    ILLEGAL,
    SLOWER,
    TOO_LARGE,
    LayoutRow,
    TrainingPlan,
    TrainingSearch,
)
from .training_space import RejectedLayout, TrainingLayout, TrainingProblem, build_problem, layouts

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import TrainSearchKwargs

RANKED = 10  # of the fastest layouts that are in the result
MOST_GPUS = 64  # times as many, at most, are tried where nothing fits
QUICK, CLOSE, EXACT = range(3)  # kinds of bounds


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for garbage in cycles: a training search makes none, and it takes a third of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class LayoutEstimate(NamedTuple):
    """What `train` says of a layout."""

    layout: TrainingLayout
    step_seconds: float
    memory_bytes: float


@signature(TrainSearchArgs, TrainArgs)
def training_search(
    model: str, gpu: str = "h100-sxm", *, relax: bool = True, **kwargs: Unpack[TrainSearchKwargs]
) -> TrainingSearch:
    """Find the layout that trains a model fastest on so many GPUs; the keywords are those of `train`.

    ``training_search("llama-3.1-8b", num_gpus=64, global_batch_size=512, seq_len=8192).winner.label``

    Sizes of the layout may be given as one value or several (``tensor_parallel_size=[4, 8]``); else those in
    ``TrainingSearch.space`` are tried. ``relax``: where nothing fits, say what would.
    """
    started = time.perf_counter()
    given = {name: value for name, value in kwargs.items() if value is not None}
    problem = build_problem(model, gpu, given)
    run = TrainingSearchRun(problem, gpu)
    with uncollected():
        run.search()
    result = run.to_result(model)
    if not result.feasible and relax:
        result.relaxations = _relaxations(model, gpu, given, problem)
    result.seconds["total"] = time.perf_counter() - started
    return keep(result, layouts=run.rows(), report=run.report)


class TrainingSearchRun:
    """One search under way: which layouts are legal, which fit, which were estimated."""

    def __init__(self, problem: TrainingProblem, gpu: str) -> None:
        self.problem, self.gpu, self.bounds = problem, gpu, TrainingBounds(problem)
        request = problem.request
        self.usable = request.device.memory * request.plan.gpu_memory_utilization
        self.seconds: dict[str, float] = {}  # of each stage
        self.legal: list[TrainingLayout] = []
        self.illegal: list[RejectedLayout] = []
        self.too_large: list[RejectedLayout] = []
        self.least_memory: dict[TrainingLayout, float] = {}  # of those that may fit
        self.least_seconds: dict[TrainingLayout, float] = {}
        self.estimates: dict[TrainingLayout, LayoutEstimate] = {}
        self.ranked: list[LayoutEstimate] = []  # fastest first
        self.front: list[LayoutEstimate] = []
        self.report: TrainReport | None = None

    def search(self) -> None:
        """All of it: layouts, memory, time."""
        since = time.perf_counter()
        self.legal, self.illegal = layouts(self.problem)
        self.seconds["enumerate"] = time.perf_counter() - since
        since = time.perf_counter()
        for layout in self.legal:
            needed = self.bounds.memory(layout)
            if needed > self.usable:
                self._reject(layout, needed, "at least ")
            else:
                self.least_memory[layout] = needed
        self.seconds["memory"] = time.perf_counter() - since
        since = time.perf_counter()
        self._estimate()
        self.seconds["estimate"] = time.perf_counter() - since

    def _reject(self, layout: TrainingLayout, needed: float, how_exact: str) -> None:
        reason = f"needs {how_exact}{size(needed)} of {size(self.usable)} usable per GPU"
        self.too_large.append(RejectedLayout(layout, reason, "does not fit in memory", needed))

    def _estimate(self) -> None:
        """Layouts in the order of their bounds: a first bound is made closer, then exact, and that is the next best.

        What needs as much memory as a faster layout is of no interest, once there are enough of the fastest ones.
        """
        self.least_seconds = {layout: self.bounds.least_seconds(layout) for layout in self.least_memory}
        queue = [(least, QUICK, n, layout) for n, (layout, least) in enumerate(self.least_seconds.items())]
        heapify(queue)
        least_memory = float("inf")
        while queue:
            least, kind, n, layout = heappop(queue)
            if len(self.ranked) >= RANKED and self.least_memory[layout] >= least_memory:
                continue
            if kind == QUICK:
                self.least_seconds[layout] = max(least, self.bounds.step_seconds(layout))
                heappush(queue, (self.least_seconds[layout], CLOSE, n, layout))
            elif kind == CLOSE:
                estimate = self._exact(layout, least_memory if len(self.ranked) >= RANKED else self.usable)
                if estimate is not None:
                    heappush(queue, (estimate.step_seconds, EXACT, n, layout))
            else:
                estimate = self.estimates[layout]
                if len(self.ranked) < RANKED:
                    self.ranked.append(estimate)
                if estimate.memory_bytes < least_memory:
                    least_memory = estimate.memory_bytes
                    self.front.append(estimate)

    def _exact(self, layout: TrainingLayout, most_memory: float) -> LayoutEstimate | None:
        """The layout as `train` estimates it; None if it does not fit after all, or needs more than is of interest."""
        training = self.problem.training(layout)._replace(costs=self.bounds.shared_costs(layout))
        needed = self.least_memory[layout] = fullest_stage(training)[0].total
        if needed > self.usable:
            self._reject(layout, needed, "")
            del self.least_memory[layout]
        if needed > most_memory:
            return None
        took = iteration_time(training, stage_times(training))[0].total
        self.estimates[layout] = LayoutEstimate(layout, took, needed)
        return self.estimates[layout]

    # -------------------------------------------------------------- the result

    def to_result(self, model: str) -> TrainingSearch:
        """The result; what would fit where nothing does is added later."""
        problem, best = self.problem, self.ranked[0] if self.ranked else None
        request, recipe = problem.request, problem.recipe
        if best is not None:
            self.report = report_of(problem.request_of(best.layout), problem.recipe_of(best.layout))
        plans = [self._plan(one) for one in self.ranked]
        report = self.report
        return TrainingSearch(
            model=request.model.name,
            gpu=request.device.name,
            engine=request.engine.name,
            num_gpus=problem.num_gpus,
            global_batch_size=recipe.global_batch_size,
            seq_len=recipe.length,
            precision=recipe.precision,
            feasible=best is not None,
            reason="" if best is not None else self._reason(),
            winner=plans[0] if plans else None,
            why=self._why(plans) if plans else [],
            margin=self._margin(),
            plans=plans,
            front=[self._plan(one) for one in self.front],
            usable_bytes=self.usable,
            breakdown=msgspec.structs.asdict(report.breakdown) if report is not None else {},
            memory=msgspec.structs.asdict(report.memory) if report is not None else {},
            rejections=dict(Counter(one.kind for one in (*self.illegal, *self.too_large)).most_common()),
            counts={
                "layouts": len(self.legal) + len(self.illegal),
                "layouts_illegal": len(self.illegal),
                "layouts_too_large": len(self.too_large),
                "layouts_slower": len(self.least_memory) - len(self.estimates),
                "layouts_estimated": len(self.estimates),
            },
            space=self._space(),
            commands=self._commands(model, best) if best is not None else {},
            relaxations=[],
            seconds=self.seconds,
            warnings=list(report.warnings if report is not None else request.warnings),
        )

    def _plan(self, estimate: LayoutEstimate) -> TrainingPlan:
        problem, layout, report = self.problem, estimate.layout, self.report
        assert report is not None
        rate = report.tokens_per_step / estimate.step_seconds
        run = training_run(problem.recipe, problem.request_of(layout).plan, problem.request.device, rate)
        return TrainingPlan(
            label=str(layout),
            arguments=layout.arguments(),
            step_seconds=estimate.step_seconds,
            tokens_per_second=rate,
            tokens_per_second_per_gpu=rate / problem.num_gpus,
            model_flops_utilization=report.model_flops_utilization * report.step_seconds / estimate.step_seconds,
            memory_bytes=estimate.memory_bytes,
            micro_batches=self.bounds.micro_batches(layout),
            days=run.days if run is not None else None,
            gpu_hours=run.gpu_hours if run is not None else None,
            cost=run.cost if run is not None else None,
        )

    def _why(self, plans: list[TrainingPlan]) -> list[str]:
        """What the winner does, how far the next one is behind, and how much memory is left."""
        winner, lines = plans[0], []
        lines.append(
            f"{winner.tokens_per_second_per_gpu:,.0f} tokens/s per GPU: a step of "
            f"{plural(self.problem.recipe.global_batch_size, 'sequence')} takes {seconds(winner.step_seconds)}, "
            f"MFU {percent(winner.model_flops_utilization)}"
        )
        lines.append(f"{size(winner.memory_bytes)} of {size(self.usable)} usable per GPU")
        if len(plans) > 1:
            behind = plans[1].step_seconds / winner.step_seconds - 1
            slower = f"takes {percent(behind)} longer" if behind > 0 else "takes as long"
            lines.append(f"the runner-up, {plans[1].label}, {slower}")
        if winner.days is not None:
            cost = f" and ${winner.cost:,.0f}" if winner.cost is not None else ""
            lines.append(f"{self.problem.recipe.tokens:.3g} tokens take {winner.days:,.1f} days{cost}")
        return lines

    def _margin(self) -> dict[str, float]:
        if not self.ranked:
            return {}
        best, *others = self.ranked
        margin = {"memory": 1 - best.memory_bytes / self.usable}
        return {**margin, "runner_up": others[0].step_seconds / best.step_seconds - 1} if others else margin

    def _reason(self) -> str:
        """Why no layout works, and which one comes nearest."""
        gpus = plural(self.problem.num_gpus, "GPU")
        if self.too_large:
            nearest = min(self.too_large, key=lambda one: one.needed_bytes)
            return f"no layout fits on {gpus}; the nearest is {nearest.layout}: it {nearest.reason}"
        if self.illegal:
            kind = Counter(one.kind for one in self.illegal).most_common(1)[0][0]
            example = next(one for one in self.illegal if one.kind == kind)
            return f"no layout is legal on {gpus}: {example.layout}: {example.reason}"
        return f"no layout of these sizes uses {gpus}: tp × cp × pp × dp must be {self.problem.num_gpus:,}"

    def _space(self) -> dict[str, Any]:
        """The values of every axis that were tried."""
        every = [*self.legal, *(one.layout for one in self.illegal)]
        axes = {name: {getattr(layout, name) for layout in every} for name in TrainingLayout._fields}
        sorted_axes = {name: sorted(values, key=lambda value: (value is None, value)) for name, values in axes.items()}
        return {**sorted_axes, "recomputation": [str(one) for one in self.problem.space.recomputation]}

    def _commands(self, model: str, best: LayoutEstimate) -> dict[str, list[str]]:
        problem, layout = self.problem, best.layout
        given = {**problem.given, **layout.arguments()}
        request, recipe = problem.request_of(layout), problem.recipe_of(layout)
        return {
            "megatron-lm": megatron_lines(request, recipe, model),
            "inferometer": [train_line(model, self.gpu, given)],
        }

    def rows(self) -> list[LayoutRow]:
        """All layouts, the fastest of those that were estimated first."""
        rejected = {one.layout: one for one in self.too_large}
        tokens = self.problem.recipe.global_batch_size * self.problem.recipe.length / self.problem.num_gpus
        rows = []
        for layout in sorted(self.estimates, key=lambda one: self.estimates[one].step_seconds):
            one = self.estimates[layout]
            rows.append(
                LayoutRow(
                    layout=layout,
                    status=ESTIMATED,
                    step_seconds=one.step_seconds,
                    tokens_per_second_per_gpu=tokens / one.step_seconds,
                    memory_bytes=one.memory_bytes,
                )
            )
        for layout, memory in self.least_memory.items():
            if layout not in self.estimates:
                least = self.least_seconds.get(layout)
                rows.append(
                    LayoutRow(layout=layout, status=SLOWER, step_seconds_least=least, memory_bytes_least=memory)
                )
        for layout, large in rejected.items():
            least_bytes = large.needed_bytes
            rows.append(LayoutRow(layout=layout, status=TOO_LARGE, reason=large.reason, memory_bytes_least=least_bytes))
        rows += [LayoutRow(layout=one.layout, status=ILLEGAL, reason=one.reason) for one in self.illegal]
        return rows


# ------------------------------------------------------------------ what would fit


def _relaxations(model: str, gpu: str, given: dict[str, Any], problem: TrainingProblem) -> list[Relaxation]:
    """One change each with which some layout fits: an axis left free, other recomputation and ZeRO, more GPUs."""
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"without {flag(name)}", {name: None}) for name in TrainSearchArgs.__struct_fields__ if name in given
    ]
    changes += [(f"{flag('zero')} 3", {"zero": 3})]
    works = [
        Relaxation(change=text, plan=plan, simulated=False)
        for text, more in changes
        if (plan := _fits(model, gpu, {**given, **more}))
    ]
    count = problem.num_gpus
    while not works and count < MOST_GPUS * problem.num_gpus:
        count *= 2
        plan = _fits(model, gpu, {**given, "num_gpus": count, "nodes": None})
        works += [Relaxation(change=f"{flag('num_gpus')} {count}", plan=plan, simulated=False)] if plan else []
    return works


def _fits(model: str, gpu: str, given: dict[str, Any]) -> str:
    """The layout that needs least memory, if it fits; empty if none does."""
    run = TrainingSearchRun(build_problem(model, gpu, {k: v for k, v in given.items() if v is not None}), gpu)
    needed = {layout: run.bounds.memory(layout) for layout in layouts(run.problem)[0]}
    for layout in sorted(needed, key=lambda one: needed[one])[:RANKED]:
        if needed[layout] <= run.usable and fullest_stage(run.problem.training(layout))[0].total <= run.usable:
            return str(layout)
    return ""
