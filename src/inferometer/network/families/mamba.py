"""Mamba, Falcon-Mamba and Mamba-2: state-space layers and nothing else, so no cache grows."""

from __future__ import annotations

from ...base.errors import BadFile
from ...base.units import ceil_div
from ..blocks import mamba, mamba2
from ..graph import Model
from .config import Config
from .decoder import decoder


def build_mamba(config: Config, *, family: str = "mamba", inner_norm: bool = False) -> Model:
    """Mamba and Falcon-Mamba, which norms the inputs of its scan.

    ``build_mamba(Config({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, …}))``
    """
    c = config.text
    hidden = c.size("hidden_size")
    auto = c.get("time_step_rank", default="auto") == "auto"
    part = mamba(
        hidden_size=hidden,
        intermediate_size=c.size("intermediate_size", default=c.size("expand", default=2) * hidden),
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
