"""Hybrids of full attention and a mixer that costs less: delta nets (Qwen3-Next, Qwen3.5 and 3.6, Kimi-Linear and
Kimi-K3), lightning attention (MiniMax-Text-01), short convolutions (LFM2).
"""

from __future__ import annotations

from ...base.errors import BadFile
from ...base.units import ceil_div
from ..blocks import attention_residual, delta_net, gqa, kimi_delta, lightning_attention, mla, short_conv
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward, heads, layer_kinds, mtp

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
    kinds = layer_kinds(c, "layer_types", {kind: kind for kind in _KINDS})
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


def build_minimax(config: Config, *, family: str = "minimax") -> Model:
    """MiniMax-Text-01: lightning attention in most layers, softmax in every eighth, experts in all.

    ``build_minimax(Config({"model_type": "minimax_text_01", "attn_type_list": [0, 0, 0, 0, 0, 0, 0, 1, …], …}))``
    """
    c = config.text
    number, sizes = c.layers, heads(c)
    codes = c.items("attn_type_list", number)
    kinds = [_KINDS[bool(code)] for code in codes] or layer_kinds(c, "layer_types", {kind: kind for kind in _KINDS})
    kinds = kinds or [_KINDS[i % 2 == 0] for i in range(number)]
    width, head = sizes["num_attention_heads"], sizes["head_dim"]
    linear = lightning_attention(
        hidden_size=sizes["hidden_size"],
        num_attention_heads=width,
        head_dim=head,
        block_size=c.size("block_size", default=256),
    )
    full = gqa(**sizes)
    # published as a list: one width for each kind of layer, or one for all
    shared = c.get("shared_intermediate_size", default=0)
    shared = max(shared, default=0) if isinstance(shared, list) else shared
    feed = feed_forward(Config({**c.data, "shared_intermediate_size": shared}, c.where))

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (full if kinds[index] == "full_attention" else linear) + feed(index)

    return decoder(config, layer, family=family, state_dtype="")


def build_lfm2(config: Config, *, family: str = "lfm2") -> Model:
    """LFM2 and LFM2-MoE: short convolutions, and attention where ``layer_types`` or ``full_attn_idxs`` say so.

    ``build_lfm2(Config({"model_type": "lfm2", "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, …}))``
    """
    c = config.text
    kinds = layer_kinds(c, "layer_types", {"conv": "conv", "short_conv": "conv", "full_attention": "full_attention"})
    chosen = c.get("full_attn_idxs")
    if not kinds and chosen is not None:
        kinds = ["full_attention" if i in c.items("full_attn_idxs") else "conv" for i in range(c.layers)]
    kinds = kinds or ["full_attention"] * c.layers
    conv = short_conv(
        hidden_size=c.size("hidden_size"), conv_L_cache=c.size("conv_L_cache", default=3), bias=c.flag("conv_bias")
    )
    attention = gqa(**heads(c), qk_norm="head", pre_norm="operator_norm")
    dense = c.size("num_dense_layers", default=0, least=0)
    feed = feed_forward(
        Config({**c.data, "first_k_dense_replace": dense}, c.where),
        dense_width=_lfm2_width(c),
        router_bias=c.flag("use_expert_bias", default=True),
        pre_norm="ffn_norm",
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (attention if kinds[index] == "full_attention" else conv) + feed(index)

    tied = c.flag("tie_word_embeddings", "tie_embedding", default=True)
    return decoder(config, layer, family=family, tied=tied, state_dtype="")


def _lfm2_width(c: Config) -> int:
    """The width of a dense MLP: two thirds of what the config says, rounded up, where LFM2 adjusts it."""
    width = c.size("block_ff_dim", "intermediate_size")
    if c.get("num_experts") or not c.flag("block_auto_adjust_ff_dim", default=True):
        return width
    width = int(c.number("block_ffn_dim_multiplier", default=1.0) * int(2 * width / 3))
    step = c.size("block_multiple_of", default=256)
    return ceil_div(width, step) * step
