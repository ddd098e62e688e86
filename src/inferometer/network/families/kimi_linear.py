"""Kimi-Linear and Kimi-K3: Kimi delta attention, every fourth layer latent attention without positions, and experts.

Kimi-K3 adds a gate on the latent attention, experts in a narrower space, and attention residuals.
"""

from __future__ import annotations

from ...base.errors import BadFile
from ..blocks import attention_residual, kimi_delta, mla
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward
from .deepseek_v3 import mtp


def build(config: Config, *, family: str = "kimi_linear") -> Model:
    """``build(Config({"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1, 2, 3], …}, …}))``"""
    c = config.text
    number, hidden = c.layers, c.size("hidden_size")
    mixers = c.section("linear_attn_config")
    if mixers is None:
        raise BadFile(f"{c.where} lacks 'linear_attn_config', which says which layers have which attention")
    full, short = mixers.items("full_attn_layers"), mixers.items("kda_layers")
    latent = mla(
        hidden_size=hidden,
        num_attention_heads=c.size("num_attention_heads"),
        q_lora_rank=c.size("q_lora_rank", default=0, least=0),
        kv_lora_rank=c.size("kv_lora_rank"),
        qk_nope_head_dim=c.size("qk_nope_head_dim"),
        qk_rope_head_dim=c.size("qk_rope_head_dim"),
        v_head_dim=c.size("v_head_dim"),
        rope=not c.flag("mla_use_nope"),
        output_gate=c.flag("mla_use_output_gate"),
    )
    delta = kimi_delta(
        hidden_size=hidden,
        num_heads=mixers.size("num_heads"),
        head_dim=mixers.size("head_dim"),
        short_conv_kernel_size=mixers.size("short_conv_kernel_size", default=4),
        full_gate=mixers.flag("use_full_rank_gate"),
    )
    feed = feed_forward(
        c,
        router_bias=True,  # a correction for balance
        moe_latent_size=c.size("routed_expert_hidden_size", default=0, least=0),
        latent_norm=c.flag("latent_moe_use_norm"),
    )
    every = c.size("attn_res_block_size", default=0, least=0)

    def residual(name: str) -> Part:
        if not every:
            return Part((), {})
        return attention_residual(name, hidden_size=hidden, num_layers=number, block_size=every)

    before, between = residual("self_attention_res"), residual("mlp_res")

    def layer(index: int) -> tuple[str, Part]:
        place = index + 1  # the lists count from one
        if (place in full) == (place in short):
            raise BadFile(f"{mixers.where}: layer {place} must be in one of 'kda_layers' and 'full_attn_layers'")
        return "layers", before + (latent if place in full else delta) + between + feed(index)

    return decoder(config, layer, family=family, extras=mtp(c, layer(number - 1)[1]))
