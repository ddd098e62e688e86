"""The tables of a report: the operators of each phase on the slowest pipeline stage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..base.cache import cache_by_identity
from ..base.symbols import Program, lift
from ..costs.binding import BoundPlan, stage_plans, step_env, step_rows, tower_rows
from ..costs.kernels import Terms
from ..costs.roofline import OpCost
from ..costs.step import Group, Step
from ..network.graph import Block
from ..network.operators import WORK_FIELDS, Op, Work
from . import latency, memory
from .latency import decode_step, mixed_step, prefill_seconds, prefill_steps, vision_step
from .memory import cache_of, peak, prompt_peaks, replica_kv_bytes
from .report import OpRow, OtherStagesRow, Phase
from .speculation import draft_plan
from .weights import weight_bytes
from .workload import BatchShape

IDLE = ("host", "wait", "draft")  # kinds of rows that are not a kernel of this stage
Rows = list[tuple[OpCost, float, dict[str, Any]]]


def phase_tables(bound_plan: BoundPlan, batch_shape: BatchShape, phase: str, decodes: bool) -> dict[str, Phase]:
    """``{"prefill": …, "decode": …}``, or one of them; with chunked prefill a step that mixes both, too."""
    tables: dict[str, Phase] = {}
    if phase != "decode":
        tables["prefill"] = _prefill(bound_plan, batch_shape)
    if decodes:
        tables["decode"] = _decode(bound_plan, batch_shape)
        if bound_plan.plan.enable_chunked_prefill and isinstance(batch_shape.input_len, int):
            tables["mixed"] = _mixed(bound_plan, batch_shape)
    return tables


def _mixed(bound_plan: BoundPlan, batch_shape: BatchShape) -> Phase:
    step = mixed_step(bound_plan, batch_shape)
    stage = _slowest(bound_plan, step)
    env = step_env(stage, step)
    rows: Rows = [(row, 1.0, env) for row in step_rows(stage, step)]
    return _phase(
        stage,
        rows,
        1.0,
        [step],
        float(replica_kv_bytes(stage, batch_shape, max(batch_shape.output_len - 2, 0) // 2 + 1)),
    )


def _prefill(bound_plan: BoundPlan, batch_shape: BatchShape) -> Phase:
    steps = prefill_steps(bound_plan, batch_shape)
    first = steps[0][0]
    stage = _slowest(bound_plan, first)
    rows: Rows = []
    if batch_shape.images.count:
        env = step_env(stage, vision_step(batch_shape))
        rows += [(row, 1.0, env) for row in tower_rows(stage_plans(bound_plan)[0], vision_step(batch_shape))]
    for step, often in steps:
        env = step_env(stage, step if isinstance(step, Step) else step[0])
        rows += [(row, often, env) for row in step_rows(stage, step)]
    waiting = prefill_seconds(bound_plan, batch_shape) - _total(rows) if _is_pipeline(bound_plan) else 0.0
    rows += _waiting("pipeline_fill", waiting)
    kept = float(batch_shape.batch_per_replica * cache_of(stage, batch_shape, batch_shape.context))
    phase = _phase(stage, rows, sum(often for _, often in steps), prompt_peaks(bound_plan, batch_shape), kept)
    phase.other_stages = _other_stages(bound_plan, stage, first, waiting, phase.seconds)
    return phase


def _decode(bound_plan: BoundPlan, batch_shape: BatchShape) -> Phase:
    step = decode_step(bound_plan, batch_shape)
    one = step if isinstance(step, Step) else step[0]
    stage = _slowest(bound_plan, step)
    env = step_env(stage, one)
    rotating = float(latency.micro_batches(bound_plan, batch_shape.sequences)) if isinstance(step, Step) else 1.0
    rows: Rows = [(row, rotating, env) for row in step_rows(stage, step)]
    waiting = 0.0
    if isinstance(step, Step):
        if _is_pipeline(bound_plan):
            waiting = float(latency.decode_period(bound_plan, step, rotating).seconds) - _total(rows)
        rows += _waiting("pipeline_wait", waiting)
        if bound_plan.plan.speculation is not None:
            guess = latency.speculative_step(
                bound_plan, batch_shape.sequences / rotating, batch_shape.context, batch_shape.output_len, rotating
            )
            rows += _drafting(bound_plan, one, float(guess.drafting.seconds))
    kept = replica_kv_bytes(stage, batch_shape, max(batch_shape.output_len - 2, 0) // 2 + 1)
    phase = _phase(stage, rows, 1.0, [one], float(kept))
    phase.other_stages = _other_stages(bound_plan, stage, step, waiting, phase.seconds)
    return phase


def _is_pipeline(bound_plan: BoundPlan) -> bool:
    """Whether a stage can wait for others, or for other micro-batches."""
    return bound_plan.plan.pipeline_parallel_size > 1 or bound_plan.plan.micro_batches > 1


def _other_stages(
    bound_plan: BoundPlan, stage: BoundPlan, step: Step | list[Step], took: float, total: float
) -> list[OtherStagesRow]:
    """What the other stages do in the time that this one waits for them, longest first."""
    if took <= 1e-12 or isinstance(step, list):
        return []
    layers = {layer for block in stage.model.blocks for layer in block.layers}
    others = [p for p in stage_plans(bound_plan) if not layers & {x for b in p.model.blocks for x in b.layers}]
    times: dict[tuple[str, str], float] = {}
    for row in (row for other in others for row in step_rows(other, step)):
        key = row.op.name, row.op.kind if row.op.kind in IDLE else row.bound
        times[key] = times.get(key, 0.0) + float(row.seconds) * float(row.count)
    scale = took / sum(times.values()) if times else 0.0  # with several micro-batches a part of it is hidden
    return [
        OtherStagesRow(name, bound, seconds * scale, seconds * scale / total)
        for (name, bound), seconds in sorted(times.items(), key=lambda item: -item[1])
        if seconds > 0
    ]


def _slowest(bound_plan: BoundPlan, step: Step | list[Step]) -> BoundPlan:
    """The pipeline stage that holds up the others."""
    parts = stage_plans(bound_plan)
    if len(parts) == 1 or isinstance(step, list):
        return bound_plan
    times = [float(t) for t in latency.stage_seconds(bound_plan, step)]
    return parts[times.index(max(times))]


def _total(rows: Rows) -> float:
    return float(sum(row.seconds * row.count * often for row, often, _ in rows))


def _waiting(name: str, took: float) -> Rows:
    """Time in which this stage does nothing of its own."""
    return _summed(name, "wait", "pipeline", dict.fromkeys(WORK_FIELDS, 0.0), took) if took > 1e-12 else []


def _drafting(bound_plan: BoundPlan, verify: Step, took: float) -> Rows:
    """The steps of the model that drafts, as one row with all their work."""
    spec = bound_plan.plan.speculation
    if spec is None or spec.method == "ngram":
        return []
    group = verify.groups[0]
    step = Step((Group(group.seqs, 1, group.cached, 1, True),))
    drafted = step_rows(draft_plan(bound_plan), step)
    work = {
        field: spec.num_speculative_tokens * sum(float(row.work[field]) * float(row.count) for row in drafted)
        for field in WORK_FIELDS
    }
    return _summed("draft", "draft", "draft", work, took)


def _summed(name: str, kind: str, block_name: str, work: dict[str, Any], took: float) -> Rows:
    """A row that stands for more than an operator."""
    op = Op(name, kind, Work(), {})
    block = Block(block_name, (op,), {}, stage="head", residual=False)
    return [(OpCost(block, op, 1, work, Terms(0.0, 0.0, 0.0, 0.0), "assumed", took), 1.0, {})]


def _phase(bound_plan: BoundPlan, rows: Rows, steps: float, largest: list[Step], cache: float) -> Phase:
    merged: dict[tuple[int, int], OpRow] = {}
    for row, often, env in rows:
        _merge(merged, row, often, env)
    ops, total = finish_rows(merged.values())
    live, weights = peak(bound_plan, largest), float(weight_bytes(bound_plan) + memory.drafter(bound_plan, 0)[0])
    cache *= 1 - bound_plan.env["kv_offload_share"]
    sums = {
        f: sum(getattr(op, f) for op in ops)
        for f in ("load_weight", "load_act", "store_act", "load_kv_cache", "store_kv_cache")
    }
    return Phase(
        seconds=total,
        OPs=sum(op.flops for op in ops),
        memory_access=sum(sums.values()),
        **sums,
        inference_time=total,
        memory_consumption=weights + cache + live,
        memory_consumption_tmp_act=live,
        memory_consumption_weight=weights,
        memory_consumption_kv_cache=cache,
        steps=steps,
        ops=ops,
    )


def _merge(merged: dict[tuple[int, int], OpRow], row: OpCost, often: float, env: dict[str, Any]) -> None:
    """Add the calls of one step to an operator's row."""
    key = (id(row.block), id(row.op))
    if key not in merged:
        merged[key] = empty_row(row, env)
    add_calls(merged[key], row, row.count * often)


