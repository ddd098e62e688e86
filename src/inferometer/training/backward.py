"""Gradients of operators, and what each must keep for them, derived from the forward operators one by one.

    from inferometer.training.backward import backward, stash
    dgrad, wgrad = backward(linear("o_proj", s.hidden_size, s.hidden_size))
    str(wgrad.work.flops)                     # '2·tokens·hidden_size·hidden_size', as of the forward product
    stash(softmax).extra                      # bytes: q, k, v, and the statistics or the scores

A gradient is an operator like any other: the same `Work` in formulas over the same names, estimated by the same cost
function. ``grad_bytes`` are those of a weight's gradient, which is accumulated: read, added to, written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from ..base.errors import BadValue
from ..base.symbols import maximum, minimum
from ..base.symbols import names as s
from ..network.operators import Formula, Op, Work
from ..network.operators.op import role_bytes

SERVING = frozenset(
    {"kv_write", "decode_attention", "state_update", "sampler"}
)  # kinds that a training step does not run
GATHER, SCATTER = "sequence_gather", "sequence_scatter"  # the two halves of an all-reduce under sequence parallelism
FUSED_LOSS = "fused_loss"  # cross entropy in one kernel, which keeps no fp32 copy
STATELESS = frozenset(  # element-wise, and their gradient needs nothing of the forward pass
    {"rope", "add", "sinks", "dispatch_permute", "combine_permute"}
)
FROZEN = "frozen"  # mark of operators whose weights are not trained, among their dims


class Stash(NamedTuple):
    """What an operator keeps for its gradient."""

    input: Formula = 0  # bytes of its input tensor, which others that read the same tensor keep with it
    output: Formula = 0  # bytes of its output tensor, likewise
    extra: Formula = 0  # bytes that no other operator keeps
    core: Formula = 0  # of `extra`, what recomputing its inner part gives up: scores, the activation of experts


def backward(op: Op) -> tuple[Op, ...]:
    """The operators that a forward operator adds to the backward pass, in the order they run."""
    if op.kind in SERVING:
        return ()
    if op.kind not in _BACKWARD:
        raise BadValue(f"operator {op.name} of kind {op.kind} cannot be trained: its gradient is not implemented")
    gradients = _BACKWARD[op.kind](op)
    return tuple(g for g in gradients if not g.name.endswith("_wgrad")) if FROZEN in op.dims else gradients


def stash(op: Op) -> Stash:
    """Bytes that an operator keeps from the forward pass to its gradient."""
    return _STASH[op.kind](op) if op.kind in _STASH else Stash()


def _derive(
    op: Op,
    suffix: str,
    work: Work,
    kind: str = "",
    dims: dict[str, Formula] | None = None,
    shape: dict[str, tuple[Formula, ...]] | None = None,
    calls: int = 1,
) -> Op:
    return msgspec.structs.replace(
        op,
        name=f"{op.name}_{suffix}",
        kind=kind or op.kind,
        work=work,
        dims=op.dims if dims is None else dims,
        shape=op.shape if shape is None else shape,
        calls=calls,
        output=0,
        inputs=None,
        cache=None,
    )


# ------------------------------------------------------------------ products


def _linear(op: Op) -> tuple[Op, ...]:
    """Y = X·W gives dX = dY·Wᵀ and dW += Xᵀ·dY, each as many FLOPs as the product itself."""
    m, n, k, groups = (op.dims[name] for name in ("m", "n", "k", "groups"))
    _, inp, _ = role_bytes(op.role)
    rows_in, rows_out = m * k * groups, m * n
    gradient = n * k * s.grad_bytes
    dgrad = _derive(
        op,
        "dgrad",
        Work(flops=op.work.flops, weights=op.work.weights, reads=rows_out * inp, writes=rows_in * s.act_bytes),
        dims={"m": m, "n": k, "k": n, "groups": groups},
        shape={"input": (m, n), "weight": (n, k), "output": (m, k * groups)},
    )
    wgrad = _derive(
        op,
        "wgrad",
        Work(flops=op.work.flops, reads=(rows_in + rows_out) * inp + gradient, writes=gradient),
        dims={"m": k, "n": n, "k": m, "groups": groups},
        shape={"input": (k * groups, m), "gradient": (m, n), "output": (k, n)},
    )
    return dgrad, wgrad


def _stash_linear(op: Op) -> Stash:
    """Its input, for the gradient of its weights: nothing where those are frozen."""
    if FROZEN in op.dims:
        return Stash()
    _, inp, _ = role_bytes(op.role)
    return Stash(input=op.dims["m"] * op.dims["k"] * op.dims["groups"] * inp)


def _moe(op: Op) -> tuple[Op, ...]:
    """Each expert's products, twice: gradients of the rows that chose it, and of its weights."""
    rows, hidden, inner = op.shape["input"][0], op.dims["hidden"], op.dims["inner"]
    weight, inp, _ = role_bytes("experts")
    wide = (op.dims["matrices"] - 1) * inner
    gradients = rows * (hidden + wide + inner) * s.act_bytes  # of the output, the activation's input and its output
    dgrad = Work(
        flops=op.work.flops,
        weights=op.work.weights,
        reads=gradients + rows * wide * s.act_bytes,
        writes=rows * (hidden + wide + inner) * s.act_bytes,
    )
    gradient = op.work.stored / weight * s.grad_bytes
    wgrad = Work(flops=op.work.flops, reads=rows * (2 * hidden + wide + inner) * inp + gradient, writes=gradient)
    return _derive(op, "dgrad", dgrad, calls=op.calls), _derive(op, "wgrad", wgrad, calls=op.calls)


