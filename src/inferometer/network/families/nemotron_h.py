"""Nemotron-H and Nemotron 3: every layer is one norm and one mixer, be it Mamba-2, attention, an MLP or experts."""

from __future__ import annotations

from collections.abc import Callable

from ...base.errors import BadFile
from ..blocks import gqa, mamba2, mlp, moe
from ..graph import Block, Model, Part
from .config import Config
from .decoder import decoder, expert_sizes, heads
from .deepseek_v3 import mtp

LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def build(config: Config, *, family: str = "nemotron_h") -> Model:
    """``build(Config({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-", …}))``"""
    c = config.text
    kinds = layer_kinds(c, "hybrid_override_pattern", "layers_block_type")
    ahead = layer_kinds(c, "mtp_hybrid_override_pattern", "mtp_layers_block_type")
    number = c.size("num_hidden_layers", default=len(kinds))
    if not kinds or number != len(kinds):
        raise BadFile(f"{c.where} says what {len(kinds)} layers are, of {number}: see 'hybrid_override_pattern'")
    parts = {kind: MIXERS[kind](c) for kind in dict.fromkeys(kinds + ahead)}
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


def layer_kinds(c: Config, pattern: str, types: str) -> list[str]:
    """What each layer is, from a pattern of letters or a list of names."""
    letters = c.get(pattern)
    key, kinds = (pattern, list(letters)) if isinstance(letters, str) else (types, c.items(types))
    known = {**LETTERS, **{word: word for word in LETTERS.values()}}
    unknown = [k for k in kinds if not isinstance(k, str) or k not in known]
    if unknown:
        raise BadFile(f"{c.where}: {key!r} has a layer {unknown[0]!r}; known are {', '.join(known)}")
    return [known[k] for k in kinds]


def _mamba(c: Config) -> Part:
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


def _attention(c: Config) -> Part:
    """Without positions: the Mamba layers know the order."""
    bias = c.flag("attention_bias")
    return gqa(**heads(c), bias=bias, out_bias=bias, rope=False, pre_norm="attention_norm")


def _mlp(c: Config) -> Part:
    return mlp(
        hidden_size=c.size("hidden_size"),
        intermediate_size=c.size("intermediate_size"),
        gated=False,
        bias=c.flag("mlp_bias"),
        pre_norm="mlp_norm",
    )


def _moe(c: Config) -> Part:
    return moe(
        **expert_sizes(c),
        gated=False,
        router_bias=True,
        expert_bias=c.flag("mlp_bias"),
        moe_latent_size=c.size("moe_latent_size", default=0, least=0),
        pre_norm="moe_norm",
    )


MIXERS: dict[str, Callable[[Config], Part]] = {"mamba": _mamba, "attention": _attention, "mlp": _mlp, "moe": _moe}
