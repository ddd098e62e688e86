"""Vision towers: which one a config's ``vision_config`` describes, and how an image becomes tokens.

    blocks, vision = tower(Config({"model_type": "qwen3_vl", "vision_config": {"depth": 27, …}, …}))

A new tower is one function in this file and one line in ``TOWERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..blocks import encoder, patch_embed, projection
from ..graph import Block, Part, Vision
from ..operators import Op, elementwise, embedding, norm
from .config import Config

Tower = tuple[tuple[Block, ...], Vision]
_CLIP_L = {
    "model_type": "clip_vision_model",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}
_NAMED_TOWERS: dict[str, dict[str, Any]] = {
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


def tower(config: Config) -> Tower | None:
    """The blocks of the vision tower with its projector, and its arithmetic; None where there is none or none known."""
    v = config.section("vision_config") or named(config)
    if v is None:
        return None
    for section in (config, v):  # the model's type says more than the tower's: MiniMax calls its own one CLIP
        kind = str(section.get("model_type", default=""))
        for tail in ("_vision_model", "_vision", "_text", "_moe"):
            kind = kind.removesuffix(tail)
        if kind in TOWERS:
            return TOWERS[kind](v, config)
    return None


def named(config: Config) -> Config | None:
    """The towers that original LLaVA configs only name: ``"mm_vision_tower": "openai/clip-vit-large-patch14-336"``"""
    label = str(config.get("mm_vision_tower", default=""))
    for word, known in _NAMED_TOWERS.items():
        if word in label:
            return Config(known, f"{config.where}, mm_vision_tower")
    return None


# ------------------------------------------------------------------ what all towers share


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


# ------------------------------------------------------------------ towers for images of one size


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


# ------------------------------------------------------------------ towers for images of any size


def _merger(width: int, merge: int, out: int) -> Part:
    merged = width * merge * merge
    return projection(
        "merger", {"merged": merged, "projector_hidden": merged, "out_hidden_size": out}, m=s.image_tokens
    )


def qwen2(v: Config, config: Config) -> Tower:
    """Qwen2-VL, whose ``hidden_size`` is the output's, and Qwen2.5-VL with its windows, gated MLP and RMS norms."""
    newer = v.get("embed_dim") is None
    width = v.size("hidden_size") if newer else v.size("embed_dim")
    out = v.size("out_hidden_size", default=text_width(config)) if newer else v.size("hidden_size")
    patch, merge = v.size("patch_size", default=14), v.size("spatial_merge_size", default=2)
    inner = v.size("intermediate_size") if newer else mlp_width(v, width)
    layers = tower_sizes(Config({**v.data, "hidden_size": width, "intermediate_size": inner}, v.where))
    windowed = newer and v.get("window_size") is not None
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v, v.size("temporal_patch_size", default=2)), bias=False),
        *encoder(
            **layers,
            gated=newer,
            norm_bias=not newer,
            rope=True,
            window=(v.size("window_size") // patch) ** 2 if windowed else 0,
            full=frozenset(i for i in v.items("fullatt_block_indexes") if isinstance(i, int)),
        ),
        projector({"hidden_size": width}, last_norm(not newer), _merger(width, merge, out)),
    )
    cell = (patch * merge) ** 2
    return blocks, Vision(patch, merge, "round", min_pixels=4 * cell, max_pixels=16384 * cell)


def qwen3(v: Config, config: Config) -> Tower:
    """Qwen3-VL and Qwen3.5: learned positions besides rotary ones, and DeepStack mergers that feed the first layers."""
    layers = tower_sizes(v)
    width, out = layers["hidden_size"], v.size("out_hidden_size", default=text_width(config))
    patch, merge = v.size("patch_size", default=16), v.size("spatial_merge_size", default=2)
    blocks = [
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v, v.size("temporal_patch_size", default=2)),
            positions=v.size("num_position_embeddings", default=2304),
        ),
        *encoder(**layers, rope=True),
        projector({"hidden_size": width}, last_norm(), _merger(width, merge, out)),
    ]
    deep = len(v.items("deepstack_visual_indexes"))
    if deep:
        first = norm("merger_norm", s.merged, m=s.image_tokens, bias=True, shared=0, inputs=())
        add = elementwise("add_to_layer", 2 * s.out_hidden_size, s.out_hidden_size, m=s.image_tokens)
        blocks.append(projector({}, first, _merger(width, merge, out), add, label="deepstack", times=deep))
    cell = (patch * merge) ** 2
    return tuple(blocks), Vision(patch, merge, "round", min_pixels=64 * cell, max_pixels=16384 * cell)