def _stash_moe(op: Op) -> Stash:
    """The rows as they were sorted by expert, and the input and output of the activation."""
    rows, hidden, inner = op.shape["input"][0], op.dims["hidden"], op.dims["inner"]
    _, inp, _ = role_bytes("experts")
    wide = (op.dims["matrices"] - 1) * inner
    if FROZEN in op.dims:
        return Stash(extra=rows * wide * s.act_bytes)
    return Stash(extra=rows * (hidden * inp + wide * s.act_bytes + inner * inp), core=rows * inner * inp)


def _embedding(op: Op) -> tuple[Op, ...]:
    """The rows' gradients are added into the table's."""
    size = op.dims["m"] * op.dims["n"]
    return (_derive(op, "wgrad", Work(reads=size * (s.act_bytes + s.grad_bytes), writes=size * s.grad_bytes)),)


# ------------------------------------------------------------------ attention and scans


def _scores(op: Op) -> Formula:
    """Bytes of the score matrix of eager attention; nothing with flash, which never has it in memory.

    The operator's output holds it twice: the scores and their softmax are alive together.
    """
    d = op.dims
    return (op.output - d["tokens"] * d["heads"] * d["v_dim"] * s.act_bytes) / 2


def qkv_bytes(op: Op) -> Formula:
    """Bytes of the queries, keys and values of an attention operator."""
    d = op.dims
    return (d["tokens"] * d["heads"] * d["qk_dim"] + d["kv"] * d["kv_heads"] * (d["qk_dim"] + d["v_dim"])) * s.act_bytes


def _attention(op: Op) -> tuple[Op, ...]:
    """Flash: five products (the scores again, dV, dP, dQ, dK) against two; eager: the last four, scores from memory.

    Eager attention reads the probabilities twice, dP once and dS twice, and writes dP and dS.
    """
    d = op.dims
    out = d["tokens"] * d["heads"] * d["v_dim"] * s.act_bytes
    scores = _scores(op)
    work = Work(
        flops=2 * d["heads"] * d["pairs"] * ((3 - s.eager) * d["qk_dim"] + 2 * d["v_dim"]),
        reads=qkv_bytes(op) + (2 - s.eager) * out + 5 * scores,
        writes=qkv_bytes(op) + 2 * scores,
    )
    return (_derive(op, "backward", work, kind="attention_backward", calls=2),)


def _stash_attention(op: Op) -> Stash:
    """q, k and v; flash also its output and two statistics a row, eager the probabilities."""
    d = op.dims
    core = _scores(op) + (1 - s.eager) * d["tokens"] * d["heads"] * 8
    return Stash(output=d["tokens"] * d["heads"] * d["v_dim"] * s.act_bytes, extra=qkv_bytes(op) + core, core=core)


def is_attention_core(op: Op) -> bool:
    """Whether an operator is in the core of attention: the scores, their softmax and dropout, the product with v."""
    return op.kind == "prefill_attention" or op.name == "attention_dropout"


def _scan(op: Op) -> tuple[Op, ...]:
    """The states again (half of the forward work), then gradients of both factors of every product."""
    out = op.output
    work = Work(flops=2.5 * op.work.flops, weights=op.work.weights, reads=op.work.reads + out, writes=op.work.reads)
    return (_derive(op, "backward", work, calls=2),)


# ------------------------------------------------------------------ element-wise


def _norm(op: Op) -> tuple[Op, ...]:
    """Reads the gradients of what it wrote and its own input; writes the one gradient that its inputs share."""
    work = Work(flops=2 * op.work.flops, weights=op.work.weights, reads=op.work.writes + op.output, writes=op.output)
    return (_derive(op, "backward", work),)


def _elementwise(op: Op) -> tuple[Op, ...]:
    """Reads the gradient of its output and what it kept; writes the gradient of its input."""
    stashed = 0 if op.name in STATELESS or _is_mask(op) else op.work.reads
    work = Work(flops=2 * op.work.flops, weights=op.work.weights, reads=op.work.writes + stashed, writes=op.work.reads)
    return (_derive(op, "backward", work, calls=op.calls),)


def _stash_elementwise(op: Op) -> Stash:
    if op.name in STATELESS:
        return Stash()
    if _is_mask(op):
        mask = op.dims["m"] * op.dims["n"]
        if op.name == "attention_dropout":  # the gradient of the product with v needs what is left of the scores, too
            return Stash(extra=mask * (1 + s.act_bytes), core=mask * (1 + s.act_bytes))
        return Stash(extra=mask)
    return Stash(input=op.work.reads)