# ------------------------------------------------------------------ rows of operators, of any table


def empty_row(cost: OpCost, env: dict[str, Any]) -> OpRow:
    """The row of an operator before its calls are added; ``env`` has the names that its shape is written in."""
    names = {**env, **cost.block.dims}
    return OpRow(
        name=cost.op.name,
        kind=cost.op.kind,
        block=cost.block.name,
        count=0,
        shape=_tensor_shapes(cost.op, names),
        flops=0.0,
        bytes=0.0,
        seconds=0.0,
        share=0.0,
        bound=cost.op.kind if cost.op.kind in IDLE else cost.bound,
        intensity=0.0,
        efficiency=1.0,
        origin=str(cost.origin),
        formula=cost.op.formula,
    )


def _tensor_shapes(op: Op, env: dict[str, Any]) -> dict[str, list[float]]:
    """The sizes of each tensor of an operator."""
    sizes = iter(_sizes_program(op)(env))
    return {name: [float(next(sizes)) for _ in formulas] for name, formulas in op.shape.items()}


@cache_by_identity(4000)
def _sizes_program(op: Op) -> Program:
    return Program([lift(formula) for formulas in op.shape.values() for formula in formulas])


def add_calls(row: OpRow, cost: OpCost, calls: float) -> None:
    """Add the work and time of so many calls of an operator to its row."""
    work = cost.work
    row.count += calls
    row.flops += float(work["flops"]) * calls
    row.bytes += float(cost.bytes) * calls
    row.load_weight += float(work["weights"]) * calls
    row.load_act += float(work["reads"]) * calls
    row.store_act += float(work["writes"]) * calls
    row.load_kv_cache += float(work["kv_reads"]) * calls
    row.store_kv_cache += float(work["kv_writes"]) * calls
    row.sent += float(work["sent"]) * calls
    row.seconds += float(cost.seconds) * calls
    row.roofline_seconds += float(cost.terms.roofline) * calls


def finish_rows(rows: Iterable[OpRow]) -> tuple[list[OpRow], float]:
    """The rows that have work, with their shares, intensities and efficiencies; and their seconds together."""
    ops = [op for op in rows if op.seconds > 0 or op.flops > 0 or op.bytes > 0 or op.kind == "all_reduce"]
    total = sum(op.seconds for op in ops)
    for op in ops:
        op.share = op.seconds / total if total else 0.0
        op.intensity = op.flops / op.bytes if op.bytes else 0.0
        op.efficiency = min(1.0, op.roofline_seconds / op.seconds) if op.seconds and op.roofline_seconds else 1.0
    return ops, total
