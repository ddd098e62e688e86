"""MiniMax-M3: most layers attend to the best blocks of the past, which a small index beside the keys chooses."""

from __future__ import annotations

from ..blocks import block_indexer, gqa
from ..graph import Model, Part, Span
from .config import Config
from .decoder import decoder, feed_forward, heads
from .deepseek_v3 import mtp
from .vision import tower


def build(config: Config, *, family: str = "minimax_m3") -> Model:
    """``build(Config({"model_type": "minimax_m3", "sparse_attention_config": {"sparse_topk_blocks": 16, …}, …}))``"""
    c = config.text
    section = c.section("sparse_attention_config")
    sparsity = section if section is not None and section.flag("use_sparse_attention", default=True) else None
    sizes = heads(c)
    sizes |= {"qk_norm": "head" if c.flag("use_qk_norm") else "", "output_gate": c.flag("attention_output_gate")}
    dense = gqa(**sizes)
    sparse, chosen, spans = dense, [False] * c.layers, {}
    if sparsity is not None:
        block = sparsity.size("sparse_block_size", "index_block_size")
        index = block_indexer(
            hidden_size=c.size("hidden_size"),
            sparse_num_index_heads=sparsity.size("sparse_num_index_heads", "index_n_heads"),
            sparse_index_dim=sparsity.size("sparse_index_dim", "index_head_dim"),
            sparse_block_size=block,
        )
        sparse = gqa(**sizes, span="top_k", index=index)
        chosen = [bool(x) for x in sparsity.items("sparse_attention_freq", c.layers)] or [True] * c.layers
        spans["top_k"] = Span("top_k", block * sparsity.size("sparse_topk_blocks", "index_topk_blocks"))
    feed = feed_forward(
        c, dense_width=c.size("dense_intermediate_size", "intermediate_size"), router_bias=c.flag("use_routing_bias")
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (sparse if chosen[index] else dense) + feed(index)

    return decoder(
        config, layer, family=family, spans=spans, extras=mtp(c, layer(c.layers - 1)[1]), vision=tower(config)
    )
