"""Parts that networks are made of: attention, MLPs, recurrent mixers, ends, towers. Each is a function of sizes."""

from .compressed_attention import compressed
from .mlp import mlp, moe
from .recurrent import delta_net, kimi_delta, lightning_attention, mamba, mamba2, short_conv
from .residual_stream import attention_residual, embed, head, hyper_connected, hyper_head
from .self_attention import block_indexer, gqa, indexer, mla
from .vision_tower import dit_block, encoder, patch_embed, projection

__all__ = [
    "attention_residual",
    "block_indexer",
    "compressed",
    "delta_net",
    "dit_block",
    "embed",
    "encoder",
    "gqa",
    "head",
    "hyper_connected",
    "hyper_head",
    "indexer",
    "kimi_delta",
    "lightning_attention",
    "mamba",
    "mamba2",
    "mla",
    "mlp",
    "moe",
    "patch_embed",
    "projection",
    "short_conv",
]
