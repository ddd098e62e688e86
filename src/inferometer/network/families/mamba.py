"""Mamba: state-space layers and nothing else (Mamba, Falcon-Mamba, Mamba-2), or with attention between them (Jamba,
Bamba, Granite 4) or beside them (Falcon-H1).
"""

from __future__ import annotations

from ...base.errors import BadFile
from ...base.symbols import names as s
from ...base.units import ceil_div
from ..blocks import gqa, mamba, mamba2, mlp
from ..graph import Model, Part
from ..operators import elementwise
from .config import Config
from .decoder import decoder, feed_forward, heads, layer_kinds

# transformers renamed the kinds of layers; configs have either word
_MIXERS = {"mamba": "mamba", "linear_attention": "mamba", "attention": "attention", "full_attention": "attention"}
_FEED_NORM = "pre_ff_layernorm"


def build_mamba(config: Config, *, family: str = "mamba", inner_norm: str = "") -> Model:
    """Mamba and Falcon-Mamba, which norms the inputs of its scan.

    ``build_mamba(Config({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, …}))``
    """
    c = config.text
    hidden = c.size("hidden_size")
    auto = c.get("time_step_rank", default="auto") == "auto"
    part = mamba(
        hidden_size=hidden,
        d_inner=c.size("intermediate_size", default=c.size("expand", default=2) * hidden),
        state_size=c.size("state_size", default=16),
        time_step_rank=ceil_div(hidden, 16) if auto else c.size("time_step_rank"),
        conv_kernel=c.size("conv_kernel", default=4),
        conv_bias=c.flag("use_conv_bias", default=True),
        bias=c.flag("use_bias"),
        inner_norm=inner_norm,
    )
    tied = c.flag("tie_word_embeddings", default=True)
    return decoder(config, lambda _: ("layers", part), family=family, tied=tied)


