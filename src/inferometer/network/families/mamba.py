"""Mamba and Falcon-Mamba: state-space layers and nothing else, so no cache grows."""

from __future__ import annotations

from ...base.units import ceil_div
from ..blocks import mamba
from ..graph import Model
from .config import Config
from .decoder import decoder


def build(config: Config, *, family: str = "mamba", inner_norm: bool = False) -> Model:
    """``build(Config({"model_type": "mamba", "hidden_size": 2560, "num_hidden_layers": 64, "state_size": 16, …}))``"""
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
