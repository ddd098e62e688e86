"""Operators: one small decorated function per kind, from shapes (formulas) to work (formulas).

A name such as ``s.hidden_size`` is bound by the block the operator stands in, ``s.tokens`` by the step, ``s.tp`` by
the plan, ``s.attn_weight_bytes`` by the precision. Parallelism is in the formulas, never in branches: at tp = 1 the
all-reduce sends (tp-1)/tp = 0 bytes. All figures are of one device and one call of the operator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from .symbols import Expr, constant, maximum, minimum, names as s, text, total

Formula = Any  # an Expr or a number


class Work(msgspec.Struct, frozen=True):
    """What one call of an operator does on one device."""

    flops: Formula = 0
    weights: Formula = 0  # weight bytes read in this step
    reads: Formula = 0  # activation bytes read
    writes: Formula = 0  # activation bytes written
    kv_reads: Formula = 0  # cache and state bytes read
    kv_writes: Formula = 0  # cache and state bytes written
    sent: Formula = 0  # bytes sent over the link
    hops: Formula = 0  # messages in a row, each paying the link's latency
    params: Formula = 0  # parameters of the whole model, not of one device
    active: Formula = 0  # of those, what one token multiplies by
    stored: Formula = 0  # weight bytes kept on this device


class Cache(msgspec.Struct, frozen=True):
    """What an operator keeps between steps: bytes per cached token of a span, and bytes per sequence."""

    per_token: Formula = 0
    per_sequence: Formula = 0
    span: str = ""


class Op(msgspec.Struct, frozen=True):
    """One operator of a block, its work in formulas."""

    name: str
    kind: str
    work: Work
    dims: dict[str, Formula]  # the kernel's shape: what a measured profile is keyed by
    peak: str = "vector_peak_flops"  # the name of the FLOP/s it can reach
    inputs: tuple[str, ...] | None = None  # operators whose output it reads; None = the one before it
    output: Formula = 0  # bytes of its output tensor
    shape: dict[str, tuple[Formula, ...]] = {}  # tensor shapes for people
    cache: Cache | None = None
    calls: int = 1  # kernels it launches
    role: str = ""

    @property
    def formula(self) -> str:
        """``flops = …; bytes = …`` as people read it."""
        w = self.work
        parts = [("flops", w.flops), ("weights", w.weights), ("reads", w.reads), ("writes", w.writes)]
        parts += [("kv_reads", w.kv_reads), ("kv_writes", w.kv_writes), ("sent", w.sent), ("hops", w.hops)]
        shown = [f"{label} = {text(e)}" for label, e in parts if text(e) != "0"]
        return "; ".join(shown) or "no work"


KINDS: dict[str, Callable[..., Op]] = {}


def operator(kind: str) -> Callable[[Callable[..., Op]], Callable[..., Op]]:
    """Register an operator kind: ``@operator("linear")``. Registering a kind twice is an error."""

    def register(function: Callable[..., Op]) -> Callable[..., Op]:
        if kind in KINDS:
            raise ValueError(f"operator kind {kind!r} is registered twice")
        KINDS[kind] = function
        return function

    return register


def _bytes(role: str) -> tuple[Expr, Expr, str]:
    """Bytes per weight, bytes per input element and the peak FLOP/s of a role, as names."""
    return getattr(s, f"{role}_weight_bytes"), getattr(s, f"{role}_input_bytes"), f"{role}_peak_flops"


@operator("linear")
def linear(
    name: str,
    k: Formula,
    n: Formula,
    *,
    m: Formula = s.tokens,
    role: str = "mlp",
    shard: str = "",
    local: Formula | None = None,
    bias: bool = False,
    tied: bool = False,
    groups: Formula = 1,
    shared: Formula = 1,
    optional: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """A matrix product of ``m`` rows with an ``n × k`` weight.

    ``shard="column"`` splits n over the tensor-parallel ranks, ``"row"`` splits k. ``local`` gives this rank's share
    of n where it is not n/tp (replicated KV heads). A tied weight is read but stored elsewhere. With ``groups`` the
    weight is block-diagonal; ``shard="group"`` gives each rank whole groups. ``shared=0`` marks a weight that a token's
    pass does not multiply by (vision tower). An ``optional`` product may have no rows in a step, and then its weight is
    not read.
    """
    weight, inp, peak = _bytes(role)
    my_n = local if local is not None else (n / s.tp if shard in ("column", "group") else n)
    my_k = k / s.tp if shard in ("row", "group") else k
    my_groups = groups / s.tp if shard == "group" else groups
    per_row = my_k * my_n / my_groups
    params = n * k / groups + (n if bias else 0)
    stored = (per_row + (my_n if bias else 0)) * weight
    return Op(
        name,
        "linear",
        Work(
            flops=2 * m * per_row,
            weights=stored * minimum(m, 1) if optional else stored,
            reads=m * my_k * inp,
            writes=m * my_n * s.act_bytes,
            params=0 if tied else params,
            active=params * shared,
            stored=0 if tied else stored,
        ),
        {"m": m, "n": my_n, "k": my_k / my_groups, "groups": my_groups},
        peak,
        inputs,
        m * my_n * s.act_bytes,
        {"input": (m, my_k), "weight": (my_k, my_n), "output": (m, my_n)},
        role=role,
    )


@operator("embedding")
def embedding(
    name: str,
    rows: Formula,
    width: Formula,
    *,
    m: Formula = s.tokens,
    shard: bool = True,
    role: str = "embed",
    inputs: tuple[str, ...] | None = (),
) -> Op:
    """A gather of ``m`` rows from a table."""
    weight, _, _ = _bytes(role)
    return Op(
        name,
        "embedding",
        Work(
            weights=m * width * weight,
            writes=m * width * s.act_bytes,
            params=rows * width,
            stored=rows * width * weight / (s.tp if shard else 1),
        ),
        {"m": m, "n": width},
        inputs=inputs,
        output=m * width * s.act_bytes,
        shape={"input": (m,), "weight": (rows, width), "output": (m, width)},
        role=role,
    )


@operator("norm")
def norm(
    name: str,
    width: Formula,
    *,
    m: Formula = s.tokens,
    rows: Formula = 1,
    residual: bool = False,
    bias: bool = False,
    weightless: bool = False,
    params: Formula | None = None,
    shared: Formula = 1,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """RMSNorm or LayerNorm over ``m·rows`` vectors of ``width``, with the residual add in the same kernel."""
    size = m * rows * width
    own = (0 if weightless else width * (2 if bias else 1)) if params is None else params
    return Op(
        name,
        "norm",
        Work(
            flops=(5 if residual else 4) * size,
            weights=own * s.norm_bytes,
            reads=size * s.act_bytes * (2 if residual else 1) * s.unfused,
            writes=size * s.act_bytes * (2 if residual else 1) * s.unfused,
            params=own,
            active=own * shared,
            stored=own * s.norm_bytes,
        ),
        {"m": m * rows, "n": width},
        inputs=inputs,
        output=size * s.act_bytes,
        shape={"input": (m * rows, width), "output": (m * rows, width)},
    )


@operator("elementwise")
def elementwise(
    name: str,
    width: Formula,
    out: Formula | None = None,
    *,
    m: Formula = s.tokens,
    flops: Formula = 1,
    params: Formula = 0,
    extra_reads: Formula = 0,
    calls: int = 1,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """``m`` rows of ``width`` in, ``m`` rows of ``out`` (default the same) out; ``flops`` per output element."""
    out = width if out is None else out
    return Op(
        name,
        "elementwise",
        Work(
            flops=flops * m * out,
            weights=params * s.norm_bytes,
            reads=(m * width * s.act_bytes + extra_reads) * s.unfused,
            writes=m * out * s.act_bytes * s.unfused,
            params=params,
            active=params,
            stored=params * s.norm_bytes,
        ),
        {"m": m, "n": width},
        inputs=inputs,
        output=m * out * s.act_bytes,
        shape={"input": (m, width), "output": (m, out)},
        calls=calls,
    )


@operator("kv_write")
def kv_write(name: str, width: Formula, *, m: Formula = s.tokens, span: str = "", per_sequence: Formula = 0) -> Op:
    """Append ``m`` entries of ``width`` elements to the cache: one a token, or fewer where the cache is compressed."""
    return Op(
        name,
        "kv_write",
        Work(reads=m * width * s.act_bytes * s.unfused, kv_writes=m * width * s.kv_bytes),
        {"m": m, "n": width},
        output=0,
        shape={"input": (m, width)},
        cache=Cache(width * s.kv_bytes, per_sequence, span),
    )


def attention(name: str, phase: str, *, heads: Formula, kv_heads: Formula, qk_dim: Formula, v_dim: Formula,
              span: str | tuple[str, ...] = "", causal: bool = True, kv_width: Formula | None = None,
              m: Formula | None = None, dense: Formula | None = None, seqs: Formula | None = None, cached: bool = True,
              inputs: tuple[str, ...] | None = None) -> Op:  # fmt: skip
    """Softmax attention of one ``phase`` ("prefill" or "decode"); ``heads`` and ``kv_heads`` are this device's.

    Works over exactly the pairs that the masks of ``span`` let through; without ``causal`` over all ``dense`` ones.
    Eager attention computes them all and moves the scores through memory four times. ``kv_width`` is the cached
    elements per token where K and V share storage; what is not ``cached`` is read as an activation.
    """
    tails = [f"_{word}" if word else "" for word in ((span,) if isinstance(span, str) else span)]
    m = getattr(s, f"{phase}_tokens") if m is None else m
    dense = getattr(s, f"{phase}_dense") if dense is None else dense
    seqs = getattr(s, f"{phase}_seqs") if seqs is None else seqs
    kv = total(getattr(s, f"{phase}_kv{tail}") for tail in tails) if cached else m
    pairs = total(getattr(s, f"{phase}_qk{tail}") for tail in tails) if causal else dense
    pairs = pairs + s.eager * (dense - pairs) if causal else pairs
    width = kv_heads * (qk_dim + v_dim) if kv_width is None else kv_width
    scores = s.eager * heads * dense * s.act_bytes
    return Op(
        name,
        f"{phase}_attention",
        Work(
            flops=2 * heads * (qk_dim + v_dim) * pairs,
            reads=m * heads * qk_dim * s.act_bytes + (0 if cached else kv * width * s.act_bytes) + 2 * scores,
            writes=m * heads * v_dim * s.act_bytes + 2 * scores,
            kv_reads=kv * width * s.kv_bytes if cached else 0,
        ),
        {"seqs": seqs, "heads": heads, "kv_heads": kv_heads, "qk_dim": qk_dim, "v_dim": v_dim, "tokens": m, "kv": kv,
         "pairs": pairs},
        "attention_peak_flops",
        inputs,
        m * heads * v_dim * s.act_bytes + scores,
        {"query": (m, heads, qk_dim), "keys": (kv, kv_heads, qk_dim), "output": (m, heads, v_dim)},
    )  # fmt: skip


KINDS["prefill_attention"] = KINDS["decode_attention"] = attention


@operator("moe")
def experts(
    name: str,
    hidden: Formula,
    intermediate: Formula,
    *,
    count: Formula,
    top_k: Formula,
    gated: bool = True,
    bias: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Routed experts: all are stored, those that some token chose are read.

    Of ``count`` experts ``T`` tokens choosing ``top_k`` each touch count·(1-(1-top_k/count)^T) on average; routing
    skew shrinks the number that is really in use. Experts are split over ``ep`` ranks and inside over ``moe_tp``.
    """
    weight, inp, peak = _bytes("experts")
    matrices = 3 if gated else 2
    per_expert = matrices * hidden * intermediate + ((intermediate * (matrices - 1) + hidden) if bias else 0)
    in_use = top_k + (count - top_k) * (1 - s.routing_skew)
    touched = in_use / s.ep * (1 - (1 - top_k / in_use) ** s.moe_tokens)
    rows = s.moe_tokens * top_k / s.ep
    inner = intermediate / s.moe_tp
    return Op(
        name,
        "moe",
        Work(
            flops=2 * rows * matrices * hidden * inner,
            weights=touched * per_expert * weight / s.moe_tp,
            reads=rows * (hidden * inp + (matrices - 1) * inner * s.act_bytes + inner * inp + hidden * s.act_bytes),
            writes=rows * (matrices * inner + hidden) * s.act_bytes + s.moe_tokens / s.ep * hidden * s.act_bytes,
            params=count * per_expert,
            active=top_k * per_expert,
            stored=count / s.ep * per_expert * weight / s.moe_tp,
        ),
        {
            "tokens": s.moe_tokens, "hidden": hidden, "inner": inner, "experts": count / s.ep, "top_k": top_k,
            "matrices": constant(matrices), "touched": touched,
        },
        peak,
        inputs,
        rows * (matrices * inner + hidden) * s.act_bytes,
        {"input": (rows, hidden), "weight": (count / s.ep, hidden, matrices * inner), "output": (s.moe_tokens, hidden)},
        calls=4,
        role="experts",
    )  # fmt: skip


