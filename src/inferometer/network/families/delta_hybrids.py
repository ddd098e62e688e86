"""Hybrids of delta nets and full attention: Qwen3-Next, Qwen3.5 and 3.6, Kimi-Linear and Kimi-K3."""

from __future__ import annotations

from ...base.errors import BadFile
from ..blocks import attention_residual, delta_net, gqa, kimi_delta, mla
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward, heads, mtp

_KINDS = ("linear_attention", "full_attention")


def build_qwen3_next(config: Config, *, family: str = "qwen3_next") -> Model:
    """Qwen3-Next, Qwen3.5 and Qwen3.6: three gated delta nets, then one gated full attention; dense MLPs or experts.

    ``build_qwen3_next(Config({"model_type": "qwen3_next", "full_attention_interval": 4, …}))``
    """
    c = config.text
    kinds = _layer_kinds(c)
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


def _layer_kinds(c: Config) -> list[str]:
    """The mixer of each layer: as ``layer_types`` lists them, or every ``full_attention_interval``-th is attention."""
    kinds = c.items("layer_types", c.layers)
    unknown = [k for k in kinds if k not in _KINDS]
    if unknown:
        raise BadFile(f"{c.where}: 'layer_types' may have {' and '.join(map(repr, _KINDS))}, not {unknown[0]!r}")
    interval = c.size("full_attention_interval", default=4)
    return kinds or [_KINDS[(i + 1) % interval == 0] for i in range(c.layers)]


def build_kimi_linear(config: Config, *, family: str = "kimi_linear") -> Model:
    """Kimi-Linear and Kimi-K3: Kimi delta attention, every fourth layer latent without positions, and experts.

    Kimi-K3 adds a gate on the latent attention, experts in a narrower space, and attention residuals.

    ``build_kimi_linear(Config({"model_type": "kimi_linear", "linear_attn_config": {"kda_layers": [1, 2, 3], …}, …}))``
    """
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
