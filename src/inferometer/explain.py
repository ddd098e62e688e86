"""Why an operator takes as long as it does: formulas, the values put in, and where its efficiency came from."""

from __future__ import annotations

from typing import Any

import msgspec

from . import cost
from .cost import FIELDS, OpCost
from .errors import UnknownName
from .evaluate import Setup, bound, prepare, stages
from .request import Request
from .steps import Step
from .symbols import evaluate, text, words
from .talk import conversation, decode_step, prefill_steps, tower_step


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


def explain(asked: Request, name: str, phase: str = "all") -> list[Explanation]:
    """Every place where an operator of that name works: ``explain(request("llama-3.1-8b"), "qkv_proj")``"""
    setup = prepare(asked.model, asked.device, asked.engine, asked.plan, roles=asked.roles,
                    efficiency=asked.efficiency, norm_dtype=asked.norm_dtype)  # fmt: skip
    parts = stages(setup)
    names = {op.name for part in parts for block in part.model.blocks for op in block.ops}
    if name not in names:
        raise UnknownName("operator", name, names)
    talk = conversation(setup, asked.workload)
    steps: dict[str, Step] = {}
    if talk.images.count:
        steps["vision"] = tower_step(talk)
    steps["prefill"] = _one(prefill_steps(setup, talk)[0][0])
    if asked.model.kind == "decoder" and talk.output_len > 1:
        steps["decode"] = _one(decode_step(setup, talk))
    found: list[Explanation] = []
    for when, step in steps.items():
        if phase not in ("all", when):
            continue
        env = bound(setup, step)
        for part in parts:  # of a pipeline, the first stage that has it
            blocks = part.tower if when == "vision" else part.text
            rows = [row for block in blocks for row in cost.price(block, env, setup.sources)]
            mine = [_one_op(setup, when, row, env) for row in rows if row.op.name == name and row.seconds > 0]
            found += mine
            if mine:
                break
    return found


def _one(step: Step | list[Step]) -> Step:
    return step if isinstance(step, Step) else step[0]


def _one_op(setup: Setup, phase: str, row: OpCost, env: dict[str, Any]) -> Explanation:
    names = {**env, **row.block.dims}
    lines = []
    for field in (*FIELDS, "params", "stored"):
        formula = getattr(row.op.work, field)
        if text(formula) == "0":
            continue
        values = {w: float(names[w]) for w in words(formula)}
        result = row.work[field] if field in FIELDS else evaluate(formula, names)
        lines.append(Line(field, text(formula), values, float(result)))
    t = row.terms
    source = next(s for s in setup.sources if s.origin == str(row.origin))
    return Explanation(
        phase=phase, block=row.block.name, op=row.op.name, kind=row.op.kind, count=row.count, lines=lines,
        compute_seconds=float(t.compute), memory_seconds=float(t.memory), link_seconds=float(t.link + t.latency),
        roofline_seconds=float(t.roofline), bound=row.bound, efficiency=float(row.efficiency), origin=str(row.origin),
        note=source.note(row.op), seconds=float(row.seconds),
    )  # fmt: skip
