"""Softmax attention parts: grouped-query (and so multi-head and multi-query), latent (MLA), and sparse indexing."""

from __future__ import annotations

from typing import Any

import msgspec

from ...base.symbols import names as s
from ..graph import Part
from ..operators import (
    Formula,
    Op,
    all_gather,
    all_reduce,
    attention,
    elementwise,
    kv_write,
    linear,
    local_kv_heads,
    norm,
    reduce_scatter,
)


def both(name: str, **sizes: Any) -> list[Op]:
    """The attention of prompts and that of decoding sequences; the one a step lacks has no work."""
    return [attention(name, "prefill", **sizes), *decoding(name, **sizes)]


def decoding(name: str, **sizes: Any) -> list[Op]:
    """Decode attention between the collectives of context parallelism: queries are gathered, results merged."""
    heads, qk_dim, v_dim = sizes["heads"], sizes["qk_dim"], sizes["v_dim"]
    group: dict[str, Any] = {"m": s.decode_tokens, "ranks": s.dcp, "axis": "dcp"}
    return [
        all_gather("context_gather", heads * s.dcp * qk_dim, **group),
        attention(name, "decode", **sizes),
        reduce_scatter("context_reduce", heads * s.dcp * v_dim, **group),
    ]


def gqa(
    *,
    hidden_size: int,
    num_attention_heads: int,
    num_key_value_heads: int,
    head_dim: int,
    v_head_dim: int = 0,
    bias: bool = False,
    out_bias: bool = False,
    qk_norm: str = "",
    v_norm: bool = False,
    norm_bias: bool = False,
    rope: bool = True,
    span: str = "",
    output_gate: bool = False,
    k_is_v: bool = False,
    shared_kv: bool = False,
    sinks: bool = False,
    pre_norm: str = "input_layernorm",
    post_norm: str = "",
    causal: bool = True,
    reduce: bool = True,
    index: Part | None = None,
) -> Part:
    """Attention with ``num_key_value_heads`` groups: all heads = MHA, one = MQA.

    ``qk_norm``: "" none, "head" one weight vector of head_dim, "layer" one over all heads, "plain" no weights.
    ``output_gate`` doubles the query projection. ``k_is_v`` has no value projection, ``shared_kv`` reuses an earlier
    layer's keys and values. ``index`` is the part that chooses what a sparse span sees.
    """
    dims: dict[str, float] = {"hidden_size": hidden_size, "num_attention_heads": num_attention_heads}
    dims |= {"num_key_value_heads": num_key_value_heads, "head_dim": head_dim}
    v_dim = s.head_dim
    if v_head_dim and v_head_dim != head_dim:
        dims["v_head_dim"] = v_head_dim
        v_dim = s.v_head_dim
    heads, kv = s.num_attention_heads / s.tp, local_kv_heads(s.num_key_value_heads)
    kv_dim = 0 if shared_kv else s.head_dim if k_is_v else s.head_dim + v_dim
    ops = [norm(pre_norm, s.hidden_size, residual=True, bias=norm_bias)] if pre_norm else []
    ops.append(_qkv_projection(2 * s.head_dim if output_gate else s.head_dim, kv_dim, bias))
    local_heads = heads + (0 if shared_kv else kv)  # of queries and keys on this rank
    if qk_norm:
        ops += _qk_norm(qk_norm, local_heads, shared_kv=shared_kv, v_norm=v_norm)
    if rope:
        ops.append(elementwise("rope", local_heads * s.head_dim, flops=3))
    if not shared_kv:
        ops.append(kv_write("kv_cache_write", kv * (s.head_dim + v_dim), span=span))
    source = None
    if index is not None:
        source = (ops[-1].name, index.ops[-1].name)
        ops += index.ops
        dims |= index.dims
    sizes = {"heads": heads, "kv_heads": kv, "qk_dim": s.head_dim, "v_dim": v_dim}
    ops += both("attention", **sizes, span=span, causal=causal, inputs=source)
    ops += _output_projection(v_dim, sinks=sinks, gate=output_gate, bias=out_bias)
    if reduce:
        ops.append(all_reduce("all_reduce", s.hidden_size))
    if post_norm:
        ops.append(norm(post_norm, s.hidden_size, residual=not pre_norm, bias=norm_bias))
    return Part(tuple(ops), dims)