def gemma4(v: Config, config: Config) -> Tower:
    """Any aspect ratio within a budget of tokens; sandwich norms, a gated MLP, positions by row and by column."""
    layers, patch, merge = tower_sizes(v), v.size("patch_size"), v.size("pooling_kernel_size", default=3)
    width = layers["hidden_size"]
    heads = layers["num_attention_heads"]
    tokens = config.size("vision_soft_tokens_per_image", default=v.size("default_output_length", default=280))
    project = projector(
        {"hidden_size": width, "merge": merge},
        elementwise("pool", s.merge**2 * s.hidden_size, s.hidden_size, m=s.image_tokens, flops=s.merge**2, inputs=()),
        norm("standardize", s.hidden_size, m=s.image_tokens, bias=True, weightless=not v.flag("standardize"), shared=0),
        norm("embedding_norm", s.hidden_size, m=s.image_tokens, weightless=True, shared=0),
        projection(
            "projector", {"hidden_size": width, "out_hidden_size": text_width(config)}, m=s.image_tokens, bias=False
        ),
    )
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            bias=False,
            tables=2,
            positions=v.size("position_embedding_size", default=10240),
        ),
        *encoder(
            **layers,
            attention_width=heads * v.size("head_dim", default=max(1, width // heads)),
            gated=True,
            bias=v.flag("attention_bias"),
            mlp_bias=False,
            norm_bias=False,
            qk_norm=True,
            sandwich=True,
            rope=True,
        ),
        project,
    )
    return blocks, Vision(patch, merge, "budget", tokens=tokens)


def moonvit(v: Config, config: Config) -> Tower:
    """Kimi's MoonViT: native resolution, an interpolated position table; K3 drops the biases and widens attention."""
    layers, patch = tower_sizes(v), v.size("patch_size", default=14)
    kernel = v.items("merge_kernel_size") or [2, 2]
    if not isinstance(kernel[0], int) or kernel[0] < 1:
        raise BadFile(f"{v.where}: 'merge_kernel_size' must hold whole numbers, not {kernel!r}")
    merge, width = kernel[0], layers["hidden_size"]
    out = v.size("text_hidden_size", default=text_width(config))
    second = str(v.get("mm_projector_type", default="patchmerger")) == "patchmergerv2"
    layer_norm = str(v.get("norm_type", default="layernorm")) != "rmsnorm"
    merged = width * merge * merge
    join = projection(
        "projector",
        {"merged": merged, "projector_hidden": merged, "out_hidden_size": out},
        m=s.image_tokens,
        bias=not second,
    )
    extra: list[Part | Op] = (
        [join, norm("projector_norm", s.out_hidden_size, m=s.image_tokens, shared=0)]
        if second
        else [norm("projector_norm", s.hidden_size, m=s.patches, bias=True, shared=0), join]
    )
    places = v.size("init_pos_emb_height", default=64) * v.size("init_pos_emb_width", default=64)
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            positions=places,
            bias=v.flag("patch_embed_proj_bias", default=True),
        ),
        *encoder(
            **layers,
            attention_width=v.size("qkv_hidden_size", default=width),
            rope=True,
            norm_bias=layer_norm,
            bias=v.flag("attn_bias", default=True),
            mlp_bias=v.flag("linear_bias", default=True),
        ),
        projector({"hidden_size": width}, last_norm(layer_norm), *extra),
    )
    limit = 65536 if second else 16384  # patches of one image
    return blocks, Vision(patch, merge, "pad", side=512 * patch, max_pixels=limit * patch * patch)


