"""ChatGLM 2, 3 and GLM-4-9B: two KV groups, bias only on q, k and v. The first ChatGLM is of the older, biased kind."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config


def build(config: Config, *, family: str = "chatglm") -> Model:
    """``build(Config({"model_type": "chatglm", "padded_vocab_size": 65024, "multi_query_group_num": 2, …}))``"""
    if config.get("inner_hidden_size") is not None:
        data = {**config.data, "intermediate_size": config.size("inner_hidden_size")}
        return llama.build(
            Config(data, config.where),
            family=family,
            bias=True,
            out_bias=True,
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            tied=True,
        )
    bias = config.flag("add_bias_linear")
    return llama.build(
        config,
        family=family,
        bias=bias or config.flag("add_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
        final_norm=config.flag("post_layer_norm", default=True),
    )
