"""Operators with a memory of the past: cache writes, softmax attention, recurrent scans."""

from __future__ import annotations

from ...base.symbols import Expr, Formula, maximum, minimum, total
from ...base.symbols import names as s
from .op import Cache, Op, Work, operator


@operator("kv_write")
def kv_write(name: str, width: Formula, *, m: Formula = s.tokens, span: str = "", per_sequence: Formula = 0) -> Op:
    """Append ``m`` entries of ``width`` elements to the cache: one a token, or fewer where the cache is compressed.

    Under decode context parallelism each of ``dcp`` ranks keeps its share of the positions.
    """
    return Op(
        name,
        "kv_write",
        Work(reads=m * width * s.act_bytes * s.unfused, kv_writes=m * width * s.kv_bytes / s.dcp),
        {"m": m, "n": width},
        output=0,
        shape={"input": (m, width)},
        cache=Cache(width * s.kv_bytes / s.dcp, per_sequence, span),
    )


@operator("prefill_attention", "decode_attention")
def attention(
    name: str,
    phase: str,
    *,
    heads: Formula,
    kv_heads: Formula,
    qk_dim: Formula,
    v_dim: Formula,
    span: str | tuple[str, ...] = "",
    causal: bool = True,
    kv_width: Formula | None = None,
    m: Formula | None = None,
    dense: Formula | None = None,
    seqs: Formula | None = None,
    cached: bool = True,
    kv: Formula | None = None,
    peak: str = "attention_peak_flops",
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Softmax attention of one ``phase`` ("prefill" or "decode"); ``heads`` and ``kv_heads`` are this device's.

    Works over exactly the pairs that the masks of ``span`` let through; without ``causal`` over all ``dense`` ones.
    Eager attention computes them all and moves the scores through memory four times. ``kv_width`` is the cached
    elements per token where K and V share storage; what is not ``cached`` is read as an activation, ``kv`` rows of it
    (by default its own tokens'). Under decode context parallelism a rank attends with the queries of its ``dcp`` group
    to its share of the positions.
    """
    m = getattr(s, f"{phase}_tokens") if m is None else m
    dense = getattr(s, f"{phase}_dense") if dense is None else dense
    seqs = getattr(s, f"{phase}_seqs") if seqs is None else seqs
    if kv is None:
        kv = _over_spans(f"{phase}_kv", span) if cached else m
    pairs = _over_spans(f"{phase}_qk", span) if causal else dense
    pairs = pairs + s.eager * (dense - pairs) if causal else pairs
    if phase == "decode" and cached:
        heads, pairs, kv, dense = heads * s.dcp, pairs / s.dcp, kv / s.dcp, dense / s.dcp
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
        {"seqs": seqs, "heads": heads, "kv_heads": kv_heads, "qk_dim": qk_dim, "v_dim": v_dim}
        | {"tokens": m, "kv": kv, "pairs": pairs, "uniform_lengths": s.uniform_lengths},
        peak,
        inputs,
        m * heads * v_dim * s.act_bytes + 2 * scores,  # the scores and their softmax are alive together
        {"query": (m, heads, qk_dim), "keys": (kv, kv_heads, qk_dim), "output": (m, heads, v_dim)}
        | {"sequences": (seqs,)},  # whose queries and keys these are, end to end
    )


def _over_spans(name: str, span: str | tuple[str, ...]) -> Expr:
    """A step's sum over all spans: ``_over_spans("decode_kv", ("", "window"))  # decode_kv + decode_kv_window``"""
    keys = (span,) if isinstance(span, str) else span
    return total(getattr(s, f"{name}_{key}" if key else name) for key in keys)


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
    decay_per_head: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """A recurrent mixer (gated delta net, lightning attention, Mamba 1), prompts and decoding sequences together: a
    ``heads × key_dim × value_dim`` state per sequence.

    ``flops_per_state`` multiply-adds·2 per token and state element; ``width`` elements in and out per token;
    ``conv_state`` elements of short-convolution history per sequence. Prompts that are processed in chunks of
    ``chunk`` tokens cost ``chunk_flops`` more per token, and the state at each chunk's start goes through memory.
    ``decay_per_head``: a delta rule whose gate is one number a head, which libraries have kernels of their own for. Its
    shape says how prompts' tokens are spread over sequences, and how many bytes are ``moved`` besides: the states of
    decoding sequences, and the prompts' queries, keys and values, which those kernels want in other places.
    """
    state = heads * key_dim * value_dim
    starts = s.prefill_tokens / chunk * state * s.act_bytes if chunk else 0
    kept = state * s.state_bytes + conv_state * s.act_bytes
    dims = {"m": s.tokens, "seqs": s.seqs, "heads": heads, "key_dim": key_dim, "value_dim": value_dim}
    if decay_per_head:
        dims |= {"prompts": s.prefill_seqs, "prompt_tokens": s.prefill_tokens, "prompt_squares": s.prefill_squares}
        dims |= {"moved": 2 * (s.decode_seqs * kept + s.prefill_tokens * width * s.act_bytes)}
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
        dims,
        peak,
        inputs,
        s.tokens * heads * value_dim * s.act_bytes,
        {
            "input": (s.tokens, width),
            "state": (s.seqs, heads, key_dim, value_dim),
            "output": (s.tokens, heads, value_dim),
        },
        cache=Cache(0, kept),
    )


@operator("conv1d")
def conv1d(name: str, width: Formula, *, taps: Formula, params: Formula, inputs: tuple[str, ...] | None = None) -> Op:
    """A causal convolution of ``taps`` tokens over each of ``width`` channels, with its activation.

    The last inputs that it keeps of a sequence are part of the state that the operators after it read and write.
    """
    size = s.tokens * width
    return Op(
        name,
        "conv1d",
        Work(
            flops=(2 * taps + 4) * size,
            weights=params * s.norm_bytes,
            reads=size * s.act_bytes,
            writes=size * s.act_bytes,
            params=params,
            active=params,
            stored=params * s.norm_bytes,
        ),
        {"m": s.tokens, "n": width, "k": taps},
        inputs=inputs,
        output=size * s.act_bytes,
        shape={"input": (s.tokens, width), "output": (s.tokens, width)},
    )


@operator("chunk_scan")
def chunk_scan(
    name: str,
    *,
    heads: Formula,
    key_dim: Formula,
    value_dim: Formula,
    groups: Formula,
    chunk: Formula,
    conv_state: Formula = 0,
    params: Formula = 0,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Mamba-2 over prompts, in chunks of ``chunk`` tokens that each belong to one sequence: five kernels.

    Running sums of the decay; each chunk's own state (from x and B); the states passed on from chunk to chunk; C·Bᵀ of
    each group inside a chunk; and the output, from the state at the chunk's start and, below the diagonal, from C·Bᵀ
    and x. Chunks' own states and C·Bᵀ go through memory in 32 bits, states at chunks' starts as the cache keeps them.
    """
    m, state, width = s.prefill_tokens, heads * key_dim * value_dim, heads * value_dim
    states = maximum(m / chunk, s.prefill_seqs) * state * (4 + s.state_bytes)
    inside = m * chunk * groups * 4 + m * heads * 8  # C·Bᵀ, dt and the sums of the decay
    kept = s.prefill_seqs * (state * s.state_bytes + conv_state * s.act_bytes)
    return Op(
        name,
        "chunk_scan",
        Work(
            flops=m * (4 * state + chunk * (width + 2 * groups * key_dim)),
            weights=params * s.norm_bytes * minimum(m, 1),
            reads=m * (2 * width + 4 * groups * key_dim + heads) * s.act_bytes + states + inside,
            writes=m * width * s.act_bytes + states + inside,
            kv_reads=kept,
            kv_writes=kept,
            params=params,
            active=params,
            stored=params * s.norm_bytes,
        ),
        {"m": m, "seqs": s.prefill_seqs, "heads": heads, "key_dim": key_dim, "value_dim": value_dim}
        | {"groups": groups, "chunk": chunk},
        "attention_peak_flops",
        inputs,
        m * width * s.act_bytes,
        {"input": (m, width + 2 * groups * key_dim + heads), "state": (s.prefill_seqs, heads, key_dim, value_dim)}
        | {"output": (m, heads, value_dim)},
        calls=5,
    )


@operator("state_update")
def state_update(
    name: str,
    *,
    heads: Formula,
    key_dim: Formula,
    value_dim: Formula,
    groups: Formula,
    conv_state: Formula = 0,
    inputs: tuple[str, ...] | None = None,
) -> Op:
    """Mamba-2 of sequences that decode: each one's state is read, moved on by a token and written back.

    Decay 1, input 2, output 2 for each element of the state, without matrix units. Rows that only fill up a CUDA graph
    take as long as others: they start as many programs, and starting them is most of the time.
    """
    padding = s.tokens / maximum(s.prefill_tokens + s.decode_tokens, 1)
    m, seqs, state = s.decode_tokens * padding, s.decode_seqs * padding, heads * key_dim * value_dim
    kept = state * s.state_bytes + conv_state * s.act_bytes
    return Op(
        name,
        "state_update",
        Work(
            flops=5 * m * state,
            reads=m * (heads * value_dim + 2 * groups * key_dim + heads) * s.act_bytes,
            writes=m * heads * value_dim * s.act_bytes,
            kv_reads=seqs * kept,
            kv_writes=seqs * kept,
        ),
        {"seqs": seqs, "heads": heads, "key_dim": key_dim, "value_dim": value_dim, "groups": groups},
        inputs=inputs,
        output=m * heads * value_dim * s.act_bytes,
        shape={
            "input": (m, heads * value_dim + 2 * groups * key_dim + heads),
            "state": (seqs, heads, key_dim, value_dim),
            "output": (m, heads, value_dim),
        },
        cache=Cache(0, kept),
    )


def local_kv_heads(kv_heads: Formula) -> Expr:
    """KV heads of one tensor-parallel rank: they are replicated once there are more ranks than heads."""
    return maximum(kv_heads / s.tp, 1)
