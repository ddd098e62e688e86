"""Nemotron: the hybrids (Nemotron-H, Nemotron 3), and Llamas that an architecture search has thinned out."""

from __future__ import annotations

from collections.abc import Callable

from ...base.errors import BadFile
from ...base.symbols import names as s
from ...base.units import ceil_div
from ..blocks import gqa, mamba2, mlp, moe
from ..graph import Block, Model, Part
from ..operators import linear, norm
from .config import Config
from .decoder import decoder, expert_sizes, heads, mtp

_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_ROUND = 256  # widths of MLPs are rounded up to this


def build_nemotron_h(config: Config, *, family: str = "nemotron_h") -> Model:
    """Nemotron-H and Nemotron 3: every layer is one norm and one mixer, be it Mamba-2, attention, an MLP or experts.

    ``build_nemotron_h(Config({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-", …}))``
    """
    c = config.text
    kinds = _layer_kinds(c, "hybrid_override_pattern", "layers_block_type")
    ahead = _layer_kinds(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    number = c.size("num_hidden_layers", default=len(kinds))
    if not kinds or number != len(kinds):
        raise BadFile(f"{c.where} describes {len(kinds)} of {number} layers: see 'hybrid_override_pattern'")
    parts = {kind: _MIXERS[kind](c) for kind in dict.fromkeys(kinds + ahead)}
    extras: tuple[Block, ...] = ()
    if ahead:
        extras = mtp(c, sum((parts[kind] for kind in ahead), Part((), {})))
    return decoder(
        config,
        lambda index: ("layers", parts[kinds[index]]),
        family=family,
        count=number,
        extras=extras,
    )


def _layer_kinds(c: Config, pattern: str, types: str) -> list[str]:
    """What each layer is, from a pattern of letters or a list of names."""
    letters = c.get(pattern)
    key, kinds = (pattern, list(letters)) if isinstance(letters, str) else (types, c.items(types))
    known = {**_LETTERS, **{word: word for word in _LETTERS.values()}}
    unknown = [k for k in kinds if not isinstance(k, str) or k not in known]
    if unknown:
        raise BadFile(f"{c.where}: {key!r} has a layer {unknown[0]!r}; known are {', '.join(known)}")
    return [known[k] for k in kinds]


def _mamba_layer(c: Config) -> Part:
    return mamba2(
        hidden_size=c.size("hidden_size"),
        mamba_num_heads=c.size("mamba_num_heads"),
        mamba_head_dim=c.size("mamba_head_dim"),
        n_groups=c.size("n_groups"),
        ssm_state_size=c.size("ssm_state_size"),
        conv_kernel=c.size("conv_kernel", default=4),
        chunk_size=c.size("chunk_size", default=128),
        conv_bias=c.flag("use_conv_bias", default=True),
        bias=c.flag("mamba_proj_bias", "use_bias"),
        pre_norm="mamba_norm",
    )


def _attention_layer(c: Config) -> Part:
    """Without positions: the Mamba layers know the order."""
    bias = c.flag("attention_bias")
    return gqa(**heads(c), bias=bias, out_bias=bias, rope=False, pre_norm="attention_norm")


def _mlp_layer(c: Config) -> Part:
    return mlp(
        hidden_size=c.size("hidden_size"),
        intermediate_size=c.size("intermediate_size"),
        gated=False,
        bias=c.flag("mlp_bias"),
        pre_norm="mlp_norm",
    )


def _moe_layer(c: Config) -> Part:
    return moe(
        **expert_sizes(c),
        gated=False,
        router_bias=True,
        expert_bias=c.flag("mlp_bias"),
        moe_latent_size=c.size("moe_latent_size", default=0, least=0),
        pre_norm="moe_norm",
    )


_MIXERS: dict[str, Callable[[Config], Part]] = {
    "mamba": _mamba_layer,
    "attention": _attention_layer,
    "mlp": _mlp_layer,
    "moe": _moe_layer,
}


def build_nemotron_nas(config: Config, *, family: str = "nemotron-nas") -> Model:
    """Llama-Nemotron (Super, Ultra): every layer has sizes of its own for attention and MLP, or goes without one.

    ``build_nemotron_nas(Config({"model_type": "nemotron-nas", "block_configs": [{"attention": …, "ffn": …}, …], …}))``
    """
    c = config.text
    blocks = c.items("block_configs", c.layers)
    if not blocks:
        raise BadFile(f"{c.where} lacks 'block_configs', which says what each layer is")

    def layer(index: int) -> tuple[str, Part]:
        entry = blocks[index]
        both = Config(entry if isinstance(entry, dict) else {}, f"{c.where}, block_configs[{index}]")
        first, second = both.section("attention"), both.section("ffn")
        if first is None or second is None:
            raise BadFile(f"{both.where} must have 'attention' and 'ffn'")
        return "layers", _thinned_attention(c, first) + _thinned_feed_forward(c, second)

    return decoder(config, layer, family=family)


def _thinned_attention(c: Config, block: Config) -> Part:
    if block.flag("no_op"):
        return Part((), {})
    if block.flag("replace_with_linear"):
        return _linear(c, "input_layernorm", "attention_linear", "attn")
    sizes = heads(c)
    group, query = block.size("n_heads_in_group"), sizes["num_attention_heads"]
    if query % group:
        raise BadFile(f"{block.where}: {query} heads cannot be in groups of {group}")
    bias = c.flag("attention_bias")
    return gqa(**{**sizes, "num_key_value_heads": query // group}, bias=bias, out_bias=bias)


def _thinned_feed_forward(c: Config, block: Config) -> Part:
    if block.flag("no_op"):
        return Part((), {})
    if block.flag("replace_with_linear"):
        return _linear(c, "post_attention_layernorm", "mlp_linear", "mlp")
    hidden = c.size("hidden_size")
    width = int(2 * block.number("ffn_mult", default=0.0) * hidden / 3)
    if width <= 0:
        raise BadFile(f"{block.where}: 'ffn_mult' must be a positive number")
    return mlp(hidden_size=hidden, intermediate_size=ceil_div(width, _ROUND) * _ROUND, bias=c.flag("mlp_bias"))


def _linear(c: Config, before: str, name: str, role: str) -> Part:
    """What a search leaves of an attention or an MLP that matters little: one square matrix."""
    ops = (norm(before, s.hidden_size, residual=True), linear(name, s.hidden_size, s.hidden_size, role=role))
    return Part(ops, {"hidden_size": c.size("hidden_size")})
