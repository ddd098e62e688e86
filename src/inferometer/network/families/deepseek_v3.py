"""DeepSeek V2, V3, R1, V3.2, Kimi-K2 and GLM-5: latent attention, a few dense layers, then experts with a shared one.

With an indexer (V3.2, GLM-5) attention is sparse: every query sees the ``index_topk`` best of the past.
"""

from __future__ import annotations

from typing import Any

from ...base.symbols import names as s
from ..blocks import indexer, mla
from ..graph import Block, Model, Part, Span
from ..operators import linear, norm
from .config import Config
from .decoder import decoder, feed_forward


def build(config: Config, *, family: str = "deepseek_v3") -> Model:
    """``build(Config({"model_type": "deepseek_v3", "kv_lora_rank": 512, …}))``"""
    c = config.text
    sparse = c.get("index_topk") is not None
    kinds = c.items("indexer_types", c.layers)
    q_rank = c.size("q_lora_rank", default=0, least=0)
    sizes: dict[str, Any] = {
        "hidden_size": c.size("hidden_size"),
        "num_attention_heads": c.size("num_attention_heads"),
        "q_lora_rank": q_rank,
        "kv_lora_rank": c.size("kv_lora_rank"),
        "qk_nope_head_dim": c.size("qk_nope_head_dim"),
        "qk_rope_head_dim": c.size("qk_rope_head_dim"),
        "v_head_dim": c.size("v_head_dim"),
    }
    bias = c.flag("attention_bias")
    choose = (
        indexer(
            hidden_size=sizes["hidden_size"],
            index_n_heads=c.size("index_n_heads"),
            index_head_dim=c.size("index_head_dim"),
            q_lora_rank=q_rank,
        )
        if sparse
        else None
    )
    span = "top_k" if sparse else ""
    full = mla(**sizes, bias=bias, span=span, absorbed=sparse, index=choose)
    follows = mla(**sizes, bias=bias, span=span, absorbed=sparse)  # uses the choice of an earlier layer
    feed = feed_forward(c)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (follows if kinds and kinds[index] == "shared" else full) + feed(index)

    return decoder(
        config,
        layer,
        family=family,
        spans={"top_k": Span("top_k", c.size("index_topk"))} if sparse else {},
        extras=mtp(c, layer(c.layers - 1)[1]),
    )


def mtp(c: Config, layer: Part) -> tuple[Block, ...]:
    """Multi-token-prediction modules: two norms, a projection of the joined states, and one more layer each."""
    number = c.size("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", default=0, least=0)
    if not number:
        return ()
    join = (
        norm("enorm", s.hidden_size, inputs=()),
        norm("hnorm", s.hidden_size, inputs=()),
        linear("eh_proj", 2 * s.hidden_size, s.hidden_size, role="mlp", inputs=("enorm", "hnorm")),
    )
    return (Block("mtp", join + layer.ops, layer.dims, tuple(range(number)), stage="mtp"),)
