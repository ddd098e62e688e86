"""Diffusion transformers (DiT): patches of a latent image through modulated blocks, once per denoising step."""

from __future__ import annotations

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..blocks import dit_block
from ..graph import Block, Model, group_layers
from ..operators import elementwise, embedding, linear, norm
from .config import Config
from .quantization import dtype
from .vision import mlp_width


def build(config: Config, *, family: str = "dit") -> Model:
    """``build(Config({"model_type": "dit", "hidden_size": 1152, "depth": 28, "num_attention_heads": 16, …}))``"""
    hidden, depth = config.size("hidden_size"), config.layers
    patch, channels = config.size("patch_size"), config.size("in_channels", default=4)
    out = channels * (2 if config.flag("learn_sigma", default=True) else 1)
    size = config.size("input_size", default=32)
    if patch > size:
        raise BadFile(f"{config.where}: 'patch_size' {patch} is larger than 'input_size' {size}")
    tokens = (size // patch) ** 2
    dims: dict[str, float] = {
        "hidden_size": hidden,
        "patch_inputs": patch * patch * channels,
        "patch_outputs": patch * patch * out,
        "num_classes": config.size("num_classes", default=1000, least=0) + 1,
        "frequency_embedding_size": 256,
        "num_positions": tokens,
    }
    h = s.hidden_size
    before = (
        linear("patch_embed", s.patch_inputs, h, role="embed", bias=True, inputs=()),
        embedding("pos_embed", s.num_positions, h, shard=False, inputs=None),  # sines and cosines, but stored
        linear("time_embed_1", s.frequency_embedding_size, h, m=s.seqs, role="embed", bias=True, inputs=()),
        linear("time_embed_2", h, h, m=s.seqs, role="embed", bias=True),
        embedding("class_embed", s.num_classes, h, m=s.seqs, shard=False),
        elementwise("condition", 2 * h, h, m=s.seqs, inputs=("time_embed_2", "class_embed")),
    )
    after = (
        linear("final_modulation", h, 2 * h, m=s.seqs, role="embed", bias=True, inputs=()),
        norm("norm_final", h, weightless=True, inputs=()),
        linear("final_linear", h, s.patch_outputs, role="embed", bias=True, inputs=("norm_final", "final_modulation")),
    )
    block = dit_block(
        hidden_size=hidden,
        num_attention_heads=config.size("num_attention_heads"),
        intermediate_size=mlp_width(config, hidden),
    )
    return Model(
        name=family,
        family=family,
        kind="diffusion",
        blocks=(
            Block("embed", before, dims, stage="embed", residual=False),
            *group_layers([("blocks", block)] * depth),
            Block("head", after, dims, stage="head", residual=False),
        ),
        max_position=tokens,
        dtype=dtype(config),
        num_layers=depth,
        sizes={"hidden_size": hidden},
    )
