"""Why an operator takes as long as it does: formulas, the values put in, and where its efficiency came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ..base.errors import UnknownName
from ..base.symbols import evaluate, free_names, text
from ..base.units import plural, seconds
from ..costs import roofline
from ..costs.binding import BoundPlan, stage_plans, step_env
from ..costs.roofline import OpCost
from ..costs.step import Step
from ..network.operators import WORK_FIELDS
from .breakdown import phase_tables
from .latency import decode_step, prefill_steps, vision_step
from .memory import cache_offloaded
from .request import Request
from .workload import BatchShape, batch_shape_of


class Line(msgspec.Struct):
    """One quantity: its formula, what was put in, what came out."""

    quantity: str
    formula: str
    values: dict[str, float]
    result: float


class Explanation(msgspec.Struct):
    """One operator of one block in one phase; figures are of one call on one GPU."""

    phase: str
    block: str
    op: str
    kind: str
    count: int
    lines: list[Line]
    compute_seconds: float
    memory_seconds: float
    link_seconds: float
    roofline_seconds: float
    bound: str
    efficiency: float
    origin: str
    note: str
    seconds: float


def explain(request: Request, name: str, phase: str = "all") -> list[Explanation]:
    """Every place where an operator of that name works: ``explain(request("llama-3.1-8b"), "qkv_proj")``"""
    bound_plan = request.bind()
    names = {op.name for part in stage_plans(bound_plan) for block in part.model.blocks for op in block.ops}
    if name not in names | IDLE.keys():
        raise UnknownName("operator", name, names | IDLE.keys())
    batch_shape = batch_shape_of(bound_plan, request.workload)
    bound_plan = cache_offloaded(bound_plan, batch_shape)
    if name in IDLE:
        return _idle(bound_plan, batch_shape, name, phase)
    steps: dict[str, Step] = {}
    if batch_shape.images.count:
        steps["vision"] = vision_step(batch_shape)
    steps["prefill"] = _one(prefill_steps(bound_plan, batch_shape)[0][0])
    if request.model.kind == "decoder" and batch_shape.output_len > 1:
        steps["decode"] = _one(decode_step(bound_plan, batch_shape))
    explanations: list[Explanation] = []
    for when, step in steps.items():
        if phase not in ("all", when):
            continue
        env = step_env(bound_plan, step)
        for part in stage_plans(bound_plan):  # of a pipeline, the first stage that has it
            blocks = part.tower if when == "vision" else part.text
            rows = [row for block in blocks for row in roofline.op_costs(block, env, bound_plan.sources)]
            of_phase = [_one_op(bound_plan, when, row, env) for row in rows if row.op.name == name and row.seconds > 0]
            explanations += of_phase
            if of_phase:
                break
    return explanations


def _idle(bound_plan: BoundPlan, batch_shape: BatchShape, name: str, phase: str) -> list[Explanation]:
    """A row of the table in which no kernel runs: what it is, and where its figure comes from."""
    decodes = bound_plan.model.kind == "decoder" and phase != "prefill" and batch_shape.output_len > 1
    return [
        Explanation(
            phase=when,
            block=row.block,
            op=name,
            kind=row.kind,
            count=round(row.count),
            lines=[],
            compute_seconds=0.0,
            memory_seconds=0.0,
            link_seconds=0.0,
            roofline_seconds=0.0,
            bound=row.bound,
            efficiency=1.0,
            origin=row.origin,
            note=IDLE[name](bound_plan),
            seconds=row.seconds / row.count,
        )
        for when, table in phase_tables(bound_plan, batch_shape, phase, decodes).items()
        for row in table.ops
        if row.name == name and row.block in ("engine", "pipeline", "draft")
    ]


def _host(bound_plan: BoundPlan) -> str:
    e = bound_plan.engine
    text_ = f"the engine's own time in every step, {seconds(e.step_overhead)} ({e.source.get('step_overhead', '')})"
    if e.step_floor:
        text_ += f"; a step takes at least {seconds(e.step_floor)} of the host ({e.source.get('step_floor', '')})"
    if e.launch:
        text_ += f"; prefills also wait for their kernels to be launched ({e.source.get('launch', '')})"
    if bound_plan.device.throttle:
        text_ += (
            f"; long ones run up to {bound_plan.device.throttle:.0%} slower, because the power limit lowers the "
            f"clocks ({bound_plan.device.source.get('throttle', '')})"
        )
    return text_


def _drafting(bound_plan: BoundPlan) -> str:
    spec = bound_plan.plan.speculation
    drafter = "no model" if spec is None else spec.model or "the model's own prediction module"
    times = 0 if spec is None else spec.num_speculative_tokens
    return (
        f"{plural(times, 'step')} of {drafter} before each verification, estimated operator by operator like any step"
    )


IDLE: dict[str, Callable[[BoundPlan], str]] = {
    "host_overhead": _host,
    "pipeline_wait": lambda bound_plan: (
        "this stage is idle while its sequences are on the other stages: the time between two tokens, "
        "max(sum of all stages, micro-batches × slowest stage), less its own work"
    ),
    "pipeline_fill": lambda bound_plan: (
        "this stage is idle while the first step passes the other stages: the sum of their times"
    ),
    "draft": _drafting,
}


def _one(step: Step | list[Step]) -> Step:
    return step if isinstance(step, Step) else step[0]


def _one_op(bound_plan: BoundPlan, phase: str, row: OpCost, env: dict[str, Any]) -> Explanation:
    names = {**env, **row.block.dims}
    lines = []
    for field in (*WORK_FIELDS, "params", "stored"):
        formula = getattr(row.op.work, field)
        if text(formula) == "0":
            continue
        values = {w: float(names[w]) for w in free_names(formula)}
        result = row.work[field] if field in WORK_FIELDS else evaluate(formula, names)
        lines.append(Line(field, text(formula), values, float(result)))
    t = row.terms
    sources = [s for s in bound_plan.sources if s.kinds is None or row.op.kind in s.kinds]
    source = next(s for s in sources if s.origin_of(row.op) == str(row.origin))
    return Explanation(
        phase=phase,
        block=row.block.name,
        op=row.op.name,
        kind=row.op.kind,
        count=row.count,
        lines=lines,
        compute_seconds=float(t.compute),
        memory_seconds=float(t.memory),
        link_seconds=float(t.link + t.latency),
        roofline_seconds=float(t.roofline),
        bound=row.bound,
        efficiency=float(row.efficiency),
        origin=str(row.origin),
        note=source.note(row.op),
        seconds=float(row.seconds),
    )