def _qkv_projection(query_dim: Formula, kv_dim: Formula, bias: bool) -> Op:
    """One product for queries, keys and values; ``kv_dim`` is the width of a key and its value, 0 if there are none.

    KV heads are replicated once there are more ranks than heads, so a rank's share is not the whole over tp.
    """
    width = s.num_attention_heads * query_dim + s.num_key_value_heads * kv_dim
    local = s.num_attention_heads / s.tp * query_dim + local_kv_heads(s.num_key_value_heads) * kv_dim
    return linear("qkv_proj", s.hidden_size, width, local=local, role="attn", bias=bias)


def _qk_norm(kind: str, local_heads: Formula, *, shared_kv: bool, v_norm: bool) -> list[Op]:
    """Norms on the heads of queries and keys, and with ``v_norm`` of values.

    A norm over all heads of a layer needs the mean squares of all ranks: one fp32 number of queries, one of keys.
    """
    all_heads = s.num_attention_heads + (0 if shared_kv else s.num_key_value_heads)
    per_head = s.head_dim if shared_kv else (3 if v_norm else 2) * s.head_dim
    params = {"head": per_head, "layer": all_heads * s.head_dim, "plain": 0}[kind]
    mean_squares = [all_reduce("qk_norm_all_reduce", 4, inputs=("qkv_proj",))] if kind == "layer" else []
    return [*mean_squares, norm("qk_norm", s.head_dim, rows=local_heads, params=params)]


def _output_projection(v_dim: Formula, *, sinks: bool, gate: bool, bias: bool) -> list[Op]:
    """From the values that the heads have attended to back to the hidden size, through a gate where there is one."""
    heads = s.num_attention_heads / s.tp
    ops = [elementwise("sinks", 0, params=s.num_attention_heads)] if sinks else []
    if gate:
        ops.append(elementwise("output_gate", 2 * heads * v_dim, heads * v_dim, flops=2))
    ops.append(linear("o_proj", s.num_attention_heads * v_dim, s.hidden_size, role="attn", shard="row", bias=bias))
    return ops


