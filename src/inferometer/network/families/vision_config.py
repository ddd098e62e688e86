"""How configs give the sizes of vision towers, and what towers of all kinds share."""

from __future__ import annotations

from typing import TypedDict

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..graph import Block, Part, Vision
from ..operators import Op, norm
from .config import Config

Tower = tuple[tuple[Block, ...], Vision]


class TowerSizes(TypedDict):
    """What every tower has."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int


def tower_sizes(v: Config) -> TowerSizes:
    """The sizes of a tower's layers under one set of names."""
    return {
        "hidden_size": v.size("hidden_size", "vt_hidden_size"),
        "intermediate_size": v.size("intermediate_size", "vt_intermediate_size"),
        "num_hidden_layers": v.size("num_hidden_layers", "depth", "vt_num_hidden_layers"),
        "num_attention_heads": v.size("num_attention_heads", "num_heads", "vt_num_attention_heads"),
    }


def pixels(v: Config, frames: int = 1) -> int:
    """Values in a patch: channels × pixels × frames (an image counts as that many equal frames)."""
    return v.size("in_channels", "in_chans", "num_channels", default=3) * v.size("patch_size", default=14) ** 2 * frames


def mlp_width(config: Config, width: int) -> int:
    """The MLP's width where a config gives a ratio: ``mlp_width(Config({"mlp_ratio": 4}), 1152)  # 4608``"""
    ratio = config.number("mlp_ratio", default=4.0)
    if not 0 < ratio <= 1000:
        raise BadFile(f"{config.where}: 'mlp_ratio' must be between 0 and 1,000, not {ratio}")
    return max(1, int(width * ratio))


def side_of(v: Config) -> tuple[int, int, int]:
    """Pixels of a patch and of an image along one side, and the patches there."""
    patch, side = v.size("patch_size"), v.size("image_size")
    if patch > side:
        raise BadFile(f"{v.where}: 'patch_size' {patch} is larger than 'image_size' {side}")
    return patch, side, side // patch


def text_width(config: Config) -> int:
    """The language model's hidden size, which images are projected to."""
    return config.text.size("hidden_size", "n_embd", "d_model")


def projector(dims: dict[str, int], *parts: Part | Op, label: str = "projector", times: int = 1) -> Block:
    """What stands between the tower and the decoder, as one block."""
    ops: list[Op] = []
    known: dict[str, float] = dict(dims)
    for part in parts:
        ops += part.ops if isinstance(part, Part) else [part]
        known |= part.dims if isinstance(part, Part) else {}
    return Block(f"vision.{label}", tuple(ops), known, tuple(range(times)), stage="vision", residual=False)


def last_norm(bias: bool = True) -> Op:
    """The norm behind a tower's layers."""
    return norm("post_norm", s.hidden_size, m=s.patches, bias=bias, shared=0)
