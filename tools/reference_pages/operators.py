"""docs/reference/operators.md: what every operator computes, reads, writes and sends, from its own formulas."""

from __future__ import annotations

import inspect
from typing import Any

from inferometer.base.symbols import names as s
from inferometer.base.symbols import text
from inferometer.network.operators import KINDS, WORK_FIELDS, Op

from .markdown import code, table

HEAD = """# Operators

A network is blocks of these operators. Each one is a function from shapes to work, both in formulas: figures are of
one call on one GPU. `--explain OPERATOR`
shows them for your model with every number filled in.

A formula's names are bound by whatever knows them:

| name | bound by |
|---|---|
| `tokens`, `seqs`, `decode_kv`, `logits` … | the step: its tokens and sequences, and what they attend to |
| `act_bytes`, `kv_bytes`, `norm_bytes`, `mlp_weight_bytes`, `mlp_input_bytes` … | the precision: bytes of one element |
| `tp`, `ep`, `sp`, `dcp`, `moe_tp` | the plan: ranks that share the work. At one rank a collective sends nothing |
| `unfused`, `eager` | the engine: 0 or 1 |
| all others | the operator's own sizes |

"""
MEANING = {
    "flops": "floating-point operations",
    "weights": "weight bytes read",
    "reads": "activation bytes read",
    "writes": "activation bytes written",
    "kv_reads": "KV cache and state bytes read",
    "kv_writes": "KV cache and state bytes written",
    "sent": "bytes sent to other ranks",
    "hops": "messages in a row",
}
SHORT = {
    "touched": "experts that some token chose",
    "rows": "tokens at their experts",
}  # sizes that formulas are shown with
ROLES = {"linear": "mlp"}  # operators whose precision depends on their role: the one to show
FLAGS: dict[str, dict[str, Any]] = {"norm": {"residual": True}, "scan": {"flops_per_state": s.flops_per_state}}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for kind in KINDS:
        op = example(kind)
        first = next(other for other in KINDS if KINDS[other] is KINDS[kind])
        text_ = _doc(KINDS[kind]) if kind == first else f"As [{first}](#{first}), of sequences that decode."
        parts.append(f"## {kind}\n\n{text_}\n\n{work_table(op)}\n")
        if op.peak != "vector_peak_flops":
            parts.append(f"Peak: `{op.peak}`.\n\n")
    return "".join(parts).rstrip() + "\n"


def work_table(op: Op) -> str:
    """The formulas of an operator that are not 0: ``work_table(example("norm"))``"""
    rows = [(name, text(getattr(op.work, name))) for name in WORK_FIELDS]
    if op.cache is not None:
        rows += [("kept per token", text(op.cache.per_token)), ("kept per sequence", text(op.cache.per_sequence))]
    short = {name: text(op.dims[name]) for name in SHORT if name in op.dims}
    for name, formula in short.items():
        rows = [(label, long.replace(formula, name)) for label, long in rows]
    named = [[code(name), code(formula), SHORT[name]] for name, formula in short.items()]
    shown = [
        [code(label) if label in MEANING else label, code(formula), MEANING.get(label, "bytes")]
        for label, formula in rows
    ]
    return table(["work", "formula", "what it is"], [*(row for row in shown if row[1] != "`0`"), *named])


def example(kind: str) -> Op:
    """An operator with a name for every size that it must be given: ``example("linear").work.flops``"""
    function, given = KINDS[kind], dict(FLAGS.get(kind, {}))
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.default is not inspect.Parameter.empty or name in given:
            continue
        given[name] = {"name": kind, "phase": kind.partition("_")[0], "role": ROLES.get(kind, "")}.get(
            name, getattr(s, name)
        )
    return function(**given)


def _doc(function: Any) -> str:
    return inspect.cleandoc(function.__doc__ or "").replace("``", "`")


# ------------------------------------------------------------------ formulas of the concepts


def formula(kind: str, field: str) -> str:
    """One formula: ``formula("all_reduce", "sent")``"""
    return text(getattr(example(kind).work, field))