def mla(
    *,
    hidden_size: int,
    num_attention_heads: int,
    q_lora_rank: int,
    kv_lora_rank: int,
    qk_nope_head_dim: int,
    qk_rope_head_dim: int,
    v_head_dim: int,
    bias: bool = False,
    span: str = "",
    absorbed: bool = False,
    index: Part | None = None,
    rope: bool = True,
    output_gate: bool = False,
    pre_norm: str = "input_layernorm",
) -> Part:
    """Multi-head latent attention: one latent of kv_lora_rank + qk_rope_head_dim elements a token is cached.

    Prompts expand the latent to full keys and values (unabsorbed); decoding folds the expansion into the query and the
    output (absorbed) and so reads only the latent. Sparse attention runs ``absorbed`` throughout, with ``index`` the
    part that chooses. The latent is replicated over tensor-parallel ranks.
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "kv_lora_rank": kv_lora_rank,
        "qk_nope_head_dim": qk_nope_head_dim,
        "qk_rope_head_dim": qk_rope_head_dim,
        "v_head_dim": v_head_dim,
    }
    heads = s.num_attention_heads / s.tp
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    source = (pre_norm,)
    queries, latents = ("q_b_proj", "qkv_a_proj") if q_lora_rank else ("q_proj", "kv_a_proj")
    if q_lora_rank:
        dims["q_lora_rank"] = q_lora_rank
    ops = [norm(pre_norm, s.hidden_size, residual=True)]
    ops += _latent_projections(queries, latents, low_rank=bool(q_lora_rank), bias=bias, inputs=source)
    ops.append(norm("kv_a_layernorm", s.kv_lora_rank, inputs=(latents,)))
    if rope:
        ops.append(elementwise("rope", (heads + 1) * s.qk_rope_head_dim, flops=3))
    kept = _sparse_latent_width() if index is not None else latent
    ops.append(kv_write("kv_cache_write", kept, span=span))
    if index is not None:
        ops += index.ops
        dims |= index.dims
    ops += _latent_attention(queries, kept, span=span, absorbed=absorbed)
    outputs: tuple[str, ...] = ("attention", "v_absorb")
    if output_gate:
        gate = s.num_attention_heads * s.v_head_dim
        ops.append(linear("output_gate", s.hidden_size, gate, role="attn", shard="column", inputs=source))
        outputs = (*outputs, "output_gate")
    ops.append(
        linear("o_proj", s.num_attention_heads * s.v_head_dim, s.hidden_size, role="attn", shard="row", inputs=outputs)
    )
    ops.append(all_reduce("all_reduce", s.hidden_size))
    return Part(tuple(ops), dims)


def _latent_projections(queries: str, latents: str, *, low_rank: bool, bias: bool, inputs: tuple[str, ...]) -> list[Op]:
    """To the latent of keys and values, and to the queries: directly, or by way of a latent of their own."""
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    width = s.num_attention_heads * (s.qk_nope_head_dim + s.qk_rope_head_dim)
    if low_rank:
        return [
            linear(latents, s.hidden_size, s.q_lora_rank + latent, role="attn", bias=bias, inputs=inputs),
            norm("q_a_layernorm", s.q_lora_rank),
            linear(queries, s.q_lora_rank, width, role="attn", shard="column"),
        ]
    return [
        linear(queries, s.hidden_size, width, role="attn", shard="column", inputs=inputs),
        linear(latents, s.hidden_size, latent, role="attn", bias=bias, inputs=inputs),
    ]


def _sparse_latent_width() -> Formula:
    """Elements of a cached latent of sparse attention; where its fp8 form is packed as ``fp8_ds_mla``, what is more.

    There the rotary part stays in the activations' format, and every 128 elements of the rest have an fp32 scale.
    """
    more = s.qk_rope_head_dim * (s.act_bytes - s.kv_bytes) + s.kv_lora_rank / 128 * 4
    return s.kv_lora_rank + s.qk_rope_head_dim + s.fp8_ds_mla * more / s.kv_bytes


def _latent_attention(queries: str, kept: Formula, *, span: str, absorbed: bool) -> list[Op]:
    """Attention over latents: expanded by kv_b_proj where prompts are not ``absorbed``, else between its two halves.

    ``kept`` elements of a latent are in the cache.
    """
    heads = s.num_attention_heads / s.tp
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    absorbing = s.tokens if absorbed else s.decode_tokens
    ops = _expanded_attention(queries, heads, span) if not absorbed else [_kv_b_proj(0)]
    ops.append(_per_head("q_absorb", s.qk_nope_head_dim, s.kv_lora_rank, heads, absorbing, (queries,)))
    latents_only = {
        "heads": heads,
        "kv_heads": 1,
        "qk_dim": latent,
        "v_dim": s.kv_lora_rank,
        "span": span,
        "kv_width": kept,
        "inputs": ("q_absorb",),
    }
    ops += both("attention", **latents_only) if absorbed else decoding("attention", **latents_only)
    ops.append(_per_head("v_absorb", s.kv_lora_rank, s.v_head_dim, heads, absorbing, None))
    return ops


def _expanded_attention(queries: str, heads: Formula, span: str) -> list[Op]:
    """Prompts: the cached latents become full keys and values, a tensor like others, which is attended to.

    On the way keys get their rotary part beside the expanded one, and queries and the output are written once more.
    """
    expanded = s.prefill_kv
    latent = s.kv_lora_rank + s.qk_rope_head_dim
    expand = _kv_b_proj(expanded)
    work = msgspec.structs.replace(expand.work, reads=0, kv_reads=expanded * latent * s.kv_bytes)
    keys = heads * (s.qk_nope_head_dim + s.qk_rope_head_dim)
    return [
        msgspec.structs.replace(expand, work=work),
        elementwise("key_concat", keys, m=expanded, flops=0, inputs=("kv_b_proj",)),
        elementwise("query_copy", keys + heads * s.v_head_dim, m=s.prefill_tokens, flops=0, inputs=(queries,)),
        attention(
            "attention",
            "prefill",
            heads=heads,
            kv_heads=heads,
            qk_dim=s.qk_nope_head_dim + s.qk_rope_head_dim,
            v_dim=s.v_head_dim,
            span=span,
            cached=False,
            kv=getattr(s, f"prefill_kv_{span}") if span else expanded,
            inputs=("query_copy", "key_concat", "kv_b_proj"),
        ),
    ]


def _kv_b_proj(rows: Formula) -> Op:
    """The expansion of latents to keys and values; of no rows where both its halves are absorbed."""
    return linear(
        "kv_b_proj",
        s.kv_lora_rank,
        s.num_attention_heads * (s.qk_nope_head_dim + s.v_head_dim),
        m=rows,
        role="attn",
        shard="column",
        optional=True,
        inputs=("kv_a_layernorm",),
    )


def _per_head(name: str, k: Formula, n: Formula, heads: Formula, m: Formula, inputs: tuple[str, ...] | None) -> Op:
    """Half of kv_b_proj, one small product per head; the weight is stored (and counted) with kv_b_proj."""
    return linear(
        name, heads * k, heads * n, m=m, role="attn", groups=heads, tied=True, shared=0, optional=True, inputs=inputs
    )


def indexer(*, hidden_size: int, index_n_heads: int, index_head_dim: int, q_lora_rank: int) -> Part:
    """The lightning indexer of sparse attention: cheap fp8 scores over the whole past choose what is attended to."""
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "index_n_heads": index_n_heads,
        "index_head_dim": index_head_dim,
        "q_lora_rank": q_lora_rank,
    }
    key_bytes = s.index_head_dim + 4  # fp8 with one fp32 scale
    queries = s.index_n_heads * s.index_head_dim
    ops = [
        linear("index_q_proj", s.q_lora_rank, queries, role="attn", inputs=("q_a_layernorm",)),
        linear("index_k_proj", s.hidden_size, s.index_head_dim, role="attn", inputs=("input_layernorm",)),
        norm("index_k_norm", s.index_head_dim, bias=True),
        linear("index_weights_proj", s.hidden_size, s.index_n_heads, role="router", inputs=("input_layernorm",)),
        kv_write("index_cache_write", key_bytes / s.kv_bytes, span=""),
    ]
    ops += both(
        "index_scores",
        heads=s.index_n_heads,
        kv_heads=1,
        qk_dim=s.index_head_dim,
        v_dim=0,
        kv_width=key_bytes / s.kv_bytes,
        peak="index_peak_flops",
        inputs=("index_q_proj", "index_weights_proj"),
    )
    ops.append(elementwise("index_topk", 0, extra_reads=8 * (s.prefill_qk + s.decode_qk), inputs=("index_scores",)))
    return Part(tuple(ops), dims)


def block_indexer(
    *,
    hidden_size: int,
    sparse_num_index_heads: int,
    sparse_index_dim: int,
    sparse_block_size: int,
) -> Part:
    """The index of block-sparse attention (MiniMax-M3): each KV head's scores over the past, the best blocks kept."""
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "sparse_num_index_heads": sparse_num_index_heads,
        "sparse_index_dim": sparse_index_dim,
        "sparse_block_size": sparse_block_size,
    }
    heads, width = local_kv_heads(s.sparse_num_index_heads), s.sparse_index_dim
    blocks = heads * (s.prefill_qk + s.decode_qk) / s.sparse_block_size
    ops = [
        linear(
            "index_qk_proj",
            s.hidden_size,
            (s.sparse_num_index_heads + 1) * width,
            local=(heads + 1) * width,
            role="attn",
            inputs=("input_layernorm",),
        ),
        norm("index_qk_norm", width, rows=heads + 1, params=2 * width),
        kv_write("index_cache_write", width),
        *both(
            "index_scores",
            heads=heads,
            kv_heads=1,
            qk_dim=width,
            v_dim=0,
            kv_width=width,
            peak="index_peak_flops",
            inputs=("index_qk_norm",),
        ),
        elementwise("index_topk", 0, extra_reads=4 * blocks, inputs=("index_scores",)),
    ]
    return Part(tuple(ops), dims)