def build_mamba2(config: Config, *, family: str = "mamba2") -> Model:
    """Mamba-2: state-space layers with heads.

    ``build_mamba2(Config({"model_type": "mamba2", "hidden_size": 2560, "num_heads": 80, "head_dim": 64, …}))``
    """
    c = config.text
    hidden, width = c.size("hidden_size"), c.size("head_dim", default=64)
    inner = c.size("expand", default=2) * hidden
    if c.get("num_heads") is None and inner % width:
        raise BadFile(f"{c.where}: heads of {width} do not divide the {inner} channels; give 'num_heads'")
    part = mamba2(
        hidden_size=hidden,
        mamba_num_heads=c.size("num_heads", default=max(1, inner // width)),
        mamba_head_dim=width,
        n_groups=c.size("n_groups", default=8),
        ssm_state_size=c.size("state_size", default=128),
        conv_kernel=c.size("conv_kernel", default=4),
        chunk_size=c.size("chunk_size", default=256),
        conv_bias=c.flag("use_conv_bias", default=True),
        bias=c.flag("use_bias"),
    )
    return decoder(config, lambda _: ("layers", part), family=family)


def build_jamba(config: Config, *, family: str = "jamba") -> Model:
    """Jamba: one layer of every ``attn_layer_period`` attends, the others are Mamba; every second has experts.

    ``build_jamba(Config({"model_type": "jamba", "attn_layer_period": 8, "attn_layer_offset": 4, …}))``
    """
    c = config.text
    number, hidden = c.layers, c.size("hidden_size")
    attends = _every(c, "attn_layer_period", "attn_layer_offset", 8, 4)
    mixed = (
        _every(c, "expert_layer_period", "expert_layer_offset", 2, 1) if c.size("num_experts", default=16) > 1 else []
    )
    auto = c.get("mamba_dt_rank", default="auto") == "auto"
    recurrent = mamba(
        hidden_size=hidden,
        d_inner=c.size("mamba_expand", default=2) * hidden,
        state_size=c.size("mamba_d_state", default=16),
        time_step_rank=ceil_div(hidden, 16) if auto else c.size("mamba_dt_rank"),
        conv_kernel=c.size("mamba_d_conv", default=4),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        bias=c.flag("mamba_proj_bias"),
        inner_norm="weight",
        pre_norm="input_layernorm",
    )
    attention = gqa(**heads(c), rope=False)  # the Mamba layers know the order
    experts = {"num_experts": 16, "num_experts_per_tok": 2, "moe_layer_freq": [int(i in mixed) for i in range(number)]}
    feed = feed_forward(Config({**experts, **c.data}, c.where), pre_norm=_FEED_NORM)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (attention if index in attends else recurrent) + feed(index)

    return decoder(config, layer, family=family, state_dtype="")


def _every(c: Config, period: str, offset: str, every: int, first: int) -> list[int]:
    """The layers of a period and an offset: every 8th from the fourth on are 4, 12, 20 …"""
    step, start = c.size(period, default=every), c.size(offset, default=first, least=0)
    if start >= step:
        raise BadFile(f"{c.where}: {offset!r} {start} must be smaller than {period!r} {step}")
    return list(range(start, c.layers, step))


def build_bamba(config: Config, *, family: str = "bamba") -> Model:
    """Bamba: Mamba-2 layers with attention at ``attn_layer_indices``, each with an MLP.

    ``build_bamba(Config({"model_type": "bamba", "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, …}))``
    """
    c = config.text
    attends = c.items("attn_layer_indices")
    bias = c.flag("attention_bias")
    attention, recurrent = gqa(**heads(c), bias=bias, out_bias=bias), _mamba2(c)
    feed = feed_forward(c, bias=c.flag("mlp_bias"), pre_norm=_FEED_NORM)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (attention if index in attends else recurrent) + feed(index)

    return decoder(config, layer, family=family, state_dtype="")


def build_granitemoehybrid(config: Config, *, family: str = "granitemoehybrid") -> Model:
    """Granite 4: Mamba-2 or attention as ``layer_types`` says; experts and a shared MLP in every layer, or that alone.

    ``build_granitemoehybrid(Config({"model_type": "granitemoehybrid", "layer_types": ["mamba", …, "attention"], …}))``
    """
    c = config.text
    kinds = layer_kinds(c, "layer_types", _MIXERS) or ["mamba"] * c.layers
    bias = c.flag("attention_bias")
    parts = {}
    if "attention" in kinds:
        parts["attention"] = gqa(**heads(c), bias=bias, out_bias=bias, rope=c.get("position_embedding_type") == "rope")
    if "mamba" in kinds:
        parts["mamba"] = _mamba2(c)
    dense = c.size("num_local_experts", default=8, least=0) == 0
    feed = feed_forward(c, dense_width=c.size("shared_intermediate_size", default=1024) if dense else None)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", parts[kinds[index]] + feed(index)

    return decoder(config, layer, family=family, state_dtype="")


def build_falcon_h1(config: Config, *, family: str = "falcon_h1") -> Model:
    """Falcon-H1: attention and Mamba-2 side by side in every layer, their outputs added.

    ``build_falcon_h1(Config({"model_type": "falcon_h1", "mamba_d_ssm": 4096, "mamba_n_heads": 32, …}))``
    """
    c = config.text
    bias = c.flag("attention_bias")
    source = "input_layernorm"
    both = gqa(**heads(c), bias=bias, out_bias=bias, pre_norm=source) + _mamba2(c, beside=source)
    add = elementwise("add", 2 * s.hidden_size, s.hidden_size, inputs=("o_proj", "out_proj"))
    width = c.size("intermediate_size")
    feed = mlp(hidden_size=c.size("hidden_size"), intermediate_size=width, bias=c.flag("mlp_bias"), pre_norm=_FEED_NORM)
    part = both + Part((add,), {}) + feed
    return decoder(config, lambda _: ("layers", part), family=family, state_dtype="")


def _mamba2(c: Config, beside: str = "") -> Part:
    """Mamba-2 under the names of Bamba and those built like it; ``beside`` an attention it reads that one's norm."""
    hidden, number = c.size("hidden_size"), c.size("mamba_n_heads", default=128)
    inner = c.size("mamba_d_ssm", default=int(c.number("mamba_expand", default=2) * hidden))
    width = inner // number if c.get("mamba_d_head", default="auto") == "auto" else c.size("mamba_d_head")
    if width * number != inner:
        raise BadFile(f"{c.where}: {number} heads of {width} are not the {inner} channels of its Mamba layers")
    return mamba2(
        hidden_size=hidden,
        mamba_num_heads=number,
        mamba_head_dim=width,
        n_groups=c.size("mamba_n_groups", default=1),
        ssm_state_size=c.size("mamba_d_state", default=256),
        conv_kernel=c.size("mamba_d_conv", default=4),
        chunk_size=c.size("mamba_chunk_size", default=256),
        conv_bias=c.flag("mamba_conv_bias", default=True),
        bias=c.flag("mamba_proj_bias"),
        out_bias=c.flag("projectors_bias") if beside else None,
        gated_norm=c.flag("mamba_rms_norm") if beside else True,
        pre_norm="" if beside else "input_layernorm",
        inputs=(beside,) if beside else None,
    )
