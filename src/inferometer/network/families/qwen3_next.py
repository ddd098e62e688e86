"""Qwen3-Next, Qwen3.5 and Qwen3.6: three gated delta nets, then one gated full attention; dense MLPs or experts."""

from __future__ import annotations

from ...base.errors import BadFile
from ..blocks import delta_net, gqa
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward, heads
from .deepseek_v3 import mtp

KINDS = ("linear_attention", "full_attention")


def build(config: Config, *, family: str = "qwen3_next") -> Model:
    """``build(Config({"model_type": "qwen3_next", "full_attention_interval": 4, "linear_num_key_heads": 16, …}))``"""
    c = config.text
    kinds = layer_kinds(c)
    bias = c.flag("attention_bias")
    attention = gqa(
        **heads(c), bias=bias, out_bias=bias, qk_norm="head", output_gate=c.flag("attn_output_gate", default=True)
    )
    linear = delta_net(
        hidden_size=c.size("hidden_size"),
        linear_num_key_heads=c.size("linear_num_key_heads"),
        linear_num_value_heads=c.size("linear_num_value_heads"),
        linear_key_head_dim=c.size("linear_key_head_dim"),
        linear_value_head_dim=c.size("linear_value_head_dim"),
        linear_conv_kernel_dim=c.size("linear_conv_kernel_dim"),
    )
    feed = feed_forward(c, shared_gate=True)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (attention if kinds[index] == "full_attention" else linear) + feed(index)

    # Qwen3-Next comes with a module for multi-token prediction that its config does not mention
    modules = Config({"mtp_num_hidden_layers": 1, **c.data}, c.where) if family == "qwen3_next" else c
    return decoder(
        config,
        layer,
        family=family,
        extras=mtp(modules, attention + feed(c.layers - 1)),
    )


def layer_kinds(c: Config) -> list[str]:
    """The mixer of each layer: as ``layer_types`` lists them, or every ``full_attention_interval``-th is attention."""
    kinds = c.items("layer_types", c.layers)
    unknown = [k for k in kinds if k not in KINDS]
    if unknown:
        raise BadFile(f"{c.where}: 'layer_types' may have {' and '.join(map(repr, KINDS))}, not {unknown[0]!r}")
    interval = c.size("full_attention_interval", default=4)
    return kinds or [KINDS[(i + 1) % interval == 0] for i in range(c.layers)]
