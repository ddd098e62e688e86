"""OPT: learned positions (two rows more than positions), biases; the 350m has its norms after and narrow embeddings."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config


def build(config: Config, *, family: str = "opt") -> Model:
    """``build(Config({"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "word_embed_proj_dim": 768, …}))``"""
    before, bias = config.flag("do_layer_norm_before", default=True), config.flag("enable_bias", default=True)
    return llama.build(
        config,
        family=family,
        bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        gated=False,
        rope=False,
        norms="before" if before else "after",
        learned=2,
        tied=True,
        narrow=config.size("word_embed_proj_dim", default=0, least=0),
        final_norm=before and not config.flag("_remove_final_layer_norm"),
    )
