"""The tables of a report: the operators of each phase on the slowest pipeline stage."""

from __future__ import annotations

from typing import Any

from ..base.symbols import evaluate
from ..costs.bound_plan import Setup, bound, stages, step_rows, tower_rows
from ..costs.kernels import Terms
from ..costs.roofline import FIELDS, OpCost
from ..costs.step import Step
from ..network.graph import Block
from ..network.operators import Op, Work
from . import latency, memory
from .latency import Talk, decode_step, mixed_step, prefill_steps, prompt_seconds, tower_step
from .memory import cache_of, held, peak, prompt_peaks
from .report import OpRow, Phase

IDLE = ("host", "wait", "draft")  # kinds of rows that are not a kernel of this stage
Rows = list[tuple[OpCost, float, dict[str, Any]]]


def phase_tables(setup: Setup, talk: Talk, phase: str, decodes: bool) -> dict[str, Phase]:
    """``{"prefill": …, "decode": …}``, or one of them; with chunked prefill a step that mixes both, too."""
    found: dict[str, Phase] = {}
    if phase != "decode":
        found["prefill"] = _prefill(setup, talk)
    if decodes:
        found["decode"] = _decode(setup, talk)
        if setup.plan.enable_chunked_prefill and isinstance(talk.input_len, int):
            found["mixed"] = _mixed(setup, talk)
    return found


def _mixed(setup: Setup, talk: Talk) -> Phase:
    step = mixed_step(setup, talk)
    stage = _slowest(setup, step)
    env = bound(stage, step)
    rows: Rows = [(row, 1.0, env) for row in step_rows(stage, step)]
    return _phase(stage, rows, 1.0, [step], float(held(stage, talk, max(talk.output_len - 2, 0) // 2 + 1)))


def _prefill(setup: Setup, talk: Talk) -> Phase:
    steps = prefill_steps(setup, talk)
    first = steps[0][0]
    stage = _slowest(setup, first)
    rows: Rows = []
    if talk.images.count:
        env = bound(stage, tower_step(talk))
        rows += [(row, 1.0, env) for row in tower_rows(stages(setup)[0], tower_step(talk))]
    for step, often in steps:
        env = bound(stage, step if isinstance(step, Step) else step[0])
        rows += [(row, often, env) for row in step_rows(stage, step)]
    rows += _waiting("pipeline_fill", prompt_seconds(setup, talk) - _total(rows))
    kept = float(talk.mine * cache_of(stage, talk, talk.context))
    return _phase(stage, rows, sum(often for _, often in steps), prompt_peaks(setup, talk), kept)


def _decode(setup: Setup, talk: Talk) -> Phase:
    step = decode_step(setup, talk)
    one = step if isinstance(step, Step) else step[0]
    stage = _slowest(setup, step)
    env = bound(stage, one)
    rotating = float(latency.micro_batches(setup, talk.sequences)) if isinstance(step, Step) else 1.0
    rows: Rows = [(row, rotating, env) for row in step_rows(stage, step)]
    if isinstance(step, Step):
        rows += _waiting("pipeline_wait", float(latency.period(setup, step, rotating)) - _total(rows))
        if setup.plan.speculation is not None:
            guess = latency.guess(setup, talk.sequences / rotating, talk.context, talk.output_len, rotating)
            rows += _waiting("draft", float(guess.draft_seconds))
    kept = held(stage, talk, max(talk.output_len - 2, 0) // 2 + 1)
    return _phase(stage, rows, 1.0, [one], float(kept))


def _slowest(setup: Setup, step: Step | list[Step]) -> Setup:
    """The pipeline stage that holds up the others."""
    parts = stages(setup)
    if len(parts) == 1 or isinstance(step, list):
        return setup
    times = [float(t) for t in latency.stage_seconds(setup, step)]
    return parts[times.index(max(times))]


def _total(rows: Rows) -> float:
    return float(sum(row.seconds * row.count * often for row, often, _ in rows))


def _waiting(name: str, took: float) -> Rows:
    """Time in which this stage does nothing of its own."""
    if took <= 1e-12:
        return []
    op = Op(name, "draft" if name == "draft" else "wait", Work(), {})
    block = Block("pipeline" if name != "draft" else "draft", (op,), {}, stage="head", residual=False)
    row = OpCost(block, op, 1, dict.fromkeys(FIELDS, 0.0), Terms(0.0, 0.0, 0.0, 0.0), "assumed", took)
    return [(row, 1.0, {})]


def _phase(setup: Setup, rows: Rows, steps: float, largest: list[Step], cache: float) -> Phase:
    merged: dict[tuple[int, int], OpRow] = {}
    for row, often, env in rows:
        _merge(merged, row, often, env)
    ops = [op for op in merged.values() if op.seconds > 0 or op.flops > 0 or op.bytes > 0 or op.kind == "all_reduce"]
    total = sum(op.seconds for op in ops)
    for op in ops:
        op.share = op.seconds / total if total else 0.0
        op.intensity = op.flops / op.bytes if op.bytes else 0.0
        op.efficiency = min(1.0, op.roofline_seconds / op.seconds) if op.seconds and op.roofline_seconds else 1.0
    live, weights = peak(setup, largest), float(memory.weight_bytes(setup))
    cache *= 1 - setup.env["kv_offload_share"]
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
    calls = row.count * often
    place = next(i for i, op in enumerate(row.block.ops) if op is row.op)
    key = (id(row.block), place)
    if key not in merged:
        names = {**env, **row.block.dims}
        shape = {k: [float(evaluate(v, names)) for v in vs] for k, vs in row.op.shape.items()}
        merged[key] = OpRow(
            name=row.op.name,
            kind=row.op.kind,
            block=row.block.name,
            count=0,
            shape=shape,
            flops=0.0,
            bytes=0.0,
            seconds=0.0,
            share=0.0,
            bound=row.op.kind if row.op.kind in IDLE else row.bound,
            intensity=0.0,
            efficiency=1.0,
            origin=str(row.origin),
            formula=row.op.formula,
        )
    op, w = merged[key], row.work
    op.count += calls
    op.flops += float(w["flops"]) * calls
    op.bytes += float(row.bytes) * calls
    op.load_weight += float(w["weights"]) * calls
    op.load_act += float(w["reads"]) * calls
    op.store_act += float(w["writes"]) * calls
    op.load_kv_cache += float(w["kv_reads"]) * calls
    op.store_kv_cache += float(w["kv_writes"]) * calls
    op.sent += float(w["sent"]) * calls
    op.seconds += float(row.seconds) * calls
    op.roofline_seconds += float(row.terms.roofline) * calls
