"""Falcon: attention and MLP in parallel, one KV head (7 B) or a few (40 B, 180 B); the RW ones are sequential."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config


def build(config: Config, *, family: str = "falcon") -> Model:
    """``build(Config({"model_type": "falcon", "hidden_size": 4544, "multi_query": True, …}))``"""
    new, bias = config.flag("new_decoder_architecture"), config.flag("bias")
    query = config.size("num_attention_heads", "n_head")
    grouped = config.size("num_kv_heads", "n_head_kv", default=query)
    kv = grouped if new else 1 if config.flag("multi_query", default=True) else query
    norms = config.size("num_ln_in_parallel_attn", default=2 if new else 1)
    return llama.build(
        Config({**config.data, "num_key_value_heads": kv}, config.where),
        family=family,
        bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        gated=False,
        rope=not config.flag("alibi"),
        parallel=norms,
        tied=True,
    )
