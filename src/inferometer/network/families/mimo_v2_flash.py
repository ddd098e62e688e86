"""MiMo-V2-Flash: sliding layers with sinks and heads of their own between full ones, values narrower than keys."""

from __future__ import annotations

from typing import Any

from ..blocks import gqa
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward, heads, window_span
from .deepseek_v3 import mtp


def build(config: Config, *, family: str = "mimo_v2_flash") -> Model:
    """``build(Config({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1, …], "swa_head_dim": 192, …}))``"""
    c = config.text
    full = heads(c)
    full["v_head_dim"] = c.size("v_head_dim", default=full["head_dim"])
    sliding: dict[str, Any] = {key: c.size(f"swa_{key}", default=size) for key, size in full.items()}
    local = [bool(x) for x in c.items("hybrid_layer_pattern", c.layers)] or [False] * c.layers
    bias = c.flag("attention_bias")
    attention = {
        False: gqa(**full, bias=bias, sinks=c.flag("add_full_attention_sink_bias")),
        True: gqa(**sliding, bias=bias, sinks=c.flag("add_swa_attention_sink_bias"), span="window"),
    }
    feed = feed_forward(c, router_bias=c.get("topk_method") == "noaux_tc")

    def layer(index: int) -> tuple[str, Part]:
        return "layers", attention[local[index]] + feed(index)

    return decoder(
        config, layer, family=family, spans=window_span(c) if any(local) else {}, extras=mtp(c, layer(c.layers - 1)[1])
    )
