"""Gemma 3: norms on both sides of attention and MLP, norms on q and k, five sliding layers for each full one."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config

# What Gemma3TextConfig fills in: the published configs of 4 B and more leave some of these out.
_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}


def build(config: Config, *, family: str = "gemma3") -> Model:
    """``build(Config({"model_type": "gemma3", "text_config": {"hidden_size": 2560, …}, "vision_config": {…}}))``"""
    complete = Config({**_DEFAULTS, **config.data}, config.where)
    return llama.build(complete, family=family, qk_norm="head", norms="both", pattern=6, tied=True)
