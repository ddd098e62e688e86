"""Llama-Nemotron (Super, Ultra): a Llama whose layers a search has thinned out, each with its own sizes or without."""

from __future__ import annotations

from ...base.errors import BadFile
from ...base.symbols import names as s
from ...base.units import ceil_div
from ..blocks import gqa, mlp
from ..graph import Model, Part
from ..operators import linear, norm
from .config import Config
from .decoder import decoder, heads

ROUND = 256  # widths of MLPs are rounded up to this


def build(config: Config, *, family: str = "nemotron-nas") -> Model:
    """``build(Config({"model_type": "nemotron-nas", "block_configs": [{"attention": …, "ffn": …}, …], …}))``"""
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
        return "layers", _attention(c, first) + _feed_forward(c, second)

    return decoder(config, layer, family=family)


def _attention(c: Config, block: Config) -> Part:
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


def _feed_forward(c: Config, block: Config) -> Part:
    if block.flag("no_op"):
        return Part((), {})
    if block.flag("replace_with_linear"):
        return _linear(c, "post_attention_layernorm", "mlp_linear", "mlp")
    hidden = c.size("hidden_size")
    width = int(2 * block.number("ffn_mult", default=0.0) * hidden / 3)
    if width <= 0:
        raise BadFile(f"{block.where}: 'ffn_mult' must be a positive number")
    return mlp(hidden_size=hidden, intermediate_size=ceil_div(width, ROUND) * ROUND, bias=c.flag("mlp_bias"))


def _linear(c: Config, before: str, name: str, role: str) -> Part:
    """What a search leaves of an attention or an MLP that matters little: one square matrix."""
    ops = (norm(before, s.hidden_size, residual=True), linear(name, s.hidden_size, s.hidden_size, role=role))
    return Part(ops, {"hidden_size": c.size("hidden_size")})