def llama4(v: Config, config: Config) -> Tower:
    """Tiles of 336 × 336 pixels, each with a class token; a pixel shuffle joins 2 × 2 patches before the adapter."""
    layers, (patch, side, per_side) = tower_sizes(v), side_of(v)
    width = layers["hidden_size"]
    merge = max(1, round(1 / max(v.number("pixel_shuffle_ratio", default=0.5), 0.05)))
    adapter = {
        "merged": width * merge * merge,
        "projector_input_dim": v.size("projector_input_dim"),
        "projector_output_dim": v.size("projector_output_dim"),
        "out_hidden_size": text_width(config),
    }
    blocks = (
        patch_embed(
            hidden_size=width,
            patch_inputs=pixels(v),
            positions=per_side**2 + 1,
            bias=False,
            class_token=True,
            pre_norm=True,
        ),
        *encoder(**layers, rope=True, class_token=True),
        projector(
            {"hidden_size": width},
            last_norm(),
            projection("adapter", adapter, m=s.image_tokens, bias=v.flag("multi_modal_projector_bias")),
        ),
    )
    most = 16  # tiles, besides the one of the whole image
    grids = tuple((a, b) for a in range(1, most + 1) for b in range(1, most // a + 1))
    return blocks, Vision(patch, merge, "tiles", side, grids=grids)


def internvit(v: Config, config: Config) -> Tower:
    """InternVL: tiles of 448 × 448 pixels, each with a class token; a pixel shuffle joins 2 × 2 patches."""
    one = {key: v.get(key) for key in ("patch_size", "image_size")}  # a number, or one for each side
    sides = {key: value[0] if isinstance(value, list) and value else value for key, value in one.items()}
    v = Config({"patch_size": 14, "image_size": 448, **v.data, **sides}, v.where)
    layers, (patch, side, per_side) = tower_sizes(v), side_of(v)
    width, layer_norm = layers["hidden_size"], str(v.get("norm_type", default="layer_norm")) == "layer_norm"
    merge = max(1, round(1 / max(config.number("downsample_ratio", default=0.5), 0.05)))
    merged, out = width * merge * merge, text_width(config)
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v), positions=per_side**2 + 1, class_token=True),
        *encoder(
            **layers,
            bias=v.flag("qkv_bias", "attention_bias", default=True),
            qk_norm=v.flag("qk_normalization", "use_qk_norm"),
            norm_bias=layer_norm,
            class_token=True,
        ),
        projector(
            {"merged": merged},
            norm("projector_norm", s.merged, m=s.image_tokens, bias=True, shared=0),
            projection("mlp1", {"merged": merged, "projector_hidden": out, "out_hidden_size": out}, m=s.image_tokens),
        ),
    )
    most = config.size("max_dynamic_patch", default=12, most=1000)  # tiles, besides the one of the whole image
    grids = tuple((a, b) for a in range(1, most + 1) for b in range(1, most // a + 1))
    return blocks, Vision(patch, merge, "aspect", side, grids=grids)


def minimax(v: Config, config: Config) -> Tower:
    """MiniMax-M3: CLIP's layers with rotary positions and native resolution, and a second MLP that merges patches."""
    layers, patch = tower_sizes(v), v.size("patch_size", default=14)
    shrink = v.section("img_token_compression_config") or Config({}, v.where)
    merge, frames = shrink.size("spatial_merge_size", default=2), shrink.size("temporal_patch_size", default=2)
    width, out = layers["hidden_size"], text_width(config)
    inner = config.size("projector_hidden_size", default=out)
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v, frames), bias=False, pre_norm=True),
        *encoder(**layers, rope=True),
        projector(
            {},
            projection(
                "projector", {"hidden_size": width, "projector_hidden": inner, "out_hidden_size": out}, m=s.patches
            ),
            projection(
                "merger",
                {"merged": merge * merge * out, "projector_hidden": inner, "out_hidden_size": out},
                m=s.image_tokens,
            ),
        ),
    )
    side = v.size("image_size", default=2016)
    return blocks, Vision(patch, merge, "round", min_pixels=(patch * merge) ** 2, max_pixels=side * side)


def pixtral(v: Config, config: Config) -> Tower:
    """Pixtral: native resolution, rotary positions, gated MLPs; Mistral 3 merges 2 × 2 patches before the projector."""
    layers, patch = tower_sizes(v), v.size("patch_size", default=16)
    width, out = layers["hidden_size"], text_width(config)
    merge = config.size("spatial_merge_size", default=1)
    join: list[Part | Op] = []
    if merge > 1:
        widths = {"merged": width * merge * merge, "hidden_size": width}
        join = [last_norm(bias=False), projection("merger", widths, m=s.image_tokens, bias=False)]
    widths = {"hidden_size": width, "projector_hidden": out, "out_hidden_size": out}
    bias = config.flag("multimodal_projector_bias", default=merge == 1)
    blocks = (
        patch_embed(hidden_size=width, patch_inputs=pixels(v), bias=False, pre_norm=True, norm_bias=False),
        *encoder(**layers, gated=True, bias=False, mlp_bias=False, norm_bias=False, rope=True),
        projector({"hidden_size": width}, *join, projection("projector", widths, m=s.image_tokens, bias=bias)),
    )
    side = v.size("image_size", default=1024)
    return blocks, Vision(patch, merge, "pad", side=side, max_pixels=side * side)


TOWERS: dict[str, Callable[[Config, Config], Tower]] = {
    "qwen2_vl": qwen2,
    "qwen2_5_vl": qwen2,
    "qwen3_vl": qwen3,
    "qwen3_5": qwen3,
    "clip": clip,
    "siglip": clip,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "internvl": internvit,
    "internvl_chat": internvit,
    "kimi_vl": moonvit,
    "kimi_k25": moonvit,
    "kimi_k3": moonvit,
    "llama4": llama4,
    "minimax_m3_vl": minimax,
    "mistral3": pixtral,
    "pixtral": pixtral,
}