@operator("scan")
def scan(
    name: str,
    *,
    heads: Formula,
    key_dim: Formula,
    value_dim: Formula,
    width: Formula,
    flops_per_state: float,
    conv_state: Formula = 0,
    params: Formula = 0,
    chunk: Formula = 0,
    chunk_flops: Formula = 0,
    peak: str = "attention_peak_flops",
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """A recurrent mixer (gated delta net, Mamba): a ``heads × key_dim × value_dim`` state per sequence.

    ``flops_per_state`` multiply-adds·2 per token and state element; ``width`` elements in and out per token;
    ``conv_state`` elements of short-convolution history per sequence. Prompts that are processed in chunks of
    ``chunk`` tokens cost ``chunk_flops`` more per token, and the state at each chunk's start goes through memory.
    """
    state = heads * key_dim * value_dim
    starts = s.prefill_tokens / chunk * state * s.act_bytes if chunk else 0
    kept = state * s.state_bytes + conv_state * s.act_bytes
    return Op(
        name,
        "scan",
        Work(
            flops=flops_per_state * s.tokens * state + s.prefill_tokens * chunk_flops,
            weights=params * s.norm_bytes,
            reads=s.tokens * width * s.act_bytes + starts,
            writes=s.tokens * heads * value_dim * s.act_bytes + starts,
            kv_reads=s.seqs * kept,
            kv_writes=s.seqs * kept,
            params=params,
            active=params,
            stored=params * s.norm_bytes,
        ),
        {"m": s.tokens, "seqs": s.seqs, "heads": heads, "key_dim": key_dim, "value_dim": value_dim},
        peak,
        inputs,
        s.tokens * heads * value_dim * s.act_bytes,
        {"input": (s.tokens, width), "state": (s.seqs, heads, key_dim, value_dim),
         "output": (s.tokens, heads, value_dim)},
        cache=Cache(0, kept),
    )  # fmt: skip


@operator("all_reduce")
def all_reduce(name: str, width: Formula, *, m: Formula = s.tokens) -> Op:
    """Sum ``m × width`` partial results over the tensor-parallel ranks (ring: 2·(tp-1)/tp of the tensor a link)."""
    size = m * width * s.act_bytes
    return Op(
        name,
        "all_reduce",
        Work(sent=2 * (s.tp - 1) / s.tp * size, hops=2 * (s.tp - 1)),
        {"bytes": size, "ranks": s.tp},
        output=0,
        shape={"input": (m, width), "output": (m, width)},
    )


@operator("all_gather")
def all_gather(name: str, width: Formula, *, m: Formula = s.tokens) -> Op:
    """Collect the shards of an ``m × width`` tensor from the tensor-parallel ranks."""
    size = m * width * s.act_bytes
    return Op(
        name,
        "all_gather",
        Work(sent=(s.tp - 1) / s.tp * size, hops=s.tp - 1),
        {"bytes": size, "ranks": s.tp},
        output=0,
        shape={"input": (m, width / s.tp), "output": (m, width)},
    )


@operator("sampler")
def sampler(name: str, vocab: Formula) -> Op:
    """Turn logits into tokens: a few passes in fp32 over ``logits × vocab``."""
    size = s.logits * vocab
    return Op(
        name,
        "sampler",
        Work(flops=5 * size, reads=size * (s.act_bytes + 4), writes=size * 4),
        {"m": s.logits, "n": vocab},
        output=size * 4,
        shape={"input": (s.logits, vocab), "output": (s.logits,)},
        calls=4,
    )


def local_kv_heads(kv_heads: Formula) -> Expr:
    """KV heads of one tensor-parallel rank: they are replicated once there are more ranks than heads."""
    return maximum(kv_heads / s.tp, 1)
