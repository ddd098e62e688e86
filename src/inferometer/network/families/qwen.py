"""Qwen (the first): a Llama with bias on q, k and v; ``intermediate_size`` counts gate and up projection together."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config


def build(config: Config, *, family: str = "qwen") -> Model:
    """``build(Config({"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, …}))``"""
    half = {"intermediate_size": config.size("intermediate_size", least=2) // 2}
    return llama.build(Config({**config.data, **half}, config.where), family=family, bias=True, out_bias=False)
