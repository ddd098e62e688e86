"""Llama 4: three of four layers see only their own chunk of the past; experts of top 1 with a shared one."""

from __future__ import annotations

from ..blocks import gqa
from ..graph import Model, Part, Span
from .config import Config
from .decoder import decoder, feed_forward, heads
from .vision import tower


def build(config: Config, *, family: str = "llama4") -> Model:
    """``build(Config({"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, …}, …}))``"""
    c = config.text
    width = c.size("intermediate_size")
    step = c.size("no_rope_layer_interval", default=4)
    rotary = [bool(x) for x in c.items("no_rope_layers", c.layers)] or [(i + 1) % step != 0 for i in range(c.layers)]
    chunk = c.size("attention_chunk_size", default=0, least=0)
    bias = c.flag("attention_bias")
    near = gqa(
        **heads(c),
        bias=bias,
        out_bias=bias,
        qk_norm="plain" if c.flag("use_qk_norm") else "",
        span="chunk" if chunk else "",
    )
    full = gqa(**heads(c), bias=bias, out_bias=bias, rope=False)
    chosen = c.items("moe_layers")
    mixed = {"moe_layer_freq": [int(i in chosen) for i in range(c.layers)]} if chosen else {}
    feed = feed_forward(
        Config({**c.data, **mixed}, c.where),
        dense_width=c.size("intermediate_size_mlp", "intermediate_size"),
        shared_expert_intermediate_size=width,
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (near if rotary[index] else full) + feed(index)

    return decoder(
        config, layer, family=family, spans={"chunk": Span("chunk", chunk)} if chunk else {}, vision=tower(config)
    )