def _is_mask(op: Op) -> bool:
    return op.name.endswith("dropout")


def _loss(op: Op) -> tuple[Op, ...]:
    """Probabilities less one at the label, in fp32; the gradient leaves in the activations' format."""
    size = op.dims["m"] * op.dims["n"]
    probabilities = s.act_bytes if op.name == FUSED_LOSS else 4
    return (_derive(op, "backward", Work(flops=2 * size, reads=probabilities * size, writes=size * s.act_bytes)),)


def _stash_loss(op: Op) -> Stash:
    """The probabilities in fp32; a fused kernel keeps the logits, and writes their gradient over them."""
    if op.name == FUSED_LOSS:
        return Stash(input=op.dims["m"] * op.dims["n"] * s.act_bytes)
    return Stash(extra=4 * op.dims["m"] * op.dims["n"])


# ------------------------------------------------------------------ collectives


def _reversed_collective(op: Op) -> tuple[Op, ...]:
    """What was sent one way comes back the other."""
    return (_derive(op, "backward", op.work),)


def _send(op: Op) -> tuple[Op, ...]:
    """A gradient comes back the way that its tensor went; round a ring keys and values go again, too."""
    twice = 2 if op.axis == "cp" else 1
    return (_derive(op, "backward", Work(sent=twice * op.work.sent, hops=op.work.hops)),)


def _nothing(op: Op) -> tuple[Op, ...]:
    """The gradient of a sum over ranks is what every rank already has."""
    return ()


def _copy(op: Op) -> tuple[Op, ...]:
    """Every rank used the same input, so that its gradient is the sum over ranks."""
    ranks, size = op.dims["ranks"], op.dims["bytes"]
    work = Work(sent=2 * (ranks - 1) / ranks * size, hops=minimum(ranks - 1, 1))
    return (msgspec.structs.replace(_derive(op, "backward", work, kind="all_reduce"), name="all_reduce_backward"),)


def _gather(op: Op) -> tuple[Op, ...]:
    """The gradient is summed and scattered; under sequence parallelism the input, kept in shards, is gathered again."""
    scatter = _derive(op, "backward", op.work, kind="reduce_scatter")
    return (_derive(op, "again", op.work), scatter) if op.name == GATHER else (scatter,)


def _scatter(op: Op) -> tuple[Op, ...]:
    return (_derive(op, "backward", op.work, kind="all_gather"),)


_BACKWARD: dict[str, Callable[[Op], tuple[Op, ...]]] = {
    "linear": _linear,
    "moe": _moe,
    "embedding": _embedding,
    "prefill_attention": _attention,
    "scan": _scan,
    "chunk_scan": _scan,
    "conv1d": _elementwise,
    "norm": _norm,
    "elementwise": _elementwise,
    "loss": _loss,
    "all_reduce": _nothing,
    "copy": _copy,
    "all_gather": _gather,
    "reduce_scatter": _scatter,
    "all_to_all": _reversed_collective,
    "send": _send,
}
_STASH: dict[str, Callable[[Op], Stash]] = {
    "linear": _stash_linear,
    "moe": _stash_moe,
    "prefill_attention": _stash_attention,
    "scan": lambda op: Stash(extra=op.work.reads),
    "chunk_scan": lambda op: Stash(extra=op.shape["input"][0] * op.shape["input"][1] * s.act_bytes),
    "conv1d": _stash_elementwise,
    "norm": lambda op: Stash(extra=op.output),
    "elementwise": _stash_elementwise,
    "loss": _stash_loss,
}


# ------------------------------------------------------------------ memory beside activations


def backward_workspace(op: Op) -> Formula:
    """Bytes that a gradient needs while it is computed, beside the gradients of its input and of its output."""
    if op.kind == "moe":  # of the experts' products: what the activation wrote and what it read
        inner, rows = op.dims["inner"], op.shape["input"][0]
        return rows * maximum(op.dims["hidden"] + inner, (op.dims["matrices"] - 1) * inner) * s.act_bytes
    if op.kind == "embedding":  # summed by rows into a table of its own, which is then added to the others
        return op.work.stored / role_bytes(op.role)[0] * s.param_bytes
    if op.axis in ("ep", "cp"):  # what is sent and what comes
        rows, width = op.shape["input"]
        return 2 * rows * width * s.act_bytes
    return 0


def weight_shapes(op: Op) -> list[tuple[Formula, Formula]]:
    """Shapes of an operator's weight matrices on one rank; of experts those of one of them."""
    if op.kind == "linear" and op.role != "router":
        return [(op.dims["n"], op.dims["k"])]
    if op.kind == "moe":
        inner, hidden = op.dims["inner"], op.dims["hidden"]
        return [((op.dims["matrices"] - 1) * inner, hidden), (hidden, inner)]
    return []
