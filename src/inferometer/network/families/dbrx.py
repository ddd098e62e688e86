"""DBRX: a Llama-like decoder of experts whose sizes are in ``attn_config`` and ``ffn_config``."""

from __future__ import annotations

from ..graph import Model
from . import llama
from .config import Config


def build(config: Config, *, family: str = "dbrx") -> Model:
    """``build(Config({"model_type": "dbrx", "d_model": 6144, "ffn_config": {"moe_num_experts": 16, …}, …}))``"""
    attention = config.section("attn_config") or config
    experts = config.section("ffn_config") or config
    sizes = {
        "hidden_size": config.size("d_model"),
        "num_key_value_heads": attention.size("kv_n_heads", default=config.size("n_heads")),
        "moe_intermediate_size": experts.size("ffn_hidden_size"),
        "num_experts": experts.size("moe_num_experts"),
        "num_experts_per_tok": experts.size("moe_top_k"),
        "max_position_embeddings": config.size("max_seq_len", default=0),
    }
    return llama.build(Config({**config.data, **sizes}, config.where), family=family)
