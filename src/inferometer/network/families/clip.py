"""CLIP and SigLIP, towers for images of one size, as LLaVA and Gemma 3 use them."""

from __future__ import annotations

from typing import Any

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..blocks import encoder, patch_embed, projection
from ..graph import Block, Part, Vision
from ..operators import Op, elementwise, embedding, norm
from .config import Config
from .vision_config import Tower, last_norm, pixels, projector, side_of, text_width, tower_sizes


def clip(v: Config, config: Config) -> Tower:
    """CLIP or SigLIP as LLaVA uses them: an MLP of two layers projects what a late layer gives."""
    blocks = _clip_body(v, config)
    patch, side, per_side = side_of(v)
    width, out = v.size("hidden_size"), text_width(config)
    bias = config.flag("multimodal_projector_bias", default=True)
    parts: list[Part | Op] = [
        projection(
            "projector",
            {"hidden_size": width, "projector_hidden": out, "out_hidden_size": out},
            m=s.image_tokens,
            bias=bias,
        ),
    ]
    how = str(config.get("vision_aspect_ratio", "image_aspect_ratio", default=""))
    onevision = config.get("model_type") in ("llava_onevision", "llava_qwen")
    if not (onevision or config.get("model_type") == "llava_next" or how.startswith("anyres")):
        return (*blocks, projector({}, *parts)), Vision(patch, 1, "resize", side)
    parts.append(embedding("image_newline", 1, s.out_hidden_size, m=s.images, shard=False, role="vision", inputs=()))
    default = "9" if onevision else "0"
    most = how.removeprefix("anyres_max_") if how.startswith("anyres_max_") else default
    limit = int(most) * per_side**2 if most.isdecimal() else 0
    vision = Vision(patch, 1, "anyres", side, grids=_grids(config, side, onevision), tokens=limit)
    return (*blocks, projector({}, *parts)), vision


def _clip_body(v: Config, config: Config) -> tuple[Block, ...]:
    """The layers: CLIP has a class token and a norm in front, SigLIP a bias at the patches."""
    siglip = str(v.get("model_type", default="")).startswith("siglip")
    layers, number = tower_sizes(v), side_of(v)[2] ** 2
    original = -1 if siglip else config.get("mm_vision_select_layer", default=-1)
    taken = config.get("vision_feature_layer", default=original)
    taken = taken if isinstance(taken, int) else -1  # a list takes from several layers, up to the last
    unused = -1 - taken if taken < 0 else layers["num_hidden_layers"] - taken
    if not 0 <= unused < layers["num_hidden_layers"]:
        raise BadFile(f"{config.where}: 'vision_feature_layer' {taken} is not one of {layers['num_hidden_layers']}")
    return (
        patch_embed(
            hidden_size=layers["hidden_size"],
            patch_inputs=pixels(v),
            bias=siglip,
            class_token=not siglip,
            positions=number if siglip else number + 1,
            pre_norm=not siglip,
        ),
        *encoder(**layers, class_token=not siglip, unused=unused),
        projector({"hidden_size": layers["hidden_size"]}, last_norm(), label="post_norm"),
    )


def _grids(config: Config, side: int, onevision: bool) -> tuple[tuple[int, int], ...]:
    """The shapes an image may be cut into: rows × columns of crops."""
    points = config.get("image_grid_pinpoints", default=[])
    pairs = [p for p in points if isinstance(p, list | tuple) and len(p) == 2] if isinstance(points, list) else []
    if pairs and all(isinstance(n, int) and n >= side for p in pairs for n in p):
        return tuple((p[0] // side, p[1] // side) for p in pairs)
    if onevision:
        return tuple((rows, columns) for rows in range(1, 7) for columns in range(1, 7))
    return ((1, 2), (2, 1), (2, 2), (3, 1), (1, 3))


def gemma3(v: Config, config: Config) -> Tower:
    """SigLIP over 896 × 896 pixels, its patches averaged down to ``mm_tokens_per_image``."""
    width, (patch, side, per_side) = v.size("hidden_size"), side_of(v)
    merge = max(1, round(per_side / config.size("mm_tokens_per_image", default=256) ** 0.5))
    project = projector(
        {"hidden_size": width, "merge": merge},
        elementwise("pool", s.merge**2 * s.hidden_size, s.hidden_size, m=s.image_tokens, flops=s.merge**2, inputs=()),
        norm("mm_soft_emb_norm", s.hidden_size, m=s.image_tokens, shared=0),
        projection(
            "projector", {"hidden_size": width, "out_hidden_size": text_width(config)}, m=s.image_tokens, bias=False
        ),
    )
    return (*_clip_body(v, config), project), Vision(patch, merge, "resize", side)


def named(config: Config) -> Config | None:
    """The towers that original LLaVA configs only name: ``"mm_vision_tower": "openai/clip-vit-large-patch14-336"``"""
    label = str(config.get("mm_vision_tower", default=""))
    for word, known in _NAMES.items():
        if word in label:
            return Config(known, f"{config.where}, mm_vision_tower")
    return None


_CLIP_L = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
_NAMES: dict[str, dict[str, Any]] = {
    "clip-vit-large-patch14-336": _CLIP_L,
    "clip-vit-large-patch14": {**_CLIP_L, "image_size": 224},
    "siglip-so400m-patch14-384": {  # LLaVA drops the last of its 27 layers
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 26,
        "num_attention_heads": 16,
        "image_size": 384,
        "patch_size": 14,
    },
}
