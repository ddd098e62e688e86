"""LLaVA in all its forms: a CLIP or SigLIP tower before a decoder that ``text_config.model_type`` names.

The original configs are flat: the decoder's sizes beside ``mm_vision_tower``, a name.
"""

from __future__ import annotations

from ..graph import Model
from .config import Config

# What LlamaConfig fills in: the converted LLaVA-1.5 of 7 B leaves all of these out.
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}


def build(config: Config, *, family: str = "llava") -> Model:
    """``build(Config({"model_type": "llava", "text_config": {"model_type": "qwen2", …}, "vision_config": {…}}))``"""
    from . import builder, families

    text = config.section("text_config")
    if text is None:
        word = family.removeprefix("llava_").replace("qwen", "qwen2")
    else:
        word = str(text.get("model_type", default="llama"))
        if word == "llama" and text.get("hidden_size") is None:
            config = Config({**config.data, "text_config": {**_LLAMA, **text.data}}, config.where)
    if word not in families() or word.startswith("llava"):
        word = "llama"
    return builder(word)(config, family=family)
