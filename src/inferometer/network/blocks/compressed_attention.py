"""Attention over a compressed past (DeepSeek-V4): a sliding window of raw entries, and one entry per ``ratio`` tokens.

With ratio 4 an indexer chooses the best entries; with a larger one all of them are attended to; with 0 there is only
the window. One KV head serves all query heads, its key is its value, and the output projection is low-rank in groups.
"""

from __future__ import annotations

from ...base.symbols import maximum
from ...base.symbols import names as s
from ..graph import Part
from ..operators import Formula, Op, all_reduce, elementwise, kv_write, linear, norm
from .self_attention import both

SPARSE_RATIO = 4  # with this one, entries overlap and an indexer chooses among them


def _is_fp8() -> Formula:
    """0 for a cache in the activations' format, 1 for fp8: what decides whether scales are stored beside the values."""
    return maximum(s.act_bytes - s.kv_bytes, 0)


def _compressor(name: str, width: Formula, stored: Formula, ratio: int) -> list[Op]:
    """Pool every ``ratio`` tokens (with overlap: twice as many) to a cache entry of ``stored`` bytes.

    Tokens that are not yet a whole entry wait in a small fp32 state per sequence.
    """
    overlap = 2 if ratio == SPARSE_RATIO else 1
    wide = overlap * width
    waiting = 2 * overlap * ratio * wide * 4
    return [
        linear(f"{name}_proj", s.hidden_size, 2 * wide, role="router", inputs=("input_layernorm",)),
        elementwise(
            f"{name}_pool",
            2 * wide,
            width / ratio,
            flops=8 * overlap * ratio,
            params=ratio * wide,
            extra_reads=s.decode_tokens * waiting / ratio,
        ),
        norm(f"{name}_norm", width, m=s.tokens / ratio),
        kv_write(
            f"{name}_cache_write", stored / s.kv_bytes, m=s.tokens / ratio, span=f"ratio_{ratio}", per_sequence=waiting
        ),
    ]


def _index(ratio: int) -> list[Op]:
    """Scores of all compressed entries, the best ``index_topk`` of which are attended to."""
    stored = s.index_head_dim * s.kv_bytes + 4 * _is_fp8()  # one fp32 scale
    past = f"ratio_{ratio}"
    pairs = getattr(s, f"prefill_qk_{past}") + getattr(s, f"decode_qk_{past}")
    return [
        linear(
            "index_q_proj", s.q_lora_rank, s.index_n_heads * s.index_head_dim, role="attn", inputs=("q_a_layernorm",)
        ),
        linear("index_weights_proj", s.hidden_size, s.index_n_heads, role="router", inputs=("input_layernorm",)),
        *_compressor("index_compressor", s.index_head_dim, stored, ratio),
        *both(
            "index_scores",
            heads=s.index_n_heads,
            kv_heads=1,
            qk_dim=s.index_head_dim,
            v_dim=0,
            span=past,
            kv_width=stored / s.kv_bytes,
            peak="index_peak_flops",
            inputs=("index_q_proj", "index_weights_proj"),
        ),
        elementwise("index_topk", 0, extra_reads=8 * pairs, inputs=("index_scores",)),
    ]


def compressed(
    *,
    hidden_size: int,
    num_attention_heads: int,
    head_dim: int,
    qk_rope_head_dim: int,
    q_lora_rank: int,
    o_lora_rank: int,
    o_groups: int,
    index_n_heads: int,
    index_head_dim: int,
    ratio: int,
) -> Part:
    """The attention of one layer; spans "window", "ratio_4" (all entries), "top_k" (the chosen) and "ratio_128"."""
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "head_dim": head_dim,
        "qk_rope_head_dim": qk_rope_head_dim,
        "q_lora_rank": q_lora_rank,
        "o_lora_rank": o_lora_rank,
        "o_groups": o_groups,
    }
    heads = s.num_attention_heads / s.tp
    entry = _entry_bytes()
    ops = [
        norm("input_layernorm", s.hidden_size),
        linear("qkv_a_proj", s.hidden_size, s.q_lora_rank + s.head_dim, role="attn"),
        norm("q_a_layernorm", s.q_lora_rank),
        linear("q_b_proj", s.q_lora_rank, s.num_attention_heads * s.head_dim, role="attn", shard="column"),
        norm("q_norm", s.head_dim, rows=heads, weightless=True),
        norm("kv_norm", s.head_dim, inputs=("qkv_a_proj",)),
        elementwise("rope", (heads + 1) * s.qk_rope_head_dim, flops=3, inputs=("q_norm", "kv_norm")),
        kv_write("window_cache_write", entry / s.kv_bytes, span="window"),
    ]
    spans, inputs = ["window"], ["rope"]
    if ratio:
        ops += _compressor("compressor", s.head_dim, entry, ratio)
        spans.append("top_k" if ratio == SPARSE_RATIO else f"ratio_{ratio}")
        inputs.append("compressor_norm")
    if ratio == SPARSE_RATIO:
        dims |= {"index_n_heads": index_n_heads, "index_head_dim": index_head_dim}
        ops += _index(ratio)
        inputs.append("index_topk")
    ops += both(
        "attention",
        heads=heads,
        kv_heads=1,
        qk_dim=s.head_dim,
        v_dim=s.head_dim,
        span=tuple(spans),
        kv_width=entry / s.kv_bytes,
        inputs=tuple(inputs),
    )
    ops += _grouped_output()
    return Part(tuple(ops), dims)


def _entry_bytes() -> Formula:
    """Bytes of a cache entry: the rotary part stays in the activations' format, the rest may be fp8.

    Then it has a 1-byte scale per 64 values, and a pad.
    """
    without_rope = s.head_dim - s.qk_rope_head_dim
    return without_rope * s.kv_bytes + s.qk_rope_head_dim * s.act_bytes + (without_rope / 64 + 1) * _is_fp8()


def _grouped_output() -> list[Op]:
    """Attention sinks, and the output projection: low-rank within groups of heads, then to the hidden size."""
    low_rank = s.o_groups * s.o_lora_rank
    return [
        elementwise("sinks", 0, params=s.num_attention_heads),
        linear(
            "o_a_proj",
            s.num_attention_heads * s.head_dim,
            low_rank,
            role="attn",
            shard="group",
            groups=s.o_groups,
            inputs=("attention",),
        ),
        linear("o_b_proj", low_rank, s.hidden_size, role="attn", shard="row"),
        all_reduce("all_reduce", s.hidden_size),
    ]
